"""The ledger: what senders were told, at which level, and so what must be found after which accident. Pure.

A message is written down when it is sent, with where and when it is to be seen. Its acknowledgement brings
promises: by which machine it is kept, and whether that copy survives a kill (`WRITTEN`) or a power cut
(`SYNCED`) of the machine. Accidents take promises away, and nothing else does: what a machine has promised it
must hold by itself, whatever other machines have. `complaints` compares a machine's queues, as a consumer
reads them, with all that:

- what is promised is there, in its queue, and where its sender was told;
- nothing is there that nobody sent, that was refused, rolled back, or is not due or committed yet;
- nothing is there twice, but what was under way when an accident came: delayed messages that were due, and
  transactions that ended, within `RECENT_MS` before it or later;
- the offsets of a queue have no gaps.

Times are ms of the simulated wall clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final

from attrs import define, field

Queue = tuple[str, int]
"""Topic and queue id; as long as its sender was not told where a message is, -1: any."""
Found = Mapping[Queue, Sequence[tuple[int, bytes]]]
"""What a consumer reads of each queue: (queue offset, body), in order."""


LATE_MS: Final = 2_000
"""How late a delayed message may come."""
RECENT_MS: Final = 10_000
"""What is delivered so long before an accident is known to be delivered after it."""


class Promise(IntEnum):
    """The accidents that one machine's copy of a message survives."""

    WRITTEN = 1
    """A kill of the broker."""
    SYNCED = 2
    """A power cut of its machine."""


class Lost(AssertionError):
    """A difference between the found and the promised messages."""


@define(eq=False)
class Sent:
    """One message. `body` names it; `queue` is where it is to be seen, at `due_ms` and not before."""

    body: bytes
    queue: Queue
    due_ms: int = 0
    is_half: bool = False
    """Part of a transaction: to be seen once that is committed, and never when it is rolled back."""
    offset: int | None = None
    """Its queue offset, if its sender was told one that is that of `queue`."""
    promises: dict[str, Promise] = field(factory=dict)
    """By machine."""
    is_refused: bool = False
    committing: bool = False
    """A commit was sent: it may be seen."""
    commit_promises: dict[str, Promise] = field(factory=dict)
    committed_ms: int | None = None
    """When a commit was answered."""
    rolling_back: bool = False
    """A rollback was sent: it may have no other end any more."""
    is_rolled_back: bool = False
    """A rollback was answered: it must not be seen."""
    may_repeat: bool = False
    handle: tuple[int, int, str] = (-1, -1, "")
    """Of a half message: its physical offset, queue offset and unique key."""
    may_be_missing: bool = False
    """Deleted or expired: the queue may have it or not."""

    @property
    def kind(self) -> str:
        """For people."""
        return "half" if self.is_half else "delayed" if self.due_ms else "plain"

    def needs(self, machine: str, least: Promise, now_ms: int, *, is_caught_up: bool = True) -> bool:
        """True if `machine` must show the message after an accident that leaves the promises of `least`; see
        `complaints`."""
        if self.due_ms and not is_caught_up:
            return False
        promised = self.commit_promises if self.is_half else self.promises
        late_ms = self.due_ms and self.due_ms + LATE_MS
        return promised.get(machine, 0) >= least and late_ms <= now_ms and not self.may_be_missing

    def may_be_in(self, queue: Queue) -> bool:
        """True if `queue` is one of the queues where the message may be. The topic of a delayed message
        without an acknowledgement may be lost with a table that was not saved yet: in this case the message
        goes to another queue of the topic."""
        if self.due_ms and not self.promises:
            return self.queue[0] == queue[0]
        return self.queue in (queue, (queue[0], -1))

    def may_show(self, now_ms: int) -> bool:
        """True if the message may be visible at all."""
        if self.is_refused or self.due_ms > now_ms:
            return False
        return not self.is_half or (self.committing and not self.is_rolled_back)


@define
class Ledger:
    """All messages of a run, in the order in which they were sent."""

    sent: dict[bytes, Sent] = field(factory=dict)
    """By body; each body is sent once."""

    # ---- what senders do and are told ----

    def sending(self, body: bytes, queue: Queue, *, due_ms: int = 0, is_half: bool = False) -> Sent:
        """From now on it may be found."""
        assert body not in self.sent, f"{body[:40]!r} is sent twice"
        self.sent[body] = sent = Sent(body, queue, due_ms, is_half)
        return sent

    def acknowledged(
        self,
        body: bytes,
        promises: Mapping[str, Promise],
        offset: int | None = None,
        queue: Queue | None = None,
    ) -> None:
        """Note an acknowledgement: the sender knows that these machines keep the message so, and perhaps its
        place."""
        sent = self.sent[body]
        sent.promises |= promises
        sent.offset = offset
        sent.queue = queue or sent.queue

    def refused(self, body: bytes) -> None:
        """Note a refusal: the sender knows that the message is not stored."""
        self.sent[body].is_refused = True

    def committing(self, body: bytes) -> None:
        """The commit of a half message is on its way."""
        self.sent[body].committing = True

    def committed(self, body: bytes, promises: Mapping[str, Promise], now_ms: int) -> None:
        """The commit was answered with success."""
        self.sent[body].commit_promises |= promises
        self.sent[body].committed_ms = now_ms

    def rolling_back(self, body: bytes) -> None:
        """The rollback of a half message is on its way."""
        self.sent[body].rolling_back = True

    def rolled_back(self, body: bytes) -> None:
        """The rollback of a half message was answered with success."""
        self.sent[body].is_rolled_back = True

    def deleted(self, queues: Iterable[Queue] = (), *, topic: str | None = None) -> None:
        """Note that all messages so far to these queues, or to a topic, were deleted or have expired."""
        wanted = set(queues)
        for sent in self.sent.values():
            if sent.queue in wanted or sent.queue[0] == topic:
                sent.may_be_missing = True

    def expired(self, count: int, begins: Mapping[Queue, int]) -> None:
        """Note that a master has removed those of the first `count` messages that are older than `begins`,
        the first offsets of its queues now.
        """
        for sent in list(self.sent.values())[:count]:
            if sent.offset is None or sent.offset < begins.get(sent.queue, 0):
                sent.may_be_missing = True

    # ---- syncs and accidents ----

    def __len__(self) -> int:
        return len(self.sent)

    def synced(self, machine: str, count: int | None = None) -> None:
        """A sync of the machine's log has ended that covers the first `count` messages (all)."""
        for number, sent in enumerate(self.sent.values()):
            if count is not None and number >= count:
                return
            for promises in (sent.promises, sent.commit_promises):
                if machine in promises:
                    promises[machine] = Promise.SYNCED

    def interrupted(self, now_ms: int) -> None:
        """A broker was killed, or started again: what is under way may be delivered twice."""
        for sent in self.sent.values():
            if sent.is_half or sent.due_ms:
                ended = sent.committed_ms if sent.is_half else sent.due_ms
                sent.may_repeat |= ended is None or ended > now_ms - RECENT_MS

    def power_cut(self, machine: str, now_ms: int) -> None:
        """Note a power cut of a machine: unsynced messages are lost, or not."""
        self.interrupted(now_ms)
        for sent in self.sent.values():
            for promises in (sent.promises, sent.commit_promises):
                if promises.get(machine) == Promise.WRITTEN:
                    del promises[machine]

    def disk_lost(self, machine: str, now_ms: int) -> None:
        """Note the loss of a machine's disk with all messages."""
        self.interrupted(now_ms)
        for sent in self.sent.values():
            sent.promises.pop(machine, None)
            sent.commit_promises.pop(machine, None)

    # ---- what must be left ----

    def open_halves(self, machine: str, least: Promise) -> list[Sent]:
        """Half messages that are kept and have no end yet: a commit must still work."""
        return [
            sent
            for sent in self.sent.values()
            if sent.is_half
            and not (sent.rolling_back or sent.may_be_missing)
            and sent.promises.get(machine, 0) >= least
            and sent.commit_promises.get(machine, 0) < least
        ]

    def complaints(
        self,
        machine: str,
        found: Found,
        now_ms: int,
        *,
        least: Promise = Promise.WRITTEN,
        is_caught_up: bool = True,
    ) -> list[str]:
        """Faults of the machine's queues after an accident that leaves promises of at least `least`.
        `is_caught_up`: the broker has had time to deliver all that is due.
        """
        wrong: list[str] = []
        seen: Counter[bytes] = Counter()
        places = {(queue, offset): body for queue, messages in found.items() for offset, body in messages}
        for queue, messages in found.items():
            for number, (offset, body) in enumerate(messages):
                seen[body] += 1
                if offset != messages[0][0] + number:
                    wrong.append(f"{queue} has no offset {messages[0][0] + number}")
                sent = self.sent.get(body)
                if sent is None or not sent.may_be_in(queue):
                    wrong.append(f"{queue} at {offset}: nobody sent {body[:40]!r} there")
                elif not sent.may_show(now_ms):
                    wrong.append(f"{queue} at {offset}: {_why(sent)}: {body[:40]!r}")
                elif sent.offset not in (None, offset) and not sent.may_repeat:
                    wrong.append(f"{queue} at {offset}: {body[:40]!r} was told {sent.offset}")
        for body, sent in self.sent.items():
            needed = sent.needs(machine, least, now_ms, is_caught_up=is_caught_up)
            if needed and not seen[body]:
                wrong.append(f"{sent.queue}: acknowledged and not there: {sent.kind} {body[:25]!r}")
            elif needed and sent.offset is not None and places.get((sent.queue, sent.offset)) != body:
                wrong.append(f"{sent.queue}: not at {sent.offset}, where it was told to be: {body[:40]!r}")
            if seen[body] > 1 and not sent.may_repeat:
                wrong.append(f"{sent.queue}: {seen[body]} times there: {body[:40]!r}")
        return wrong

    def check(
        self,
        machine: str,
        found: Found,
        now_ms: int,
        *,
        least: Promise = Promise.WRITTEN,
        is_caught_up: bool = True,
    ) -> None:
        """Raise Lost with the first few of `complaints`."""
        wrong = self.complaints(machine, found, now_ms, least=least, is_caught_up=is_caught_up)
        if wrong:
            raise Lost(f"{machine}, {len(wrong)} faults: " + "; ".join(wrong[:3]))


def _why(sent: Sent) -> str:
    if sent.is_refused:
        return "was refused"
    if sent.is_rolled_back:
        return "was rolled back"
    return "was not committed" if sent.is_half and not sent.committing else f"is due at {sent.due_ms}"
