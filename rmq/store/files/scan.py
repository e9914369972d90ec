"""Scan of the log: reads records straight from its bytes, and distinguishes a torn tail from damage.

A record is good when its size, magic, own physical offset, inner lengths and body CRC all fit, and its topic,
queue id and queue offset can belong to a queue. A scan goes from good record to good record and stops at the
first bad spot. Meaning of that spot:

- No good record follows: the end of the log (a *hole* of zeros) or a torn tail. The log is cut at the spot.
- A good record follows (found by looking for the magic whose physical offset equals its own position):
  - after a clean stop everything was synced, so this is **damage**;
  - after a crash, a record before the offset in `abort` or the checkpoint was synced, with all before it;
    so was a record whose store time is before the checkpoint's, if the checkpoint has no offset: **damage**;
  - otherwise the bad spot lies in the unsynced part, where a power cut may lose single pages and
    keep later pages. A lost page reads as zeros up to a page border. Such a spot is a torn tail; anything
    else is **damage**.

The CRC covers the body only (the format is RocketMQ's), so most flipped bits in a topic or property go
unnoticed; zeros that a crash left at the end of the last record's properties are noticed.

Damage is never taken for the end of the log: `CorruptRecord` names file and offset, unless
`truncateDamagedLog` says to cut.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from rmq.errors import CorruptRecord
from rmq.message import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq.protocol.codes import SYS_HOST_BITS
from rmq.protocol.record import BLANK_MAGIC, FIELDS, FIXED_SIZE, MESSAGE_MAGIC, part, parts
from rmq.store.files.disk import Bytes
from rmq.store.files.segments import Segments

if TYPE_CHECKING:
    from types import ModuleType

    from attrs import frozen

    from rmq.protocol._engine import Rows
else:
    from rmq.lazy_attrs import frozen

BLANK_SIZE = 8
SECTOR = 512
"""Bytes that a disk writes whole, of the pages that a system gives it."""
_PIECE = 1 << 18
_MAGIC_BYTES = MESSAGE_MAGIC.to_bytes(4, "big")
_ZEROS = re.compile(rb"\0+")
_NO_FOLDERS = frozenset((b"", b".", b".."))
"""Names that no queue's folder can have, beside those with a slash or NUL: such a topic is damage too."""
_TEXTS_MOST = 1 + 255 + 2 + 32767  # of a record: its topic and properties with their lengths
_SEARCH_BYTES = 64 << 20  # how far behind a record that nothing vouches for one is looked for that has a unit
_CHECKED_BYTES = 256 << 20  # of what a search found and nothing vouches for: so much is read for its CRC

_PAIR = part("size", "magic")
_HEAD = part("size", "magic", "queue_offset", "physical_offset", "born_timestamp")
_WITHOUT_HOSTS = (name for name, _ in FIELDS if name not in ("born_host", "store_host"))
_HEAD4 = part(*_WITHOUT_HOSTS)  # with two IPv4 hosts, as mostly
_BODY_AT = _HEAD4.size
_WIDE = parts("store_timestamp", "body_size")
_STORED = parts("store_timestamp")
_SYS_FLAG = part("sys_flag")


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

    @property
    def end(self) -> int:
        """The place after the record."""
        return self.position + self.size


class Run(NamedTuple):
    """Consecutive records up to `end`, read by the compiled engine: the store time of the last record, the
    units of the queues as (topic, queue id, first queue offset, number, units), in the order of their first
    records, and the rows for the index, if any."""

    end: int
    store_timestamp: int
    queues: list[tuple[str, int, int, int, bytes]]
    rows: Rows | None


_DELAYED = frozenset((SCHEDULE_TOPIC.encode(), TIMER_TOPIC.encode()))
"""Topics whose units have due times, which the compiled engine does not read."""


def parse(data: Bytes, at: int, position: int, *, check_crc: bool) -> Scanned | None:
    """The record at `at` in `data`, whose place in the log is `position`; None without a whole good
    record."""
    left = len(data) - at
    if left < FIXED_SIZE:
        return None
    size, magic, crc, queue_id, _, queue_offset, physical_offset, sys_flag, _, stored, _, _, body_size = (
        _HEAD4.unpack_from(data, at)
    )
    if magic != MESSAGE_MAGIC or physical_offset != position or not FIXED_SIZE <= size <= left:
        return None
    body = at + _BODY_AT
    end = at + size
    if sys_flag & SYS_HOST_BITS:
        wide = _wide(data, at, sys_flag, end)
        if wide is None:
            return None
        stored, body_size, body = wide
    topic = body + body_size
    if body_size < 0 or topic + 3 > end:
        return None
    properties = topic + 1 + data[topic]
    if properties + 2 > end:
        return None
    texts = bytes(data[properties + 2 : end])
    if data[properties] << 8 | data[properties + 1] != len(texts):
        return None
    if check_crc and zlib.crc32(data[body:topic]) & 0x7FFFFFFF != crc:
        return None
    name = bytes(data[topic + 1 : properties])
    if queue_id < 0 or queue_offset < 0 or b"/" in name or b"\0" in name or name in _NO_FOLDERS:
        return None
    # Scanned(...) goes through a Python function, which costs as much as the checks above.
    return tuple.__new__(Scanned, (position, size, queue_id, queue_offset, sys_flag, stored, name, texts))


def has_lost_page(record: Scanned) -> bool:
    """True if zeros in a record's properties, which no CRC covers, come from a power cut of unsynced pages or
    sectors: such zeros begin and end at borders of pages or sectors. A sender's zeros (RocketMQ accepts any)
    do so by chance only.

    A lost page at the end of the properties took the next record's start with it, so the loss is found at
    that record.
    """
    start = record.position + record.size - len(record.properties)
    runs = _ZEROS.finditer(record.properties)
    return any((start + run.start()) % SECTOR == 0 == (start + run.end()) % SECTOR for run in runs)


def _wide(data: Bytes, at: int, sys_flag: int, end: int) -> tuple[int, int, int] | None:
    """Store time, body length and start of the body of a record with an IPv6 host; None when it is too
    short for that.
    """
    form = _WIDE[sys_flag & SYS_HOST_BITS]
    if at + form.size > end:
        return None
    stored, body_size = form.unpack_from(data, at)
    return stored, body_size, at + form.size


def store_timestamp(view: memoryview, at: int) -> int:
    """The store time of the record that starts at `at`."""
    (sys_flag,) = _SYS_FLAG.unpack_from(view, at)
    stored: int = _STORED[sys_flag & SYS_HOST_BITS].unpack_from(view, at)[0]
    return stored


def is_blank(data: Bytes, left: int) -> bool:
    """True if `data` begins with a blank record that closes the `left` bytes of the file."""
    return len(data) >= BLANK_SIZE and _PAIR.unpack_from(data) == (left, BLANK_MAGIC)


class Scan:
    """Iterates over the good records from `start` on; afterwards `position` is the first place without a good
    record. With `stop`, only records that end at `stop` or before count."""

    def __init__(
        self, segments: Segments, start: int, *, check_crc: bool = True, stop: int | None = None
    ) -> None:
        self.position = start
        self._segments = segments
        self._check_crc = check_crc
        self._stop = stop

    def __iter__(self) -> Iterator[Scanned]:
        for data, start in self._pieces():
            yield from self._records(data, start)

    def runs(self, compiled: ModuleType | None, *, with_rows: bool) -> Iterator[Run | Scanned]:
        """The same records. The engine, if there is one, reads those that are plain, in runs; all others, and
        what is no record, are left to `parse`. `with_rows`: the runs have rows for the index."""
        if compiled is None:
            yield from self
            return
        check_crc = self._check_crc
        for data, start in self._pieces():
            at = 0
            while True:
                run = compiled.read_run(data, at, start, _DELAYED, check_crc, with_rows)
                if run is not None:
                    at, stored, queues, rows = run
                    self.position = start + at
                    yield Run(self.position, stored, queues, rows)
                record = parse(data, at, start + at, check_crc=check_crc)
                if record is None:
                    break
                at += record.size
                self.position = start + at
                yield record

    def _pieces(self) -> Iterator[tuple[bytes, int]]:
        """Pieces of the log, each with its place; the caller moves `position` over the records of a piece."""
        while self._stop is None or self.position < self._stop:
            base = self.position - self.position % self._segments.file_size
            if not self._segments.has(base):
                return
            yield from self._pieces_of_file(base)
            if self.position != base + self._segments.file_size:
                return

    def _pieces_of_file(self, base: int) -> Iterator[tuple[bytes, int]]:
        """The scan reads pieces past the mapping: it must not make pages for everything that it passes."""
        end = base + self._segments.file_size
        stop = end if self._stop is None else min(self._stop, end)
        most = _PIECE
        while (start := self.position) < stop:
            data = self._segments.copy(start, min(most, stop - start))
            yield data, start
            if self.position != start:
                most = _PIECE
                continue
            if is_blank(data, end - start):
                self.position = end
                return
            most = int.from_bytes(data[:4], "big")
            if not len(data) < most <= stop - start:
                return  # else the record is longer than a piece

    def _records(self, data: bytes, start: int) -> Iterator[Scanned]:
        check_crc = self._check_crc
        at = 0
        while (record := parse(data, at, start + at, check_crc=check_crc)) is not None:
            at += record[1]
            self.position = start + at
            yield record


class Head(NamedTuple):
    """The first fields of a possible record."""

    size: int
    queue_offset: int


def head_at(segments: Segments, position: int) -> Head | None:
    """The head of the record at `position`, which is not looked at any further; None when it is none."""
    data = segments.copy(position, _HEAD.size)
    if len(data) < _HEAD.size:
        return None
    size, magic, queue_offset, physical_offset, _ = _HEAD.unpack(data)
    return Head(size, queue_offset) if magic == MESSAGE_MAGIC and physical_offset == position else None


def record_at(segments: Segments, position: int, *, check_crc: bool) -> Scanned | None:
    """The good record at `position`, or None."""
    head = head_at(segments, position)
    if head is None or head.size < FIXED_SIZE:
        return None
    return parse(segments.copy(position, head.size), 0, position, check_crc=check_crc)


def why_no_record(segments: Segments, position: int, end: int) -> str:
    """The fault in the bytes from `position` to the log's `end`, where `Scan` found no good record; empty
    when the bytes may be the begin of an incomplete record, or of a blank record."""
    size, magic = _PAIR.unpack(
        segments.copy(position, min(_PAIR.size, end - position)).ljust(_PAIR.size, b"\0")
    )
    have, left = end - position, segments.file_size - position % segments.file_size
    if have < 4:
        return ""
    if have >= 8 and magic not in (MESSAGE_MAGIC, BLANK_MAGIC):
        return f"its magic is {magic:08X}"
    if not BLANK_SIZE <= size <= left or (have >= 8 and magic == BLANK_MAGIC and size != left):
        return f"its size is {size}, {left} bytes are left in the file"
    if have >= size and magic == MESSAGE_MAGIC:
        return "its place, its queue, its lengths or its CRC do not fit"
    return ""


Vouch = Callable[[Scanned], bool | None]
"""True if a queue's unit points at what looks like a record: yes, no (at another one), or no unit tells."""


def no_evidence(record: Scanned) -> bool | None:
    """For searches that know no queues."""
    return None


def next_good(segments: Segments, position: int, vouch: Vouch = no_evidence) -> Scanned | None:
    """The first good record after the bad spot at `position`, in the same file or a later file.

    A body may hold whole records with the right physical offsets, made up by its sender. So records in the
    body of the record at `position` do not count, if its head is whole; and a record with a queue unit is
    believed before a record without. Heads made up inside each other, each with a body up to the same end,
    would each be read to that end: past `_CHECKED_BYTES` they count unread, and are damage, not the end.
    """
    doubtful: Scanned | None = None
    left = _CHECKED_BYTES
    for record in _candidates(segments, position):
        vouched = vouch(record)
        alone = vouched is None and (doubtful is None or vouch is no_evidence)
        if alone:
            left -= record.size
        if vouched or (alone and left >= 0):
            whole = record_at(segments, record.position, check_crc=True)
            if whole is None:
                continue
            record = whole
        if vouched or (alone and vouch is no_evidence):
            return record
        if alone:
            doubtful = record
        elif doubtful is not None and record.position > doubtful.position + _SEARCH_BYTES:
            break
    return doubtful


def _candidates(segments: Segments, position: int) -> Iterator[Scanned]:
    """All positions after `position` whose head and lengths look like a record's, without properties; except
    positions in the body of the record at `position`."""
    body, body_end = _body_of(segments, position)
    address = position + 1
    while segments.has(base := address - address % segments.file_size):
        for at, piece in segments.pieces(address):
            found = piece.find(_MAGIC_BYTES, 4)
            while found >= 0:
                place = base + at + found - 4
                if not body <= place < body_end:
                    record = _outline(segments, place)
                    if record is not None:
                        yield record
                found = piece.find(_MAGIC_BYTES, found + 1)
        address = base + segments.file_size


def _outline(segments: Segments, position: int) -> Scanned | None:
    """The record at a position, by its head and the end of its body alone; None when they are no record's."""
    data = segments.copy(position, FIXED_SIZE + 24)
    if len(data) < FIXED_SIZE:
        return None
    size, magic, _, queue_id, _, queue_offset, own, sys_flag, _, stored, _, _, body_size = _HEAD4.unpack_from(
        data
    )
    left = segments.file_size - position % segments.file_size
    if magic != MESSAGE_MAGIC or own != position or not FIXED_SIZE <= size <= left:
        return None
    start = _BODY_AT
    if sys_flag & SYS_HOST_BITS:
        wide = _wide(data, 0, sys_flag, min(size, len(data)))
        if wide is None:
            return None
        stored, body_size, start = wide
    texts = size - start - body_size
    if body_size < 0 or not 3 <= texts <= _TEXTS_MOST:
        return None
    after = segments.copy(position + start + body_size, min(texts, 1 + 255 + 2))
    if not after or (end := 1 + after[0]) + 2 > len(after):
        return None
    if end + 2 + (after[end] << 8 | after[end + 1]) != texts:
        return None
    name = after[1:end]
    if queue_id < 0 or queue_offset < 0 or b"/" in name or b"\0" in name or name in _NO_FOLDERS:
        return None
    return Scanned(position, size, queue_id, queue_offset, sys_flag, stored, name, b"")


def _body_of(segments: Segments, position: int) -> tuple[int, int]:
    """Begin and end of the body of the record at `position`; (0, 0) if its head or its sizes do not fit."""
    data = segments.copy(position, FIXED_SIZE + 24)
    if head_at(segments, position) is None or len(data) < FIXED_SIZE + 24:
        return 0, 0
    fields = _HEAD4.unpack_from(data)
    size, sys_flag, body_size, start = fields[0], fields[7], fields[12], _BODY_AT
    if sys_flag & SYS_HOST_BITS:
        wide = _wide(data, 0, sys_flag, len(data))
        if wide is None:
            return 0, 0
        _, body_size, start = wide
    if body_size < 0 or not 3 <= size - start - body_size <= _TEXTS_MOST:
        return 0, 0
    return position + start, position + start + body_size


@frozen
class Synced:
    """The known synced part: all of the log before the physical offset `before`, and all records stored
    before `before_ms`."""

    before: int
    before_ms: int

    def covers(self, record: Scanned) -> bool:
        """True if the record was synced for certain, to its end: a slave may sync a part of one."""
        return record.position + record.size <= self.before or record.store_timestamp < self.before_ms


def check_end(
    segments: Segments, position: int, synced: Synced, last_ms: int = 0, vouch: Vouch = no_evidence
) -> None:
    """Raise CorruptRecord when the bad spot at `position` is damage; return when the log ends at the spot.
    `last_ms` is the store time of the record before. An earlier time of a record without a queue unit is not
    believed."""
    following = next_good(segments, position, vouch)
    if following is None:
        return
    believed = following.store_timestamp >= last_ms or bool(vouch(following))
    was_synced = following.position < synced.before or (believed and synced.covers(following))
    if was_synced or not _page_lost(segments, position, following.position):
        reason = (
            f"no good record here, but one at {following.position}: restore this file from a backup or a "
            "replica, skip the damage with `rmq store repair DIR --skip-damaged`, or start once with "
            "truncateDamagedLog=true, which gives up everything from here on"
        )
        raise CorruptRecord(segments.path(position), position, reason)


def _page_lost(segments: Segments, position: int, stop: int) -> bool:
    """True if the record at `position` reads as one of which a power cut took a page away, or a sector."""
    end = position - position % segments.file_size + segments.file_size
    border = position - position % SECTOR + SECTOR
    starts = [position, *range(border, min(stop, end), SECTOR)]
    return any(not any(segments.copy(start, SECTOR - start % SECTOR)) for start in starts)
