"""The index's part of a store's check: each entry against its record, and the chains of slots.

An index file does not name its number of slots. Its first entry reveals the number: the header names the
record of this entry, whose key hash is known from the log.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from struct import Struct, unpack

from rmq.printable import counted
from rmq.protocol.properties import index_keys, is_indexed
from rmq.store.audit.rules import is_kept
from rmq.store.files.disk import Disk, Segment
from rmq.store.files.index import HEADER, KeyHash
from rmq.store.files.scan import Scanned

Add = Callable[[str, str, int, str], None]

_NAME = re.compile(r"[0-9]{17}")
_HEADER = Struct(">qqqqii")
_ENTRY = Struct(">iqii")
_PLACE = Struct(">iq")
_SLOTS_AT_ONCE = 1 << 16
_PIECE = 4 << 20


class IndexAudit:
    """All index files of a folder. `add` takes findings."""

    def __init__(self, disk: Disk, folder: str, add: Add) -> None:
        self._disk = disk
        self._folder = folder
        self._add = add
        self._hash = KeyHash()
        self._entries: Iterator[tuple[str, int, int, int, int]] = iter(())
        self._next: tuple[str, int, int, int, int] | None = None
        self._log_start = 0
        self._missing = 0
        self._missing_from = -1
        self.notes: list[str] = []
        self.slots = 0
        self.file_size = 0
        self.file_count = 0
        self.entry_count = 0

    def load(self, log_start: int, record_at: Callable[[int], Scanned | None]) -> None:
        """Find the files, and how many slots they have."""
        self._log_start = log_start
        names = [name for name in self._disk.list(self._folder) if _NAME.fullmatch(name)]
        paths = [os.path.join(self._folder, name) for name in names]
        self.file_count = len(paths)
        if not paths:
            self.notes.append("no index files: queries by key find nothing until the index is made")
            return
        found = (self._find_slots(path, record_at) for path in paths)
        self.slots = next((slots for slots in found if slots), 0)
        self.file_size = Counter(self._disk.size(path) for path in paths).most_common(1)[0][0]
        for path in paths:
            size = self._disk.size(path)
            if size != self.file_size:
                self._add("index file size", path, 0, f"{size} bytes, the others have {self.file_size}")
        if not self.slots:
            self.notes.append("the index is not checked: the number of slots of its files is unknown")
            return
        self._entries = (entry for path in paths for entry in self._read(path))
        self._next = next(self._entries, None)

    def _find_slots(self, path: str, record_at: Callable[[int], Scanned | None]) -> int:
        size = self._disk.size(path)
        if size < HEADER:
            return 0
        segment = self._disk.open(path, size, mapped=False)
        try:
            fields = _HEADER.unpack(segment.read(0, HEADER))
            record = record_at(fields[2]) if fields[5] > 1 else None
            hashes = [] if record is None else self._hashes(record)
            if not hashes:
                return 0
            # A record's first keys may be in the file before: then another of its keys is the first here.
            places = (self._find(segment, _PLACE.pack(key_hash, fields[2])) for key_hash in hashes)
            return next(((place - HEADER - 20) // 4 for place in places if place > 0), 0)
        finally:
            segment.close()

    def _find(self, segment: Segment, pattern: bytes) -> int:
        """Position of these bytes behind the header, at a place where the first entry may be; 0 if
        nowhere."""
        at, size = HEADER, segment.size
        while at < size:
            start, stop = segment.data_after(at)
            if start >= size:
                break
            at = min(stop, start + _PIECE)
            piece = bytes(segment.read(start, min(at - start + len(pattern), size - start)))
            place = piece.find(pattern)
            if place >= 0 and (start + place - HEADER) % 4 == 0:
                return start + place
        return 0

    def _hashes(self, record: Scanned) -> list[int]:
        keys = index_keys(record.properties) if is_indexed(record.sys_flag) else ()
        topic = record.topic.decode("utf-8", "replace")
        return [row[0] for row in self._hash.rows([(topic, keys, 0, 0)])]

    def _read(self, path: str) -> Iterator[tuple[str, int, int, int, int]]:
        """(path, place in the file, key hash, physical offset, second of the store time or -1 when it is not
        to be checked) of each entry; chains are checked. The first entry's time is that of the file before.
        """
        size = self._disk.size(path)
        start = HEADER + 4 * self.slots
        segment = self._disk.open(path, size, mapped=False) if size >= start + 20 else None
        if segment is None:
            self._add("index file size", path, 0, f"{size} bytes cannot hold {self.slots} slots")
            return
        try:
            begin, _, first_offset, last_offset, _, count = _HEADER.unpack(segment.read(0, HEADER))
            if (size - start) % 20 or not 0 <= count <= (size - start) // 20:
                self._add("index file size", path, 0, f"{size} bytes do not fit {count} entries")
                return
            last: dict[int, int] = {}
            ends = {1: (first_offset, 16), count - 1: (last_offset, 24)} if count > 2 else {}
            for number in range(1, count):
                at = start + number * 20
                key_hash, offset, seconds, before = _ENTRY.unpack(segment.read(at, 20))
                slot = key_hash % self.slots
                if before != last.get(slot, 0):
                    detail = f"entry {number} follows {before}, expected {last.get(slot, 0)}"
                    self._add("index chain", path, at, detail)
                last[slot] = number
                if number in ends and ends[number][0] != offset:
                    detail = f"the header says {ends[number][0]}, entry {number} has {offset}"
                    self._add("index header", path, ends[number][1], detail)
                self.entry_count += 1
                yield (
                    path,
                    at,
                    key_hash,
                    offset,
                    begin + seconds * 1000 if number > 1 and begin and seconds else -1,
                )
            self._check_slots(path, segment, last)
        finally:
            segment.close()

    def _check_slots(self, path: str, segment: Segment, last: dict[int, int]) -> None:
        """Each slot must have its newest entry, and 0 without any."""
        for first in range(0, self.slots, _SLOTS_AT_ONCE):
            count = min(_SLOTS_AT_ONCE, self.slots - first)
            values = unpack(f">{count}i", segment.read(HEADER + first * 4, count * 4))
            for slot, found in enumerate(values, first):
                if found != last.get(slot, 0):
                    detail = f"slot has {found}, expected {last.get(slot, 0)}"
                    self._add("index chain", path, HEADER + slot * 4, detail)

    def expect(self, record: Scanned) -> None:
        """A good record of the log."""
        if not self.slots:
            return
        self._skip_before(record.position)
        found = []
        while self._next is not None and self._next[3] == record.position:
            found.append(self._next)
            self._next = next(self._entries, None)
        expected = self._hashes(record)
        if [entry[2] for entry in found] == expected:
            self._check_times(found, record.store_timestamp)
            return
        if not found:
            self._missing += len(expected)
            self._missing_from = record.position if self._missing_from < 0 else self._missing_from
            return
        path, at = found[0][:2]
        hashes = [entry[2] for entry in found]
        self._add(
            "index entry", path, at, f"hashes {hashes} of the record at {record.position}: not {expected}"
        )

    def _check_times(self, entries: list[tuple[str, int, int, int, int]], stored: int) -> None:
        for path, at, _, offset, time_ms in entries:
            if time_ms >= 0 and not time_ms <= stored < time_ms + 1000:
                self._add("index entry", path, at, f"time {time_ms} of the record at {offset}: not {stored}")

    def _skip_before(self, position: int) -> None:
        """Index entries without a record in the log; entries of expired records may stay."""
        while self._next is not None and self._next[3] < position:
            path, at, _, offset, _ = self._next
            if is_kept(offset, self._log_start):
                self._add("index entry extra", path, at, f"no record with keys starts at {offset}")
            self._next = next(self._entries, None)

    def finish(self) -> None:
        """The log is at its end."""
        if self._missing:
            detail = f"no entries for {counted(self._missing, 'key')} of records from {self._missing_from} on"
            self._add("index entry missing", self._folder, self._missing_from, detail)
        while self._next is not None:
            path, at, _, offset, _ = self._next
            self._add("index entry extra", path, at, f"no record with keys starts at {offset}")
            self._next = next(self._entries, None)
