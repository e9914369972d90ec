"""The files of a store folder, ours or Java's, as numpy arrays. Nothing is written or locked."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from attrs import frozen

from rmq.errors import ConfigError, CorruptRecord, StoreError
from rmq.spark.walk import MAGIC
from rmq.store.consumequeue import FILLER_SIZE, UNIT
from rmq.store.scan import parse

Array: TypeAlias = np.ndarray[Any, Any]

_NAME: Final = re.compile(r"[0-9]{20}")
_PIECE: Final = 1 << 20
_UNITS: Final = np.dtype([("physicalOffset", ">i8"), ("size", ">i4"), ("tagsCode", ">i8")])


@frozen
class LogFile:
    """A file of the commit log: `base` is the physical offset of its first byte; both in bytes."""

    path: str
    base: int
    size: int

    def map(self) -> Array:
        """The file's bytes, mapped; they are read when they are looked at. Raises StoreError."""
        try:
            with open(self.path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.path} cannot be read: {error}") from None
        return np.frombuffer(mapped, np.uint8)


def give_back(mapped: Array, begin: int, end: int) -> None:
    """Let the system have the memory of this part of a mapped file. It stays readable."""
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
    return sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []


def queue_units(path: str, first: int = 0, end: int | None = None) -> QueueUnits:
    """The units of a queue's folder with first <= queue offset < end; what is unused or filler is left out.

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
    used = (units["size"] > 0) & (units["size"] != FILLER_SIZE)
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
    """The physical offset after the last good record; what follows is unused room or a torn tail.

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
    """Where a record may begin, the last place first."""
    end = len(buffer)
    while end > 0:
        begin = max(end - _PIECE, 0)
        piece = buffer[begin : end + 3]  # a magic may lie over the border
        if piece.any():
            found = [begin + match.start() - 4 for match in MAGIC.finditer(piece.data)]
            yield from (at for at in reversed(found) if at >= 0)
        give_back(buffer, begin, end)
        end = begin
