"""Operations on controllers, against controllers that answer from a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from rmq.controller.controller import Answer
from rmq.errors import ConnectFailed, ConnectionLost, NoPermission, RemoteProtocolError
from rmq.operate.controllers import (
    ELECTION_SECONDS,
    Controllers,
    NoLeadingController,
    Outcome,
    addresses_of,
    is_member,
    leases,
    members_text,
    state_of,
)
from rmq.operate.diagnosis.controllers import findings_of_controllers
from rmq.operate.diagnosis.facts import BrokerFacts
from rmq.protocol.codes import CONTROLLER_NOT_LEADER, CONTROLLER_STATUS, ResponseCode
from rmq.protocol.command import Command
from rmq.testing.cluster import Cluster
from tests.sim.real_brokers.broker_controllers import CONTROLLERS
from tests.sim.real_brokers.brokers import controlled_set


def state(address: str, **more: Any) -> dict[str, Any]:
    members = {name: name for name in ("a:1", "b:1")}
    return {"self": address, "members": members, "sets": [], "leaseMs": 3000} | more


def broker_set(epoch: int, master: int, *in_sync: int, dead: int = 0) -> dict[str, Any]:
    replicas = [
        {"number": number, "address": f"h{number}:1", "lives": number != dead, "reach": 100 * number}
        for number in (1, 2, 3)
    ]
    return {
        "cluster": "C",
        "name": "s",
        "epoch": epoch,
        "master": master,
        "inSync": list(in_sync),
        "replicas": replicas,
    }


@define
class Table:
    """Controllers that answer with given states and answers; `asked` has each request."""

    states: dict[str, dict[str, Any]]
    answers: list[Answer] = field(factory=list)
    asked: list[tuple[str, Mapping[str, Any]]] = field(factory=list)
    refusing: tuple[str, ...] = ()
    """Controllers that refuse the account."""

    async def call(self, address: str, request: Command) -> Command:
        if address in self.refusing:
            return request.reply(ResponseCode.NO_PERMISSION, "compare the clocks")
        if address not in self.states:
            raise ConnectFailed(address, OSError("nobody listens"))
        state = self.states[address]
        if request.code == CONTROLLER_STATUS:
            return request.reply(body=json.dumps(state).encode())
        self.asked.append((address, json.loads(request.body)))
        if not state.get("leading"):
            return request.reply(CONTROLLER_NOT_LEADER, header={"leader": state.get("leader", "")})
        return request.reply(body=msgspec.json.encode(self.answers.pop(0)))


async def test_all_controllers_are_asked_and_by_tls_where_the_first_is() -> None:
    table = Table({"tls://a:1": state("a:1", leading=True), "tls://b:1": state("b:1")})
    controllers = Controllers(["tls://a:1"], table.call)
    assert [one.address for one in await controllers.states()] == ["tls://a:1", "tls://b:1"]
    assert (await controllers.leading()).own_address == "a:1"
    plain = Controllers(["b:1"], Table({"b:1": state("b:1")}).call)
    assert [(one.address, bool(one.error)) for one in await plain.states()] == [("b:1", False), ("a:1", True)]
    with pytest.raises(NoLeadingController, match="b:1: it does not lead; a:1: "):
        await plain.leading()


async def test_a_scheme_of_one_address_holds_for_all() -> None:
    answers = {f"tls://{one}:1": state(f"{one}:1", leading=one == "c") for one in "abc"}
    table = Table(answers, [Answer(controllers=("a:1",))])
    for given in (["tls://a:1", "b:1", "c:1"], ["a:1", "b:1", "tls://c:1"]):
        states = await Controllers(given, table.call).states()
        assert [(one.address, one.error) for one in states] == [(f"tls://{one}:1", "") for one in "abc"]
    assert (await Controllers(["tls://a:1", "b:1", "c:1"], table.call).drop("b:1")).is_done


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_plain_connection_that_is_closed_hints_at_tls(is_sent: bool) -> None:
    async def closed(address: str, request: Command) -> Command:
        if is_sent:
            raise ConnectionLost(address, "the peer closed it")
        raise ConnectFailed(address, "closed by the peer", was_open=True)

    (one,) = await Controllers(["a:1"], closed).states()
    assert "if it uses TLS, write tls:// before its address" in one.error
    (one,) = await Controllers(["tls://a:1"], closed).states()
    assert "TLS?" not in one.error
    with pytest.raises(NoLeadingController, match="if it uses TLS"):
        await Controllers(["a:1"], closed).drop("b:1")


async def test_brokers_name_the_controllers(autojump_clock: MockClock) -> None:
    async with controlled_set(2) as (found, client):
        await found.begin(client)
        assert await addresses_of(client.admin) == CONTROLLERS
        outcome = await Controllers(await addresses_of(client.admin), client.admin.call).hand_over("s")
        assert outcome.is_done, outcome.text
        await found.kill(found.nodes[0])
        assert await addresses_of(client.admin) == CONTROLLERS
    async with Cluster("a") as cluster, cluster.connect() as client:
        assert await addresses_of(client.admin) == []


def test_values_of_states() -> None:
    states = [state_of("a:1", state("a:1")), state_of("b:1", state("b:1", leaseMs=9000, stopped="entry 7"))]
    assert leases(states) == {3000: "a:1", 9000: "b:1"}
    assert "cannot read entry 7" in states[1].problem
    assert is_member(states[0], None)
    assert not is_member(state_of("c:1", {"self": "c:1"}), states[0])
    assert "2 tolerate no more failures than 1" in members_text(["a:1", "b:1"])
    with pytest.raises(RemoteProtocolError):
        state_of("a:1", {"sets": [{"name": "s"}]})


async def test_a_member_that_has_lost_its_journal_is_not_added_before_it_is_dropped() -> None:
    table = Table({"a:1": state("a:1", leading=True), "b:1": state("b:1", blank=True, committed=0)})
    outcome = await Controllers(["a:1"], table.call).add("b:1")
    assert not outcome.is_done
    assert "has lost its journal: `rmq controller drop b:1` first" in outcome.text


@pytest.mark.parametrize(
    ("new", "text"),
    [
        (None, "c:1 does not answer"),
        (state("other:1"), "c:1 knows itself as other:1"),
        (state("c:1", committed=9, leader="x:1"), "c:1 has a journal, of the controllers a:1, b:1"),
    ],
)
async def test_a_controller_that_does_not_fit_is_not_added(new: dict[str, Any] | None, text: str) -> None:
    table = Table({"a:1": state("a:1", leading=True)} | ({} if new is None else {"c:1": new}))
    outcome = await Controllers(["a:1"], table.call).add("c:1")
    assert (outcome.is_done, table.asked) == (False, [])
    assert text in outcome.text


async def test_a_controller_is_added_once_it_is_a_member(autojump_clock: MockClock) -> None:
    answers = [Answer(controllers=("a:1",)), Answer(controllers=("a:1", "c:1", "b:1"))]
    table = Table({"a:1": state("a:1", leading=True), "c:1": state("c:1")}, answers)
    outcome = await Controllers(["a:1"], table.call).add("c:1")
    assert outcome.is_done
    assert outcome.text == "c:1 is added; the controllers are a:1, c:1, b:1"
    late = Table(
        {"a:1": state("a:1", leading=True), "c:1": state("c:1")}, [Answer(controllers=("a:1",))] * 99
    )
    outcome = await Controllers(["a:1"], late.call).add("c:1", seconds=1)
    assert not outcome.is_done
    assert "no member yet after 1 s" in outcome.text


@pytest.mark.parametrize("added", ["c:1", "tls://c:1"])
async def test_a_controller_is_added_and_dropped_by_the_name_that_the_others_use_under_tls(
    autojump_clock: MockClock, added: str
) -> None:
    answers = [Answer(controllers=("a:1", "c:1")), Answer(controllers=("a:1",))]
    states = {"tls://a:1": state("a:1", leading=True), "tls://c:1": state("c:1")}
    table = Table(states, answers)
    controllers = Controllers(["tls://a:1"], table.call)
    assert (await controllers.add(added)).text.startswith("c:1 is added")
    assert (await controllers.drop(added)).text.startswith("c:1 is dropped")
    assert all({"address": "c:1"} in question.values() for _, question in table.asked)


async def test_a_hand_over_takes_the_longest_log_in_sync_that_lives(autojump_clock: MockClock) -> None:
    before = state("a:1", leading=True, sets=[broker_set(4, 1, 1, 2, 3, dead=3)])
    table = Table({"a:1": before}, [Answer()])

    class Elected(Controllers):
        async def _asked(self, question: Any) -> Answer:
            table.states["a:1"] = before | {"sets": [broker_set(5, 2, 1, 2)]}
            return await super()._asked(question)

    outcome = await Elected(["a:1"], table.call).hand_over("s")
    assert outcome.is_done
    assert outcome.text.startswith("s 2 is the master in epoch 5, after ")
    ((_, asked),) = table.asked
    assert asked["kind"] == "Want"
    assert (asked["question"]["name"], asked["question"]["number"]) == ("s", 2)


async def test_a_hand_over_that_cannot_be_says_why(autojump_clock: MockClock) -> None:
    table = Table({"a:1": state("a:1", leading=True, sets=[broker_set(4, 1, 1)])}, [Answer(), Answer("no")])
    controllers = Controllers(["a:1"], table.call)
    assert "they know: s" in (await controllers.hand_over("t")).text
    assert "no other replica of s is in sync" in (await controllers.hand_over("s")).text
    assert (await controllers.hand_over("s", 1)).is_done
    assert "is not the master after 1 s" in (await controllers.hand_over("s", 2, seconds=1)).text
    assert (await controllers.hand_over("s", 2)).text == "no"
    away = await Controllers(["z:1"], table.call).hand_over("s")
    assert not away.is_done
    assert "no controller leads" in away.text


async def test_a_change_waits_for_an_election_that_is_going_on(autojump_clock: MockClock) -> None:
    """The case after a kill of the leader; if a majority does not answer, no election follows."""
    table = Table({"a:1": state("a:1"), "b:1": state("b:1")}, [Answer(controllers=("a:1",))])
    async with trio.open_nursery() as nursery:
        outcomes: list[Outcome] = []

        async def drop() -> None:
            outcomes.append(await Controllers(["a:1", "b:1"], table.call).drop("c:1"))

        nursery.start_soon(drop)
        await trio.sleep(5)
        assert outcomes == []
        table.states["b:1"]["leading"] = True
    assert outcomes[0].is_done
    table.states["b:1"]["leading"] = False
    began = trio.current_time()
    with pytest.raises(NoLeadingController):
        await Controllers(["a:1", "b:1"], table.call).drop("c:1")
    assert trio.current_time() - began == pytest.approx(ELECTION_SECONDS, abs=1)
    del table.states["b:1"]
    began = trio.current_time()
    with pytest.raises(NoLeadingController):
        await Controllers(["a:1", "b:1"], table.call).drop("c:1")
    assert trio.current_time() == began


async def test_the_leader_that_another_names_is_asked_next() -> None:
    table = Table(
        {"b:1": state("b:1", leader="a:1"), "a:1": state("a:1", leading=True)}, [Answer(), Answer("no")]
    )
    controllers = Controllers(["b:1"], table.call)
    assert (await controllers.remove("s", 3)).is_done
    assert [address for address, _ in table.asked] == ["b:1", "a:1"]
    assert (await controllers.elect("s", 2)).text == "no"
    lost = Controllers(["b:1"], Table({"b:1": state("b:1")}).call)
    with pytest.raises(NoLeadingController):
        await lost.drop("a:1")


@pytest.mark.parametrize("is_registered", [True, False])
def test_a_replica_of_which_a_new_leader_has_not_heard_is_wrong_if_it_is_registered_nowhere(
    is_registered: bool,
) -> None:
    """The leader does not know yet whether it lives. After a stop of the replica that was said to be copying
    for as long as leaders changed."""
    table = broker_set(2, 1, 1, 2)
    table["replicas"][2] |= {"lives": None, "reach": None}
    leading = state_of("a:1", state("a:1", leading=True, sets=[table]))
    registered = (1, 2, 3) if is_registered else (1, 2)
    brokers = [BrokerFacts("C", "s", number - 1, f"h{number}:1") for number in registered]
    (found,) = (one for one in findings_of_controllers([leading], brokers) if one.where == "broker s")
    assert found.level == ("note" if is_registered else "wrong")
    assert ("is not in sync" in found.what) == is_registered
    assert ("no name server knows it" in found.what) != is_registered


def test_a_replica_whose_address_another_one_has_is_left_over_before_a_new_leader_has_judged_it() -> None:
    table = broker_set(2, 1, 1, 3)
    table["replicas"][1] |= {"lives": None, "reach": None, "address": "h3:1"}
    leading = state_of("a:1", state("a:1", leading=True, sets=[table]))
    brokers = [BrokerFacts("C", "s", number - 1, f"h{number}:1") for number in (1, 3)]
    (found,) = (one for one in findings_of_controllers([leading], brokers) if one.where == "broker s")
    assert (found.level, found.what) == ("wrong", "replica 2 is left over: its address h3:1 is replica 3 now")


@pytest.mark.parametrize(
    ("broker", "words"),
    [
        (
            BrokerFacts("C", "s", 2, "h2:1", error="the request was signed 86400 s ago"),
            "runs, but the controllers do not hear it: the request was signed 86400 s ago",
        ),
        (
            BrokerFacts(
                *("C", "s", 2, "h2:1"),
                runtime={
                    "bootTimestamp": "7200000",
                    "runtime": "[ 0 days, 1 hours, 0 minutes, 0 seconds ]",
                },
                asked_at=3_600_000,
            ),
            "runs, but the controllers do not hear it: its clock is 7200 s ahead of this machine's",
        ),
    ],
    ids=["refused", "answers"],
)
def test_a_replica_that_answers_is_not_called_dead(broker: BrokerFacts, words: str) -> None:
    """One with a wrong clock, whose signatures controllers refuse. An operator who believes that it is gone
    for good would remove it."""
    table = broker_set(2, 1, 1, 2)
    table["replicas"][1] |= {"lives": False}
    leading = state_of("a:1", state("a:1", leading=True, sets=[table]))
    found = [one for one in findings_of_controllers([leading], [], [broker]) if "h2:1" in one.what]
    assert [(one.level, one.what) for one in found] == [("wrong", f"replica 2 at h2:1 {words}")]
    assert "compare the clocks" in found[0].what_to_do
    (dead,) = (one for one in findings_of_controllers([leading]) if "h2:1" in one.what)
    assert dead.what == "replica 2 at h2:1 is dead"


async def test_a_controller_that_alone_refuses_the_account_is_shown_with_its_reason() -> None:
    """The clock of this controller is wrong: it takes every signature for an old signature."""

    table = Table({"a:1": state("a:1", leading=True), "b:1": state("b:1", leader="a:1")}, refusing=("b:1",))
    seen = await Controllers(["b:1", "a:1"], table.call).states()
    assert [(one.address, one.error) for one in seen] == [
        ("b:1", "refuses this account: compare the clocks"),
        ("a:1", ""),
    ]
    with pytest.raises(NoPermission, match="compare the clocks"):
        await Controllers(["b:1"], Table({}, refusing=("b:1",)).call).states()
