"""One chunk of a commit log's file, from record to record.

A chunk owns the records that begin in it. Its first one is found by looking for a place that *certifies*
itself: the magic, and a physical offset that is the place's own. The search begins some way before the chunk,
so that a record in the body of another one is stepped over. What is neither a record nor the blank at the
file's end is damage, and belongs to the chunk in which it begins; after it the next certified place counts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from struct import Struct
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from attrs import frozen

from rmq.errors import CorruptRecord
from rmq.protocol.record import offset_of
from rmq.spark.records import Records
from rmq.spark.walk import MAGIC, every, walk
from rmq.store.scan import is_blank

Array: TypeAlias = np.ndarray[Any, Any]
Decode: TypeAlias = Callable[[Array], Any]
Take: TypeAlias = Callable[[Array], tuple[Any, int]]

_LONG: Final = np.dtype(">i8")
_PLACE: Final = Struct(">q")
_PHYSICAL_OFFSET: Final = offset_of("physical_offset")
_PIECE: Final = 16 << 20  # bytes that are walked at once: they are in the processor's cache when decoded
_BEFORE: Final = 4 << 20  # bytes before a chunk that are walked too: the default for the longest message


@frozen
class Damage:
    """`size` bytes from `position` (both in the file) on hold no whole record."""

    position: int
    size: int
    reason: str


@frozen
class Batch:
    """How many records are decoded together: at most `rows`, and `size` bytes unless one is longer."""

    rows: int
    size: int

    def cut(self, places: Array) -> Iterator[slice]:
        """The parts of records that begin at these ascending places, in bytes."""
        at = 0
        while at < len(places):
            fits = int(np.searchsorted(places, places[at] + self.size))
            end = max(min(at + self.rows, fits), at + 1)
            yield slice(at, end)
            at = end


def each_fitting(starts: Array, take: Take) -> Iterator[Any]:
    """What `take` makes of the records at these ascending places, as often as it is needed for all of them.

    When it raises CorruptRecord, so does this, but after all that comes before the bad record.
    """
    room = len(starts)
    while len(starts):
        try:
            found, taken = take(starts[:room])
        except CorruptRecord as error:
            yield from each_fitting(starts[starts < error.offset], take)
            raise
        yield found
        # Where little fits, few are tried: each try looks at all that it is given.
        starts, room = starts[taken:], 2 * taken


class ChunkScan:
    """Reads `buffer`, a whole file whose first byte has the physical offset `base`.

    Nothing counts from `limit` on: there the log ends.
    """

    def __init__(self, buffer: Array, base: int, limit: int, batch: Batch) -> None:
        self._buffer = buffer[:limit]
        self._file_size = len(buffer)
        self._base = base
        self._batch = batch

    def rows(self, begin: int, end: int, decode: Decode) -> Iterator[pa.RecordBatch | Damage]:
        """What `decode` makes of the records that begin in the chunk, part by part, and the damage in it.

        `decode(positions)` raises CorruptRecord at a bad record; then it is called again without that one.
        """
        return self.batches(begin, end, lambda starts: (decode(starts), len(starts)))

    def batches(self, begin: int, end: int, take: Take) -> Iterator[pa.RecordBatch | Damage]:
        """The same when not all of a part may fit: `take(positions)` says of how many its value is made."""
        yield from self._follow(self._first(begin), end, take)

    def _first(self, begin: int) -> int:
        """The first place of the chunk that is not inside of a record before."""
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
        """Yield what is in at..end; the value is the place where the next chunk goes on."""
        while at < end:
            stop = min(at + _PIECE, end)
            starts, reached = self._walk(at, stop)
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

    def _walk(self, at: int, end: int) -> tuple[Array, int]:
        """The records from `at` on; they end before one that says that it belongs elsewhere."""
        starts, reached = walk(self._buffer, at, end)
        places = every(self._buffer, _LONG)[starts + _PHYSICAL_OFFSET]
        wrong = np.flatnonzero(places != starts + self._base)
        return (starts[: wrong[0]], int(starts[wrong[0]])) if len(wrong) else (starts, reached)

    def _is_end(self, at: int) -> bool:
        """Whether the blank record is here that closes the file."""
        return is_blank(self._buffer[at : at + 8].data, self._file_size - at)

    def _certified(self, at: int) -> int:
        """The first place from `at` on where a record may begin; the end of the log when there is none."""
        view = self._buffer.data
        for match in MAGIC.finditer(view, at + 4):
            place = match.start() - 4
            if place + _PHYSICAL_OFFSET + 8 > len(view):
                break
            if _PLACE.unpack_from(view, place + _PHYSICAL_OFFSET)[0] == self._base + place:
                return place
        return len(view)
