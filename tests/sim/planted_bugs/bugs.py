"""Bugs that are planted in the controllers, each of which the simulation must catch.

A bug is a context manager: within it the code is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import msgspec
from attrs import evolve

from rmq.controller.consensus import journal, raft
from rmq.controller.consensus.journal import COMMAND, Entry, Frame, Journal
from rmq.controller.consensus.messages import Message
from rmq.controller.consensus.raft import Raft, Role
from rmq.testing.disk import MemoryDisk
from tests.sim.controllers import Member

Bug = Callable[[], Any]
BUGS: dict[str, Bug] = {}


def planted(*changes: tuple[Any, str, Any]) -> Bug:
    """A bug made of other attributes of classes and modules."""

    @contextmanager
    def bug() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, wrong in changes:
                stack.enter_context(mock.patch.object(owner, name, wrong))
            yield

    return bug


def before(owner: Any, name: str, change: Callable[..., Any]) -> Bug:
    """A bug that does `change` before the right thing."""
    right = getattr(owner, name)

    def wrong(self: Any, *arguments: Any, **rest: Any) -> Any:
        change(self, *arguments)
        return right(self, *arguments, **rest)

    return planted((owner, name, wrong))


def _unsynced(self: Journal, frame: Frame) -> None:
    data = self._encode(frame)
    assert self._segment is not None
    if self._position + len(data) > self._segment.size:
        self._next_file()
        return
    self._segment.write(self._position, data)
    self._position += len(data)


BUGS["answers before the sync"] = planted((Journal, "_write", _unsynced))


def _two_votes(self: Raft, message: Message, now: float) -> None:
    if message.term == self.term:
        self._journal.vote = ""


BUGS["votes twice in a term"] = before(Raft, "_on_request_vote", _two_votes)
BUGS["votes for a member that lacks entries"] = planted((Raft, "_is_up_to_date", lambda self, message: True))
BUGS["votes although the leader was heard"] = planted((Raft, "_in_lease", lambda self, now: False))


def _forgetful(self: Raft, *arguments: Any, now: float, **rest: Any) -> None:
    _right_init(self, *arguments, now=now, **rest)
    self._heard_at, self._election_at = -math.inf, now + 0.05


_right_init = Raft.__init__
BUGS["votes right after a restart"] = planted((Raft, "__init__", _forgetful))


def _lease_from_answer(self: Raft, message: Message, now: float) -> None:
    _right_appended(self, evolve(message, sent_at=now), now)


_right_appended = Raft._on_append_entries_resp
BUGS["lease from the answer, not from the question"] = planted(
    (Raft, "_on_append_entries_resp", _lease_from_answer)
)


def _long_lease(self: Raft, now: float) -> float:
    return _right_lease(self, now) + (1.0 if self.role is Role.LEADER else 0.0)


_right_lease = Raft.lease_until
BUGS["a lease longer than the silence of voters"] = planted((Raft, "lease_until", _long_lease))
BUGS["no lease at all"] = planted(
    (Raft, "lease_until", lambda self, now: math.inf if self.role is Role.LEADER else -math.inf)
)


def _half(self: Raft) -> int:
    return max(1, len(self.members) // 2)


BUGS["half of the members count as a majority"] = planted((Raft, "_quorum", _half))


def _early_read(self: Raft, now: float) -> bool:
    return self.role is Role.LEADER and now < self.lease_until(now)


BUGS["a new leader answers before its own entry is committed"] = planted((Raft, "is_leading", _early_read))


def _no_check(self: Raft, message: Message, now: float) -> None:
    journal = self._journal
    if journal.base <= message.index <= journal.last:
        message = evolve(message, log_term=journal.term_at(message.index))
    _right_append(self, message, now)


_right_append = Raft._on_append_entries
BUGS["takes entries without comparing the entry before them"] = planted(
    (Raft, "_on_append_entries", _no_check)
)


def _keeps_tail(self: Journal, first: int, entries: list[Entry]) -> None:
    _right_journal_append(self, self.last + 1, entries[self.last + 1 - first :])


_right_journal_append = Journal.append
BUGS["keeps entries that the leader does not have"] = planted((Journal, "append", _keeps_tail))


def _commit_all(self: Raft, message: Message, now: float) -> None:
    _right_append(self, message, now)
    if message.term == self.term:
        self._commit_to(min(message.commit, self._journal.last))


BUGS["commits entries that the message did not match"] = planted((Raft, "_on_append_entries", _commit_all))


def _commit_last(self: Raft, message: Message, now: float) -> None:
    _right_append(self, message, now)
    if self._messages and msgspec.msgpack.decode(self._messages[-1][1], type=Message).granted:
        self._commit_to(min(message.commit, self._journal.last))


BUGS["commits up to the end of the log, not of the match"] = planted(
    (Raft, "_on_append_entries", _commit_last)
)


def _answer_last(self: Raft, message: Message, *, index: int, granted: bool = False) -> None:
    is_append = granted and message.kind == "append_entries"
    _right_answer(self, message, index=self._journal.last if is_append else index, granted=granted)


_right_answer = Raft._answer
BUGS["confirms the end of the log, not of the match"] = planted((Raft, "_answer", _answer_last))


def _one_phase(self: Raft, data: bytes, now: float) -> tuple[int, int]:
    found = _right_propose(self, data, now)
    if self._journal.last > self.commit:
        self._commit_to(self._journal.last)
    return found


_right_propose = Raft.propose
BUGS["commits an entry before other members have it"] = planted((Raft, "propose", _one_phase))


def _no_restore(self: Raft, message: Message, now: float) -> None:
    machine, self._machine = self._machine, mock.Mock(wraps=self._machine)
    self._machine.restore = lambda data: None
    try:
        _right_install(self, message, now)
    finally:
        self._machine = machine


_right_install = Raft._on_install_snapshot
BUGS["takes a snapshot's place but not its state"] = planted((Raft, "_on_install_snapshot", _no_restore))


def _twice(self: Raft, index: int) -> None:
    first = self.commit
    _right_commit(self, index)
    if first < self.commit and self._chance.random() < 0.01:
        entry = self._journal.entry(self.commit) if self.commit > self._journal.base else None
        if entry is not None and entry.kind == COMMAND:
            self._machine.apply(entry.data)


_right_commit = Raft._commit_to
BUGS["applies an entry twice"] = planted((Raft, "_commit_to", _twice))
BUGS["takes torn frames for good frames"] = planted((journal, "_crc", lambda sequence, data: 0))


def _removes_first(self: Journal) -> None:
    self._disk.remove(self._path(self._number))
    _right_next_file(self)


_right_next_file = Journal._next_file
BUGS["removes the old file before the new file is synced"] = planted((Journal, "_next_file", _removes_first))


def _many_changes(self: Raft) -> None:
    if self.role is not Role.LEADER:
        raise raft.NotLeader("")


BUGS["several changes of members at a time, before an entry of its own"] = planted(
    (Raft, "_check_change", _many_changes),
    (Raft, "_promote", lambda self, member, now: _promote_now(self, member, now)),
)


def _promote_now(self: Raft, member: str, now: float) -> None:
    for name, address in list(self._learners.items()):
        del self._learners[name]
        self._propose(journal.members_entry(self.term, {**self.members, name: address}), now)


def _open_change(self: Raft) -> None:
    if self.role is not Role.LEADER:
        raise raft.NotLeader("")
    if self._first > self.commit:
        raise raft.ChangeUnderWay("")


BUGS["a second change of members while a change is open"] = planted((Raft, "_check_change", _open_change))


def _promote_while_open(self: Raft, member: str, now: float) -> None:
    address = self._learners.get(member)
    if address is not None and self._match_index[member] >= self.commit:
        del self._learners[member]
        self._propose(journal.members_entry(self.term, {**self.members, member: address}), now)


BUGS["a learner is promoted while another change is open"] = planted((Raft, "_promote", _promote_while_open))


def _promote_early(self: Raft, member: str, now: float) -> None:
    address = self._learners.get(member)
    if address is not None and self._journal.members()[0] <= self.commit:
        del self._learners[member]
        self._propose(journal.members_entry(self.term, {**self.members, member: address}), now)


BUGS["a learner is promoted before it has the log"] = planted((Raft, "_promote", _promote_early))


_right_remove = Raft.remove


def _remove_for_good(self: Raft, member: str, now: float) -> tuple[int, int] | None:
    members, place = self.members, _right_remove(self, member, now)
    kept = self._journal.snapshot
    if members is kept.members:
        rest = {one: address for one, address in members.items() if one != member}
        self._journal.snapshot = evolve(kept, members=rest)
    return place


BUGS["a removed member leaves the snapshot at once"] = planted((Raft, "remove", _remove_for_good))

BUGS["the disk does not sync"] = planted((MemoryDisk, "sync", lambda self, path: None))

BUGS["lease by the wall clock"] = planted(
    (Member, "clock", lambda self, now: self.offset + self.rate * now + self.jump)
)

CAUGHT_BY = {
    "answers before the sync": 4,
    "votes twice in a term": 21,
    "votes for a member that lacks entries": 2,
    "votes although the leader was heard": 56,
    "votes right after a restart": 106,
    "lease from the answer, not from the question": 130,
    "a lease longer than the silence of voters": 20,
    "no lease at all": 20,
    "half of the members count as a majority": 0,
    "a new leader answers before its own entry is committed": 12,
    "takes entries without comparing the entry before them": 9,
    "keeps entries that the leader does not have": 1,
    "commits entries that the message did not match": 26,
    "commits up to the end of the log, not of the match": 800076,
    "confirms the end of the log, not of the match": 800532,
    "commits an entry before other members have it": 36,
    "takes a snapshot's place but not its state": 8,
    "applies an entry twice": 0,
    "takes torn frames for good frames": 118,
    "removes the old file before the new file is synced": 0,
    "several changes of members at a time, before an entry of its own": 64,
    "a second change of members while a change is open": 2,
    "a learner is promoted while another change is open": 309,
    "a learner is promoted before it has the log": 2,
    "a removed member leaves the snapshot at once": 113,
    "the disk does not sync": 4,
    "lease by the wall clock": 1,
}
"""The first seed that shows a bug."""
