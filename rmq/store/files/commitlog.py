"""CommitLog: all records of a broker in a single sequence.

Appending has two steps, so that a whole chunk of requests costs a single write for each touched file:
`append` gathers, `commit` writes and makes the gathered records readable, `rollback` forgets them. A record
never crosses a file's end: when its size + 8 does not fit, a BLANK record closes the file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rmq.errors import CorruptRecord, StoreError
from rmq.protocol.record import BLANK_MAGIC
from rmq.store.files.abort import AbortFile
from rmq.store.files.disk import Bytes, Disk
from rmq.store.files.scan import BLANK_SIZE, Scan, has_lost_page, parse, store_timestamp
from rmq.store.files.segments import OpenFiles, Progress, Segments, no_progress

log = logging.getLogger("rmq.store")

_OPEN_FILES = 64  # each takes two descriptors once it is mapped


class CommitLog:
    """Addresses are physical offsets. One thread appends and reads; `flush` may run in another."""

    def __init__(self, disk: Disk, folder: str, file_size: int) -> None:
        self.segments = Segments(
            disk, folder, file_size, limit=OpenFiles(_OPEN_FILES), mapped=True, ordered=True
        )
        self.file_size = file_size
        self.end = 0  # all before it is written and readable
        self.position = 0  # where the next record goes; past `end` while records are pending
        self.left = 0  # bytes left in the file of `position`
        self.flushed = 0  # all before it is synced
        self.timestamp = 0  # store time of the last committed record
        self.flushed_timestamp = 0  # all records stored before it are synced
        self._groups: list[tuple[int, list[bytes]]] = []
        self._chunks: list[bytes] = []
        self._is_dirty = False  # bytes of a failed write may lie past `end`
        self.failure = ""  # why no more records are taken
        self.unwritten = ""  # why the last commit failed
        self._flush_lock = disk.guard()
        self._abort: AbortFile | None = None  # is told up to where all is synced

    @property
    def has_pending(self) -> bool:
        """True if anything is gathered."""
        return self.position != self.end

    @property
    def start(self) -> int:
        """The physical offset of the oldest byte that is kept."""
        return self.segments.start

    def open_at(self, end: int, timestamp: int) -> None:
        """Recovery found that the log ends at `end`, synced."""
        with self._flush_lock:
            self._note_cut(end)
            self.end = self.flushed = end
            self.timestamp = self.flushed_timestamp = timestamp
            self._restart()

    def report_to(self, abort: AbortFile) -> None:
        """Write into `abort` up to where the log is synced, from now on."""
        self._abort = abort

    def _note_cut(self, end: int) -> None:
        if self._abort is not None:
            self._abort.lower(end)

    def _note_synced(self) -> None:
        if self._abort is not None:
            self._abort.note(self.flushed)

    def _restart(self) -> None:
        self.position = self.end
        self.left = self.file_size - self.end % self.file_size
        self._groups = []
        self._chunks = []

    # ---- appending ----

    def append(self, data: bytes) -> None:
        """Gather a record, which the caller built for `position` and which leaves a BLANK's room in
        `left`."""
        if not self._chunks:
            self._groups.append((self.position, self._chunks))
        self._chunks.append(data)
        self.position += len(data)
        self.left -= len(data)

    def append_all(self, pieces: list[bytes], size: int) -> None:
        """Gather records of `size` bytes together, as `append` does each."""
        if not self._chunks:
            self._groups.append((self.position, self._chunks))
        self._chunks += pieces
        self.position += size
        self.left -= size

    def roll(self, size: int) -> int:
        """Close the file: the record of `size` bytes goes to the next one. Returns its position."""
        if size + BLANK_SIZE > self.file_size:
            raise StoreError(
                f"a record of {size} bytes does not fit a commit log file of {self.file_size} bytes"
            )
        self.append(blank(self.left))
        self.position += self.left
        self._chunks = []
        self.left = self.file_size
        return self.position

    def commit(self) -> None:
        """Write the gathered records. Raises StoreError; in this case none of them is in the log, and they
        stay gathered."""
        self._check()
        assert self.end <= self.position
        try:
            for address, chunks in self._groups:
                self.segments.write(address, b"".join(chunks))
        except BaseException as error:
            self._is_dirty = True
            self.unwritten = str(error)
            raise
        self.unwritten = ""
        # From here on readers see the records, and a flush in another thread counts them in. Nothing before
        # this line may be acknowledged, nothing after it can fail.
        self.end = self.position
        self._groups = []
        self._chunks = []

    def rollback(self) -> None:
        """Forget the gathered records, and undo the writes of a failed commit."""
        self._restart()
        if self._is_dirty:
            try:
                self._clean_tail()
            except StoreError as error:
                log.error("the tail of the log cannot be cleared now, the next write tries again: %s", error)

    def _check(self) -> None:
        if self.failure:
            raise StoreError(self.failure)
        if self._is_dirty:
            self._clean_tail()

    def _clean_tail(self) -> None:
        """Bytes of a failed write must never be found by a recovery, so they are cleared before any other
        write."""
        # Synced before the next record is written: a power cut could keep the old bytes behind the new
        # record's place and lose the record, and a recovery would take what was never acknowledged for good.
        self.segments.truncate(self.end)
        segment = self.segments.at(self.end) if self.end else None
        if segment is not None:
            segment.sync()
        self._is_dirty = False

    def write_raw(self, data: Bytes) -> None:
        """Write bytes that another broker's log has at `end`. Raises StoreError, and nothing counts."""
        assert not self._groups, "a slave does not append records of its own"
        self._check()
        try:
            self.segments.write(self.end, data)
        except BaseException:
            # The link ends, and the next one goes on from `end`: the master sends the same bytes again.
            self._is_dirty = True
            self.rollback()
            raise
        self.end += len(data)
        self._restart()

    # ---- reading ----

    def read(self, physical_offset: int, size: int) -> memoryview | None:
        """`size` committed bytes; None when they are not (or no longer) in the log."""
        if physical_offset < self.segments.start or physical_offset + size > self.end or size < 0:
            return None
        return self.segments.read(physical_offset, size)

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> list[memoryview]:
        """The bytes of several ranges (start, end) of the log, each within a file. Ranges of the same file
        cost a slice each: the messages of a queue seldom follow each other in the log."""
        views = []
        first, file = 0, memoryview(b"")
        for start, stop in ranges:
            if not first <= start < first + len(file):
                first = start - start % self.file_size
                found = self.segments.read(first, self.file_size)
                assert found is not None, "the ranges are in the log"
                file = found
            views.append(file[start - first : stop - first])
        return views

    def is_in_one_file(self, physical_offset: int, size: int) -> bool:
        """True if a record of that size may lie there: with room for a BLANK behind it in its file."""
        return physical_offset % self.file_size + size + BLANK_SIZE <= self.file_size

    def file_view(self, physical_offset: int) -> tuple[int, memoryview]:
        """The begin of the file that holds a byte of the log, and a view of the whole file."""
        first = physical_offset - physical_offset % self.file_size
        found = self.segments.read(first, self.file_size)
        assert found is not None, "the byte is in the log"
        return first, found

    def record(self, physical_offset: int) -> memoryview | None:
        """The record that starts at an offset; None without a record. Any offset is allowed."""
        head = self.read(physical_offset, 48)
        if head is None:
            return None
        size = int.from_bytes(head[:4], "big")
        view = self.read(physical_offset, size)
        if view is None or parse(view, 0, physical_offset, check_crc=False) is None:
            return None
        return view

    def relax(self) -> None:
        """Release the memory of pages that readers have mapped; they stay readable."""
        self.segments.relax()

    def store_timestamp(self, physical_offset: int) -> int:
        """The store time of the record at an offset; -1 without a record."""
        head = self.read(physical_offset, 76)
        return -1 if head is None else store_timestamp(head, 0)

    def next_file(self, physical_offset: int) -> int:
        """Start of the file after the one of `physical_offset`."""
        return physical_offset - physical_offset % self.file_size + self.file_size

    # ---- syncing ----

    def flush(self) -> int:
        """Sync the committed log; return the end of the synced log. Thread-safe.

        Raises StoreError when the medium refuses; the log then takes no more records until `mend`, since the
        kernel may have lost pages, and a second sync would not report the loss.
        """
        with self._flush_lock:
            if self.failure:
                raise StoreError(self.failure)
            # The time first: a commit in between raises `end` before the time, so the time is always that of
            # a record before `end`. And `end` before the sync begins: later commits do not count, since the
            # kernel may have passed their pages already.
            timestamp, end = self.timestamp, self.end
            assert self.flushed <= end, "a cut takes `flushed` back with it"
            if end > self.flushed:
                try:
                    self.segments.sync(self.flushed, end)
                    self._check_there(end)
                except StoreError as error:
                    self.failure = (
                        "the commit log cannot be synced, no message is accepted until a sync"
                        f" succeeds: {error}"
                    )
                    raise
                self.flushed = end
                self._note_synced()
            self.flushed_timestamp = timestamp
            return self.flushed

    def mend(self) -> int:
        """After a failed `flush`: write everything committed since the last good `flush` again, and sync;
        after this the log takes records again. Thread-safe. Returns as `flush`.

        A kernel drops the dirty mark of pages that it could not write, so that only a new write brings the
        pages to the medium. Raises StoreError while the medium refuses, CorruptRecord when the pages
        themselves are lost: only a recovery can find the remaining log in this case.
        """
        with self._flush_lock:
            timestamp, end = self.timestamp, self.end
            if self.failure:
                assert self.flushed <= end
                # Nothing was committed since it failed, so `end` stays while this writes.
                self.write_again(self.flushed, end, doubted=True)
                self.segments.sync(self.flushed, end)
                self._check_there(end)
                self.flushed, self.flushed_timestamp = end, timestamp
                self.failure = ""
                self._note_synced()
            return self.flushed

    def lost_file(self) -> str:
        """Why the newest file is lost: it was deleted or replaced. Empty while it is there. Thread-safe."""
        try:
            self._check_there(self.end)
        except StoreError as error:
            return str(error)
        return ""

    def _check_there(self, end: int) -> None:
        """Raise StoreError when the newest file was deleted or replaced: bytes synced to this file are lost
        with the process."""
        if end > 0 and (path := self.segments.replaced_file(end - 1)):
            raise StoreError(
                f"{path} was DELETED OR REPLACED while the broker runs. What it had is in memory and in open"
                " files of this process only: consume it, or copy it from /proc/PID/fd, before you end it"
            )

    def write_again(
        self, start: int, end: int, *, doubted: bool = False, progress: Progress = no_progress
    ) -> None:
        """Write the records from `start` to `end` once more in place, for a reliable sync. `doubted`: pages
        may have been lost since they were written. Raises CorruptRecord, StoreError."""
        scan = Scan(self.segments, start, stop=end)
        at = start
        # Record by record, not page by page: what is not a good record may be a lost page, which reads as
        # zeros and would be made durable as such.
        for number, record in enumerate(scan):
            if number % 256 == 0:
                progress("log written again", record.position - start, end - start)
            if doubted and 0 in record.properties and has_lost_page(record):
                raise self._lost_bytes(record.position)
            self._close_file_again(at, record.position)
            self.segments.write(record.position, self.segments.copy(record.position, record.size))
            at = record.position + record.size
        self._close_file_again(at, scan.position)
        if scan.position != end:
            raise self._lost_bytes(scan.position)

    def _lost_bytes(self, position: int) -> CorruptRecord:
        reason = "bytes of a failed sync are lost: restart the broker, its recovery finds the rest"
        return CorruptRecord(self.segments.path(position), position, reason)

    def _close_file_again(self, at: int, next_record: int) -> None:
        if at != next_record:
            self.segments.write(at, blank(next_record - at))

    def truncate(self, end: int, last_ms: int = 0) -> None:
        """Cut the log; all from `end` on is gone and never found again. `last_ms` is the store time of the
        last record before `end`."""
        assert self.segments.start <= end, "a cut before the first byte would leave a log without a beginning"
        with self._flush_lock:
            # The file `abort` says less before the bytes go. After a crash in between, what comes in their
            # place would count as synced otherwise.
            self._note_cut(end)
            self.segments.truncate(end)
            self.end = end
            self.flushed = min(self.flushed, end)
            segment = self.segments.at(end)
            if segment is not None:
                segment.sync()
            self.timestamp = self.flushed_timestamp = last_ms
            self._restart()

    def close(self) -> None:
        """Close the files."""
        self.segments.close()


def blank(left: int) -> bytes:
    """The BLANK record that closes a file with `left` bytes left."""
    return left.to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big")
