"""Delivery of a topic to a group: the finished messages, leases, and retries of each queue.

Messages that were taken together are a `Batch`: its start, a mask of its remaining messages, and the common
end of its lease. A batch is leased; or it waits for its time, after a failed attempt; or it is ready to be
taken again. Messages that were never taken are behind `cursor`, and need no state.

After a recovery of a queue, `cursor` begins at the oldest unfinished message, and goes over the messages
before `recovered` once more: `notes` have the number of their attempts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from attrs import field

from rmq.broker.consume.per_message.message_groups import MessageGroups
from rmq.broker.consume.per_message.offset_set import OffsetSet
from rmq.shares import NOBODY, Holders

if TYPE_CHECKING:
    from attrs import define
else:
    from rmq.lazy_attrs import define

LEASED: Final = 0
WAITING: Final = 1
READY: Final = 2
DYING: Final = 3
"""State of batches that become dead letters with the next write."""
GONE: Final = 4
BLOCK: Final = 256
ORDERED_READY: Final = 256
"""Number of the last ready batches among which a further batch is put in order."""


@define(eq=False)
class TopicDelivery:
    """The state of a topic for one group."""

    group: str
    topic: str
    queues: dict[int, QueueDelivery] = field(factory=dict, repr=False)
    out: int = 0
    """Messages that were taken at least once and are not finished."""
    holders: Holders = NOBODY
    """The holders for whom these messages count: the first taker's while some are out."""
    turn: int = 0
    """The queue from which the next messages are taken first."""
    used_at: float = 0.0
    """Time of the last request for a message, in seconds of the broker's clock."""
    is_refusing_pulls: bool = False
    taken_ms: int = 0
    """No batch is taken at an earlier time: two leases of one message never look the same."""
    is_at_limit: bool = False
    """The last take got no more since too many messages are out: the next finished message makes room."""
    has_more: bool = False
    """The last take found nothing, and has not looked at all messages."""

    def turn_of(self, queue_id: int, count: int) -> Iterator[int]:
        """The queues to take from: `queue_id`, or for a negative `queue_id` all queues, in turn."""
        if queue_id >= 0:
            yield queue_id
            return
        first = self.turn = (self.turn + 1) % count if count else 0
        yield from range(first, count)
        yield from range(first)


@define(eq=False, weakref_slot=False)
class Batch:
    """Messages of a queue that share a lease: offset `start + i` for each bit `i` of `mask`.

    `attempt` counts the deliveries so far. `time` is the end of the lease, or of the wait, in seconds of the
    broker's clock. `key` is the message group of an ordered delivery, whose batches have a single message.
    """

    queue: QueueDelivery
    start: int
    mask: int
    attempt: int
    taken_ms: int
    time: float
    owner: Any  # a Reading; None: no owner
    name: int
    key: bytes | None = None
    state: int = LEASED
    refused: dict[Any, int] | None = None
    """Of a ready batch: the choosers that take none of it, with their versions."""
    due: float = math.inf
    """Time of the next look at the batch; infinite: none."""

    @property
    def count(self) -> int:
        """The number of messages left."""
        return self.mask.bit_count()

    @property
    def first(self) -> int:
        """The offset of the first message left."""
        return self.start + (self.mask & -self.mask).bit_length() - 1

    def offsets(self) -> Iterator[int]:
        """The offsets of the messages left."""
        mask, at = self.mask, self.start
        while mask:
            skipped = (mask & -mask).bit_length() - 1
            at += skipped
            yield at
            at += 1
            mask >>= skipped + 1


@define(eq=False)
class QueueDelivery:
    """State of a queue of a topic for a group. `row_id` identifies the queue in the journal."""

    topic: TopicDelivery
    queue_id: int
    row_id: int
    finished: OffsetSet
    cursor: int
    recovered: int = 0
    tried_before: int = 0
    """Recovered messages before this offset were taken at least once."""
    notes: dict[int, tuple[int, int]] = field(factory=dict, repr=False)
    """The attempts of recovered messages, and the time of their next delivery (ms of wall time)."""
    loaded: tuple[int, int] = 0, 0
    """Of a queue that the journal had: its end at the start of the broker, and the time of the record that
    named it (ms of wall time). Messages before this end may have been taken without a later record."""
    groups: MessageGroups | None = None
    leased: dict[int, Batch] = field(factory=dict, repr=False)
    waiting: dict[Batch, None] = field(factory=dict, repr=False)
    dying: dict[Batch, None] = field(factory=dict, repr=False)
    ready: deque[Batch] = field(factory=deque, repr=False)
    _other_name: int = -(1 << 63)
    """A name that no batch gets from its first message."""
    _blocks: dict[int, dict[Batch, None]] = field(factory=dict, repr=False)
    """The leased batches by the part of the queue in which they begin."""
    _reach: int = 0
    """Most parts of the queue that a leased batch reaches into behind its first."""

    @property
    def base(self) -> int:
        """The oldest offset that is not finished."""
        return self.finished.base

    @property
    def frontier(self) -> int:
        """The offset before which all messages were taken at least once, according to the journal."""
        if self.groups is not None:  # messages that wait for their group were not
            return 0
        return max(self.cursor, self.tried_before)

    def was_taken_before(self, offset: int, taken_ms: int) -> bool:
        """True if a message may have been taken at this time, before the start of the broker."""
        end, named_ms = self.loaded
        return offset < end and taken_ms >= named_ms

    def finished_early(self, end: int) -> None:
        """Messages up to `end` are finished without a lease; takes pass over them."""
        if end > self.cursor:
            self.recovered = max(self.recovered, end)

    @property
    def is_new(self) -> bool:
        """True if no message was taken from the base on."""
        return self.cursor <= self.base >= self.recovered

    @property
    def has_new_only(self) -> bool:
        """True if takes get new messages only, in no order."""
        return not self.ready and self.groups is None and self.cursor >= self.recovered and not self.notes

    def set_order(self, in_order: bool) -> None:
        """Set whether messages are taken by message group. No message is leased, waits, or is ready."""
        self.recovered = max(self.recovered, self.cursor)
        self.groups = MessageGroups() if in_order else None
        self.cursor, self.ready = self.base, deque()

    def note(self, batch: Batch, now: float, now_ms: int) -> None:
        """Note the attempts of messages that wait or are ready, to take them once more from the queue. `now`
        is the time of the broker's clock, `now_ms` the wall time."""
        wait_ms = round((batch.time - now) * 1000) if batch.state == WAITING else 0
        available_ms = now_ms + wait_ms if wait_ms > 0 else 0
        for offset in batch.offsets():
            self.notes[offset] = batch.attempt, available_ms

    # ---- recovered messages ----

    def tried(self, offset: int) -> tuple[int, int]:
        """Attempts of a recovered message, and the wall time (ms) of its next delivery."""
        known = self.notes.get(offset) if self.notes else None
        if known is not None:
            return known
        return (1, 0) if offset < self.tried_before else (0, 0)

    def run(self, most: int) -> tuple[int, int, int]:
        """Move the cursor to the next unfinished message. Return how many messages with the same number of
        attempts follow, `most` at most, the attempts, and the wall time of their next delivery."""
        finished = self.finished
        self.cursor = cursor = finished.next_missing(self.cursor)
        length = finished.run(cursor, most)
        if cursor >= self.recovered and not self.notes:
            return length, 0, 0
        tried = self.tried(cursor)
        same = 1
        while same < length and self.tried(cursor + same) == tried:
            same += 1
        return same, *tried

    def pass_notes(self, end: int) -> None:
        """The cursor has moved to `end`: forget the notes of the messages before it."""
        if self.notes:
            for offset in range(self.cursor, end):
                self.notes.pop(offset, None)
        self.cursor = end

    # ---- leases ----

    def lease(self, batch: Batch) -> None:
        """Keep a batch that was taken. An older batch, some of whose messages were given back, may still have
        the name that these messages would get at their next take: in that case the new batch gets another
        name."""
        batch.state = LEASED
        if batch.name in self.leased:
            batch.name = self._other_name = self._other_name - 1
        self.leased[batch.name] = batch
        at, begin = divmod(batch.start, BLOCK)
        self._blocks.setdefault(at, {})[batch] = None
        if begin + batch.mask.bit_length() > (self._reach + 1) * BLOCK:
            self._reach = (begin + batch.mask.bit_length() - 1) // BLOCK

    def find(self, start: int, offset: int, taken_ms: int) -> Batch | None:
        """The leased batch that a handle names, if it still has the message."""
        for name in (start, ~offset):
            batch = self.leased.get(name)
            if batch is not None and batch.taken_ms == taken_ms and self.has(batch, offset):
                return batch
        for batch in self._near(offset):
            if batch.taken_ms == taken_ms and self.has(batch, offset):
                return batch
        return None

    def _near(self, offset: int) -> Iterator[Batch]:
        """The leased batches that may have a message."""
        at = offset // BLOCK
        for block in range(at - self._reach, at + 1):
            yield from self._blocks.get(block, ())

    def is_leased(self, offset: int) -> bool:
        """True if any lease has the message."""
        return any(self.has(batch, offset) for batch in self._near(offset))

    def attempts(self, offset: int) -> int:
        """Number of deliveries of a message that is not leased; at least 1."""
        batch = self.given_back(offset)
        return max(1, self.tried(offset)[0] if batch is None else batch.attempt)

    def is_to_come(self, offset: int) -> bool:
        """True if a message without a lease will be delivered again."""
        return offset not in self.finished and not any(self.has(one, offset) for one in self.dying)

    def given_back(self, offset: int) -> Batch | None:
        """The batch that has a message which waits for redelivery."""
        held = (one for one in (*self.waiting, *self.ready) if one.state != GONE and self.has(one, offset))
        return next(held, None)

    @staticmethod
    def has(batch: Batch, offset: int) -> bool:
        """True if a batch has a message."""
        at = offset - batch.start
        return at >= 0 and bool(batch.mask >> at & 1)

    def split(self, batch: Batch, offset: int) -> Batch:
        """Take a message out of a leased batch of several, as a batch of its own."""
        batch.mask &= ~(1 << offset - batch.start)
        single = Batch(
            self, offset, 1, batch.attempt, batch.taken_ms, batch.time, batch.owner, ~offset, batch.key
        )
        self.lease(single)
        return single

    def part(self, batch: Batch, mask: int) -> Batch:
        """Take some messages out of a larger batch, as a batch of their own without owner."""
        batch.mask &= ~mask
        shift = (mask & -mask).bit_length() - 1
        start, attempt, key = batch.start + shift, batch.attempt, batch.key
        return Batch(self, start, mask >> shift, attempt, batch.taken_ms, batch.time, None, ~start, key, GONE)

    def restart(self, finished: OffsetSet) -> None:
        """Reset the queue: only these messages are finished, and no message was taken."""
        self.finished, self.cursor, self.recovered, self.tried_before = finished, finished.base, 0, 0
        self.notes, self.ready, self._blocks, self._reach = {}, deque(), {}, 0
        self.loaded = 0, 0
        if self.groups is not None:
            self.groups = MessageGroups()

    def take_out(self, batch: Batch) -> None:
        """Remove a batch from the place of its state; a ready batch stays in line, and is passed over."""
        if batch.state == LEASED:
            del self.leased[batch.name]
            at = batch.start // BLOCK
            block = self._blocks[at]
            del block[batch]
            if not block:
                del self._blocks[at]
        elif batch.state == WAITING:
            self.waiting.pop(batch, None)
        elif batch.state == DYING:
            self.dying.pop(batch, None)
        topic = self.topic
        topic.taken_ms = max(topic.taken_ms, batch.taken_ms + 1)
        batch.state = GONE

    def wait(self, batch: Batch, time: float) -> None:
        """Keep a batch, which was taken out or has not become a dead letter, until `time`."""
        self.dying.pop(batch, None)
        batch.state, batch.time, batch.owner = WAITING, time, None
        self.waiting[batch] = None

    def doom(self, batch: Batch) -> None:
        """Keep a batch, which was taken out, until it is known that it became dead letters."""
        batch.state = DYING
        self.dying[batch] = None

    def make_ready(self, batch: Batch) -> None:
        """Make a batch that was taken out available again, before the ready batches that lie behind it."""
        batch.state = READY
        ready = self.ready
        at = len(ready)
        lowest = max(0, at - ORDERED_READY)
        while at > lowest and ready[at - 1].first > batch.first:
            at -= 1
        ready.insert(at, batch)

    def batches(self) -> list[Batch]:
        """All batches."""
        ready = (one for one in self.ready if one.state == READY)
        return [*self.leased.values(), *self.waiting, *self.dying, *ready]
