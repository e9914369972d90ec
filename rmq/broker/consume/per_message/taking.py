"""Takes: the messages of a queue that a consumer gets, and their leases.

Messages for redelivery go before new messages. New messages are handed out as they lie in the log; a
redelivered message carries its number of failed attempts, as RocketMQ's retries do.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final

from attrs import field

from rmq.broker.consume.per_message.handles import lease_length
from rmq.broker.consume.per_message.message_groups import group_of
from rmq.broker.consume.per_message.queue_delivery import DYING, GONE, READY, Batch
from rmq.errors import CorruptRecord
from rmq.protocol.codes import SYS_HOST_BITS
from rmq.protocol.pop import run_text
from rmq.protocol.record import FIXED_SIZE, HOST_BITS, decode_record, offset_of

if TYPE_CHECKING:
    from attrs import define

    from rmq.broker.consume.per_message.queue_delivery import QueueDelivery
    from rmq.broker.consume.read import SubscriptionPlan
    from rmq.doors import Chooser
    from rmq.store.files.disk import Bytes
    from rmq.store.reader import GetResult
    from rmq.store.store import Store
else:
    from rmq.lazy_attrs import define

log = logging.getLogger("rmq.broker")

REFUSALS_MAX: Final = 64
"""Choosers that a ready batch remembers."""
LOOKS_OF_A_QUEUE: Final = 8
"""Reads of one queue for one take: of long runs that a filter refuses, or that are finished."""
CHOOSING_LOOKS: Final = 64
"""Reads of one queue for a take with a chooser."""
ORDERED_LOOKS: Final = 256
"""Messages of one queue that an ordered take looks at."""

_SIZE: Final = Struct(">i")
_OFFSET_AT: Final = offset_of("queue_offset")
_OFFSET: Final = Struct(">q")
_SYS_FLAG_AT: Final = offset_of("sys_flag")
_RECONSUME_AT: Final = {hosts: offset_of("reconsume_times", hosts) for hosts in HOST_BITS}


@define(eq=False)
class Handed:
    """Messages of one queue that were taken together: offset `start + i` for each bit `i` of `mask`, their
    records in this order in `buffers`. Times are in ms of wall time.
    """

    queue_id: int
    start: int
    mask: int
    attempt: int
    taken_ms: int
    invisible_ms: int
    buffers: Sequence[Bytes] = field(repr=False)
    size: int

    @property
    def count(self) -> int:
        """The number of messages."""
        return self.mask.bit_count()

    def text(self) -> str:
        """The offsets of the messages, as the answer to a pop has them."""
        mask = self.mask
        if not mask & (mask + 1):
            return f"0 {self.queue_id} {run_text(self.start, self.start + mask.bit_length())}"
        return f"0 {self.queue_id} {','.join(map(str, self.offsets()))}"

    def offsets(self) -> list[int]:
        """The queue offsets of the messages."""
        mask = self.mask
        if not mask & (mask + 1):
            return list(range(self.start, self.start + mask.bit_length()))
        return [self.start + at for at in range(mask.bit_length()) if mask >> at & 1]


@define(eq=False)
class Taking:
    """State of a take: its remaining limits, and its effects on other parts of the broker. Times of leases
    are seconds, wall times ms.
    """

    left: int
    fresh: int
    """The number of messages that may be taken and are not out yet: the bound of messages that are out must
    not hold back redeliveries."""
    bytes_left: int
    now: float
    now_ms: int
    taken_ms: int
    invisible_ms: int
    owner: object
    plan: SubscriptionPlan
    max_attempts: int
    reach: int | None
    chooser: Chooser | None = None
    may_read: int = 0
    """With a chooser: the number of new messages that the take may look at."""
    left_over: list[Batch] = field(factory=list)
    """New batches that the chooser leaves to other consumers."""
    handed: list[Handed] = field(factory=list)
    leased: list[Batch] = field(factory=list)
    postpone: list[tuple[Batch, int]] = field(factory=list)
    """Recovered batches that wait, each with the wall time of its end."""
    dying: list[Batch] = field(factory=list)
    """Recovered batches without attempts left."""
    new: int = 0
    """Messages that are out by this take and were not before."""
    dropped: int = 0
    """Messages that were out and are finished or gone."""
    has_more: bool = False
    """The take has ended before a queue was read to its end."""
    is_cut: bool = False
    """The queue has messages beyond the limit of reads."""

    @property
    def is_full(self) -> bool:
        """True if the take gets no more messages."""
        return self.left <= 0 or self.bytes_left <= 0

    @property
    def takes_no_new(self) -> bool:
        """True if the take gets no more new messages."""
        return self.is_full or self.new >= self.fresh

    @property
    def has_read_enough(self) -> bool:
        """True if a take with a chooser has looked at as many new messages as it may."""
        return self.chooser is not None and self.new >= self.may_read


class Taker:
    """Takes messages of queues. `beyond(queue)` gives the next offset of a queue whose cursor lies outside of
    the stored range."""

    def __init__(self, store: Store, beyond: Callable[[QueueDelivery], int]) -> None:
        self._store = store
        self._beyond = beyond

    def take(self, queue: QueueDelivery, taking: Taking) -> None:
        """Take messages of a queue, redeliveries first."""
        if queue.ready and taking.chooser is not None:
            self._choose_ready(queue, taking.chooser, taking)
        elif queue.ready:
            self._take_ready(queue, taking)
        if queue.groups is not None:
            self._take_ordered(queue, taking)
        else:
            looks = LOOKS_OF_A_QUEUE if taking.chooser is None else CHOOSING_LOOKS
            while not (taking.takes_no_new or taking.has_read_enough) and self._take_new(queue, taking):
                looks -= 1
                if not looks:
                    taking.has_more = True
                    break

    def record(self, queue: QueueDelivery, offset: int) -> memoryview | None:
        """The record of a message; None if the record is gone."""
        topic = queue.topic.topic
        unit = self._store.unit(topic, queue.queue_id, offset)
        return None if unit is None else self._store.read(unit[0])

    # ---- messages that come again ----

    def _take_ready(self, queue: QueueDelivery, taking: Taking) -> None:
        while queue.ready and not taking.is_full:
            batch = queue.ready[0]
            if batch.state == READY:
                self._take_some(queue, batch, taking)
            if batch.state == READY and batch.mask:
                return  # the take is full
            if batch.state == READY:
                queue.take_out(batch)
            queue.ready.popleft()

    def _take_some(self, queue: QueueDelivery, batch: Batch, taking: Taking) -> None:
        """Take some messages of a ready batch, and remove finished and deleted messages from the batch."""
        stale = queue.finished.bits(batch.start, batch.mask.bit_length()) & batch.mask
        taking.dropped += stale.bit_count()
        batch.mask &= ~stale
        if stale and batch.key is not None and queue.groups is not None:
            queue.groups.finished(batch.key)
        taken: list[tuple[int, Bytes]] = []
        for offset in list(batch.offsets()):
            record = self.record(queue, offset)
            if record is not None and (taking.is_full or (taken and len(record) > taking.bytes_left)):
                break
            batch.mask &= ~(1 << offset - batch.start)
            if record is None:
                taking.dropped += 1
                self._finish_deleted(queue, offset, batch.key)
                continue
            taken.append((offset, record))
            taking.left -= 1
            taking.bytes_left -= len(record)
        if taken:
            self._lease(queue, taken, batch.attempt + 1, taking, batch.key)

    def _choose_ready(self, queue: QueueDelivery, chooser: Chooser, taking: Taking) -> None:
        """Take the chosen messages of the ready batches."""
        version, has_empty = chooser.version, False
        for batch in list(queue.ready):
            if taking.is_full:
                break
            if batch.state != READY or (batch.refused is not None and batch.refused.get(chooser) == version):
                continue
            self._choose_some(queue, batch, chooser, taking)
            if not batch.mask:
                queue.take_out(batch)
                has_empty = True
            elif not taking.is_full:
                if batch.refused is None or len(batch.refused) >= REFUSALS_MAX:
                    batch.refused = {}
                batch.refused[chooser] = version
        if has_empty:
            queue.ready = deque(batch for batch in queue.ready if batch.state == READY)

    def _choose_some(self, queue: QueueDelivery, batch: Batch, chooser: Chooser, taking: Taking) -> None:
        """Take the chosen messages of a ready batch, and remove finished and deleted messages."""
        stale = queue.finished.bits(batch.start, batch.mask.bit_length()) & batch.mask
        taking.dropped += stale.bit_count()
        batch.mask &= ~stale
        taken: list[tuple[int, Bytes]] = []
        for offset in list(batch.offsets()):
            if taking.is_full:
                break
            record = self.record(queue, offset)
            if record is None:
                taking.dropped += 1
                self._finish_deleted(queue, offset, batch.key)
            elif _is_chosen(chooser, record):
                taken.append((offset, record))
                taking.left -= 1
                taking.bytes_left -= len(record)
            else:
                continue
            batch.mask &= ~(1 << offset - batch.start)
        if taken:
            self._lease(queue, taken, batch.attempt + 1, taking, batch.key)

    def _finish_deleted(self, queue: QueueDelivery, offset: int, key: bytes | None) -> None:
        """Finish a message that is no longer in the log."""
        queue.finished.add(offset, 1)
        if key is not None and queue.groups is not None:
            queue.groups.finished(key)

    def _lease(
        self,
        queue: QueueDelivery,
        taken: list[tuple[int, Bytes]],
        attempt: int,
        taking: Taking,
        key: bytes | None,
    ) -> None:
        """Lease messages that were tried before, or a message of a message group."""
        start = taken[0][0]
        mask = sum(1 << offset - start for offset, _ in taken)
        name = start if mask != 1 else ~start
        buffers = [_with_attempt(record, attempt) for _, record in taken]
        self._leased(queue, start, mask, attempt, taking, name, buffers, key)

    def _leased(
        self,
        queue: QueueDelivery,
        start: int,
        mask: int,
        attempt: int,
        taking: Taking,
        name: int,
        buffers: Sequence[Bytes],
        key: bytes | None = None,
    ) -> None:
        taken_ms = taking.taken_ms
        until = taking.now + taking.invisible_ms / 1000
        batch = Batch(queue, start, mask, attempt, taken_ms, until, taking.owner, name, key)
        queue.lease(batch)
        taking.leased.append(batch)
        size = sum(map(len, buffers))
        lasts_ms = lease_length(taken_ms, taking.now_ms, taking.invisible_ms)
        taking.handed.append(Handed(queue.queue_id, start, mask, attempt, taken_ms, lasts_ms, buffers, size))

    # ---- new and recovered messages ----

    def _get(self, queue: QueueDelivery, taking: Taking, most: int) -> GetResult | None:
        """Read from the cursor on; None without messages. A cursor outside of the queue is corrected."""
        plan = taking.plan
        for _ in range(2):
            result = self._store.get(
                queue.topic.topic,
                queue.queue_id,
                queue.cursor,
                most,
                taking.bytes_left,
                plan.matches,
                plan.matches_record,
                plan.looks,
                taking.reach,
            )
            if result.status == "FOUND":
                return result
            if result.status in ("OFFSET_OVERFLOW_ONE", "NO_MESSAGE_IN_QUEUE") and (
                result.status == "OFFSET_OVERFLOW_ONE" or not queue.cursor
            ):
                return result
            if result.status in ("OFFSET_TOO_SMALL", "OFFSET_OVERFLOW_BADLY", "NO_MESSAGE_IN_QUEUE"):
                queue.cursor = self._beyond(queue)
                continue
            return result
        return None

    def _take_new(self, queue: QueueDelivery, taking: Taking) -> bool:
        """Read on once; return whether more messages may follow."""
        most = min(taking.left, taking.fresh - taking.new)
        length, attempts, available_ms = most, 0, 0
        if queue.cursor < queue.recovered:
            length, attempts, available_ms = queue.run(most)
        start = queue.cursor
        result = self._get(queue, taking, length)
        if result is None or result.status in ("OFFSET_OVERFLOW_ONE", "NO_MESSAGE_IN_QUEUE"):
            taking.is_cut |= result is not None and result.is_cut
            return False
        taking.is_cut |= result.is_cut
        if queue.cursor != start:  # the cursor was corrected
            start, attempts = queue.cursor, 0
            length = most if start >= queue.recovered else 1
        end = result.next_queue_offset
        buffers: Sequence[Bytes] = result.buffers
        mask = (1 << result.count) - 1
        is_plain = mask and end - start == result.count and start >= queue.recovered
        if is_plain and taking.chooser is None:  # the usual case
            queue.pass_notes(end)
            taking.new += result.count
            taking.left -= result.count
            taking.bytes_left -= result.size
            self._leased(queue, start, mask, 1, taking, start, buffers)
            return True
        if start < queue.recovered:
            end = min(end, start + length)
            mask, buffers = self._within(queue, buffers, start, end, taking)
        elif result.count and (end - start != result.count or taking.chooser is not None):
            mask, buffers = self._within(queue, buffers, start, end, taking)
        if end <= start:
            return False
        if (1 << end - start) - 1 != mask:
            self._pass_over(queue, start, end, mask)
        queue.pass_notes(end)
        if mask:
            shift = (mask & -mask).bit_length() - 1
            self._take_read(queue, start + shift, mask >> shift, attempts, available_ms, taking, buffers)
        return True

    def _within(
        self, queue: QueueDelivery, buffers: Sequence[Bytes], start: int, end: int, taking: Taking
    ) -> tuple[int, list[memoryview]]:
        """The records of the offsets from `start` to `end`, and a mask of these offsets."""
        mask, kept = 0, []
        for record in self._singly(queue, buffers, start, end, taking):
            offset = offset_in(record)
            if start <= offset < end:
                mask |= 1 << offset - start
                kept.append(record)
        return mask, kept

    def _singly(
        self, queue: QueueDelivery, buffers: Sequence[Bytes], start: int, end: int, taking: Taking
    ) -> list[memoryview]:
        """The single records in buffers that were read from `start` to `end`, without what damaged units
        point to."""
        try:
            return _records(buffers)
        except CorruptRecord:
            plan, topic, found = taking.plan, queue.topic.topic, []
            for offset in range(start, end):
                unit = self._store.unit(topic, queue.queue_id, offset)
                if unit is None or (plan.matches is not None and not plan.matches(unit[2])):
                    continue
                record = self._store.read(unit[0])
                if record is not None and (plan.matches_record is None or plan.matches_record(record)):
                    found.append(record)
            return found

    def _pass_over(self, queue: QueueDelivery, start: int, end: int, mask: int) -> None:
        """Pass over the messages from `start` to `end` that are not in `mask`: the filter refuses them, or
        they are gone."""
        if mask:
            queue.finished.add(start, (1 << end - start) - 1 & ~mask)
        else:
            queue.finished.add_range(start, end)

    def _take_read(
        self,
        queue: QueueDelivery,
        start: int,
        mask: int,
        attempts: int,
        available_ms: int,
        taking: Taking,
        buffers: Sequence[Bytes],
    ) -> None:
        """Lease messages that were read, or postpone them: recovered messages may wait for their time."""
        taking.new += mask.bit_count()
        if attempts >= taking.max_attempts or available_ms > taking.now_ms:
            batch = Batch(queue, start, mask, attempts, taking.now_ms, 0.0, None, ~start, None, DYING)
            if attempts >= taking.max_attempts:
                taking.dying.append(batch)
            else:
                taking.postpone.append((batch, available_ms))
            return
        if taking.chooser is not None:
            start, mask, buffers = _chosen(queue, start, mask, attempts, taking.chooser, taking, buffers)
            if not mask:
                return
        taking.left -= mask.bit_count()
        if attempts:
            buffers = [_with_attempt(record, attempts + 1) for record in _records(buffers)]
        taking.bytes_left -= sum(map(len, buffers))
        self._leased(queue, start, mask, attempts + 1, taking, start, buffers)

    # ---- by message group ----

    def _take_ordered(self, queue: QueueDelivery, taking: Taking) -> None:
        groups = queue.groups
        assert groups is not None
        while groups.free and not taking.takes_no_new:
            key, offset = groups.free.popleft()
            # A message that waited for its group may be finished by the handle of an earlier lease.
            record = None if offset in queue.finished else self.record(queue, offset)
            if record is None:
                self._finish_deleted(queue, offset, key)
            else:
                self._take_one(queue, offset, record, key, taking)
        looks = ORDERED_LOOKS
        while looks > 0 and not taking.takes_no_new and not groups.is_full:
            queue.cursor = queue.finished.next_missing(queue.cursor)
            result = self._get(queue, taking, min(looks, 32))
            if result is None or result.status in ("OFFSET_OVERFLOW_ONE", "NO_MESSAGE_IN_QUEUE"):
                taking.is_cut |= result is not None and result.is_cut
                return
            taking.is_cut |= result.is_cut
            start, end = queue.cursor, result.next_queue_offset
            if end <= start:
                return
            looks -= end - start
            taking.has_more = looks <= 0
            passed = start
            for record in self._singly(queue, result.buffers, start, end, taking):
                offset = offset_in(record)
                queue.finished.add_range(passed, offset)
                if taking.takes_no_new or groups.is_full:
                    queue.cursor = offset
                    return
                passed = offset + 1
                self._look_at(queue, offset, record, taking)
            queue.finished.add_range(passed, end)
            queue.cursor = end

    def _look_at(
        self,
        queue: QueueDelivery,
        offset: int,
        record: memoryview,
        taking: Taking,
    ) -> None:
        """Take the next message of the queue, unless an earlier message of its group is out."""
        groups = queue.groups
        assert groups is not None
        if offset in queue.finished:
            return
        try:
            key = group_of(record)
        except CorruptRecord:
            key = b""
        if groups.claim(key, offset):
            self._take_one(queue, offset, record, key, taking)

    def _take_one(
        self,
        queue: QueueDelivery,
        offset: int,
        record: memoryview,
        key: bytes,
        taking: Taking,
    ) -> None:
        """Take the first message of a group."""
        taking.new += 1
        attempts, available_ms = queue.tried(offset)
        queue.notes.pop(offset, None)
        if attempts >= taking.max_attempts or available_ms > taking.now_ms:
            batch = Batch(queue, offset, 1, attempts, taking.now_ms, 0.0, None, ~offset, key, DYING)
            if attempts >= taking.max_attempts:
                taking.dying.append(batch)
            else:
                taking.postpone.append((batch, available_ms))
            return
        taking.left -= 1
        taking.bytes_left -= len(record)
        self._lease(queue, [(offset, record)], attempts + 1, taking, key)


def _chosen(
    queue: QueueDelivery,
    start: int,
    mask: int,
    attempts: int,
    chooser: Chooser,
    taking: Taking,
    buffers: Sequence[Bytes],
) -> tuple[int, int, Sequence[Bytes]]:
    """The chosen messages of a read, as start, mask and records; the other messages are left over."""
    chosen, kept = 0, []
    for record in _records(buffers):
        if _is_chosen(chooser, record):
            chosen |= 1 << offset_in(record) - start
            kept.append(record)
    if left := mask & ~chosen:
        shift = (left & -left).bit_length() - 1
        batch = Batch(
            queue, start + shift, left >> shift, attempts, taking.taken_ms, 0.0, None, ~start, None, GONE
        )
        batch.refused = {chooser: chooser.version}
        taking.left_over.append(batch)
    if not chosen:
        return start, 0, []
    shift = (chosen & -chosen).bit_length() - 1
    return start + shift, chosen >> shift, kept


def _is_chosen(chooser: Chooser, record: Bytes) -> bool:
    """True if a consumer takes a message. A damaged record goes to any consumer, as without a choice: its
    attempts count, up to the dead letter. A chooser that fails takes none: a bug of its door must not end the
    commit of another client during which the chooser is called."""
    try:
        message = decode_record(memoryview(record), check_crc=False, decompressed=False)
    except CorruptRecord:
        return True
    try:
        return chooser(message)
    except Exception as error:
        log.error("a door cannot choose among messages: %s", error, exc_info=error)
        return False


def offset_in(record: Bytes) -> int:
    """The queue offset in a record."""
    offset: int = _OFFSET.unpack_from(record, _OFFSET_AT)[0]
    return offset


def _records(buffers: Sequence[Bytes]) -> list[memoryview]:
    """The single records in buffers. Raises CorruptRecord if a damaged unit points to something else."""
    found = []
    for buffer in buffers:
        view, at = memoryview(buffer), 0
        while at < len(view):
            size = _SIZE.unpack_from(view, at)[0] if len(view) - at >= FIXED_SIZE else 0
            if not FIXED_SIZE <= size <= len(view) - at:
                raise CorruptRecord("commit log", at, f"a record of {size} bytes is not whole")
            found.append(view[at : at + size])
            at += size
    return found


def _with_attempt(record: Bytes, attempt: int) -> Bytes:
    """A record with the number of its failed attempts, for the consumer."""
    if attempt <= 1:
        return record
    copy = bytearray(record)
    sys_flag = _SIZE.unpack_from(copy, _SYS_FLAG_AT)[0]
    _SIZE.pack_into(copy, _RECONSUME_AT[sys_flag & SYS_HOST_BITS], attempt - 1)
    return bytes(copy)
