from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.client.consume import rebalance
from rmq.client.consume.rebalance import Change, Strategy
from rmq.client.session.routes import select_by_key
from rmq.message import MessageQueue


def queue(text: str, topic: str = "TopicTest") -> MessageQueue:
    broker_name, _, number = text.rpartition(":")
    return MessageQueue(topic, broker_name, int(number))


def strategy_of(case: dict[str, Any]) -> Strategy:
    simple: dict[str, Strategy] = {
        "AVG": rebalance.averagely,
        "AVG_BY_CIRCLE": rebalance.averagely_by_circle,
        "CONSISTENT_HASH": rebalance.consistent_hash,
    }
    match case["strategy"]:
        case "MACHINE_ROOM":
            return rebalance.machine_room(case["consumer_idcs"])
        case "MACHINE_ROOM_NEARBY-AVG":
            return rebalance.machine_room_nearby(
                rebalance.averagely,
                lambda queue: queue.broker_name.partition("-")[0],
                lambda client: client.partition("-")[0],
            )
        case name:
            return simple[name]


def test_every_strategy_gives_what_java_gives(golden: pathlib.Path) -> None:
    cases = json.loads((golden / "queue_select.json").read_text())["combos"]
    assert len(cases) == 46
    for case in cases:
        queues = [queue(text) for text in case["queues"]]
        absent = case.get("current_cid_absent")
        expected = {absent: case["result"]} if absent else case["result"]
        for client, result in expected.items():
            got = strategy_of(case)(queues, case["cids"], client)
            assert got == [queue(text) for text in result], (case["strategy"], client)


def test_a_sharding_key_goes_where_java_sends_it(golden: pathlib.Path) -> None:
    for case in json.loads((golden / "queue_select.json").read_text())["producer_select_by_hash"]:
        queues = [MessageQueue("T", "b", number) for number in range(case["queues"])]
        assert select_by_key(queues, case["arg"]).queue_id == case["selected"], case


queues_of = st.sets(
    st.builds(MessageQueue, st.just("T"), st.sampled_from(["a", "b", "c"]), st.integers(0, 20)), max_size=40
)
clients_of = st.sets(st.text(st.sampled_from("abc@#1."), min_size=1, max_size=6), min_size=1, max_size=7)


@pytest.mark.parametrize(
    "strategy", [rebalance.averagely, rebalance.averagely_by_circle, rebalance.consistent_hash]
)
@given(queues=queues_of, clients=clients_of)
def test_every_queue_has_one_client(strategy: Strategy, queues: set[MessageQueue], clients: set[str]) -> None:
    ordered, members = sorted(queues), sorted(clients)
    shares = [strategy(ordered, members, client) for client in members]
    assert sorted(queue for share in shares for queue in share) == ordered
    assert strategy(ordered, members, "someone else") == []


@pytest.mark.parametrize("strategy", [rebalance.averagely, rebalance.averagely_by_circle])
@given(queues=queues_of, clients=clients_of)
def test_shares_differ_by_one_at_most(
    strategy: Strategy, queues: set[MessageQueue], clients: set[str]
) -> None:
    sizes = [len(strategy(sorted(queues), sorted(clients), client)) for client in clients]
    assert max(sizes) - min(sizes) <= 1


def test_by_config_gives_what_was_written_down() -> None:
    mine = [queue("a:3")]
    assert rebalance.by_config(mine)([queue("a:1")], ["x"], "y") == mine


def test_who_is_not_among_the_members_gets_nothing() -> None:
    nearby = rebalance.machine_room_nearby(rebalance.averagely, lambda queue: "R1", lambda client: "R1")
    assert nearby([queue("a:1")], ["c"], "another") == []
    assert rebalance.machine_room(["R1"])([queue("R1@a:1")], ["c"], "another") == []


def test_a_broker_without_a_room_is_an_error() -> None:
    nearby = rebalance.machine_room_nearby(rebalance.averagely, lambda queue: "", lambda client: "R1")
    with pytest.raises(ValueError, match="no machine room for MessageQueue"):
        nearby([queue("a:1")], ["c"], "c")


@given(held=queues_of, assigned=queues_of)
def test_the_difference_leads_from_one_assignment_to_the_other(
    held: set[MessageQueue], assigned: set[MessageQueue]
) -> None:
    change = rebalance.difference(held, assigned)
    assert (held | set(change.added)) - set(change.removed) == assigned
    assert not held & set(change.added)
    assert held >= set(change.removed)


def test_a_plan_sorts_what_came_in() -> None:
    queues = [queue("b:1"), queue("a:1"), queue("b:0"), queue("a:0")]
    got = rebalance.plan(rebalance.averagely, queues, ["y", "x", "y"], "x", held=[queue("b:1")])
    assert got == Change(added=[queue("a:0"), queue("a:1")], removed=[queue("b:1")])
