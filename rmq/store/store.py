"""Store: the log, its queues and its index as a unit that takes, keeps and finds messages.

A store belongs to a single thread, except `flush`, `mend`, `flush_queues`, `flush_checkpoint`, `save_config`
and `config_text`, which may run in another thread at any time.

A send is `put` for each message, and a `commit` for all messages: only after the commit are they readable and
may be acknowledged. `flush` protects them against a power cut. Units gather in memory, index entries in a
backlog; `dispatch`, called in idle time, writes both to files. Lost units and entries are made again from the
log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from attrs import evolve

from rmq.errors import StoreError
from rmq.message import SCHEDULE_TOPIC
from rmq.protocol import engine
from rmq.protocol.codes import SYS_BORNHOST_V6, SYS_HOST_BITS, SYS_PREPARED, SYS_STOREHOST_V6
from rmq.protocol.properties import MARKERS, TagsAndKeys, due_time, is_indexed, property_value
from rmq.protocol.record import FIXED_SIZE, PROPERTIES_MAX, Record, build_batch, build_record
from rmq.store.clock_watch import ClockWatch
from rmq.store.config import BrokerRole, StoreConfig, delay_table, physical_memory
from rmq.store.files.abort import AbortFile
from rmq.store.files.checkpoint import Checkpoint
from rmq.store.files.commitlog import CommitLog
from rmq.store.files.config_files import ConfigFiles
from rmq.store.files.consumequeue import UNIT_FORM, ConsumeQueue, Unit
from rmq.store.files.disk import Disk, Lock
from rmq.store.files.index import Entry, Index
from rmq.store.files.known_topics import read_topics
from rmq.store.files.queues import Arrival, EncodedUnits, Queues
from rmq.store.files.segments import Progress, no_progress
from rmq.store.reader import Limits
from rmq.store.recovery import Recoverer, Recovery, known_synced
from rmq.store.replica import ReplicaStore
from rmq.store.reput import Reput
from rmq.store.retention import MOST_FILES, CleanReport, DiskState, Retention, disk_state
from rmq.store.sync import StoreSync
from rmq.store.view import COUNT_BACKLOG, Lookup

if TYPE_CHECKING:
    from types import ModuleType

    from rmq.protocol._engine import Lanes, Rows, SendRun

log = logging.getLogger("rmq.store")

__all__ = ["Arrival", "Batch", "Lookup", "Store"]

_DISK_LOOK_MS = 1000
_CLOCK_STEP_MS = 10_000
_ANY_TIME = (1 << 63) - 1
_ROOM = 8  # a BLANK's
_NO_HOST_BITS = ~SYS_HOST_BITS
_PROPERTIES_SURE = 8192


class Batch(NamedTuple):
    """Where the messages of a batch are: the first one's queue offset, their physical offsets, their bytes
    together.
    """

    queue_offset: int
    physical_offsets: list[int]
    size: int


class Store(StoreSync, ReplicaStore):
    """A folder of files. `store_host` is this broker's address in records, 8 or 20 bytes; `now_ms` the wall
    clock; `compiled` the engine, if not the pure engine; `clock` is a clock that is never set."""

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        *,
        store_host: bytes,
        now_ms: Callable[[], int],
        memory_bytes: int | None = None,
        compiled: ModuleType | None = engine.compiled,
        clock: Callable[[], float] | None = None,
    ) -> None:
        root = config.store_path_root_dir
        self.config = config
        self.disk = disk
        self._root = root
        self.store_host = store_host
        self._host_flag = SYS_STOREHOST_V6 if len(store_host) == 20 else 0
        self._fixed_size = FIXED_SIZE - 16 + len(store_host)  # of a record without its variable parts
        self._now_ms = now_ms
        self._delays = delay_table(config.message_delay_level)
        self._memory = physical_memory() if memory_bytes is None else memory_bytes
        self._limits = self._make_limits()
        self._compiled = compiled
        self._clock_watch = ClockWatch(clock)
        self._make_parts()
        self._files = ConfigFiles(disk, os.path.join(root, "config"))
        self._abort: AbortFile | None = None
        self._checkpoint: Checkpoint | None = None
        self._lock: Lock | None = None
        self.recovery: Recovery | None = None
        """What the opening found."""
        # the pending batch
        self._units: list[Unit] = []
        self._owners: list[ConsumeQueue] = []  # the queue of each unit
        self._encoded: list[EncodedUnits] = []  # they come before those
        self._entries: list[Entry | Rows] = []
        self._lanes: Lanes | None = None  # of a run, which is the whole batch then
        self._tags_and_keys = TagsAndKeys()
        self._plain_suffix = b""
        self._batch_ms = 0
        self._sync_lock = disk.guard()
        self._raw_position = 0  # a slave's: up to where queues have the log's records
        self._raw_whole = 0  # a slave's: where the last whole record that came ends
        self._disk_looked_ms = -_DISK_LOOK_MS
        self._lost_file = ""  # why the newest file of the log is not there
        self._disk_state = DiskState(0.0, 0)

    def _make_parts(self) -> None:
        disk, config, root = self.disk, self.config, self._root
        self._log = CommitLog(disk, config.commit_log_path, config.mapped_file_size_commit_log)
        self._queues = Queues(disk, root, config.queue_file_size, self._now_ms)
        sizes = config.max_hash_slot_num, config.max_index_num
        self._index = Index(disk, os.path.join(root, "index"), *sizes, self._compiled)
        self._reput = Reput(self._log, self._index, may_get_rows=self._compiled is not None)
        parts = self._log, self._queues, self._index, self._reput, self._clock_watch
        self.retention = Retention(disk, root, *parts)

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
        """Lock the folder and recover. `progress(stage, done, total)` is called at intervals; `rebuild` makes
        all queues and the index again from the log.

        Raises StoreLocked, CorruptRecord for damage inside the log, StoreError for unusable files, with the
        folder unlocked.
        """
        self._lock = self.disk.lock(self._path("lock"))
        began = self._now_ms()
        try:
            found = self._load(progress or no_progress, rebuild)
            self.recovery = evolve(found, seconds=max(0, self._now_ms() - began) / 1000)
            return self.recovery
        except BaseException:
            self._refuse()
            self._close_files()
            raise

    def may_have_lost(self) -> None:
        """Messages behind the ends of the queues may be lost: see `cut_at`."""
        for queue in self._queues.table.values():
            queue.may_have_lost()

    def _refuse(self) -> None:
        """The store stays closed: a clean stop stays clean, with everything written till now synced."""
        with suppress(StoreError):
            if self._abort is not None and self._abort.is_clean:
                self.disk.sync_all(self._root)
                self._abort.refused()

    def _load(self, progress: Progress, rebuild: bool) -> Recovery:
        if self._abort is not None:
            self._abort.close()
        abort = self._abort = AbortFile(self.disk, self._path("abort"))
        clean = abort.is_clean
        checkpoint = self._checkpoint = Checkpoint(self.disk, self._path("checkpoint"))
        self._queues.find_folders()
        self.retention.find_left()
        topics = read_topics(partial(self._files.load, "topics"))
        recoverer = Recoverer(
            self._log,
            self._queues,
            self._delays,
            known_synced(abort.synced, checkpoint),
            topics,
            check_crc=self.config.check_crc_on_recover,
            cut_damage=self.config.truncate_damaged_log,
            abort=abort.synced,
            now_ms=self._now_ms(),
            progress=progress,
            changing=abort.changing,
            remaking=abort.remaking,
        )
        recovery = recoverer.run(checkpoint, clean=clean, rebuild=rebuild)
        # If it was moved away, a slave's next records may be older than what the checkpoint vouches for.
        checkpoint.lower(_ANY_TIME if self._log.segments.bases else 0, self._log.end)
        self._queues.recovered(self._log.timestamp, self._log.end, changed=recovery.records > 0)
        if not clean or recovery.cut:
            self.may_have_lost()
        self._remove_empty(topics.deleted)
        self._raw_position = self._raw_whole = self._log.end
        self._load_index(checkpoint, clean=clean, rebuild=rebuild)
        self._clock_watch.begin(self._log.timestamp, self._now_ms())
        abort.opened(self._log.flushed)
        self._log.abort = abort
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
        self._vouch_for_less(checkpoint)

    def _vouch_for_less(self, checkpoint: Checkpoint) -> None:
        """Index files went: those made in their place must not be taken for synced after the next crash."""
        if checkpoint.index_ms > self._index.full_until_ms:
            checkpoint.index_ms = self._index.full_until_ms
            checkpoint.flush()

    def _remove_empty(self, topics: Iterable[str]) -> None:
        """Remove the queues of topics that were deleted, if recovery has found no message in them."""
        for topic in topics:
            ends = [self.max_offset(topic, number) for number in range(self.queue_end(topic))]
            if ends and not any(ends):
                log.warning("topic %s was deleted: its %d queues are removed", topic, len(ends))
                self.remove_topic(topic)

    def close(self) -> None:
        """Write and sync all, and leave the mark of a clean stop. Raises StoreError; the next start then
        recovers.
        """
        if self._lock is None:
            return
        try:
            self._rollback()
            while self._reput.behind is None and self._reput.step(COUNT_BACKLOG, self._now_ms()):
                pass
            # In this order, so that a kill in between leaves what a crash leaves: `abort` goes last, when all
            # that it stands for is on the medium.
            self._queues.write_all(self._log.timestamp)
            self.flush()
            self.flush_queues()
            self._index.sync(all_files=True)
            self.flush_checkpoint()
            if not self._unvouched and self._abort is not None:
                self._abort.remove()
        finally:
            self._close_files()

    def abandon(self) -> None:
        """Close all files without writing anything, as if the process were killed."""
        self._close_files()

    def _close_files(self) -> None:
        self._log.close()
        self._queues.close()
        self._index.close()
        if self._checkpoint is not None:
            self._checkpoint.close()
        if self._abort is not None:
            self._abort.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)

    # ---- writing ----

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
        count, first = len(positions), queue.next
        if self._owners:  # in their order
            self._units += UNIT_FORM.iter_unpack(units)
            self._owners += [queue] * count
        else:
            self._encoded.append((queue, count, units))
        queue.next = first + count
        if rows is not None:
            self._entries.append(rows)
        return Batch(first, positions, len(data))

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
        """Whether what comes after a batch's properties has tags or keys. The last that has none is known."""
        if any(marker in suffix for marker in MARKERS):
            return True
        self._plain_suffix = suffix
        return False

    def _begin_batch(self) -> None:
        if self.config.broker_role is BrokerRole.SLAVE:
            # A record of its own would make the log differ from its master's for good.
            raise StoreError("this broker is a slave, whose log takes its master's records only")
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
        # The offsets that `put` gave out are given out again: nobody was told of them.
        for queue in self._owners:
            queue.next = queue.end
        for queue, _, _ in self._encoded:
            queue.next = queue.end
        self._units, self._owners, self._encoded, self._entries = [], [], [], []
        if self._lanes is not None:
            self._lanes.rollback()
            self._lanes = None
        self._log.rollback()

    def dispatch(self, limit: int = 1000) -> bool:
        """Do deferred work: index up to `limit` records, write queue units that waited long, trim queues.

        True when more is left to do at once.
        """
        more = self._reput.step(limit, self._now_ms())
        late = self._queues.write_waiting(self._log.timestamp)
        if not self._queues.is_trimmed:
            self._queues.trim_some(self._log.start)
        return more or late or not self._queues.is_trimmed

    @property
    def has_pending(self) -> bool:
        """Whether `put` was called since the last `commit`."""
        return self._log.has_pending

    # ---- cleaning ----

    def remove_topic(self, topic: str) -> None:
        """Remove a topic's queues, files as `retention` does; records stay in the log until they expire.
        Raises StoreError, with the queues as before."""
        self.retention.take_topic(topic)
        # Units of the pending batch go too; their records are in the log all the same.
        kept = [at for at, queue in enumerate(self._owners) if queue.topic != topic]
        self._units, self._owners = [self._units[at] for at in kept], [self._owners[at] for at in kept]
        self._encoded = [units for units in self._encoded if units[0].topic != topic]

    def clean(self, now_ms: int, *, asked: bool = False) -> CleanReport:
        """Remove whole log files, oldest first, that are expired or must make room, and the units and entries
        of their records. `asked`: at any hour, and all expired files. Blocks until the file system has
        removed them; see `retention` for the way of a service. Raises StoreError."""
        retention = self.retention
        files = queue_files = 0
        paths = self._remove_left()
        reason = ""
        while asked or files < MOST_FILES:
            taken = retention.take(self.config, now_ms, asked=asked)
            reason = reason or retention.reason
            if not taken:
                break
            files += 1
            paths += self._remove_left()
            queue_files += retention.queue_files
        return CleanReport(files, queue_files, paths - files, reason)

    def _remove_left(self) -> int:
        """Remove files and folders that are out of use; returns their number. Raises StoreError."""
        paths = 0
        while (path := self.retention.path) is not None:
            self.remove_left(path)
            self.retention.removed(path)
            paths += 1
        return paths

    def give_up_before(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Have a queue begin at an offset, or at its end when the offset is beyond it; return the number of
        messages that cannot be read any more. Their records stay until no queue keeps a message of their
        file. Not kept on the disk: after a start the owner does it again."""
        return self._queues.give_up_before(topic, queue_id, queue_offset, self._log.segments.start)

    def lost(self) -> list[tuple[str, int, int, int]]:
        """The queues that have lost messages by retention since the last call, as (topic, queue id, former
        begin, present begin)."""
        return self._queues.take_lost()

    def clean_queues(self) -> int:
        """Drop the units before the log's start from all queues now; return the number of removed files. The
        last unit of a queue stays, since it marks the next offset of the queue. A file that cannot be removed
        is logged."""
        self._queues.begin_trim()
        removed = 0
        while not self._queues.is_trimmed:
            removed += self._queues.trim_some(self._log.start)
        return removed

    @property
    def ails(self) -> str:
        """Why records are not taken now, or the last were not; empty while they are."""
        state = self.disk_state()
        return self._log.unwritten or ("" if state.is_writable else state.reason)

    def disk_state(self) -> DiskState:
        """How full the disk is and whether records may be taken; looked at once a second.

        After a failed sync none may be taken any more, whatever the disk says, nor while the newest file is
        not at its path: a broker without traffic syncs nothing that would fail.
        """
        now = self._now_ms()
        if not 0 <= now - self._disk_looked_ms < _DISK_LOOK_MS:
            self._disk_looked_ms = now
            self._disk_state = disk_state(self.disk.usage(self._log.segments.folder), self.config)
            self._lost_file = self._log.lost_file()
        if reason := self._log.failure or self._lost_file:
            return evolve(self._disk_state, is_writable=False, reason=reason)
        return self._disk_state
