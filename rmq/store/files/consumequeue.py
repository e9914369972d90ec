"""ConsumeQueue: the 20-byte units of a topic's queue, in queue order.

New units gather in memory (`tail`), readable at once, and go to the queue's file in batches: with 10,000
queues a file operation for every few messages would cost more than the messages. A loss of gathered units is
harmless, because recovery makes units from the log. Files are made at full size, opened on demand, and
bounded in number.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any

from rmq.errors import InvalidName, StoreError
from rmq.message import validate_topic
from rmq.store.files.disk import Disk
from rmq.store.files.segments import OpenFiles, Segments

log = logging.getLogger("rmq.store")

UNIT_FORM = Struct(">qiq")
UNIT = UNIT_FORM.size
_CHUNK = 204  # units in a page
LEFT_INSIDE = ".removed"
"""In the queues' folder: folders of deleted topics, until their files are removed. No topic has a dot."""
_TOPIC_BYTES_MAX = 127
FILLER_SIZE = 0x7FFFFFFF
_FILLER = UNIT_FORM.pack(0, FILLER_SIZE, 0)

Unit = tuple[int, int, int]  # physical offset, size, tags code


def is_unit(size: Any) -> Any:
    """True if a unit with this size stands for a record: it is neither unused room nor the filler that is put
    before the first unit of a queue that does not begin at 0. Holds for numpy arrays too.
    """
    return (size > 0) & (size != FILLER_SIZE)


class ConsumeQueue:
    """Queue offsets count units. `start` <= offsets readable < `end` <= `next` (with units not committed
    yet).
    """

    WRITE_BYTES = 10_240  # so many gathered bytes go to the file at once

    __slots__ = (
        "_disk",
        "_files",
        "_synced",
        "cut_at",
        "cuts",
        "end",
        "gathered_since_ms",
        "known_to",
        "next",
        "queue_id",
        "start",
        "tail",
        "tail_start",
        "topic",
        "topic_bytes",
        "topic_size",
        "trimmed_to",
    )

    def __init__(
        self, disk: Disk, folder: str, topic: str, queue_id: int, file_size: int, limit: OpenFiles
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        name = topic.encode()
        if len(name) > _TOPIC_BYTES_MAX:
            raise StoreError(f"topic {topic!r} is longer than {_TOPIC_BYTES_MAX} bytes")
        self.topic_size = len(name)
        self.topic_bytes = bytes([len(name)]) + name  # as records have it
        self.trimmed_to = -1  # the log's start at the last trim
        self._files = Segments(disk, folder, file_size, limit=limit, mapped=False, ordered=False)
        self._disk = disk
        self.tail = bytearray()  # the units that are not in a file yet
        self.tail_start = 0  # the offset of the first of them
        self.cuts = 0  # how often units were dropped at the end: what was read of them before may be wrong
        self._synced = 0  # bytes; the files before it were synced
        self.start = 0
        self.end = 0
        self.next = 0
        self.known_to = 0  # where the last record ended when the files were loaded: for recovery
        self.gathered_since_ms = 0  # store time of the oldest unit that is in memory only
        self.cut_at: int | None = None
        """The end of the queue when it may have lost messages behind it, the lowest of several; None when it
        was never longer than it is now. See `StoreView.cut_at`.
        """

    def __repr__(self) -> str:
        return f"<ConsumeQueue {self.topic}/{self.queue_id} {self.start}..{self.end}>"

    @property
    def units_per_file(self) -> int:
        """Number of units that a file holds."""
        return self._files.file_size // UNIT

    # ---- opening ----

    def load(self, is_end: Callable[[int, Unit], bool]) -> None:
        """Find the files and the end of the units: the first index for which `is_end(index, unit)` holds.

        A file of a wrong length, or missing in the middle, is removed with all later files: the units are
        made again.
        """
        try:
            head = self._files.load(min(_CHUNK + 1, self.units_per_file) * UNIT)
        except StoreError as error:
            self._drop_broken_files(error)
            head = b""
        low, high = self._files.start // UNIT, self._files.stop // UNIT
        self.start = low
        end, first, units = self._find_end(low, high, head, is_end)
        self._set_end(end)
        at = (end - 1 - first) * UNIT
        if 0 <= at < len(units):
            self.known_to = _record_end(UNIT_FORM.unpack_from(units, at))
        else:
            self.known_to = self.physical_end()

    def _find_end(
        self, low: int, high: int, head: bytes, is_end: Callable[[int, Unit], bool]
    ) -> tuple[int, int, bytes]:
        """Halve low..high; the likely places are in `head`, the begin of the newest file, and the last steps
        are one read. Return the end, and the units of these steps: the index of the first, and their
        bytes."""
        if low == high:
            return low, low, b""
        newest = max(high - self.units_per_file, low)
        count = min(high - newest, _CHUNK + 1)
        first, units = newest, head if len(head) == count * UNIT else self._chunk(newest, newest + count)
        for probe in (newest, newest + _CHUNK):
            if low < probe < high:
                unit = UNIT_FORM.unpack_from(units, (probe - newest) * UNIT)
                low, high = (low, probe) if is_end(probe, unit) else (probe + 1, high)
        while high - low > _CHUNK:
            middle = (low + high) // 2
            if is_end(middle, self._unit_in_file(middle)):
                high = middle
            else:
                low = middle + 1
        if not (newest <= low and high <= newest + count):
            first, units = low, self._chunk(low, high)
        unpack, place = UNIT_FORM.unpack_from, first * UNIT
        end = bisect_left(
            range(high), True, low, high, key=lambda at: is_end(at, unpack(units, at * UNIT - place))
        )
        return end, first, units

    def _chunk(self, low: int, high: int) -> bytes:
        """The bytes of units in files, which may lie in several."""
        pieces = []
        while low < high:
            stop = min(high, self.next_file(low))
            view = self._files.read(low * UNIT, (stop - low) * UNIT)
            assert view is not None, "the indexes are inside the files"
            pieces.append(bytes(view))
            low = stop
        return b"".join(pieces)

    def _drop_broken_files(self, error: StoreError) -> None:
        good: list[int] = []
        size = self._files.file_size
        for base in self._files.bases:
            if (good and base != good[-1] + size) or self._disk.size(self._files.path(base)) != size:
                break
            good.append(base)
        if len(good) == len(self._files.bases):
            raise error  # the files are as they should be, but cannot be opened
        log.warning("queue %s/%s is made again from the log: %s", self.topic, self.queue_id, error)
        for base in self._files.bases[len(good) :]:
            self._disk.remove(self._files.path(base))
        self._files.keep(good)

    def _set_end(self, end: int) -> None:
        self.cuts += 1
        self.end = self.next = self.tail_start = end
        self._synced = end * UNIT
        self.tail = bytearray()

    def _unit_in_file(self, index: int) -> Unit:
        view = self._files.read(index * UNIT, UNIT)
        assert view is not None, "the index is inside the files"
        return UNIT_FORM.unpack(view)

    def physical_end(self) -> int:
        """End of the record of the last unit; 0 without one."""
        last = self.end - 1
        if last < self.tail_start and not self._files.start <= last * UNIT < self._files.stop:
            return 0  # trimmed and cut away: the numbers go on, but no unit is left
        return _record_end(self._any_unit(last))

    # ---- appending: Store.commit() does this in line for many queues at once ----

    def append(self, unit: Unit, timestamp: int) -> None:
        """Take one unit, readable at once."""
        if not self.tail:
            self.gathered_since_ms = timestamp
        self.tail += UNIT_FORM.pack(*unit)
        self.end = self.next = self.end + 1

    def restart(self, index: int) -> None:
        """Forget all units; the next one has this index."""
        self.cuts += 1
        self.remove()
        self.start = self.end = self.next = self.tail_start = index
        self.known_to = self._synced = 0
        self.cut_at = None

    def write(self) -> None:
        """Write the gathered units to the file. Raises StoreError; the units stay in memory in this case."""
        if not self.tail:
            return
        at = self.tail_start * UNIT
        assert self.tail_start + len(self.tail) // UNIT == self.end, "the tail ends where the queue ends"
        # A queue that begins in the middle of a file (a slave's, or one whose older records expired): Java
        # reads units of size 0 there as the end of the queue, a filler as nothing.
        if not self._files.bases and at % self._files.file_size:
            self._files.write(at - at % self._files.file_size, _FILLER * (at % self._files.file_size // UNIT))
        # Taken back first: `sync` in another thread sees it changed and does not move it on over these bytes.
        self._synced = min(self._synced, at)
        self._files.write(at, bytes(self.tail))  # a view in a traceback would keep the tail from growing
        self.tail_start = self.end
        self.tail = bytearray()

    def sync_end(self) -> None:
        """Sync the file that holds the end."""
        self._files.sync(self.end * UNIT, self.end * UNIT + 1)

    def sync(self) -> None:
        """Sync the files that were written since the last sync. Thread-safe."""
        start, stop = self._synced, self.tail_start * UNIT
        self._files.sync(start, stop)
        if self._synced == start:  # else units before were written again
            self._synced = stop

    # ---- reading ----

    def units(self, index: int, count: int) -> bytes | bytearray | memoryview:
        """At most `count` units from `index` on, up to the end of the file that holds it (as Java reads);
        b"" without any.
        """
        per_file = self.units_per_file
        stop = min(index + count, self.end, index - index % per_file + per_file)
        if index < self.start or index >= stop:
            return b""
        if index >= self.tail_start:
            at = (index - self.tail_start) * UNIT
            return self.tail[at : at + (stop - index) * UNIT]
        in_file = self._files.read(index * UNIT, (min(stop, self.tail_start) - index) * UNIT)
        if in_file is None:
            return b""
        if stop > self.tail_start:
            return bytes(in_file) + self.tail[: (stop - self.tail_start) * UNIT]
        return in_file

    def unit(self, index: int) -> Unit | None:
        """The unit at an index; None without a unit."""
        data = self.units(index, 1)
        return UNIT_FORM.unpack(data) if len(data) == UNIT else None

    def unit_in_files(self, index: int) -> Unit | None:
        """The unit in the files at an index, trusted or not; None without a unit."""
        view = None if index < 0 else self._files.read(index * UNIT, UNIT)
        if view is None or len(view) < UNIT:
            return None
        unit: Unit = UNIT_FORM.unpack(view)
        return unit if 0 < unit[1] < FILLER_SIZE else None

    def first_in_files(self) -> Unit | None:
        """The first unit of the first file, and the index at which the queue begins in the file; None without
        a unit."""
        return self.unit_in_files(self.file_start)

    def next_file(self, index: int) -> int:
        """The first index of the file after that of `index`."""
        return index - index % self.units_per_file + self.units_per_file

    def file_ranges(self) -> Iterator[tuple[int, int]]:
        """(first index, end) of the readable units of each file, oldest first."""
        per_file = self.units_per_file
        index = self.start
        while index < self.end:
            stop = min(index - index % per_file + per_file, self.end)
            yield index, stop
            index = stop

    # ---- trimming ----

    def trim(self, log_start: int, *, files: bool = True) -> int:
        """Drop units before the log's start: whole files, unless `files` is False, and a part of a file by
        moving `start`. Return the number of removed files."""
        self.trimmed_to = log_start
        # Units of messages that were given up (`give_up_before`) stay as long as their records do.
        first = self.first_at(log_start, self._first_unit)
        self.start = max(self.start, first)
        assert self.start <= self.end
        # The last unit stays, since it says where the queue ends: without it the next start would begin the
        # queue at 0, and consumers that are further on would wait for ever.
        # The unit before the first one stays: it shows that no file between is missing.
        keep = max(min(first, self.end - 1) - 1, 0)
        keep -= keep % self.units_per_file
        if keep > self.tail_start:
            self.tail = self.tail[(keep - self.tail_start) * UNIT :]
            self.tail_start = keep
        removed = 0
        while files and self._files.bases and self._files.bases[0] + self._files.file_size <= keep * UNIT:
            self._files.remove_first()
            removed += 1
        return removed

    def give_up_before(self, index: int) -> int:
        """Begin at `index`, or at the end when that is before it; files stay until they are trimmed. Return
        the number of messages that cannot be read any more."""
        before, self.start = self.start, max(self.start, min(index, self.end))
        return self.start - before

    def record_bytes(self, low: int, high: int) -> int:
        """The size of the records of these units, also of units before `start`; -1 when their files are
        gone."""
        in_files = min(high, self.tail_start)
        if low < in_files and not self._files.start <= low * UNIT < in_files * UNIT <= self._files.stop:
            return -1
        data = self._chunk(low, in_files) if low < in_files else b""
        if high > self.tail_start:
            at = (max(low, self.tail_start) - self.tail_start) * UNIT
            data += self.tail[at : (high - self.tail_start) * UNIT]
        return sum([size for _, size, _ in UNIT_FORM.iter_unpack(data) if size != FILLER_SIZE])

    @property
    def _first_unit(self) -> int:
        """The first index that has a unit, or room for one before the first, readable or not."""
        return min(self.start, self.file_start if self._files.bases else self.tail_start)

    def first_at(self, physical_offset: int, low: int | None = None) -> int:
        """The first index, from `low` or the start on, whose record is at or after `physical_offset`; fillers
        do not count."""
        low, high = self.start if low is None else low, self.end
        if low < high and self._is_at(low, physical_offset):
            return low
        while low < high:
            middle = (low + high) // 2
            if self._is_at(middle, physical_offset):
                high = middle
            else:
                low = middle + 1
        return low

    def _is_at(self, index: int, physical_offset: int) -> bool:
        unit = self._any_unit(index)
        return unit[1] != FILLER_SIZE and unit[0] >= physical_offset

    def _any_unit(self, index: int) -> Unit:
        if index < self.tail_start:
            return self._unit_in_file(index)
        return UNIT_FORM.unpack_from(self.tail, (index - self.tail_start) * UNIT)

    def may_have_lost(self) -> None:
        """The queue may have been longer than it is now."""
        self.cut_at = self.end if self.cut_at is None else min(self.cut_at, self.end)

    def truncate(self, log_end: int) -> bool:
        """Drop the units whose records end after `log_end`; return whether files changed."""
        if self.physical_end() <= log_end:
            return False
        self.cuts += 1
        # The queue may begin later than its units do, and the log may be cut before that (`give_up_before`).
        low = self._first_unit
        end = self.first_at(log_end, low)
        while end > low and sum(self._any_unit(end - 1)[:2]) > log_end:
            end -= 1
        self.start = min(self.start, end)
        kept = self.tail[: max(end - self.tail_start, 0) * UNIT]
        if is_cut := end < self.tail_start:
            self._files.truncate(end * UNIT)
            self.tail_start = end
        self.tail = bytearray(kept)
        self.end = self.next = end
        self.may_have_lost()
        self.known_to = min(self.known_to, log_end)
        # After a crash the tail was made of the log, and the files may have the same units.
        return self.cut_files() or is_cut

    def cut_files(self) -> bool:
        """Zero the files behind the end of the units; return whether that changed anything."""
        end = self.end * UNIT
        later = self._files.stop > end - end % self._files.file_size + self._files.file_size
        if later or (
            end < self._files.stop and any(piece.strip(b"\0") for _, piece in self._files.pieces(end))
        ):
            self._files.truncate(end)
            return True
        return False

    def remove(self) -> None:
        """Remove the queue's files and folder."""
        self._files.remove_all()
        self.tail = bytearray()

    def close(self) -> None:
        """Close the files; gathered units should have been written, unless they are to be forgotten."""
        self._files.close()

    @property
    def gathered(self) -> int:
        """Bytes that are in memory only."""
        return len(self.tail)

    @property
    def file_start(self) -> int:
        """The first index that the oldest file has room for."""
        return self._files.start // UNIT

    @property
    def is_empty(self) -> bool:
        """No units at all."""
        return self.end == self.start


def _record_end(unit: Unit) -> int:
    """End of the record of a unit; 0 for a filler."""
    physical, size, _ = unit
    return 0 if size == FILLER_SIZE else physical + size


def queue_folder(root: str, topic: str, queue_id: int) -> str:
    """The folder of a queue. The topic must be a plain name: this is the one place where a topic becomes a
    path.
    """
    if not topic or "/" in topic or "\0" in topic or topic in (".", "..") or queue_id < 0:
        raise StoreError(f"{topic!r}/{queue_id} cannot be a queue's folder")
    return f"{os.path.join(root, 'consumequeue', topic)}{os.sep}{queue_id}"


def queues_in(disk: Disk, root: str) -> Iterator[tuple[str, int]]:
    """The queues that have folders, as (topic, queue id). Folders that no topic can have are passed over,
    such as `lost+found` of a volume, which only root may read. Raises StoreError.
    """
    place = os.path.join(root, "consumequeue")
    for topic in disk.list(place):
        if topic == LEFT_INSIDE or len(os.fsencode(topic)) > _TOPIC_BYTES_MAX or not _is_text(topic):
            continue
        try:
            names = disk.list(os.path.join(place, topic))
        except StoreError as error:
            if is_topic_name(topic):
                raise
            log.warning("a folder that is not a topic's is passed over: %s", error)
            continue
        for queue_id in names:
            if queue_id.isascii() and queue_id.isdecimal():
                yield topic, int(queue_id)


def _is_text(name: str) -> bool:
    """False for a file name that is not UTF-8."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def is_topic_name(name: str) -> bool:
    """True if a topic may have the name, as a new topic must."""
    try:
        validate_topic(name)
    except InvalidName:
        return False
    return True
