"""The cost of a heartbeat in groups of any size, counted, and what it finds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.broker.membership.members import Member
from rmq.protocol.bodies import GetConsumerListByGroupResponseBody, HeartbeatData
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import GetConsumerListByGroupRequestHeader
from tests.unit.broker.membership.heartbeats import beat, consumer

from ..rig import Rig, Wire


def lines_run(call: Callable[[], object]) -> int:
    """The lines of Python that a call runs."""
    count = 0

    def see(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return see

    before = sys.gettrace()
    sys.settrace(see)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def heartbeat(client_id: str, wanted: str = "*") -> Command:
    body = HeartbeatData(client_id, consumer_data_set=[consumer("g", T=wanted)]).to_json()
    return Command.request(RequestCode.HEART_BEAT, None, body)


def group_of(size: int, ids: Callable[[int], str], **settings: Any) -> tuple[Rig, list[Wire]]:
    rig, lines = Rig(**settings), [Wire(f"h:{number}") for number in range(size)]
    for _ in range(2):
        for number, line in enumerate(lines):
            rig.ask(heartbeat(ids(number)), wire=line)
            rig.let_pass(1)
    rig.let_pass(1_000)
    return rig, lines


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize(
    ("ids", "wanted"),
    [("c{}".format, "*"), ("c{}".format, "a"), ("c".format, "*")],
    ids=["agree", "differ", "same id"],
)
def test_a_heartbeat_costs_the_same_in_groups_of_any_size(
    ids: Callable[[int], str], wanted: str, at: int, rejects: bool
) -> None:
    costs = []
    for size in (10, 300):
        rig, lines = group_of(size, ids, reject_subscription_conflicts=rejects and ids(0) != ids(1))
        number = range(size)[at]
        again = partial(rig.ask, heartbeat(ids(number), wanted), wire=lines[number])
        again()
        rig.let_pass(1_000)
        costs.append(lines_run(again))
    assert costs[0] == costs[1]


def test_the_list_of_clients_is_made_once_for_each_change_of_it() -> None:
    rig, lines = group_of(100, "c{}".format)
    asked = Command.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequestHeader("g"))

    def listed() -> list[str]:
        body = rig.one(asked, wire=Wire()).body
        return GetConsumerListByGroupResponseBody.from_json(body).consumer_id_list

    assert listed() == [f"c{number}" for number in range(100)]
    first = rig.one(asked, wire=Wire()).body
    rig.ask(heartbeat("c7", "a"), wire=lines[7])
    assert rig.clients.consumer_group("g").ids_text is rig.clients.consumer_group("g").ids_text  # type: ignore[union-attr]
    assert rig.one(asked, wire=Wire()).body == first
    rig.clients.on_close(lines[0])
    assert listed()[0] == "c1"
    rig.ask(heartbeat("new"), wire=lines[1])
    assert listed() == [*(f"c{number}" for number in range(2, 100)), "new"]


def differs(members: Iterable[Member], one: Member) -> bool:
    return any(other.terms != one.terms for other in members)


def is_twice(members: Iterable[Member], one: Member) -> bool:
    for other in members:
        if other is not one and other.client_id == one.client_id:
            older, newer = sorted((other, one), key=lambda member: member.since_ms)
            if older.heard_ms > newer.since_ms:
                return True
    return False


STEP = st.tuples(
    st.integers(0, 4), st.sampled_from(["c1", "c2", ""]), st.sampled_from("ab"), st.integers(0, 2)
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=30))
def test_what_is_found_is_what_a_look_at_all_members_finds(steps: list[tuple[int, str, str, int]]) -> None:
    """Members come, come again under another id or with other subscriptions, and go (without an id)."""
    rig, lines = Rig(), [Wire(f"h:{number}") for number in range(5)]
    for number, client_id, wanted, pause in steps:
        rig.let_pass(pause)
        line = lines[number]
        if not client_id:
            rig.clients.on_close(line)
            continue
        beat(rig, line, client_id, consumer("g", T=wanted), now=rig.now_ms)
        group = rig.clients.consumer_group("g")
        assert group is not None
        member, everybody = group.members[line], list(group.members.values())
        text = rig.clients.conflicts.look(group, member)
        assert ("subscribe differently" in text) == differs(everybody, member)
        assert ("used by two clients" in text) == is_twice(everybody, member)
        assert set(group.client_ids) == {one.client_id for one in everybody}
    rig.let_pass(1)
    for line in lines:
        rig.clients.on_close(line)
    assert rig.clients.consumer_group("g") is None
