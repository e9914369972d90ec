"""Reading records straight from the bytes of the log, and telling a torn tail from damage.

A record is good when its size, magic, own physical offset, inner lengths and body CRC all fit. A scan
goes from good record to good record and stops at the first bad spot. What that spot means:

- Nothing good comes after it: the end of the log (a *hole* of zeros) or a torn tail. The log is cut
  there.
- A good record comes after it (found by looking for the magic whose physical offset equals its own
  position):
  - after a clean stop everything was synced, so this is **damage**;
  - after a crash, a record whose store time is before the checkpoint's was synced together with all
    before it: **damage**;
  - otherwise the bad spot lies in what no sync had covered, where a power cut may lose single pages and
    keep later ones. A lost page reads as zeros up to a page border. Such a spot is a torn tail; anything
    else is **damage**.

The CRC covers the body only (the format is RocketMQ's), so a flipped bit in a topic or property is not seen;
zeros that a crash left at the end of the last record's properties are.

Damage is never taken for the end of the log: `CorruptRecord` names file and offset, unless
`truncateDamagedLog` says to cut.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from rmq.errors import CorruptRecord
from rmq.store.segments import Segments

MAGIC = -626843481  # 0xDAA320A7
BLANK_MAGIC = -875286124  # 0xCBD43194
BLANK_SIZE = 8
PAGE = 4096
MIN_RECORD = 91
_MAGIC_BYTES = MAGIC.to_bytes(4, "big", signed=True)

_PAIR = Struct(">ii")
_SHORT = Struct(">h")
_LONG = Struct(">q")
# size, magic, crc, queue id, flag, queue offset, physical offset, sys flag, born time
_HEAD = Struct(">iiiiiqqiq")
# the same, then born host (IPv4), store time, store host (IPv4), reconsume times, prepared offset, body
# length
_HEAD4 = Struct(">iiiiiqqiq8xq8xiqi")
_REST = Struct(">iqi")
_V6 = 16 | 32


class Scanned(NamedTuple):
    """The parts of a record that queues and index are made of."""

    position: int
    size: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    topic: bytes
    properties: bytes


def parse(view: memoryview, at: int, position: int, *, check_crc: bool) -> Scanned | None:
    """The record at `at` in the view of its file, whose place in the log is `position`; None when it is not
    a good one.
    """
    left = len(view) - at
    if left < MIN_RECORD:
        return None
    size, magic, crc, queue_id, _, queue_offset, physical_offset, sys_flag, _, stored, _, _, body_size = (
        _HEAD4.unpack_from(view, at)
    )
    if magic != MAGIC or physical_offset != position or not MIN_RECORD <= size <= left:
        return None
    body = at + 88
    if sys_flag & _V6:
        wide = _wide(view, at, sys_flag, at + size)
        if wide is None:
            return None
        stored, body_size, body = wide
    topic = body + body_size
    end = at + size
    if body_size < 0 or topic + 3 > end:
        return None
    properties = topic + 1 + view[topic]
    if properties + 2 > end:
        return None
    if properties + 2 + max(_SHORT.unpack_from(view, properties)[0], 0) != end:
        return None
    texts = bytes(view[properties + 2 : end])
    if check_crc:
        if zlib.crc32(view[body:topic]) & 0x7FFFFFFF != crc:
            return None
        if 0 in texts and _lost_inside(texts, position + size):
            return None
    return Scanned(
        position,
        size,
        queue_id,
        queue_offset,
        sys_flag,
        stored,
        bytes(view[topic + 1 : properties]),
        texts,
    )


def _lost_inside(texts: bytes, end: int) -> bool:
    """Whether a page was lost inside the properties, which no CRC covers: zeros up to a page border.

    A page that was lost at their end took the next record's start with it, so that is found there.
    """
    start = end - len(texts)
    borders = range(start - start % PAGE + PAGE, end + 1, PAGE)
    return any(not any(texts[max(border - PAGE - start, 0) : border - start]) for border in borders)


def _wide(view: memoryview, at: int, sys_flag: int, end: int) -> tuple[int, int, int] | None:
    """Store time, body length and start of the body of a record with an IPv6 host; None when it is too
    short for that.
    """
    stored_at = at + 48 + (20 if sys_flag & 16 else 8)
    rest_at = stored_at + 8 + (20 if sys_flag & 32 else 8)
    if rest_at + 16 > end:
        return None
    return _LONG.unpack_from(view, stored_at)[0], _REST.unpack_from(view, rest_at)[2], rest_at + 16


def store_timestamp(view: memoryview, at: int) -> int:
    """The store time of the record that starts at `at`."""
    wide = view[at + 39] & 16  # the lowest byte of the sys flag
    stored: int = _LONG.unpack_from(view, at + (68 if wide else 56))[0]
    return stored


def is_blank(view: memoryview, at: int) -> bool:
    """Whether the rest of the file from `at` on is closed by a blank record."""
    left = len(view) - at
    return left >= BLANK_SIZE and _PAIR.unpack_from(view, at) == (left, BLANK_MAGIC)


class Scan:
    """Iterates over the good records from `start` on; afterwards `position` is the first place without one.

    With `stop`, only records that end there or before count.
    """

    def __init__(
        self, segments: Segments, start: int, *, check_crc: bool = True, stop: int | None = None
    ) -> None:
        self.position = start
        self._segments = segments
        self._check_crc = check_crc
        self._stop = stop

    def __iter__(self) -> Iterator[Scanned]:
        size = self._segments.file_size
        while self._stop is None or self.position < self._stop:
            base = self.position - self.position % size
            view = self._segments.read(base, size)
            if view is None:
                return
            yield from self._one_file(view, base)
            if self.position != base + size:
                return

    def _one_file(self, view: memoryview, base: int) -> Iterator[Scanned]:
        stop = base + len(view) if self._stop is None else min(self._stop, base + len(view))
        check_crc = self._check_crc
        position = self.position
        while position < stop:
            record = parse(view, position - base, position, check_crc=check_crc)
            if record is None:
                if is_blank(view, position - base):
                    self.position = base + len(view)
                return
            if position + record.size > stop:
                return
            self.position = position = position + record.size
            yield record


def next_good(segments: Segments, position: int) -> Scanned | None:
    """The first good record after `position`, in that file or a later one."""
    size = segments.file_size
    start = position + 1
    while (segment := segments.at(start)) is not None:
        base = start - start % size
        view = segment.read(0, size)
        at = start - base
        while (at := segment.data_from(at)) < size:
            piece = bytes(view[at : at + (1 << 20)])
            found = piece.find(_MAGIC_BYTES, 4)
            while found >= 0:
                record = parse(view, at + found - 4, base + at + found - 4, check_crc=True)
                if record is not None:
                    return record
                found = piece.find(_MAGIC_BYTES, found + 1)
            at += max(len(piece) - 7, 1)
        start = base + size
    return None


def check_end(segments: Segments, position: int, synced_before_ms: int | None) -> None:
    """Raise CorruptRecord when the bad spot at `position` is damage; return when the log ends there.

    `synced_before_ms`: records stored before that time were synced, and all before them; None: every
    record was.
    """
    following = next_good(segments, position)
    if following is None:
        return
    synced = synced_before_ms is None or following.store_timestamp < synced_before_ms
    if synced or not _page_lost(segments, position, following.position):
        reason = (
            f"no good record here, but one at {following.position}: restore this file from a backup or "
            "a replica, or start once with truncateDamagedLog=true, which gives up everything from here on"
        )
        raise CorruptRecord(segments.path(position), position, reason)


def _page_lost(segments: Segments, position: int, stop: int) -> bool:
    """Whether the record at `position` reads as one of whose pages a power cut took one away."""
    size = segments.file_size
    base = position - position % size
    segment = segments.at(position)
    assert segment is not None
    view = segment.read(0, size)
    at = position - base
    end = min(stop - base, size)
    border = at - at % PAGE + PAGE
    if not any(view[at : min(border, size)]):
        return True
    return any(not any(view[page : min(page + PAGE, size)]) for page in range(border, end, PAGE))
