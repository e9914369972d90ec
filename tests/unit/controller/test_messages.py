"""Messages that no controller sends: numbers without sense, answers to what was never asked."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rmq.controller.messages import Message
from rmq.errors import RemoteProtocolError

from .test_raft import Group, others, tell

NAMES = ("n0", "n1", "n2")


@pytest.mark.parametrize(
    "kind", ["ask", "vote", "asked", "voted", "append", "install", "appended", "recalled"]
)
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
    answer = Message("appended", other.me, other.me, leader.term, sent_at=group.now + 1000, granted=True)
    with pytest.raises(RemoteProtocolError, match="what was never sent"):
        tell(leader, answer, group.now)
    assert leader.lease_until(group.now) == until


def test_a_term_far_ahead_can_still_be_followed() -> None:
    """A stranger costs an election, and no more."""
    group = Group(*NAMES)
    leader = group.leader()
    tell(leader, Message("appended", "n9", "n9", leader.term + 2**31), group.now)
    assert group.leader().term > 2**31
