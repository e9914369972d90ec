"""StoreWriter: the pending batch of a store: messages that are put, written together, and readable then.

`put` takes a message into the batch and gives it its offsets. `commit` writes the whole batch; after a failed
write none of the batch is stored, and the offsets are free again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from rmq.errors import StoreError
from rmq.message import SCHEDULE_TOPIC
from rmq.protocol.codes import SYS_BORNHOST_V6, SYS_HOST_BITS, SYS_PREPARED
from rmq.protocol.properties import MARKERS, TagsAndKeys, due_time, is_indexed, property_value
from rmq.protocol.record import PROPERTIES_MAX, Record, build_batch, build_record
from rmq.store.config import BrokerRole
from rmq.store.files.consumequeue import UNIT_FORM, ConsumeQueue, Unit
from rmq.store.files.index import Entry
from rmq.store.files.queues import Arrival, EncodedUnits
from rmq.store.view import COUNT_BACKLOG, StoreView

if TYPE_CHECKING:
    from rmq.protocol._engine import Lanes, Rows, SendRun

_CLOCK_STEP_MS = 10_000
_ROOM = 8  # a BLANK's
_NO_HOST_BITS = ~SYS_HOST_BITS
_PROPERTIES_SURE = 8192


class Batch(NamedTuple):
    """Places of the messages of a batch: the first one's queue offset, their physical offsets, their bytes
    together."""

    queue_offset: int
    physical_offsets: list[int]
    size: int


class StoreWriter(StoreView):
    """Takes messages and writes them. The `Store`, which is one, makes the parts."""

    store_host: bytes
    _host_flag: int
    _fixed_size: int  # of a record without its variable parts
    _delays: dict[int, int]
    _raw_position: int  # a slave's: up to where queues have the log's records
    _raw_whole: int  # a slave's: where the last whole record that came ends

    def _begin_empty(self) -> None:
        """Begin without a pending batch."""
        self._units: list[Unit] = []
        self._owners: list[ConsumeQueue] = []  # the queue of each unit
        self._encoded: list[EncodedUnits] = []  # they come before those
        self._entries: list[Entry | Rows] = []
        self._lanes: Lanes | None = None  # of a run, which is the whole batch then
        self._tags_and_keys = TagsAndKeys()
        self._plain_suffix = b""
        self._batch_ms = 0

    def put(self, record: Record) -> None:
        """Take a record into the pending batch: its offsets, store time, size and tags code (when delayed)
        are filled in.

        The record is readable, and may be acknowledged, after `commit`. Raises StoreError for a record that
        no log file can hold, on a slave, and when nothing can be written, with the pending batch unchanged.
        """
        queue = self._queues.table.get((record.topic, record.queue_id))
        if queue is None:
            queue = self._queues.make(record.topic, record.queue_id)
        commit_log = self._log
        if commit_log.position == commit_log.end:
            self._begin_batch()
        now, body, born_host, properties = (
            self._batch_ms,
            record.body,
            record.born_host,
            record.properties.encode(),
        )
        # The host bits tell of the hosts written here; a record stored again may come with those of others.
        sys_flag = record.sys_flag & _NO_HOST_BITS | self._host_flag
        if len(born_host) == 20:
            sys_flag |= SYS_BORNHOST_V6
        size = self._fixed_size + len(born_host) + len(body) + queue.topic_size + len(properties)
        if size + _ROOM > commit_log.left or len(properties) > PROPERTIES_MAX:
            self._make_room(size, properties)
        plain = not sys_flag & SYS_PREPARED
        record.sys_flag = sys_flag
        record.size = size
        record.store_timestamp = now
        record.queue_offset = queue_offset = queue.next if plain else 0
        record.physical_offset = position = commit_log.position
        commit_log.append(
            build_record(
                size,
                record.queue_id,
                record.flag,
                queue_offset,
                position,
                sys_flag,
                record.born_timestamp,
                born_host,
                now,
                self.store_host,
                record.reconsume_times,
                record.prepared_transaction_offset,
                body,
                queue.topic_bytes,
                properties,
            )
        )
        if plain:
            if record.topic == SCHEDULE_TOPIC:
                record.tags_code = self._due(record, properties)
            self._units.append((position, size, record.tags_code))
            self._owners.append(queue)
            queue.next = queue_offset + 1
        if record.keys and is_indexed(sys_flag):
            self._entries.append((record.topic, record.keys, position, now))

    def put_body(self, topic: str, body: bytes) -> None:
        """Take a record of the broker's own into queue 0 of a topic, as `put` does: a body without
        properties."""
        queue = self._queues.table.get((topic, 0)) or self._queues.make(topic, 0)
        log, host, now = self._log, self.store_host, self._batch_ms
        if log.position == log.end:
            self._begin_batch()
            now = self._batch_ms
        size = self._fixed_size + len(host) + len(body) + queue.topic_size
        if size + _ROOM > log.left:
            self._make_room(size, b"")
        position, flag = log.position, self._host_flag | (SYS_BORNHOST_V6 if len(host) == 20 else 0)
        place = 0, queue.next, position, flag
        log.append(build_record(size, 0, *place, 0, host, now, host, 0, 0, body, queue.topic_bytes, b""))
        self._units.append((position, size, 0))
        self._owners.append(queue)
        queue.next += 1

    def put_batch(self, shared: Record, batch: bytes, suffix: bytes) -> Batch | None:
        """Take the messages of a batch body into the pending batch, as `put` does with each: `shared` is
        their common part, `suffix` follows the properties of each message.

        The topic is not that of delayed messages. Return None when the messages may not fit the present file
        of the log, and when a message has properties of over 8 KiB: the caller puts them singly. Raises
        RemoteProtocolError, StoreError, with the pending batch unchanged.
        """
        commit_log = self._log
        queue = self._queues.table.get((shared.topic, shared.queue_id)) or self._queues.make(
            shared.topic, shared.queue_id
        )
        if not commit_log.has_pending:
            self._begin_batch()
        now, born_host = self._batch_ms, shared.born_host
        sys_flag = shared.sys_flag & _NO_HOST_BITS | self._host_flag
        if len(born_host) == 20:
            sys_flag |= SYS_BORNHOST_V6
        fields = (
            (shared.queue_id, queue.next, commit_log.position, sys_flag),
            (shared.born_timestamp, born_host),
            (now, self.store_host),
            shared.reconsume_times,
            queue.topic_bytes,
        )
        is_marked = suffix != self._plain_suffix and self._is_marked(suffix)
        if self._compiled is not None:
            is_indexed = self.config.message_index_enable
            made = self._compiled.build_batch(batch, suffix, *fields, is_indexed, is_marked)
            if made is not None and made[1]:
                return self._put_made(queue, *made)
        pieces, positions, sizes, texts = build_batch(batch, suffix, *fields)
        if not positions:
            return None
        total = sum(sizes)
        if total + _ROOM > commit_log.left or max(map(len, texts)) + len(suffix) > _PROPERTIES_SURE:
            return None
        commit_log.append_all(pieces, total)
        if is_marked:
            texts = [
                text + suffix if text[-1:] in (b"", b"\x02") else b"%b\x02%b" % (text, suffix)
                for text in texts
            ]
        codes, keys = self._tags_and_keys.of_all(texts)
        self._units += zip(positions, sizes, codes, strict=True)
        self._owners += [queue] * len(positions)
        self._entries += zip(repeat(shared.topic), keys, positions, repeat(now))
        first = queue.next
        queue.next += len(positions)
        return Batch(first, positions, total)

    def _put_made(
        self, queue: ConsumeQueue, data: bytes, positions: list[int], units: bytes, rows: Rows | None
    ) -> Batch | None:
        """Take a batch made by the compiled engine, if it fits."""
        if len(data) + _ROOM > self._log.left:
            return None
        self._log.append(data)
        first = queue.next
        self._add_units(queue, len(positions), units)
        if rows is not None:
            self._entries.append(rows)
        return Batch(first, positions, len(data))

    def _add_units(self, queue: ConsumeQueue, count: int, units: bytes) -> None:
        """Take encoded units of a queue into the pending batch."""
        if self._owners:  # in their order
            self._units += UNIT_FORM.iter_unpack(units)
            self._owners += [queue] * count
        else:
            self._encoded.append((queue, count, units))
        queue.next += count

    def put_run(self, lanes: Lanes, run: SendRun, born_host: bytes) -> bool:
        """Take a run of plain sends; runs are the whole pending batch. False when the messages must be put
        singly, after a `commit` of the earlier runs. Raises StoreError as `put` does, with this run not
        pending."""
        commit_log = self._log
        if not commit_log.has_pending:
            self._begin_batch()
        else:
            assert self._lanes is lanes
        place = commit_log.position, commit_log.left
        data = lanes.put(run, self._queues.table, *place, self._batch_ms, born_host)
        if data is None:
            return False
        self._lanes = lanes
        commit_log.append(data)
        return True

    def lane(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue of a lane, if it exists."""
        return self._queues.table.get((topic, queue_id))

    def _is_marked(self, suffix: bytes) -> bool:
        """True if the text after a batch's properties has tags or keys. The last text without any is
        remembered."""
        if any(marker in suffix for marker in MARKERS):
            return True
        self._plain_suffix = suffix
        return False

    def _begin_batch(self) -> None:
        if self.config.broker_role is BrokerRole.SLAVE:
            # A record of its own would make the log differ from its master's for good.
            raise StoreError("this broker is a slave: its log takes only records of its master")
        self._queues.check_room(self._log.timestamp)
        now, last = self._now_ms(), self._log.timestamp
        # Store times tell what was synced and are searched by halves: small steps back of the clock are
        # not stored.
        self._batch_ms = last if last - _CLOCK_STEP_MS <= now < last else now

    def _make_room(self, size: int, properties: bytes) -> None:
        if len(properties) > PROPERTIES_MAX:
            raise StoreError(
                f"properties of {len(properties)} bytes are too long, the most is {PROPERTIES_MAX}"
            )
        self._log.roll(size)

    def _due(self, record: Record, properties: bytes) -> int:
        due = due_time(property_value(properties, b"DELAY\x01"), record.store_timestamp, self._delays)
        return record.tags_code if due is None else due

    def commit(self) -> Sequence[Arrival]:
        """Write the pending batch; its records are readable when this returns. Return the queues that grew.

        Raises StoreError (DiskFull …) for a failed write: none of the batch is stored in this case, and the
        offsets that `put` gave out are free again.
        """
        if not self._log.has_pending:
            return ()
        try:
            self._log.commit()
        except BaseException:
            self._rollback()
            raise
        # After the commit, see CommitLog.flush. The units follow the record, never the other way: a unit
        # without its record would send a consumer to a place where another record comes.
        self._log.timestamp = self._batch_ms
        self._raw_position = self._raw_whole = self._log.end
        arrivals = self._take_units()
        if self._entries:
            self._index_later(self._entries)
            self._entries = []
        self._queues.keep_up(self._batch_ms, self._log.end)
        return arrivals

    def _take_units(self) -> list[Arrival]:
        if self._lanes is not None:
            encoded, rows = self._lanes.commit(self._batch_ms)
            self._lanes = None
            if rows is not None:
                self._entries = [rows]
            return self._queues.take_encoded(encoded, self._batch_ms)
        arrivals: list[Arrival] = []
        if self._encoded:
            encoded, self._encoded = self._encoded, []
            arrivals = self._queues.take_encoded(encoded, self._batch_ms)
        if self._units:
            units, owners = self._units, self._owners
            self._units, self._owners = [], []
            arrivals += self._queues.take(units, owners, self._batch_ms)
        return arrivals

    def _index_later(self, entries: Sequence[Entry | Rows]) -> None:
        if self.config.message_index_enable:
            self._reput.add(entries)
            if len(self._reput) > COUNT_BACKLOG:
                self._reput.step(COUNT_BACKLOG // 4, self._now_ms())

    def _rollback(self) -> None:
        # The offsets that `put` gave out are given out again: no response has named them.
        for queue in self._owners:
            queue.next = queue.end
        for queue, _, _ in self._encoded:
            queue.next = queue.end
        self._units, self._owners, self._encoded, self._entries = [], [], [], []
        if self._lanes is not None:
            self._lanes.rollback()
            self._lanes = None
        self._log.rollback()

    def _drop_pending(self, dropped: Callable[[ConsumeQueue], bool]) -> None:
        """Drop the units of these queues from the pending batch; their records go into the log all the
        same."""
        kept = [at for at, queue in enumerate(self._owners) if not dropped(queue)]
        self._units, self._owners = [self._units[at] for at in kept], [self._owners[at] for at in kept]
        self._encoded = [units for units in self._encoded if not dropped(units[0])]

    @property
    def has_pending(self) -> bool:
        """True if `put` was called since the last `commit`."""
        return self._log.has_pending
