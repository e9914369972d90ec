"""StoreSync: syncs of a store's files. Every method may run in any thread, at any time."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from rmq.errors import StoreError
from rmq.store.files.checkpoint import Checkpoint
from rmq.store.files.commitlog import CommitLog
from rmq.store.files.config_files import ConfigFiles
from rmq.store.files.disk import Disk
from rmq.store.files.index import Index
from rmq.store.files.queues import Queues


class StoreSync:
    """Flushes log, queues, index, checkpoint and config files. The `Store`, which is one, makes the parts."""

    disk: Disk
    _log: CommitLog
    _queues: Queues
    _index: Index
    _files: ConfigFiles
    _checkpoint: Checkpoint | None
    _sync_lock: AbstractContextManager[object]
    _unvouched = False  # a sync of queue or index files failed

    def flush(self) -> int:
        """Sync the log; return the end of the synced log. Blocks: call this in a thread.

        Raises StoreError when the medium refuses; the store takes no more records then until `mend`.
        """
        return self._log.flush()

    def mend(self) -> int:
        """After a failed `flush`: write its unsynced part again, and sync. Blocks: call this in a thread.
        Returns as `flush`.

        Raises StoreError while the medium refuses, CorruptRecord when only a recovery can help.
        """
        return self._log.mend()

    def flush_queues(self) -> None:
        """Sync the queue files written so far and the full index files. Blocks: call this in a thread.

        Only needed so that a recovery starts later in the log: once in flushConsumeQueueThoroughInterval.
        Raises StoreError; the checkpoint then names no later end, and the next start checks all records
        since.
        """
        with self._sync_lock:
            if self._unvouched:
                return
            try:
                # Each sync returns the time up to which all was written before it began. The checkpoint takes
                # these times, not that of the last record: a unit that came later is not on the medium.
                written = self._queues.sync()
                index_ms = self._index.sync()
            except StoreError:
                # Pages that the kernel has not written may be lost, and the next sync would not report that.
                self._unvouched = True
                raise
            checkpoint = self._checkpoint
            if checkpoint is not None:
                checkpoint.queues_ms, checkpoint.queues_to = written
                checkpoint.index_ms = max(checkpoint.index_ms, index_ms)

    def flush_checkpoint(self) -> None:
        """Write down how far log, queues and index are synced. Blocks: call it in a thread. Raises
        StoreError.
        """
        with self._sync_lock:
            checkpoint = self._checkpoint
            if checkpoint is not None:
                # A place that is too low costs a longer scan, one that is too high loses records: so it is
                # that of the last flush, even if the log has got on.
                checkpoint.log_ms = self._log.flushed_timestamp
                checkpoint.log_to = self._log.flushed
                checkpoint.has_places = True
                # A log without a record may still begin elsewhere, if it is a slave's.
                checkpoint.log_from = self._log.start if self._log.end > self._log.start else None
                checkpoint.flush()

    @property
    def recovery_bytes(self) -> int:
        """Bytes of the log that a start after a kill would read: those behind the checkpoint's places."""
        checkpoint = self._checkpoint
        begin = 0 if checkpoint is None else min(checkpoint.log_to, checkpoint.queues_to)
        return self._log.end - max(begin, self._log.start)

    def remove_left(self, path: str) -> None:
        """Remove a file or folder that retention has taken out of use. Blocks: call it in a thread. Raises
        StoreError.

        Before the log's first file goes the checkpoint says that the log begins later.
        """
        start = self._log.start
        if self._checkpoint is not None and (self._checkpoint.log_from or 0) < start:
            self.flush_checkpoint()
        self.disk.remove(path)

    def wait_for_disk(self) -> None:
        """Wait until the disk has completed a sync of the log, and until no sync holds the locks of
        `truncate` and `save_config`. Blocks: call this in a thread, before the loop does work that must not
        wait. Raises StoreError."""
        self.flush()
        with self._sync_lock:
            self._files.wait()

    def config_text(self, name: str) -> bytes | None:
        """The text of config/<name>.json, or of its .bak when it is broken; None without a file. Raises
        StoreError."""
        return self._files.load(name)

    def keep_damaged_config(self, name: str) -> str:
        """Copy a broken config/<name>.json, which stays; returns the path of the copy. Raises StoreError."""
        return self._files.keep_damaged(name)

    def save_config(self, name: str, data: bytes) -> None:
        """Replace config/<name>.json, keeping the version before as .bak. Blocks. Raises StoreError."""
        self._files.save(name, data)

    def save_configs(self, texts: Mapping[str, bytes]) -> None:
        """Replace these files of config/, after a flush of the log. Blocks. Raises StoreError; some files may
        be replaced in this case.

        Otherwise a power cut could keep tables with messages marked as delivered, consumed or ended, and lose
        those messages: take the texts before the call, and everything that they refer to is on the medium
        first.
        """
        if texts:
            self.flush()
        for name, data in texts.items():
            self.save_config(name, data)
