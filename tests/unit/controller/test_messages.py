"""Messages that no controller sends: numbers without sense, answers to what was never asked."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from attrs import evolve

from rmq.controller.consensus.messages import EARLIER_KINDS, LATER_KINDS, Message, decode
from rmq.errors import RemoteProtocolError
from tests.unit.controller.groups import Group, others, tell

NAMES = ("n0", "n1", "n2")


@pytest.mark.parametrize("kind", [*EARLIER_KINDS, *EARLIER_KINDS.values(), "recalled"])
@pytest.mark.parametrize(
    "numbers",
    [
        {"term": 2**64 - 1},
        {"term": 2**63},
        {"term": 2**40},
        {"term": -1},
        {"index": 2**64 - 1},
        {"commit": 2**63},
        {"log_term": 2**63},
        {"index": -1},
        {"sent_at": math.inf},
        {"sent_at": math.nan},
    ],
    ids=str,
)
def test_numbers_that_no_member_has_are_refused(kind: str, numbers: dict[str, Any]) -> None:
    """A term of 2**64 - 1 in one message, and no term could ever be greater: nobody led again."""
    group = Group(*NAMES)
    leader = group.leader()
    before = leader.term
    message = Message(kind, "n1", "n1", **{"term": before, **numbers})
    for raft in group.rafts.values():
        if raft.me != "n1":
            with pytest.raises(RemoteProtocolError):
                tell(raft, message, group.now)
    assert leader.term == before
    assert group.leader().is_leading(group.now)


def test_an_answer_to_what_was_never_sent_gives_no_lease() -> None:
    group = Group(*NAMES)
    leader = group.leader()
    other, *_ = others(group, leader)
    until = leader.lease_until(group.now)
    answer = Message(
        "append_entries_resp", other.me, other.me, leader.term, sent_at=group.now + 1000, granted=True
    )
    with pytest.raises(RemoteProtocolError, match="what was never sent"):
        tell(leader, answer, group.now)
    assert leader.lease_until(group.now) == until


def test_a_term_far_ahead_can_still_be_followed() -> None:
    """A stranger costs an election, and no more."""
    group = Group(*NAMES)
    leader = group.leader()
    tell(leader, Message("append_entries_resp", "n9", "n9", leader.term + 2**31), group.now)
    assert group.leader().term > 2**31


class Mixed(Group):
    """A group in which the members `earlier` run a version that knows the earlier kinds of messages only."""

    earlier: tuple[str, ...] = ()

    def deliver(self, rounds: int = 50) -> None:
        for _ in range(rounds):
            sent = [(name, *one) for name in self.up() for one in self.rafts[name].take_messages()]
            for sender, to, data in sent:
                message = decode(data)
                if sender in self.earlier:
                    message = evolve(message, kind=LATER_KINDS.get(message.kind, message.kind))
                if to in self.earlier and message.kind in LATER_KINDS:
                    continue  # it is refused as of an unknown kind
                if to in self.earlier:
                    message = evolve(message, kind=EARLIER_KINDS.get(message.kind, message.kind))
                if to in self.up():
                    self.rafts[to].receive(msgspec.msgpack.encode(message), self.now)
            if not sent:
                return


@pytest.mark.parametrize("earlier", [("n0",), ("n0", "n1"), ("n2",)], ids=str)
@pytest.mark.parametrize("down", ["", "n0", "n2"])
def test_members_of_the_version_before_and_of_this_one_elect_and_agree(
    earlier: tuple[str, ...], down: str
) -> None:
    """Controllers are upgraded one at a time, and each may fail meanwhile."""
    group = Mixed(*NAMES)
    group.earlier, group.down = earlier, {down}
    group.run(5.0)
    leader = group.leader()
    group.propose(leader, 3)
    group.run(1.0)
    assert {group.rafts[name].commit for name in group.up()} == {leader.commit}
    assert {group.machines[name].snapshot() for name in group.up()} == {group.machines[leader.me].snapshot()}

    group.earlier = ()  # the rest is upgraded
    group.down = {leader.me}
    assert group.leader().term > leader.term
