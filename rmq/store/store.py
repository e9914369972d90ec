"""Store: the log, its queues and its index as one thing that takes, keeps and finds messages.

One thread uses a store, but for `flush`, `flush_queues`, `flush_checkpoint`, `save_config` and
`config_text`, which may run in another thread at any time.

A send is `put` for each message, then one `commit` for all: only then are they readable, and only then
may they be acknowledged. `flush` makes them safe from a power cut. Units gather in memory, index entries
in a backlog; `dispatch`, called when there is time, writes them down. Both are made again from the log
when lost.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from rmq.errors import OffsetOutOfRange, StoreError
from rmq.message import SCHEDULE_TOPIC, StoredMessage
from rmq.protocol import json
from rmq.protocol.engine import build_record, encode_queue_units
from rmq.protocol.record import Record, decode_record
from rmq.store.checkpoint import Checkpoint
from rmq.store.commitlog import CommitLog
from rmq.store.config import BrokerRole, StoreConfig, delay_table
from rmq.store.consumequeue import UNIT, ConsumeQueue, Unit, queue_folder
from rmq.store.disk import Bytes, Disk, Lock
from rmq.store.files import ConfigFiles
from rmq.store.index import Entry, Index
from rmq.store.properties import PREPARED, due_time, has_unit, is_indexed, value_of
from rmq.store.reader import (
    GetResult,
    Limits,
    Matches,
    MatchesRecord,
    Wanted,
    offset_by_time,
    outside,
    read_queue,
)
from rmq.store.recovery import Progress, Recoverer, Recovery, known_queues, no_progress
from rmq.store.reput import Reput, entries_of
from rmq.store.retention import CleanReport, DiskState, disk_state, expired_files, why_clean
from rmq.store.scan import Scan
from rmq.store.segments import OpenFiles

log = logging.getLogger("rmq.store")

_COUNT_BACKLOG = 20_000  # records that wait for the index before commit() helps
_GATHERED_BYTES = 16 << 20  # queue units in memory before commit() writes some
_QUEUE_FILES_OPEN = 256
_SYNC_ALL_FROM = 64  # more queue files than that are synced by one sync of the file system
_TRIM_AT_ONCE = 500
_WRITES_AT_ONCE = 64
_GATHER_MS = 5000  # how long units may wait in memory
_WRITE_MS = 5  # how long one call may write queue files: making thousands of them takes a while
_DISK_LOOK_MS = 1000
_CLOCK_STEP_MS = 10_000
_RELAX_BYTES = 16 << 20
_ROOM = 8  # a BLANK's


class Arrival(NamedTuple):
    """A queue got messages: `next_queue_offset` is the offset after the last of them."""

    topic: str
    queue_id: int
    next_queue_offset: int


class Lookup(NamedTuple):
    """What the index knows about a key: physical offsets, oldest first, and how far the index reaches."""

    physical_offsets: list[int]
    index_timestamp: int
    index_offset: int


class Store:
    """One folder of files. `store_host` is this broker's address in records, 8 or 20 bytes; `now_ms` the
    wall clock.
    """

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        *,
        store_host: bytes,
        now_ms: Callable[[], int],
        memory_bytes: int | None = None,
    ) -> None:
        root = config.store_path_root_dir
        self.config = config
        self.disk = disk
        self._root = root
        self._store_host = store_host
        self._host_flag = 32 if len(store_host) == 20 else 0
        self._now_ms = now_ms
        self._delays = delay_table(config.message_delay_level)
        self._memory = _physical_memory() if memory_bytes is None else memory_bytes
        self._limits = self._make_limits()
        self._log = CommitLog(disk, config.commit_log_path, config.mapped_file_size_commit_log)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._open_files = OpenFiles(_QUEUE_FILES_OPEN)
        self._index = Index(disk, os.path.join(root, "index"), config.max_hash_slot_num, config.max_index_num)
        self._reput = Reput(self._log, self._index)
        self._files = ConfigFiles(disk, os.path.join(root, "config"))
        self._checkpoint: Checkpoint | None = None
        self._lock: Lock | None = None
        # the pending batch
        self._units: list[Unit] = []
        self._owners: list[ConsumeQueue] = []  # the queue of each unit
        self._full: list[ConsumeQueue] = []  # queues with enough units for a write
        self._entries: list[Entry] = []
        self._batch_ms = 0
        # queues with units in memory only (longest waiting first), and with files that were not synced
        self._gathered: dict[ConsumeQueue, None] = {}
        self._gathered_bytes = 0
        self._written_ms = 0
        self._unsynced: dict[ConsumeQueue, None] = {}
        self._sync_lock = threading.Lock()
        self._to_trim: list[ConsumeQueue] = []
        self._raw_position = 0  # a slave's: up to where queues have the log's records
        self._served = 0  # bytes read since the mapped pages were let go
        self._write_error = ""
        self._disk_looked_ms = -_DISK_LOOK_MS
        self._disk_state = DiskState(0.0, 0)

    def _make_limits(self) -> Limits:
        config = self.config
        return Limits(
            memory=self._memory * config.access_message_in_memory_max_ratio // 100,
            bytes_in_memory=config.max_transfer_bytes_on_message_in_memory,
            count_in_memory=config.max_transfer_count_on_message_in_memory,
            bytes_in_disk=config.max_transfer_bytes_on_message_in_disk,
            count_in_disk=config.max_transfer_count_on_message_in_disk,
        )

    def configure(self, config: StoreConfig) -> None:
        """Take new values of the settings that may change while the store is open."""
        self.config = config
        self._limits = self._make_limits()

    # ---- opening and closing ----

    def load(self, progress: Progress | None = None, *, rebuild: bool = False) -> Recovery:
        """Lock the folder and recover. `progress(stage, done, total)` is called now and then; `rebuild`
        makes all queues and the index again from the log.

        Raises StoreLocked, CorruptRecord for damage inside the log, StoreError for files that cannot be
        used. The folder is unlocked then.
        """
        self._lock = self.disk.lock(self._path("lock"))
        try:
            return self._load(progress or no_progress, rebuild)
        except BaseException:
            self._close_files()
            raise

    def _load(self, progress: Progress, rebuild: bool) -> Recovery:
        abort = self._path("abort")
        clean = not self.disk.exists(abort)
        self.disk.replace(abort, b"")
        checkpoint = self._checkpoint = Checkpoint(self.disk, self._path("checkpoint"))
        for topic, queue_id in known_queues(self.disk.list, self._path("consumequeue")):
            self._make_queue(topic, queue_id)
        recoverer = Recoverer(
            self._log,
            self._queues,
            self._make_queue,
            self._delays,
            self._known_topics(),
            check_crc=self.config.check_crc_on_recover,
            cut_damage=self.config.truncate_damaged_log,
            progress=progress,
        )
        recovery = recoverer.run(checkpoint, clean=clean, rebuild=rebuild)
        self._gathered.update((queue, None) for queue in self._queues.values() if queue.gathered)
        self._gathered_bytes = sum(queue.gathered for queue in self._gathered)
        if recovery.records:
            self._unsynced.update(dict.fromkeys(self._queues.values()))
        self._note_written()
        self._raw_position = self._log.end
        self._load_index(checkpoint, clean=clean, rebuild=rebuild)
        log.info("store %s opened: %s", self._root, recovery)
        return recovery

    def _load_index(self, checkpoint: Checkpoint, *, clean: bool, rebuild: bool) -> None:
        if not self.config.message_index_enable:
            return
        self._index.load(None if clean else checkpoint.index_ms)
        if rebuild:
            self._index.clear()
        self._index.truncate(self._log.end)
        self._reput.start(again=not clean)

    def _known_topics(self) -> frozenset[str] | None:
        """The topics of config/topics.json: tells a queue that was lost from one whose topic was deleted."""
        try:
            table = json.loads(self._files.load("topics") or b"{}")["topicConfigTable"]
            return frozenset(table) if table else None
        except (StoreError, KeyError, TypeError):
            return None

    def close(self) -> None:
        """Write and sync all, and leave the mark of a clean stop. Raises StoreError; the next start then
        recovers.
        """
        if self._lock is None:
            return
        try:
            self._rollback()
            while self._reput.behind is None and self._reput.step(_COUNT_BACKLOG, self._now_ms()):
                pass
            self._write_queues(self._gathered, most_ms=1 << 60)
            self.flush()
            self.flush_queues()
            self._index.sync(all_files=True)
            self.flush_checkpoint()
            if self._gathered:
                raise StoreError(
                    f"queues could not be written, the next start makes them: {self._write_error}"
                )
            self.disk.remove(self._path("abort"))
        finally:
            self._close_files()

    def abandon(self) -> None:
        """Let go of all files without writing anything, as a killed process would."""
        self._close_files()

    def _close_files(self) -> None:
        self._log.close()
        for queue in self._queues.values():
            queue.close()
        self._index.close()
        if self._checkpoint is not None:
            self._checkpoint.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)

    # ---- writing ----

    def put(self, record: Record) -> None:
        """Take a record into the pending batch: its offsets, store time, size and tags code (when delayed)
        are filled in.

        It is readable, and may be acknowledged, after `commit`. Raises StoreError for a record that no
        log file can hold or when nothing can be written; the pending batch stays as it was.
        """
        queue = self._queues.get((record.topic, record.queue_id))
        if queue is None:
            queue = self._make_queue(record.topic, record.queue_id)
        commit_log = self._log
        if not commit_log.pending:
            self._begin_batch()
        now = self._batch_ms
        properties = record.properties.encode()
        sys_flag = record.sys_flag | self._host_flag
        if len(record.born_host) == 20:
            sys_flag |= 16
        size = (
            75
            + len(record.born_host)
            + len(self._store_host)
            + len(record.body)
            + queue.topic_size
            + len(properties)
        )
        if size + _ROOM > commit_log.left or len(properties) > 32767:
            self._make_room(size, properties)
        plain = not sys_flag & PREPARED
        record.sys_flag = sys_flag
        record.size = size
        record.store_timestamp = now
        record.queue_offset = queue_offset = queue.next if plain else 0
        record.physical_offset = position = commit_log.position
        commit_log.append(
            build_record(
                (size, record.queue_id, record.flag, queue_offset, position, sys_flag),
                (record.born_timestamp, record.born_host),
                (now, self._store_host),
                (record.reconsume_times, record.prepared_transaction_offset),
                record.body,
                (queue.topic_bytes, properties),
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

    def _begin_batch(self) -> None:
        if self._gathered_bytes > 2 * _GATHERED_BYTES:
            # Writing queue files has failed for long; memory must not grow for ever.
            self._write_queues(islice(self._gathered, _WRITES_AT_ONCE))
            if self._write_error:
                raise StoreError(f"queue files cannot be written: {self._write_error}")
        now, last = self._now_ms(), self._log.timestamp
        # Store times tell what was synced and are searched by halves: small steps back of the clock are
        # not stored.
        self._batch_ms = last if last - _CLOCK_STEP_MS <= now < last else now

    def _make_room(self, size: int, properties: bytes) -> None:
        if len(properties) > 32767:
            raise StoreError(f"properties of {len(properties)} bytes are too long, the most is 32767")
        self._log.roll(size)

    def _due(self, record: Record, properties: bytes) -> int:
        due = due_time(value_of(properties, b"DELAY\x01"), record.store_timestamp, self._delays)
        return record.tags_code if due is None else due

    def commit(self) -> Sequence[Arrival]:
        """Write the pending batch; its records are readable when this returns. Returns the queues that
        grew.

        Raises StoreError (DiskFull …) when it cannot be written: then none of it is there, and the
        offsets that `put` gave out are free again.
        """
        if not self._log.pending:
            return ()
        try:
            self._log.commit()
        except BaseException:
            self._rollback()
            raise
        self._log.timestamp = self._batch_ms
        self._raw_position = self._log.end
        arrivals = self._commit_units() if self._units else []
        if self._entries:
            if self.config.message_index_enable:
                self._reput.add(self._entries)
            self._entries = []
        self._keep_up()
        return arrivals

    def _commit_units(self) -> list[Arrival]:
        """Hand the batch's units to their queues, encoded in one go."""
        data = encode_queue_units(self._units)
        owners = self._owners
        self._units, self._owners = [], []
        self._gathered_bytes += len(data)
        touched = dict.fromkeys(owners)
        if len(touched) == 1:
            owners[0].tail += data
        else:
            at = 0
            for queue in owners:
                queue.tail += data[at : at + UNIT]
                at += UNIT
        gathered, now = self._gathered, self._batch_ms
        arrivals = []
        for queue in touched:
            queue.end = queue.next
            if queue not in gathered:
                gathered[queue] = None
                queue.gathered_since_ms = now
            elif len(queue.tail) >= ConsumeQueue.WRITE_BYTES:
                self._full.append(queue)
            arrivals.append(Arrival(queue.topic, queue.queue_id, queue.end))
        return arrivals

    def _keep_up(self) -> None:
        """Bound what waits in memory."""
        if self._full:
            full, self._full = self._full, []
            self._write_queues(full)
        if self._gathered_bytes > _GATHERED_BYTES and not self._write_error:
            self._write_queues(islice(self._gathered, _WRITES_AT_ONCE))
        if len(self._reput) > _COUNT_BACKLOG:
            self._reput.step(_COUNT_BACKLOG // 4, self._now_ms())

    def _rollback(self) -> None:
        for queue in self._owners:
            queue.next = queue.end
        self._units, self._owners, self._entries = [], [], []
        self._log.rollback()

    def _write_queues(self, queues: Iterable[ConsumeQueue], most_ms: int = _WRITE_MS) -> bool:
        """Write gathered units to their files; whether time ran out before the last of them.

        A failure is logged: the units stay readable and are tried again by a later call.
        """
        deadline = self._now_ms() + most_ms
        late = False
        for queue in list(queues):
            if late := self._now_ms() >= deadline:
                break
            size = queue.gathered
            try:
                queue.write()
            except StoreError as error:
                if not self._write_error:
                    log.error("queue %s/%d cannot be written: %s", queue.topic, queue.queue_id, error)
                self._write_error = str(error)
                return False
            self._gathered.pop(queue, None)
            self._gathered_bytes -= size
            self._unsynced[queue] = None
        self._write_error = ""
        self._note_written()
        return late

    def _note_written(self) -> None:
        """All units of records stored before `_written_ms` are in their files."""
        since = min(
            (queue.gathered_since_ms for queue in islice(self._gathered, 1)), default=self._log.timestamp
        )
        self._written_ms = since

    def dispatch(self, limit: int = 1000) -> bool:
        """Do deferred work: index up to `limit` records, write queue units that waited long, trim queues.

        True when more is left to do at once.
        """
        now = self._now_ms()
        more = self._reput.step(limit, now)
        late = self._write_queues(self._longest_waiting(now))
        if self._to_trim:
            self._trim_some()
        return more or late or bool(self._to_trim)

    def _longest_waiting(self, now: int) -> list[ConsumeQueue]:
        queues: list[ConsumeQueue] = []
        for queue in self._gathered:
            # A clock that was set back must not hold units for ever.
            if 0 <= now - queue.gathered_since_ms < _GATHER_MS:
                break
            queues.append(queue)
        return queues

    @property
    def pending(self) -> bool:
        """Whether `put` was called since the last `commit`."""
        return self._log.pending

    # ---- syncing: any thread ----

    def flush(self) -> int:
        """Sync the log; returns the physical offset up to which all is on the medium. Blocks: call it in a
        thread.

        Raises StoreError when the medium refuses; the store takes no more records then, and the broker
        must stop.
        """
        return self._log.flush()

    def flush_queues(self) -> None:
        """Sync the queue files written so far and the index files that are full. Blocks: call it in a
        thread.

        Needed only so that a recovery starts later in the log: once in
        flushConsumeQueueThoroughInterval. Raises StoreError.
        """
        with self._sync_lock:
            written_ms = self._written_ms
            queues = []
            while self._unsynced:
                queues.append(self._unsynced.popitem()[0])
            try:
                if len(queues) > _SYNC_ALL_FROM:
                    self.disk.sync_all(self._root)
                else:
                    for queue in queues:
                        queue.sync()
                index_ms = self._index.sync()
            except StoreError:
                self._unsynced.update(dict.fromkeys(queues))
                raise
            checkpoint = self._checkpoint
            if checkpoint is not None:
                checkpoint.queues_ms = written_ms
                checkpoint.index_ms = max(checkpoint.index_ms, index_ms)

    def flush_checkpoint(self) -> None:
        """Write down how far log, queues and index are synced. Blocks: call it in a thread. Raises
        StoreError.
        """
        with self._sync_lock:
            checkpoint = self._checkpoint
            if checkpoint is not None:
                checkpoint.log_ms = self._log.flushed_timestamp
                checkpoint.flush()

    def config_text(self, name: str) -> bytes | None:
        """The text of config/<name>.json, or of its .bak when it is broken; None when there is none. Raises
        StoreError.
        """
        return self._files.load(name)

    def save_config(self, name: str, data: bytes) -> None:
        """Replace config/<name>.json, keeping the version before as .bak. Blocks. Raises StoreError."""
        self._files.save(name, data)

    # ---- reading ----

    @property
    def max_physical_offset(self) -> int:
        """Where the log ends."""
        return self._log.end

    @property
    def min_physical_offset(self) -> int:
        """Where the log begins."""
        return self._log.start

    @property
    def flushed_offset(self) -> int:
        """Up to where the log is synced."""
        return self._log.flushed

    @property
    def dispatch_behind_bytes(self) -> int:
        """How much of the log the index has still to read; 0 when it has only its backlog in memory left."""
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
    ) -> GetResult:
        """Read messages from `queue_offset` on, as Java's getMessage does, status and next offset included.

        `matches(tags code)` and `matches_record(record)` leave messages out. `max_bytes` is a bound
        besides the configured ones; the first message is given whatever its size. The buffers stay valid
        for as long as they are held.
        """
        queue = self._queue(topic, queue_id)
        answer = outside(queue, queue_offset, self._corrects_offsets())
        if answer is not None:
            return answer
        assert queue is not None
        wanted = Wanted(queue_offset, max_messages, max_bytes or 1 << 62, matches, matches_record)
        result = read_queue(queue, self._log, self._limits, wanted)
        self._served += result.size
        if self._served > _RELAX_BYTES:
            self._served = 0
            self._log.relax()
        return result

    def _corrects_offsets(self) -> bool:
        return self.config.broker_role is not BrokerRole.SLAVE or self.config.offset_check_in_slave

    def read(self, physical_offset: int) -> memoryview | None:
        """The bytes of the record that starts there; None when none does. Any number may be asked."""
        return self._log.record(physical_offset)

    def read_raw(self, physical_offset: int, size: int) -> memoryview:
        """At most `size` bytes of the log from there to the end of that file, for a slave. b"" at the end
        of the log.

        Raises OffsetOutOfRange when the log does not reach there.
        """
        if not self._log.start <= physical_offset <= self._log.end:
            raise self._out_of_range(physical_offset)
        stop = min(physical_offset + size, self._log.next_file(physical_offset), self._log.end)
        return self._log.read(physical_offset, stop - physical_offset) or memoryview(b"")

    def message(self, physical_offset: int) -> StoredMessage | None:
        """The message that starts there; None when none does."""
        view = self._log.record(physical_offset)
        return None if view is None else decode_record(view)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first offset of a queue; 0 for a queue without messages."""
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else queue.start

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset that the next message of a queue gets; 0 for a queue without messages."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.end

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The offset of the message stored nearest to that time, as Java's getOffsetInQueueByTime has it."""
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else offset_by_time(queue, self._log, timestamp_ms)

    def message_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """The store time of a message; -1 when it is not there."""
        queue = self._queue(topic, queue_id)
        unit = None if queue is None else queue.unit(queue_offset)
        return -1 if unit is None else self._log.store_timestamp(unit[0])

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """The store time of the first message of a queue; -1 without any."""
        return self.message_time(topic, queue_id, self.min_offset(topic, queue_id))

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, int, int] | None:
        """(physical offset, size, tags code) of a message; None when it is not there."""
        queue = self._queue(topic, queue_id)
        return None if queue is None else queue.unit(queue_offset)

    def queues(self) -> Iterator[tuple[str, int]]:
        """The queues that have, or had, messages."""
        return iter(list(self._queues))

    def lookup(self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int) -> Lookup:
        """Where the index has records of that topic and key. Records of other keys with the same hash may
        be among them.
        """
        while self._reput.behind is None and self._reput.step(_COUNT_BACKLOG, self._now_ms()):
            pass
        found = self._index.find(topic, key, begin_ms, end_ms, min(max_num, self.config.max_msgs_num_batch))
        last = self._index.files[-1] if self._index.files else None
        reach = (0, 0) if last is None else (last.end_timestamp, last.end_offset)
        return Lookup(sorted(found), *reach)

    def query(self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int) -> list[StoredMessage]:
        """The messages of a topic with that key (or unique key), stored between the times (ms), oldest
        first.
        """
        found = []
        for physical_offset in self.lookup(topic, key, max_num, begin_ms, end_ms).physical_offsets:
            message = self.message(physical_offset)
            if message is not None and message.topic == topic and key in (*message.keys, message.message_id):
                found.append(message)
        return found

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queue = self._queues.get((topic, queue_id))
        if queue is not None and queue.trimmed_to < self._log.start:
            queue.trim(self._log.start)
        return queue

    def _make_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        folder = queue_folder(self._root, topic, queue_id)
        queue = ConsumeQueue(
            self.disk, folder, topic, queue_id, self.config.queue_file_size, self._open_files
        )
        self._queues[topic, queue_id] = queue
        return queue

    # ---- a slave's log ----

    def append_raw(self, physical_offset: int, data: Bytes) -> Sequence[Arrival]:
        """Append bytes that the master's log has there; an empty log begins at that offset, which must be
        the start of a file. A record may come in pieces.

        Returns the queues that grew by whole records. Raises OffsetOutOfRange when the bytes do not
        follow the log's end, StoreError when they cannot be written.
        """
        if physical_offset != self._log.end:
            if self._log.segments.bases or physical_offset % self._log.file_size:
                raise self._out_of_range(physical_offset)
            self._log.open_at(physical_offset, 0)
            self._raw_position = physical_offset
        self._log.write_raw(data)
        return self._queue_raw()

    def _queue_raw(self) -> Sequence[Arrival]:
        scan = Scan(self._log.segments, self._raw_position, check_crc=False, stop=self._log.end)
        recoverer = Recoverer(self._log, self._queues, self._make_queue, self._delays, frozenset())
        records = []
        grown: dict[ConsumeQueue, None] = {}
        for record in scan:
            records.append(record)
            if has_unit(record.sys_flag):
                recoverer.restore(record)
                queue = self._queues[record.topic.decode("utf-8", "replace"), record.queue_id]
                grown[queue] = self._gathered[queue] = None
        self._raw_position = scan.position
        if records:
            self._log.timestamp = records[-1].store_timestamp
        self._gathered_bytes = sum(queue.gathered for queue in self._gathered)
        if self.config.message_index_enable:
            self._reput.add(entries_of(records))
        self._keep_up()
        return [Arrival(queue.topic, queue.queue_id, queue.end) for queue in grown]

    def truncate(self, physical_offset: int) -> None:
        """Cut log, queues and index at the start of a record. Raises OffsetOutOfRange when the log does not
        reach there.
        """
        if not self._log.start <= physical_offset <= self._log.end:
            raise self._out_of_range(physical_offset)
        self._rollback()
        for queue in self._queues.values():
            queue.truncate(physical_offset)
        self._gathered_bytes = sum(queue.gathered for queue in self._gathered)
        self._log.truncate(physical_offset)
        self._raw_position = physical_offset
        self._index.truncate(physical_offset)
        if self.config.message_index_enable:
            self._reput.start(again=True)

    def _out_of_range(self, physical_offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"offset {physical_offset} is outside the log: {self._log.start} to {self._log.end}"
        )

    # ---- cleaning ----

    def remove_topic(self, topic: str) -> None:
        """Remove a topic's queues; its records stay in the log until their files expire."""
        for key in [key for key in self._queues if key[0] == topic]:
            queue = self._queues.pop(key)
            self._gathered_bytes -= queue.gathered
            self._gathered.pop(queue, None)
            self._unsynced.pop(queue, None)
            queue.remove()
        self.disk.remove(os.path.dirname(queue_folder(self._root, topic, 0)))

    def clean(self, now_ms: int) -> CleanReport:
        """Remove whole log files, oldest first, that are expired or must make room; trim queues and index
        with them.

        With very many queues the rest of their trimming is left to `dispatch`. Raises StoreError.
        """
        usage = self.disk.usage(self._log.segments.folder)
        reason = why_clean(usage, self.config, now_ms)
        files = expired_files(self._log, self.config, now_ms, forced=reason == "forced") if reason else 0
        for _ in range(files):
            self._log.segments.remove_first()
        if not files:
            return CleanReport(reason=reason)
        self._reput.skip_to(self._log.start)
        self._to_trim = list(self._queues.values())
        removed = self._trim_some()
        return CleanReport(files, removed, self._index.trim(self._log.start), reason)

    def _trim_some(self) -> int:
        start = self._log.start
        some, self._to_trim = self._to_trim[:_TRIM_AT_ONCE], self._to_trim[_TRIM_AT_ONCE:]
        removed = 0
        for queue in some:
            try:
                removed += queue.trim(start)
            except StoreError as error:
                log.error("expired files of queue %s/%d stay: %s", queue.topic, queue.queue_id, error)
        return removed

    def disk_state(self) -> DiskState:
        """How full the disk is and whether records may be taken; looked at once a second."""
        now = self._now_ms()
        if not 0 <= now - self._disk_looked_ms < _DISK_LOOK_MS:
            self._disk_looked_ms = now
            self._disk_state = disk_state(self.disk.usage(self._log.segments.folder), self.config)
        return self._disk_state


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 8 << 30
