"""Ledger of per-message delivery: its writes to the journal, and the reading of the journal at a start.

The changes of a turn are a single record, which `write` puts into the pending batch of the store; `written`
applies them once the batch is in the log. So an acknowledgement is answered when its record is as safe as a
sent message, and an error of the disk changes nothing.

The journal is read from the begin of its newest whole snapshot. A snapshot is written a little in each step,
beside the changes; records name its begin when it is whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import field

from rmq.broker.consume.per_message import journal
from rmq.broker.consume.per_message.journal import JOURNAL_TOPIC
from rmq.broker.consume.per_message.offset_set import OffsetSet
from rmq.broker.consume.per_message.queue_delivery import WAITING, Batch, QueueDelivery
from rmq.errors import CorruptRecord, ResponseError, StoreError, for_code
from rmq.protocol.codes import ResponseCode
from rmq.protocol.record import decode_record
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from attrs import define

    from rmq.store.store import Store

    OnWritten = Callable[[ResponseError | None], None]
else:
    from rmq.lazy_attrs import define

log = logging.getLogger("rmq.broker")

SNAPSHOT_RECORDS: Final = 20_000
"""Records of the journal since the last snapshot after which a snapshot begins: a start reads these
records."""
SNAPSHOT_BYTES: Final = 16 << 20
PIECE_BYTES: Final = 16_384
"""Approximate bytes of a snapshot that one step writes, and one queue of a group more."""
BODY_BYTES: Final = 16_384
"""Operations of one record, and one operation more."""


@define
class Change:
    """Messages that are finished once the journal has the record. `batch` is the lease, if known."""

    queue: QueueDelivery
    batch: Batch | None
    start: int
    mask: int


@define
class Recovered:
    """State of a queue of a group, as the journal has it. `end` is behind all named messages, `named_ms` the
    time of the record that named or reset the queue."""

    group: str
    topic: str
    queue_id: int
    finished: OffsetSet
    frontier: int = 0
    end: int = 0
    notes: dict[int, tuple[int, int]] = field(factory=dict)
    is_reset: bool = False
    named_ms: int = 0


@define
class Decided:
    """The half messages that a record of the journal commits, as (queue offset, physical offset), and the
    physical offset of the record."""

    halves: list[tuple[int, int]]
    physical_offset: int


class Ledger:
    """Writes and reads the journal.

    `put(topic, body, on_done)` takes a record into the store's pending batch; `on_done` is called when the
    record is as safe as the broker's settings ask. It raises StoreError and ResponseError. `apply(changes,
    is_written)` applies changes, or reports that they could not be written. `wall_ms(time)` is the wall time
    of a time of the broker's clock.
    """

    def __init__(
        self,
        store: Store,
        *,
        put: Callable[[str, bytes, OnWritten | None], None],
        apply: Callable[[list[Change], bool], None],
        wall_ms: Callable[[float], int],
    ) -> None:
        self._store = store
        self._put = put
        self._apply = apply
        self._wall_ms = wall_ms
        self.rows: dict[int, QueueDelivery] = {}
        self._ids = 0
        self._pieces: list[bytes] = []
        self._firm: list[bytes] = []  # pieces that are written again after a failed write
        self._putting: list[bytes] = []  # firm pieces in the pending batch
        self._again: list[bytes] = []  # firm pieces that were not written: they lead the next record
        self._calls: list[OnWritten] = []
        self._changes: list[Change] = []
        self._writing: list[Change] = []
        self._first = 0
        self._bytes = 0
        self._snapshot: Iterator[int] | None = None
        self._snapshot_first = 0
        self._whole_from: int | None = None  # begin of a whole snapshot that no record in the log names yet
        self._is_naming = False  # a record that names it is in the pending batch
        self._snapshot_ms = 0
        self._commits: list[Decided] = []
        self._holds = 0

    # ---- changes ----

    @property
    def has_pending(self) -> bool:
        """True if there is something to write."""
        return bool(self._pieces)

    def add(self, queue: QueueDelivery) -> None:
        """Begin to keep a queue of a group, whose `row_id` is new."""
        self.rows[queue.row_id] = queue
        self._add_firm([_row(queue)])

    def _add_firm(self, pieces: list[bytes]) -> None:
        """Add pieces that are written again if their record is not written: without its ROW no operation of a
        queue could be read."""
        self._pieces += pieces
        self._firm += pieces

    def next_id(self) -> int:
        """A number for a new row."""
        self._ids += 1
        return self._ids

    def finish(self, change: Change) -> None:
        """Mark messages as finished, after the change is written."""
        queue = change.queue
        self._pieces.append(journal.done(queue.row_id, queue.frontier, change.start, change.mask))
        self._changes.append(change)

    def note(self, batch: Batch, available_ms: int) -> None:
        """Record that a batch failed, and the wall time (ms) of its next delivery."""
        self._pieces.append(_note(batch, available_ms))

    def note_uncounted(self, batch: Batch) -> None:
        """Record of a leased batch that its present attempt does not count."""
        self._pieces.append(_note(batch, 0, batch.attempt - 1))

    def reset(self, queue: QueueDelivery) -> None:
        """Record that the group goes on at the queue's base."""
        self._add_firm([journal.reset(queue.row_id, queue.base)])

    def keep(self, queue: QueueDelivery) -> None:
        """Go on with a queue that the journal has."""
        self.rows[queue.row_id] = queue

    def drop(self, queue: QueueDelivery) -> None:
        """Cancel the added changes of a queue that are not written."""
        self._changes = [change for change in self._changes if change.queue is not queue]
        self._writing = [change for change in self._writing if change.queue is not queue]

    def forget(self, queue: QueueDelivery) -> None:
        """Forget a queue."""
        if self.rows.pop(queue.row_id, None) is not None:
            self._add_firm([journal.removed(queue.row_id)])

    def forget_row(self, row_id: int) -> None:
        """Forget a queue that the journal has, and the broker has not."""
        self._add_firm([journal.removed(row_id)])

    def call(self, on_written: OnWritten) -> None:
        """Call back when all records added so far are written, as safe as the broker's settings demand."""
        self._calls.append(on_written)

    # ---- commits of transactions ----

    def commit(
        self, changes: Sequence[Change], halves: Sequence[tuple[int, int]], on_written: OnWritten
    ) -> None:
        """Put a record that finishes messages and commits half messages, both or neither, into the store's
        pending batch. Raises StoreError, ResponseError: neither is done.
        """
        self.write()  # the queues that the changes name are in the journal before
        pieces = [journal.head(self._first)]
        for change in changes:
            row_id, frontier = change.queue.row_id, change.queue.frontier
            pieces.append(journal.done(row_id, frontier, change.start, change.mask))
        if halves:
            pieces.append(journal.commit(halves))
        body = b"".join(pieces)
        self._put(JOURNAL_TOPIC, body, on_written)
        self._bytes += len(body)
        self._writing += changes

    def take_commits(self) -> list[Decided]:
        """The commits that the journal had at the start, oldest first; they are forgotten here."""
        commits, self._commits = self._commits, []
        return commits

    def hold_snapshots(self) -> None:
        """Begin no snapshot until `free_snapshots` was called as often as this: a snapshot would lack a
        commit that is not done."""
        self._holds += 1

    def free_snapshots(self) -> None:
        """A commit is done: all of its half messages have ended in the log."""
        self._holds -= 1

    # ---- the turn's record ----

    def write(self) -> None:
        """Put the record of the turn into the store's pending batch."""
        if not self._pieces:
            return
        pieces, firm, calls, changes = self._pieces, self._firm, self._calls, self._changes
        self._pieces, self._calls, self._changes = [], [], []
        if firm or self._again:
            pieces, firm = self._again + pieces, self._again + firm
            self._firm, self._again = [], []
        on_done = calls[0] if len(calls) == 1 else partial(_call_all, calls)
        bodies = _bodies(pieces, journal.head(self._first))
        if self._whole_from is not None:
            bodies.append(journal.head(self._whole_from))
        try:
            for body in bodies:
                self._put(JOURNAL_TOPIC, body, on_done if body is bodies[-1] and calls else None)
                self._bytes += len(body)
        except (StoreError, ResponseError) as error:
            log.error("acknowledgements of per-message delivery are not written: %s", error)
            self._again = list(firm)
            self._apply(changes, False)
            refusal = for_code(ResponseCode.SYSTEM_ERROR, f"the acknowledgement is not written: {error}")
            for call in calls:
                call(refusal)
            return
        self._writing += changes
        self._putting += firm
        self._is_naming = self._whole_from is not None

    @property
    def is_writing(self) -> bool:
        """True if a change of the ledger waits for the write of the pending batch."""
        return bool(self._writing or self._putting) or self._is_naming

    def written(self, *, is_written: bool = True) -> None:
        """Note that the pending batch is in the log, or could not be written."""
        changes, self._writing = self._writing, []
        firm, self._putting = self._putting, []
        if not is_written:
            self._again += firm
        elif self._is_naming and self._whole_from is not None:
            self._first, self._whole_from = self._whole_from, None
        self._is_naming = False
        self._apply(changes, is_written)

    # ---- snapshots ----

    def step(self, now_ms: int) -> bool:
        """Write a piece of a snapshot, if due; return whether more is to be written."""
        if self._pieces or self.is_writing or self._whole_from is not None:
            return self._snapshot is not None
        if self._snapshot is None:
            if not self._is_due(now_ms):
                return False
            self._snapshot_first = self._end()
            self._snapshot, self._snapshot_ms = iter(list(self.rows)), now_ms
            self._bytes = 0
        row_ids, size = self._snapshot, 0
        for row_id in row_ids:
            queue = self.rows.get(row_id)
            if queue is not None:
                pieces = list(self._whole(queue))
                self._add_firm(pieces)
                size += sum(map(len, pieces))
            if size >= PIECE_BYTES:
                return True
        self._snapshot, self._whole_from = None, self._snapshot_first
        self._pieces.append(b"")  # so that has_pending is true
        return False

    def _end(self) -> int:
        return self._store.max_offset(JOURNAL_TOPIC, 0)

    def _is_due(self, now_ms: int) -> bool:
        end = self._end()
        if self._holds or end <= self._first or self._store.config.broker_role is BrokerRole.SLAVE:
            return False
        if not self._snapshot_ms:
            self._snapshot_ms = self._store.message_time(JOURNAL_TOPIC, 0, self._first)
        keep_ms = self._store.config.file_reserved_time * 3_600_000
        return (
            end - self._first >= SNAPSHOT_RECORDS
            or self._bytes >= SNAPSHOT_BYTES
            or (now_ms - self._snapshot_ms > keep_ms // 2 and bool(self.rows))
        )

    def _whole(self, queue: QueueDelivery) -> Iterator[bytes]:
        """The present state of a queue, within a single batch of the store."""
        yield _row(queue)
        yield journal.done(queue.row_id, queue.frontier, queue.base, 0)
        for start, mask in queue.finished.pieces():
            yield journal.done(queue.row_id, queue.frontier, start, mask)
        for batch in queue.batches():
            if batch.state == WAITING:
                yield _note(batch, self._wall_ms(batch.time))
            elif batch.attempt != 1 or queue.groups is not None:
                yield _note(batch, 0)
        for offset, (attempts, available_ms) in queue.notes.items():
            yield journal.note(queue.row_id, queue.frontier, offset, 1, attempts, available_ms)

    # ---- the start ----

    def load(self, now_ms: int) -> list[tuple[int, Recovered]]:
        """Read the journal: the queues of groups with their ids. A message that waits for its next attempt
        waits at most its delay from now on, since the clock may have been set back."""
        store, end = self._store, self._end()
        low = store.min_offset(JOURNAL_TOPIC, 0)
        if end <= low:
            self._first = end
            return []
        last = self._body(end - 1)
        try:
            self._first = low if last is None else max(low, journal.first_of(last[0]))
        except CorruptRecord as error:
            log.error("the last record of the delivery journal cannot be read: %s", error)
            self._first = low
        replay = _Reader(now_ms)
        for offset in range(self._first, end):
            stored = self._body(offset)
            try:
                if stored is not None:
                    body, replay.stored_ms = stored
                    replay.position = self._position(offset)
                    replay.read(body)
                    self._bytes += len(body)
            except CorruptRecord as error:
                log.error("record %d of the delivery journal cannot be read: %s", offset, error)
        self._ids, self._commits = replay.last_id, replay.commits
        return list(replay.rows.items())

    def _position(self, offset: int) -> int:
        unit = self._store.unit(JOURNAL_TOPIC, 0, offset)
        return 0 if unit is None else unit[0]

    def _body(self, offset: int) -> tuple[bytes, int] | None:
        """The operations of a record, and the time at which it was stored, in ms since 1970."""
        unit = self._store.unit(JOURNAL_TOPIC, 0, offset)
        data = None if unit is None else self._store.read(unit[0])
        try:
            if data is None:
                return None
            record = decode_record(data, decompressed=False)
            return record.body, record.store_timestamp
        except CorruptRecord as error:
            log.error("record %d of the delivery journal cannot be read: %s", offset, error)
            return None


class _Reader:
    """The queues of groups, made from the operations of a journal."""

    def __init__(self, now_ms: int) -> None:
        self.rows: dict[int, Recovered] = {}
        self.last_id = 0
        self.position = 0  # physical offset of the record that is read
        self.stored_ms = now_ms  # the time at which it was stored
        self._now_ms = now_ms
        self.commits: list[Decided] = []
        self._ids: dict[tuple[str, str, int], int] = {}
        self.read = journal.Replay(
            row=self._on_row,
            done=self._on_done,
            note=self._on_note,
            reset=self._on_reset,
            removed=self._on_removed,
            commit=self._on_commit,
        ).read

    def _on_row(self, row_id: int, base: int, group: str, topic: str, queue_id: int) -> None:
        key = group, topic, queue_id
        before = self._ids.get(key)
        if before is not None and before != row_id:
            self.rows.pop(before, None)
        known = self.rows.get(row_id)
        if known is None:
            self.rows[row_id] = Recovered(group, topic, queue_id, OffsetSet(base), named_ms=self.stored_ms)
        else:
            known.finished.advance_to(base)
        self._ids[key] = row_id
        self.last_id = max(self.last_id, row_id)

    def _on_done(self, row_id: int, frontier: int, start: int, mask: int) -> None:
        known = self.rows.get(row_id)
        if known is not None:
            known.frontier = max(known.frontier, frontier)
            known.end = max(known.end, start + mask.bit_length())
            known.finished.add(start, mask)

    def _on_note(
        self, row_id: int, frontier: int, start: int, mask: int, attempts: int, available_ms: int
    ) -> None:
        known = self.rows.get(row_id)
        if known is None:
            return
        known.frontier = max(known.frontier, frontier)
        known.end = max(known.end, start + mask.bit_length())
        longest = max(0, available_ms - self.stored_ms)
        note = attempts, min(available_ms, self._now_ms + longest)
        for at in range(mask.bit_length()):
            if mask >> at & 1:
                known.notes[start + at] = note

    def _on_reset(self, row_id: int, base: int) -> None:
        known = self.rows.get(row_id)
        if known is not None:
            known.finished, known.frontier, known.notes, known.end = OffsetSet(base), 0, {}, 0
            known.is_reset, known.named_ms = True, self.stored_ms

    def _on_commit(self, halves: list[tuple[int, int]]) -> None:
        self.commits.append(Decided(halves, self.position))

    def _on_removed(self, row_id: int) -> None:
        self.rows.pop(row_id, None)


def _row(queue: QueueDelivery) -> bytes:
    topic = queue.topic
    return journal.row(queue.row_id, queue.base, topic.group, topic.topic, queue.queue_id)


def _note(batch: Batch, available_ms: int, attempts: int | None = None) -> bytes:
    queue = batch.queue
    attempts = batch.attempt if attempts is None else attempts
    return journal.note(queue.row_id, queue.frontier, batch.start, batch.mask, attempts, available_ms)


def _call_all(calls: Sequence[OnWritten], error: ResponseError | None) -> None:
    for call in calls:
        call(error)


def _bodies(pieces: list[bytes], head: bytes) -> list[bytes]:
    """Bodies of records, of a size that any log takes."""
    if len(pieces) == 1:
        return [head + pieces[0]]
    bodies, body, size = [], [head], 0
    for piece in pieces:
        if size and size + len(piece) > BODY_BYTES:
            bodies.append(b"".join(body))
            body, size = [head], 0
        body.append(piece)
        size += len(piece)
    bodies.append(b"".join(body))
    return bodies
