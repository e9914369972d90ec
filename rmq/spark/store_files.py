"""The files of a store folder, rmq's or Java's, as numpy arrays, and the records in a chunk of a log file.

Nothing is written or locked.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from attrs import frozen

from rmq.errors import ConfigError, CorruptRecord, RemoteProtocolError, StoreError
from rmq.protocol.bodies import ConsumerOffsetSerializeWrapper
from rmq.protocol.codes import RETENTION_GROUP
from rmq.protocol.record import offset_of
from rmq.spark.formats.arrays import Array, at_every_byte
from rmq.spark.formats.records import MAGIC, Batch, Records, Take, each_fitting, find_records
from rmq.store.files.config_files import ConfigFiles
from rmq.store.files.consumequeue import UNIT, is_topic_name, is_unit
from rmq.store.files.disk import RealDisk
from rmq.store.files.scan import is_blank, parse

_NAME: Final = re.compile(r"[0-9]{20}")
_BACKWARDS: Final = 1 << 20
Floors: TypeAlias = Mapping[str, Mapping[int, int]]
"""Topic -> queue id -> first queue offset that the topic's own limits leave."""
_UNITS: Final = np.dtype([("physicalOffset", ">i8"), ("size", ">i4"), ("tagsCode", ">i8")])


@frozen
class LogFile:
    """A file of the commit log: `base` is the physical offset of its first byte; both in bytes."""

    path: str
    base: int
    size: int

    def map(self) -> Array:
        """The file's bytes, mapped: they are read on access. Raises StoreError."""
        try:
            with open(self.path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.path} cannot be read: {error}") from None
        return np.frombuffer(mapped, np.uint8)


def release_pages(mapped: Array, begin: int, end: int) -> None:
    """Return the memory of this part of a mapped file to the system. It stays readable."""
    begin -= begin % mmap.PAGESIZE
    base: Any = mapped.base
    if end > begin and hasattr(base.obj, "madvise"):
        base.obj.madvise(mmap.MADV_DONTNEED, begin, end - begin)


class QueueUnits(NamedTuple):
    """Units of a consume queue, one array for each field; `queue_offset` counts units."""

    queue_offset: Array
    physical_offset: Array
    size: Array
    tags_code: Array


def log_files(path: str) -> list[LogFile]:
    """The commit log's files in order; `path` is the store's folder or the commit log's own.

    Raises ConfigError when there are none.
    """
    folder = Path(path) / "commitlog"
    found = [
        LogFile(str(file), int(file.name), file.stat().st_size)
        for file in _files(folder if folder.is_dir() else Path(path))
    ]
    if not found:
        raise ConfigError("path", path, "the folder of a store, or the commitlog folder in it")
    return [file for file in found if file.size]


def queue_folders(path: str, topic: str) -> dict[int, str]:
    """Queue id -> folder of each consume queue of `topic` in the store at `path`; empty without any."""
    folder = Path(path) / "consumequeue" / topic
    if not folder.is_dir():
        return {}
    return {int(each.name): str(each) for each in sorted(folder.iterdir()) if each.name.isdigit()}


def queue_topics(path: str) -> list[str]:
    """The topics that have consume queues in the store at `path`."""
    folder = Path(path) / "consumequeue"
    if not folder.is_dir():
        return []
    return sorted(each.name for each in folder.iterdir() if each.is_dir() and is_topic_name(each.name))


def first_kept(path: str, topics: Container[str] | None = None) -> Floors:
    """The first queue offsets that limits of topics leave, as the broker saved them last in
    config/consumerOffset.json; of all topics, or of these. Raises StoreError for a broken file."""
    root = Path(path) if (Path(path) / "commitlog").is_dir() else Path(path).parent
    text = ConfigFiles(RealDisk(), str(root / "config")).load("consumerOffset")
    try:
        rows = ConsumerOffsetSerializeWrapper.from_json(text).offset_table if text else {}
    except RemoteProtocolError as error:
        raise StoreError(f"{root}/config/consumerOffset.json is no table of offsets: {error}") from None
    end = f"@{RETENTION_GROUP}"
    found = {name.removesuffix(end): queues for name, queues in rows.items() if name.endswith(end)}
    return {topic: queues for topic, queues in found.items() if topics is None or topic in topics}


def kept(records: Records, floors: Floors) -> Array:
    """For each record: true if the limits of its topic leave it."""
    topics = records.topics().dictionary_encode()
    numbers, names = topics.indices.to_numpy(), topics.dictionary.to_pylist()
    queue_ids, offsets = records.head["queue_id"], records.head["queue_offset"]
    result = np.ones(len(numbers), bool)
    for number, name in enumerate(names):
        if queues := floors.get(name):
            firsts = np.zeros(max(queues) + 2, np.int64)  # the last is for all queues without a row
            firsts[list(queues)] = list(queues.values())
            own = numbers == number
            places = np.clip(queue_ids[own], 0, len(firsts) - 1)
            result[own] = offsets[own] >= firsts[places]
    return result


def queue_units(path: str, first: int = 0, end: int | None = None) -> QueueUnits:
    """The units of a queue's folder with first <= queue offset < end, without unused places and filler.

    Raises StoreError when a file cannot be read.
    """
    parts, offsets = [np.empty(0, _UNITS)], [np.empty(0, np.int64)]
    for file in _files(Path(path)):
        base, count = int(file.name) // UNIT, file.stat().st_size // UNIT
        begin, stop = max(first - base, 0), count if end is None else min(end - base, count)
        if begin < stop:
            parts.append(_read_units(file, begin, stop - begin))
            offsets.append(np.arange(base + begin, base + begin + len(parts[-1])))
    units, places = np.concatenate(parts), np.concatenate(offsets)
    used = is_unit(units["size"])
    fields = [units[name][used].astype(units[name].dtype.newbyteorder("=")) for name in _UNITS.names or ()]
    return QueueUnits(places[used], *fields)


def queue_range(path: str) -> tuple[int, int]:
    """The first queue offset of a queue's folder, and the one after its files' last; (0, 0) without files."""
    files = _files(Path(path))
    if not files:
        return 0, 0
    last = files[-1]
    return int(files[0].name) // UNIT, (int(last.name) + last.stat().st_size) // UNIT


def log_end(files: list[LogFile]) -> int:
    """The physical offset after the last good record; unused room or a torn tail follows it.

    0 when no file has a good record.
    """
    for file in reversed(files):
        buffer = file.map()
        for at in _magics_backwards(buffer):
            record = parse(buffer.data, at, file.base + at, check_crc=True)
            if record is not None:
                return file.base + at + record.size
    return 0


def check_no_hole(files: list[LogFile]) -> None:
    """Raise CorruptRecord when a file in the middle is missing."""
    for before, file in pairwise(files):
        if file.base != before.base + before.size:
            reason = f"the next file begins at {file.base}: one between is missing, or this one was cut"
            raise CorruptRecord(before.path, before.base + before.size, reason)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if _NAME.fullmatch(file.name))
    except OSError as error:
        raise ConfigError("path", str(folder), f"a folder that can be read: {error.strerror}") from None


def _read_units(file: Path, first: int, count: int) -> Array:
    try:
        with open(file, "rb") as opened:
            opened.seek(first * UNIT)
            data = opened.read(count * UNIT)
    except OSError as error:
        raise StoreError(f"{os.fspath(file)} cannot be read: {error}") from None
    return np.frombuffer(data, _UNITS, len(data) // UNIT)


def _magics_backwards(buffer: Array) -> Iterator[int]:
    """Places where a record may begin, the last place first."""
    end = len(buffer)
    while end > 0:
        begin = max(end - _BACKWARDS, 0)
        part = buffer[begin : end + 3]  # a magic may cross the border
        if part.any():
            found = [begin + match.start() - 4 for match in MAGIC.finditer(part.data)]
            yield from (at for at in reversed(found) if at >= 0)
        release_pages(buffer, begin, end)
        end = begin


# --- one chunk of a log file ---
#
# A chunk owns the records that begin in it. Its first record is found by a place that certifies itself: the
# magic, and a physical offset that is the place's own. The search begins some way before the chunk, so that
# it steps over a record in the body of another one. Bytes that are neither a record nor the blank at the
# file's end are damage, and belong to the chunk in which they begin; after them the next certified place
# counts.

Decode: TypeAlias = Callable[[Array], Any]

_LONG: Final = np.dtype(">i8")
_PLACE: Final = Struct(">q")
_PHYSICAL_OFFSET: Final = offset_of("physical_offset")
_AT_ONCE: Final = 16 << 20  # bytes whose records are found at once: they are still cached when decoded
_BEFORE: Final = 4 << 20  # bytes before a chunk that are also read: the default for the longest message


@frozen
class Damage:
    """Damage: the `size` bytes from `position` (both in the file) on are no whole record."""

    position: int
    size: int
    reason: str


class ChunkScan:
    """Reads `buffer`, a whole file whose first byte has the physical offset `base`.

    The log ends at `limit`: bytes behind it do not count.
    """

    def __init__(self, buffer: Array, base: int, limit: int, batch: Batch) -> None:
        self._buffer = buffer[:limit]
        self._file_size = len(buffer)
        self._base = base
        self._batch = batch

    def rows(self, begin: int, end: int, decode: Decode) -> Iterator[pa.RecordBatch | Damage]:
        """The results of `decode` for the records that begin in the chunk, part by part, and the damage in
        it. `decode(positions)` raises CorruptRecord for a bad record, and is called again without that
        record."""
        return self.batches(begin, end, lambda starts: (decode(starts), len(starts)))

    def batches(self, begin: int, end: int, take: Take) -> Iterator[pa.RecordBatch | Damage]:
        """The same when a part may be too large: `take(positions)` returns the number of records in its
        value, too."""
        yield from self._follow(self._first(begin), end, take)

    def _first(self, begin: int) -> int:
        """The first place of the chunk that is not inside of an earlier record."""
        if begin == 0:
            return 0
        at = self._certified(max(begin - _BEFORE, 0))
        before = self._follow(at, begin, self._look)
        while True:
            try:
                next(before)
            except StopIteration as stop:
                return int(stop.value)

    def _look(self, starts: Array) -> tuple[Records, int]:
        return Records(self._buffer, starts, ""), len(starts)

    def _follow(self, at: int, end: int, take: Take) -> Generator[pa.RecordBatch | Damage, None, int]:
        """Yield the records in at..end; the generator's value is the place where the next chunk continues."""
        while at < end:
            stop = min(at + _AT_ONCE, end)
            starts, reached = self._records(at, stop)
            reason = "no whole record begins here"
            try:
                for cut in self._batch.cut(starts):
                    yield from each_fitting(starts[cut], take)
            except CorruptRecord as error:
                reached, reason = error.offset, error.reason
            else:
                if reached >= stop:
                    at = reached
                    continue
                if reached == len(self._buffer) or self._is_end(reached):
                    return len(self._buffer)
            at = self._certified(reached + 1)
            yield Damage(reached, at - reached, reason)
        return at

    def _records(self, at: int, end: int) -> tuple[Array, int]:
        """The records from `at` on, up to a record that has another place in its fields."""
        starts, reached = find_records(self._buffer, at, end)
        places = at_every_byte(self._buffer, _LONG)[starts + _PHYSICAL_OFFSET]
        wrong = np.flatnonzero(places != starts + self._base)
        return (starts[: wrong[0]], int(starts[wrong[0]])) if len(wrong) else (starts, reached)

    def _is_end(self, at: int) -> bool:
        """True if the blank record that closes the file is at this place."""
        return is_blank(self._buffer[at : at + 8].data, self._file_size - at)

    def _certified(self, at: int) -> int:
        """The first place from `at` on where a record may begin; the end of the log without one."""
        view = self._buffer.data
        for match in MAGIC.finditer(view, at + 4):
            place = match.start() - 4
            if place + _PHYSICAL_OFFSET + 8 > len(view):
                break
            if _PLACE.unpack_from(view, place + _PHYSICAL_OFFSET)[0] == self._base + place:
                return place
        return len(view)
