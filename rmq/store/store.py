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
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from attrs import evolve

from rmq.errors import StoreError
from rmq.protocol import engine
from rmq.protocol.codes import SYS_STOREHOST_V6
from rmq.protocol.record import FIXED_SIZE
from rmq.store.clock_watch import ClockWatch
from rmq.store.config import StoreConfig, delay_table, physical_memory
from rmq.store.files.abort import AbortFile
from rmq.store.files.checkpoint import Checkpoint
from rmq.store.files.commitlog import CommitLog
from rmq.store.files.config_files import ConfigFiles
from rmq.store.files.disk import Disk, Lock
from rmq.store.files.index import Index
from rmq.store.files.known_topics import read_topics
from rmq.store.files.queues import Arrival, Queues
from rmq.store.files.segments import Progress, no_progress
from rmq.store.reader import Limits
from rmq.store.recovery import Recoverer, Recovery, known_synced
from rmq.store.replica import ReplicaStore
from rmq.store.reput import Reput
from rmq.store.retention import MOST_FILES, CleanReport, DiskState, Retention, disk_state
from rmq.store.sync import StoreSync
from rmq.store.view import COUNT_BACKLOG

if TYPE_CHECKING:
    from types import ModuleType


log = logging.getLogger("rmq.store")

__all__ = ["Arrival", "Store"]

_DISK_LOOK_MS = 1000
_ANY_TIME = (1 << 63) - 1


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
        """Findings of the opening."""
        self._begin_empty()
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
            log.info("store %s is open: %s", self._root, self.recovery.text)
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
        self._log.report_to(abort)
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
        """Note removed index files: new files in their place do not count as synced after the next crash."""
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
    def is_indexed(self) -> bool:
        """True if the index has all records. What `dispatch` has left are files of queues."""
        return self._reput.is_idle

    # ---- cleaning ----

    def remove_topic(self, topic: str) -> None:
        """Remove a topic's queues, files as `retention` does; records stay in the log until they expire.
        Raises StoreError, with the queues as before."""
        self.retention.take_topic(topic)
        self._drop_pending(lambda queue: queue.topic == topic)

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
        """Set the begin of a queue to an offset, or to its end when the offset is beyond it; return the
        number of messages that cannot be read any more. Their records stay until no queue keeps a message of
        their file. Not kept on the disk: after a start the owner does it again."""
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
        """Usage of the disk, and whether records may be taken; looked at once a second.

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
