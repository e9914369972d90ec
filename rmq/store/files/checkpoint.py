"""The checkpoint file: the synced ends of log, queues and index. 4096 bytes, with RocketMQ's three store
times at the start.

Store times are reliable only while the clock goes forward: after the clock was set back, unsynced records
look older than synced records. So our file also has physical offsets, which RocketMQ ignores; they count only
while the times beside them are unchanged since our last write.

Behind the offsets is the begin of the log: retention writes the new begin before it removes a file, so that a
first file that is missing for another reason is noticed.
"""

from __future__ import annotations

import zlib
from struct import Struct

from rmq.store.files.disk import Disk

SIZE = 4096
_TIMES = Struct(">qqq")
_PLACES = Struct(">8sqq")
_CRC = Struct(">I")
_MAGIC = b"rmqPLACE"
_ROW = _TIMES.size + _PLACES.size + _CRC.size
_START = Struct(">8sq")
_START_MAGIC = b"rmqSTART"
_ROWS = _ROW + _START.size + _CRC.size  # less than a sector: written whole or not at all
# Java's. Store times of several threads were not in order there, and a clock may be set back a little.
_MARGIN_MS = 3000


class Checkpoint:
    """Times are store times in ms; 0 means unknown. `log_to`: the log is synced up to this physical offset;
    `queues_to`: the units of all records before this offset are synced. `has_places`: these two are known,
    else 0. `log_from`: the log's files have everything from this physical offset on; None when unknown."""

    def __init__(self, disk: Disk, path: str) -> None:
        existed = disk.exists(path) and disk.size(path) >= _TIMES.size
        self._segment = disk.open(path, SIZE, mapped=False)
        self.log_ms = self.queues_ms = self.index_ms = self.log_to = self.queues_to = 0
        self.has_places = False
        self.log_from: int | None = None
        if existed:
            self._take(bytes(self._segment.read(0, _ROWS)))

    def _take(self, row: bytes) -> None:
        self.log_ms, self.queues_ms, self.index_ms = _TIMES.unpack_from(row)
        places = _places_in(row[:_ROW])
        if places is not None:
            self.has_places = True
            self.log_to, self.queues_to = places
            self.log_from = _start_in(row)

    @property
    def replay_from_ms(self) -> int:
        """After a crash, files that start at or before this store time need no new scan."""
        return max(min(self.log_ms, self.queues_ms) - _MARGIN_MS, 0)

    @property
    def replay_from(self) -> int | None:
        """The physical offset before which a recovery after a crash needs no scan; None if only
        `replay_from_ms` is known."""
        return min(self.log_to, self.queues_to) if self.has_places else None

    def lower(self, most_ms: int, most: int) -> None:
        """Vouch for no record stored after that time, and for none from that physical offset on; with 0 for
        no start either: a log that is empty may begin anywhere. Raises StoreError.
        """
        known = self.log_ms, self.queues_ms, self.index_ms, self.log_to, self.queues_to, self.log_from
        self.log_ms, self.queues_ms, self.index_ms = (min(time, most_ms) for time in known[:3])
        self.log_to, self.queues_to = min(self.log_to, most), min(self.queues_to, most)
        if most <= 0:
            self.log_from = None
        now = self.log_ms, self.queues_ms, self.index_ms, self.log_to, self.queues_to, self.log_from
        if known != now:
            self.flush()

    def flush(self) -> None:
        """Write the known values and sync. Raises StoreError."""
        row = _TIMES.pack(self.log_ms, self.queues_ms, self.index_ms)
        if self.has_places:
            row += _PLACES.pack(_MAGIC, self.log_to, self.queues_to)
            row += _CRC.pack(zlib.crc32(row))
            start = -1 if self.log_from is None else self.log_from
            row += _START.pack(_START_MAGIC, start)
            row += _CRC.pack(zlib.crc32(row))
        self._segment.write(0, row)
        self._segment.sync()

    def close(self) -> None:
        """Close the file."""
        self._segment.close()


def _places_in(row: bytes) -> tuple[int, int] | None:
    """The physical offsets; None when RocketMQ, or an older version of ours, was the last to write."""
    magic, log_to, queues_to = _PLACES.unpack_from(row.ljust(_ROW, b"\0"), _TIMES.size)
    if magic != _MAGIC or row[-_CRC.size :] != _CRC.pack(zlib.crc32(row[: -_CRC.size])):
        return None
    return max(log_to, 0), max(queues_to, 0)


def _start_in(row: bytes) -> int | None:
    """Offset at which the log begins; None when it is not known, or an older version of rmq was the last to
    write."""
    magic, start = _START.unpack_from(row.ljust(_ROWS, b"\0"), _ROW)
    if magic != _START_MAGIC or row[-_CRC.size :] != _CRC.pack(zlib.crc32(row[: -_CRC.size])):
        return None
    return int(start) if start >= 0 else None
