"""The key index: files of hash slots and entries, to find records by topic, key and time.

An entry knows only the hash of `topic#key`, so a look-up may give records of another key with the same
hash; the caller compares. Layout and order of entries are Java's IndexFile.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Union

from rmq.errors import StoreError
from rmq.message import java_hash
from rmq.protocol import engine
from rmq.store.files.disk import Disk, Segment

if TYPE_CHECKING:
    from types import ModuleType

    from rmq.protocol._engine import Rows as CompiledRows

log = logging.getLogger("rmq.store")

HEADER = 40
_HEADER = Struct(">qqqqii")
_SLOT = Struct(">i")
_ENTRY = Struct(">iqii")
_ENTRY_SIZE = 20
_RESERVE = 1 << 20
_NAME = re.compile(r"[0-9]{17}")

Entry = tuple[str, tuple[str, ...], int, int]  # topic, keys, physical offset, store timestamp


Row = tuple[int, int, int]  # key hash, physical offset, store timestamp
Rows = Union[list[Row], "CompiledRows"]


class KeyHash:
    """Java's hash of `topic#key`, made non-negative as IndexFile does it.

    A polynomial can be put together from parts. The hash of a topic is kept; so is that of all but the
    last three characters of a key, which a client's unique keys have in common; and that of those three.
    That is a quarter of the cost of hashing the whole.
    """

    _LIMIT = 10_000
    _LENGTH_MAX = 255

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._heads: dict[str, int] = {}
        self._tails: dict[str, int] = {}

    def __call__(self, topic: str, key: str) -> int:
        return self.rows([(topic, (key,), 0, 0)])[0][0]

    def rows(self, entries: Iterable[Entry]) -> list[Row]:
        """One row for each key."""
        rows: list[Row] = []
        head_of, tail_of = self._heads.get, self._tails.get
        last, length, first = "", -1, 0
        for topic, keys, offset, timestamp in entries:
            for key in keys:
                if len(key) != length or topic != last:
                    last, length = topic, len(key)
                    first = self._before(topic, length)
                head, tail = head_of(key[:-3]), tail_of(key[-3:])
                if head is None or tail is None:
                    value = self._learn(topic, key)
                else:
                    value = first + head + tail & 0xFFFFFFFF
                # Java's abs(), with 0 for the one number that has none
                rows.append((value if value < 0x80000000 else -value & 0x7FFFFFFF, offset, timestamp))
        return rows

    def _before(self, topic: str, length: int) -> int:
        """The part of the hash that `topic#` adds for a key of that length."""
        return self._part(self._topics, topic + "#", 1) * pow(31, length, 1 << 32) & 0xFFFFFFFF

    def _learn(self, topic: str, key: str) -> int:
        """The hash, unsigned; remembers the parts of a key of ASCII characters."""
        if not key.isascii() or len(key) > self._LENGTH_MAX:
            return java_hash(f"{topic}#{key}") & 0xFFFFFFFF
        head = self._part(self._heads, key[:-3], 31**3)
        tail = self._part(self._tails, key[-3:], 1)
        return self._before(topic, len(key)) + head + tail & 0xFFFFFFFF

    def _part(self, known: dict[str, int], text: str, factor: int) -> int:
        value = known.get(text)
        if value is None:
            if len(known) >= self._LIMIT:
                known.clear()
            value = known[text] = java_hash(text) * factor & 0xFFFFFFFF
        return value


def pack_entries(
    view: memoryview, rows: Iterable[Row], count: int, used: int, slots: int, begin: int, entries_at: int
) -> tuple[int, int]:
    """Write rows into a file that has `count` entries (including the unused first entry) and `used` slots in
    use, and whose first entry has the time `begin`; return the new values of both numbers."""
    at = entries_at + count * _ENTRY_SIZE
    unpack, pack, entry = _SLOT.unpack_from, _SLOT.pack_into, _ENTRY.pack
    packed = []
    seconds, previous = 0, -1
    for key_hash, offset, timestamp in rows:
        slot = HEADER + key_hash % slots * 4
        last = unpack(view, slot)[0]
        if not 0 < last <= count:
            last = 0
            used += 1
        if timestamp != previous:
            previous = timestamp
            seconds = min(max((timestamp - begin) // 1000, 0), 0x7FFFFFFF) if begin > 0 else 0
        packed.append(entry(key_hash, offset, seconds, last))
        pack(view, slot, count)
        count += 1
    view[at : at + len(packed) * _ENTRY_SIZE] = b"".join(packed)
    return count, used


LOOKS_MAX: Final = 2_000
"""Records that one search looks at: others may have keys with the same hash."""
STEPS_MAX: Final = 50_000
"""Entries of the index that it looks at: those of other hashes may stand in the same slot."""


class Search:
    """A search of the index for up to `most` records with a hash in a time (ms), newest first.

    `accepts` tells a record that was looked for from one of another key with the same hash; `stored_at` gives
    the store time of a record, for entries whose own time is doubtful: after the clock was set back, an entry
    has the time of its file's begin. `is_all` is False when the search ended before it had seen all entries.
    """

    def __init__(
        self,
        key_hash: int,
        begin_ms: int,
        end_ms: int,
        most: int,
        accepts: Callable[[int], bool] | None = None,
        stored_at: Callable[[int], int] | None = None,
    ) -> None:
        self.key_hash = key_hash
        self.begin_ms, self.end_ms = begin_ms, end_ms
        self.accepts = accepts
        self.stored_at = stored_at
        self.found: list[int] = []
        self.is_all = True
        self._most = most
        self._seen: set[int] = set()
        self._looks, self._steps = LOOKS_MAX, STEPS_MAX

    def goes_on(self) -> bool:
        """True if the next entry is to be looked at."""
        if len(self.found) >= self._most:
            return False
        self._steps -= 1
        self.is_all = self._steps >= 0 and self._looks > 0
        return self.is_all

    def take(self, offset: int) -> None:
        """An entry has the hash."""
        if offset not in self._seen:
            self._seen.add(offset)
            self._looks -= 1
            if self.accepts is None or self.accepts(offset):
                self.found.append(offset)

    def take_first(self, offset: int, stored_ms: int) -> None:
        """An entry has the hash and the time of its file's begin."""
        if self.stored_at is not None:
            stored_ms = self.stored_at(offset)
        if self.begin_ms <= stored_ms <= self.end_ms:
            self.take(offset)


OPEN_FILES: Final = 16
"""Index files that are open at a time: each takes two descriptors while it is written."""


class IndexFile:
    """One file. Times are ms; `begin_*` and `end_*` are of its first and last entry. `open_file` opens it,
    now and whenever it is needed after `let_go`."""

    def __init__(
        self,
        path: str,
        open_file: Callable[[IndexFile], Segment],
        slots: int,
        capacity: int,
        pack: Callable[..., tuple[int, int]] = pack_entries,
    ) -> None:
        self.path = path
        self._pack_entries = pack
        self._open_file = open_file
        self._segment = open_file(self)
        self._is_open = True
        self._slots = slots
        self._capacity = capacity
        self._entries_at = HEADER + 4 * slots
        self._reserved = 0
        fields = _HEADER.unpack(self.segment.copy(0, HEADER))
        self.begin_timestamp: int = fields[0]
        self.end_timestamp: int = fields[1]
        self.begin_offset: int = fields[2]
        self.end_offset: int = fields[3]
        self.slot_count: int = fields[4]  # slots in use
        self.count: int = max(fields[5], 1)  # entries + 1: entry 0 is never used

    @property
    def segment(self) -> Segment:
        """The open file. Raises StoreError when it cannot be opened."""
        if not self._is_open:
            self._segment = self._open_file(self)
            self._is_open = True
        return self._segment

    def let_go(self) -> None:
        """Close the file, until `segment` is asked for."""
        self._is_open = False
        self._segment.close()

    def sync(self) -> None:
        """Sync the file, which need not be open; another thread may call this. Raises StoreError."""
        self._segment.sync()

    @property
    def is_full(self) -> bool:
        """No entry fits."""
        return self.count >= self._capacity

    def follow(self, last: IndexFile) -> None:
        """Start with the end values of the file before, until the first entry comes."""
        self.begin_timestamp = self.end_timestamp = last.end_timestamp
        self.begin_offset = self.end_offset = last.end_offset
        self._write_header(self.segment.writable(self._entries_at))

    def add(self, rows: Rows) -> int:
        """Add rows until full; returns how many. Raises DiskFull."""
        rows = rows[: self._capacity - self.count]
        if not rows:
            return 0
        stop = self._entries_at + (self.count + len(rows)) * _ENTRY_SIZE
        reserve = stop - stop % _RESERVE + _RESERVE
        view = self.segment.writable(reserve)
        if reserve > self._reserved:
            self._reserved = reserve
            self.segment.relax(self._entries_at)  # entries are written once; the slots stay
        if self.count == 1:
            # Java reckons the first entry's seconds from the file before, then begins its own.
            self._pack(view, rows[:1])
            _, self.begin_offset, self.begin_timestamp = rows[0]
            self._pack(view, rows[1:])
        else:
            self._pack(view, rows)
        _, self.end_offset, self.end_timestamp = rows[-1]
        self._write_header(view)
        return len(rows)

    def _pack(self, view: memoryview, rows: Rows) -> None:
        self.count, self.slot_count = self._pack_entries(
            view, rows, self.count, self.slot_count, self._slots, self.begin_timestamp, self._entries_at
        )

    def _write_header(self, view: memoryview) -> None:
        fields = (self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset)
        _HEADER.pack_into(view, 0, *fields, self.slot_count, self.count)

    def covers(self, begin_ms: int, end_ms: int) -> bool:
        """True if the file may hold entries of that time."""
        first, last = self.begin_timestamp, self.end_timestamp
        if last < first:  # the clock was set back: the times between are not known
            return True
        return (begin_ms < first and end_ms > last) or first <= begin_ms <= last or first <= end_ms <= last

    def find(self, search: Search) -> None:
        """Take the entries with the hash in that time, newest first."""
        key_hash, begin_ms, end_ms = search.key_hash, search.begin_ms, search.end_ms
        copy = self.segment.copy
        number = _SLOT.unpack(copy(HEADER + key_hash % self._slots * 4, 4))[0]
        while 0 < number <= self.count and self.count > 1 and search.goes_on():
            at = self._entries_at + number * _ENTRY_SIZE
            entry_hash, offset, seconds, before = _ENTRY.unpack(copy(at, _ENTRY_SIZE))
            stored = self.begin_timestamp + seconds * 1000
            if seconds < 0:
                break
            if entry_hash == key_hash:
                if seconds == 0:
                    search.take_first(offset, stored)
                elif begin_ms <= stored <= end_ms:
                    search.take(offset)
            # Entries of the clock before it was set back may have later times.
            if before >= number or (stored < begin_ms and seconds):
                break
            number = before

    def has(self, key_hash: int, offset: int) -> bool:
        """True if there is an entry with the hash for the record at a physical offset, whatever its time."""
        number = _SLOT.unpack(self.segment.copy(HEADER + key_hash % self._slots * 4, 4))[0]
        while 0 < number <= self.count and self.count > 1:
            at = self._entries_at + number * _ENTRY_SIZE
            entry_hash, found, _, before = _ENTRY.unpack(self.segment.copy(at, _ENTRY_SIZE))
            if entry_hash == key_hash and found == offset:
                return True
            if before >= number or found < offset:  # entries are added in the order of the log
                return False
            number = before
        return False


class Index:
    """All index files, oldest first. One thread uses it; `sync` may run in another. `compiled` is the engine
    that hashes and packs, if not this module.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        slots: int,
        capacity: int,
        compiled: ModuleType | None = engine.compiled,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._slots = slots
        self._capacity = capacity
        self._size = HEADER + 4 * slots + _ENTRY_SIZE * capacity
        self.files: list[IndexFile] = []
        self._open: dict[IndexFile, None] = {}  # in the order in which they were opened
        self.hash = KeyHash()
        self._rows_of: Callable[[Any], Rows] = self.hash.rows if compiled is None else compiled.key_rows
        self._pack_entries = pack_entries if compiled is None else compiled.pack_entries
        self._filled: list[IndexFile] = []

    def load(self, synced_ms: int | None) -> None:
        """Open the files. After a crash, `synced_ms` is the checkpoint's index time, at which the newest
        synced file ends: later files are made again. A file of a wrong size is removed, with all later
        files."""
        names = [name for name in self._disk.list(self._folder) if _NAME.fullmatch(name)]
        for number, name in enumerate(names):
            path = os.path.join(self._folder, name)
            if self._disk.size(path) != self._size:
                log.warning(
                    "index file %s has another size than configured: it is made again from the log", path
                )
                self._discard(names[number:])
                return
            file = self._file(path)
            if synced_ms is None:
                self.files.append(file)
                continue
            newest = file.is_full and file.end_timestamp == synced_ms
            if newest or (file.count > 1 and file.end_timestamp < synced_ms):
                self.files.append(file)
            else:
                self._let_go(file)
                self._discard(names[number:])
                return
            if newest:
                self._discard(names[number + 1 :])
                return

    def _file(self, path: str) -> IndexFile:
        return IndexFile(path, self._opened, self._slots, self._capacity, self._pack_entries)

    def _opened(self, file: IndexFile) -> Segment:
        """Open a file; past OPEN_FILES the file that was opened first is closed, but not the last file."""
        segment = self._disk.open(file.path, self._size)
        self._open[file] = None
        for other in list(self._open)[:-OPEN_FILES]:
            if not self.files or other is not self.files[-1]:
                self._let_go(other)
        return segment

    def _let_go(self, file: IndexFile) -> None:
        file.let_go()
        self._open.pop(file, None)

    def _discard(self, names: Iterable[str]) -> None:
        for name in names:
            self._disk.remove(os.path.join(self._folder, name))

    @property
    def end_offset(self) -> int:
        """The physical offset of the last record in the index; -1 without any."""
        return next((file.end_offset for file in reversed(self.files) if file.count > 1), -1)

    @property
    def full_until_ms(self) -> int:
        """The end time of the newest full file; 0 without any."""
        return max((file.end_timestamp for file in self.files if file.is_full), default=0)

    def add(self, entries: Sequence[Entry | CompiledRows], now_ms: int) -> None:
        """Index records, in log order. Raises StoreError."""
        rows = self._rows_of(entries)
        while rows:
            file = self.files[-1] if self.files and not self.files[-1].is_full else self._make(now_ms)
            rows = rows[file.add(rows) :]
            if file.is_full:
                self._filled.append(file)

    def _make(self, now_ms: int) -> IndexFile:
        last = self.files[-1] if self.files else None
        path = os.path.join(self._folder, _stamp(now_ms))
        while self._disk.exists(path) or (last is not None and path <= last.path):
            # Names order the files, even when two are made in one millisecond or the clock was set back.
            now_ms = now_ms + 1 if last is None or path > last.path else _parse_stamp(last.path) + 1
            path = os.path.join(self._folder, _stamp(now_ms))
        file = None
        try:
            file = self._file(path)
            if last is not None:
                file.follow(last)
        except BaseException:
            # The next try makes another one, so this one would stay for ever, open.
            if file is not None:
                self._let_go(file)
            with suppress(StoreError):
                self._disk.remove(path)
            raise
        self.files.append(file)
        return file

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int, most: int) -> list[int]:
        """Physical offsets of records with that topic and (the hash of) that key, newest file first, each
        once.
        """
        return self.search(topic, key, begin_ms, end_ms, most).found

    def has(self, topic: str, key: str, offset: int) -> bool:
        """True if one of the last two files, in which the entries of a record may lie, has an entry for the
        key of the record at that offset. Times are not compared: after the clock was set back a file gives
        its own begin as the time of a record.
        """
        key_hash = self.hash(topic, key)
        return any(file.has(key_hash, offset) for file in self.files[-2:])

    def search(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        most: int,
        accepts: Callable[[int], bool] | None = None,
        stored_at: Callable[[int], int] | None = None,
    ) -> Search:
        """The same, for the records that `accepts`; later candidates follow, up to a bound."""
        search = Search(self.hash(topic, key), begin_ms, end_ms, most, accepts, stored_at)
        # Also the files before one that begins too early: it may have come after the clock was set back.
        for file in reversed(self.files):
            if file.covers(begin_ms, end_ms):
                file.find(search)
            if len(search.found) >= most or not search.is_all:
                break
        return search

    def trim(self, log_start: int) -> list[str]:
        """Take out the files with only expired records, but never the last file; return their paths for
        removal."""
        paths = []
        while len(self.files) > 1 and self.files[0].end_offset < log_start:
            file = self.files.pop(0)
            self._let_go(file)
            paths.append(file.path)
        return paths

    def truncate(self, log_end: int) -> None:
        """Remove the files with records at or after `log_end`; they are made again."""
        while self.end_offset >= log_end:
            self._remove(self.files.pop())

    def _remove(self, file: IndexFile) -> None:
        self._let_go(file)
        self._disk.remove(file.path)

    def clear(self) -> None:
        """Remove all files."""
        while self.files:
            self._remove(self.files.pop())

    def sync(self, *, all_files: bool = False) -> int:
        """Sync the files that became full (or all that were written); return the end time of the newest of
        them, 0 without any.
        """
        newest = 0
        while self._filled:
            file = self._filled.pop(0)
            file.sync()
            newest = max(newest, file.end_timestamp)
        for file in self.files[-1:] if all_files else ():
            file.sync()
        return newest

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            self._let_go(file)


def _stamp(now_ms: int) -> str:
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"


def _parse_stamp(path: str) -> int:
    name = os.path.basename(path)
    return int(time.mktime(time.strptime(name[:14], "%Y%m%d%H%M%S"))) * 1000 + int(name[14:])
