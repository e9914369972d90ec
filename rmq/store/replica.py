"""ReplicaStore: a store whose log is copied from a master's, byte by byte.

The bytes are appended unchanged; queue units and index entries are made of the records in them. `truncate`
and `set_aside` are for a log that its master cannot continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from rmq.errors import CorruptRecord, StoreError
from rmq.protocol.properties import has_unit, unit_code
from rmq.store.aside import find_aside, move_aside
from rmq.store.files.abort import AbortFile
from rmq.store.files.checkpoint import Checkpoint
from rmq.store.files.consumequeue import ConsumeQueue
from rmq.store.files.disk import Bytes, Disk
from rmq.store.files.index import Entry
from rmq.store.files.queues import Arrival
from rmq.store.files.scan import Run, Scan, Scanned, why_no_record
from rmq.store.files.segments import Progress, no_progress
from rmq.store.recovery import Recovery
from rmq.store.reput import entries_of
from rmq.store.retention import Retention
from rmq.store.writer import StoreWriter

if TYPE_CHECKING:
    from rmq.protocol._engine import Rows


class ReplicaStore(StoreWriter):
    """The slave's part of a `Store`, which is one and makes the parts."""

    disk: Disk
    _checkpoint: Checkpoint | None
    _abort: AbortFile | None
    _sync_lock: AbstractContextManager[object]
    retention: Retention

    def append_raw(self, physical_offset: int, data: Bytes) -> Sequence[Arrival]:
        """Append bytes of the master's log at the same offset; an empty log begins at that offset, which must
        be the start of a file. A record may come in pieces.

        Returns the queues that grew by whole records. Raises OffsetOutOfRange when the bytes do not follow
        the log's end, StoreError for a failed write, CorruptRecord when a place where a record must begin has
        no good record: the log then ends with the last good record.
        """
        if physical_offset != self._log.end:
            is_start = physical_offset >= 0 and physical_offset % self._log.file_size == 0
            if self._log.end != self._log.start or not is_start:
                raise self._out_of_range(physical_offset)
            # An empty log may begin anywhere: a master whose oldest files expired sends what it still has.
            self._vouch_for_nothing()
            if self._log.segments.bases:  # files without a record
                self._log.segments.remove_all()
            self._log.open_at(physical_offset, 0)
            self._raw_position = self._raw_whole = physical_offset
        self._log.write_raw(data)
        assert self._log.end == physical_offset + len(data), "a slave's log has its master's addresses"
        return self._queue_raw()

    def _queue_raw(self) -> Sequence[Arrival]:
        """Make units and index entries of the whole records that came."""
        # After the last whole record come a part of one, or a BLANK. Of a BLANK that is not all there yet the
        # scan goes to the next file at once, which is past the log's end.
        assert self._raw_whole <= min(self._raw_position, self._log.end)
        scan = Scan(self._log.segments, self._raw_position, stop=self._log.end)
        # All are read before the first is taken: a failed read leaves nothing taken in part.
        found = list(scan.runs(self._compiled, with_rows=self.config.message_index_enable))
        self._raw_position = position = scan.position
        entries: list[Entry | Rows] = []
        for one in found:
            if isinstance(one, Run):
                for topic, queue_id, queue_offset, count, units in one.queues:
                    self._add_units(self._growing(topic, queue_id, queue_offset), count, units)
                if one.rows is not None:
                    entries.append(one.rows)
            else:
                if has_unit(one.sys_flag):
                    self._own_unit(one)
                entries += entries_of((one,))
        if found:
            self._raw_whole = found[-1].end
            self._log.timestamp = self._batch_ms = found[-1].store_timestamp
        arrivals = self._take_units()
        self._index_later(entries)
        self._queues.keep_up(self._log.timestamp, position)
        if position < self._log.end and (why := why_no_record(self._log.segments, position, self._log.end)):
            self.cut_partial()
            raise CorruptRecord(self._log.segments.path(position), position, f"it arrived damaged: {why}")
        return arrivals

    def _own_unit(self, record: Scanned) -> None:
        topic = record.topic.decode("utf-8", "replace")
        queue = self._growing(topic, record.queue_id, record.queue_offset)
        code = unit_code(record.topic, record.properties, record.store_timestamp, self._delays)
        self._units.append((record.position, record.size, code))
        self._owners.append(queue)
        queue.next += 1

    def _growing(self, topic: str, queue_id: int, queue_offset: int) -> ConsumeQueue:
        """The queue, whose next unit is the one of this queue offset."""
        queue = self._queues.table.get((topic, queue_id)) or self._queues.make(topic, queue_id)
        if queue_offset != queue.next:
            # The master's topic was deleted and made again, or this log begins in the middle of a queue.
            if queue.next != queue.end:
                self._drop_pending(lambda other: other is queue)
            self._queues.restart(queue, queue_offset)
        return queue

    def truncate(self, physical_offset: int) -> None:
        """Cut log, queues and index at the start of a record. Raises OffsetOutOfRange when the log does not
        reach there.
        """
        if not self._log.start <= physical_offset <= self._log.end:
            raise self._out_of_range(physical_offset)
        self._rollback()
        # Queues before the log: a crash in between leaves records without units, which the next start makes,
        # and not units that name places where the new master's records will be.
        self._queues.truncate(physical_offset)
        last_ms = self._last_stored_ms()
        if self._checkpoint is not None:
            # The records that come next may be older than those that went, and none of them is synced. Before
            # the log: what a crash in between leaves of it, some pages empty and later ones not, would be
            # damage to what was synced.
            with self._sync_lock:
                self._checkpoint.lower(last_ms, physical_offset)
        self._log.truncate(physical_offset, last_ms)
        self._raw_position = self._raw_whole = physical_offset
        self._index.truncate(physical_offset)
        if self._checkpoint is not None:
            self._vouch_for_less(self._checkpoint)
        if self.config.message_index_enable:
            self._reput.start(again=True)

    def cut_partial(self) -> None:
        """Cut the bytes behind the last whole record, a part of a record or the end of a file: the master may
        go on with another record."""
        if self._raw_whole != self._log.end:
            self.truncate(self._raw_whole)

    def _last_stored_ms(self) -> int:
        """The store time of the last record, by the queues; 0 without any."""
        units = (queue.unit(queue.end - 1) for queue in self._queues.table.values())
        last = max((unit[0] for unit in units if unit is not None), default=-1)
        return max(0, self._log.store_timestamp(last)) if last >= 0 else 0

    @property
    def aside(self) -> str:
        """The folder that `set_aside` moves the log to, or that an earlier log is in."""
        return find_aside(self.disk, self.config.commit_log_path)

    def set_aside(self) -> str:
        """Move a slave's log to `aside`, return that folder, and go on with an empty log. Queues and index
        are removed; `rmq store repair` makes them again from a log.

        Raises StoreError, also when an earlier log was set aside; the store is unchanged in this case.
        """
        self._rollback()
        if self.disk.exists(self.aside):
            raise StoreError(
                f"an earlier log is kept in {self.aside}: remove it when you no longer need its messages"
            )
        if self.retention.path is not None:  # a new file might get its name, and go in its place
            raise StoreError(f"{self.retention.path} is being removed: try again")
        # Synced first: what lies aside is the only copy of what this broker acknowledged as a master.
        self.flush()
        # Before the move: a start after a crash in between would miss what the other files vouch for.
        self._vouch_for_nothing()
        # A log on a volume of its own moves file by file.
        self._log.close()
        folder = move_aside(self.disk, self.config.commit_log_path)
        with self._sync_lock:
            for part in (self._log, self._queues, self._index, self._checkpoint):
                if part is not None:
                    part.close()
            self._checkpoint = None
            for name in ("consumequeue", "index"):
                self.disk.remove(self._path(name))
        self._make_parts()
        self._load(no_progress, rebuild=False)
        return folder

    def _vouch_for_nothing(self) -> None:
        """Remove the statements about the log from `abort` and the checkpoint. Raises StoreError."""
        if self._abort is not None:
            self._abort.lower(0)
        if self._checkpoint is not None:
            with self._sync_lock:
                self._checkpoint.lower(0, 0)

    # ---- what the Store does ----

    def flush(self) -> int:
        """See Store."""
        raise NotImplementedError

    def _vouch_for_less(self, checkpoint: Checkpoint) -> None:
        raise NotImplementedError

    def _path(self, name: str) -> str:
        raise NotImplementedError

    def _make_parts(self) -> None:
        raise NotImplementedError

    def _load(self, progress: Progress, rebuild: bool) -> Recovery:
        raise NotImplementedError
