"""StoreView: reads of a store, by queue, place, time and key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rmq.errors import CorruptRecord, OffsetOutOfRange
from rmq.message import StoredMessage
from rmq.protocol.json import JAVA
from rmq.protocol.record import decode_record, property_bytes
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.files.commitlog import CommitLog
from rmq.store.files.consumequeue import ConsumeQueue
from rmq.store.files.index import Index
from rmq.store.files.queues import Queues
from rmq.store.files.scan import parse
from rmq.store.reader import (
    OFFSET_OVERFLOW_ONE,
    GetResult,
    Limits,
    Matches,
    MatchesRecord,
    QueueRead,
    offset_by_time,
    outside,
    read_queue,
    readable_end,
)
from rmq.store.reput import Reput

if TYPE_CHECKING:
    from types import ModuleType

    from rmq.protocol._engine import PullLanes, PullRun, TakeLanes

COUNT_BACKLOG = 20_000
"""Records that a look-up or `close` indexes in one go, and how many may wait before `commit` indexes some."""
_RELAX_BYTES = 16 << 20


class Lookup(NamedTuple):
    """Result of the index for a key: physical offsets, oldest first, how far the index reaches, and whether
    all that may have the key was looked at."""

    physical_offsets: list[int]
    index_timestamp: int
    index_offset: int
    is_all: bool = True


class StoreView:
    """Finds messages by queue, place, time and key. The `Store`, which is one, makes the parts."""

    config: StoreConfig
    _now_ms: Callable[[], int]
    _limits: Limits
    _log: CommitLog
    _queues: Queues
    _index: Index
    _reput: Reput
    _compiled: ModuleType | None
    _served = 0  # bytes read since the mapped pages were let go

    @property
    def max_physical_offset(self) -> int:
        """End of the log."""
        return self._log.end

    @property
    def min_physical_offset(self) -> int:
        """Begin of the log."""
        return self._log.start

    @property
    def last_ms(self) -> int:
        """The store time of the last record; 0 without any."""
        return self._log.timestamp

    @property
    def flushed_offset(self) -> int:
        """Up to where the log is synced."""
        return self._log.flushed

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that the index has still to read; 0 when it has only its backlog in memory
        left."""
        return 0 if self._reput.behind is None else self._log.end - self._reput.behind

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        max_bytes: int | None = None,
        matches: Matches | None = None,
        matches_record: MatchesRecord | None = None,
        looks: int = 800,
        reach: int | None = None,
    ) -> GetResult:
        """Read messages from `queue_offset` on, as Java's getMessage does, including status and next offset.

        `matches(tags code)` and `matches_record(record)` leave messages out. `max_bytes` is a bound besides
        the configured bounds; the first message is given whatever its size. `looks` bounds the messages
        passed to `matches_record`. Messages that end behind `reach`, a physical offset, count as not yet
        arrived. The buffers stay valid for as long as they are held.
        """
        queue = self._queue(topic, queue_id)
        if queue is None or not queue.start <= queue_offset < queue.end:
            return outside(queue, queue_offset, self._corrects_offsets())
        stop = queue.end
        if reach is not None and reach < self._log.end:
            stop = readable_end(queue, reach)
            if queue_offset >= stop:
                return GetResult(OFFSET_OVERFLOW_ONE, queue_offset, queue.start, queue_offset, is_cut=True)
        queue_read = QueueRead(
            queue_offset, max_messages, max_bytes or 1 << 62, matches, matches_record, looks, stop
        )
        result = read_queue(queue, self._log, self._limits, queue_read, self._compiled)
        self._note_served(result.size)
        return result

    def answer_pulls(
        self,
        lanes: PullLanes,
        run: PullRun,
        at: int,
        tables: tuple[Any, Any, Any, dict[tuple[str, int], None]],
        most: tuple[int, int],
        reach: int | None,
    ) -> tuple[int, list[bytes | memoryview]]:
        """`PullLanes.answer` by this store: `most` are the bounds of a pull besides the configured ones."""
        limits, log = self._limits, self._log
        bounds = (
            limits.memory,
            limits.count_in_memory,
            limits.bytes_in_memory,
            limits.count_in_disk,
            limits.bytes_in_disk,
            *most,
        )
        next_at, buffers = lanes.answer(run, at, tables, self._queues.table, log, bounds, reach)
        self._note_served(sum(map(len, buffers)))
        return next_at, buffers

    def answer_take(
        self,
        lanes: TakeLanes,
        key: tuple[str, int],
        offset: int,
        most: int,
        numbers: tuple[int, int, int],
    ) -> tuple[int, list[bytes | memoryview]] | None:
        """`TakeLanes.read` of a queue of this store, by its topic and id."""
        queue = self._queues.table.get(key)
        if queue is None:
            return None
        limits = self._limits
        bounds = (
            limits.memory,
            limits.count_in_memory,
            limits.bytes_in_memory,
            limits.count_in_disk,
            min(limits.bytes_in_memory, limits.bytes_in_disk),  # a take has no more than the former
        )
        found = lanes.read(queue, self._log, bounds, offset, most, numbers)
        if found is not None:
            self._note_served(found[0])
        return found

    def _note_served(self, size: int) -> None:
        self._served += size
        if self._served > _RELAX_BYTES:
            self._served = 0
            self._log.relax()

    def _corrects_offsets(self) -> bool:
        return self.config.broker_role is not BrokerRole.SLAVE or self.config.offset_check_in_slave

    def read(self, physical_offset: int) -> memoryview | None:
        """The bytes of the record that starts at an offset; None without a record. Any offset is allowed, but
        for offsets from clients use `confirmed`."""
        return self._log.record(physical_offset)

    def confirmed(self, physical_offset: int) -> memoryview | None:
        """The bytes of the record that starts at an offset, if a queue's unit points to it; else None.

        For offsets that clients name. A body may contain bytes that look like a record at its own place in
        the log, with any topic and a length that reaches into other clients' messages; only records have
        units. A record of a deleted topic has lost its unit.
        """
        view = self._log.record(physical_offset)
        record = None if view is None else parse(view, 0, physical_offset, check_crc=False)
        if record is None:
            return None
        queue = self._queue(record.topic.decode("utf-8", "replace"), record.queue_id)
        unit = None if queue is None else queue.unit(record.queue_offset)
        return view if unit is not None and unit[:2] == (physical_offset, record.size) else None

    def read_raw(self, physical_offset: int, size: int) -> memoryview:
        """At most `size` bytes of the log from an offset to the end of that file, for a slave. b"" at the end
        of the log. Raises OffsetOutOfRange when the log does not reach the offset."""
        if not self._log.start <= physical_offset <= self._log.end:
            raise self._out_of_range(physical_offset)
        stop = min(physical_offset + size, self._log.next_file(physical_offset), self._log.end)
        return self._log.read(physical_offset, stop - physical_offset) or memoryview(b"")

    def message(self, physical_offset: int, *, body: bool = True) -> StoredMessage | None:
        """The message that starts at an offset; None without a message. Without `body` its body stays as
        sent, neither checked nor decompressed."""
        view = self._log.record(physical_offset)
        return None if view is None else decode_record(view, check_crc=body, decompressed=body)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first offset of a queue; 0 for a queue without messages."""
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else queue.start

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset that the next message of a queue gets; 0 for a queue without messages."""
        queue = self._queues.table.get((topic, queue_id))
        return 0 if queue is None else queue.end

    def cut_at(self, topic: str, queue_id: int) -> int | None:
        """The former end of a queue that may have lost messages behind its end: the store was not closed in
        order, the log was cut, or another master had more of the queue. None for a queue that was never
        longer than now, so that a position beyond its end belongs to another topic, or to another store."""
        queue = self._queues.table.get((topic, queue_id))
        return None if queue is None else queue.cut_at

    def never_reached(self, topic: str, queue_id: int, position: int) -> bool:
        """True for a position beyond the end of a queue that lost no messages: it was saved beside another
        store, or beside a later state of this store."""
        return position > self.max_offset(topic, queue_id) and self.cut_at(topic, queue_id) is None

    def readable_end(self, topic: str, queue_id: int, reach: int) -> int:
        """Same as `max_offset`, of the messages that end before the physical offset `reach`."""
        queue = self._queues.table.get((topic, queue_id))
        return 0 if queue is None else readable_end(queue, reach)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The offset of the message stored nearest to that time, as Java's getOffsetInQueueByTime has it."""
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else offset_by_time(queue, self._log, timestamp_ms)

    def message_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """The store time of a message; -1 without the message."""
        queue = self._queue(topic, queue_id)
        unit = None if queue is None else queue.unit(queue_offset)
        return -1 if unit is None else self._log.store_timestamp(unit[0])

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """The store time of the first message of a queue; -1 without any."""
        return self.message_time(topic, queue_id, self.min_offset(topic, queue_id))

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int, int] | None:
        """(physical offset, size, tags code) of a message; None without the message."""
        queue = self._queue(topic, queue_id)
        return None if queue is None else queue.unit(queue_offset)

    def bytes_of(self, topic: str, queue_id: int, first: int, end: int) -> int:
        """The size of the messages from `first` to before `end`; -1 when these cannot be counted any more."""
        queue = self._queues.table.get((topic, queue_id))
        return -1 if queue is None else queue.record_bytes(first, end)

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """True if a queue has, or had, messages."""
        return (topic, queue_id) in self._queues.table

    def queue_end(self, topic: str) -> int:
        """The number after the highest queue id of a topic that has, or had, messages; 0 for none. A topic
        that was cut may have fewer queues than that."""
        return self._queues.ends.get(topic, 0)

    def queues(self) -> Iterator[tuple[str, int]]:
        """The queues that have, or had, messages."""
        return iter(list(self._queues.table))

    def lookup(self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int) -> Lookup:
        """Places of the records of that topic and key (or unique key) in the index, the newest `max_num` of
        them."""
        while self._reput.behind is None and self._reput.step(COUNT_BACKLOG, self._now_ms()):
            pass
        most = min(max_num, self.config.max_msgs_num_batch)
        search = self._index.search(
            topic, key, begin_ms, end_ms, most, partial(self._has_key, topic, key), self._log.store_timestamp
        )
        last = self._index.files[-1] if self._index.files else None
        reach = (0, 0) if last is None else (last.end_timestamp, last.end_offset)
        return Lookup(sorted(search.found), *reach, search.is_all)

    def _has_key(self, topic: str, key: str, physical_offset: int) -> bool:
        """True if the record there is of a topic and has a key, and not another with the same hash."""
        try:
            record = self.read(physical_offset)
            if record is None or key.encode("utf-8", JAVA) not in property_bytes(record):
                return False
            message = self.message(physical_offset, body=False)
        except CorruptRecord:
            return False
        if message is None or message.topic != topic or key not in (*message.keys, message.message_id):
            return False
        return message.queue_offset >= self.min_offset(topic, message.queue_id)

    def query(self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int) -> list[StoredMessage]:
        """The messages of a topic with that key (or unique key), stored between the times (ms), oldest
        first.
        """
        found = []
        for physical_offset in self.lookup(topic, key, max_num, begin_ms, end_ms).physical_offsets:
            message = self.message(physical_offset)
            if message is not None:
                found.append(message)
        return found

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.find(topic, queue_id, self._log.segments.start)

    def _out_of_range(self, physical_offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"offset {physical_offset} is outside the log: {self._log.start} to {self._log.end}"
        )
