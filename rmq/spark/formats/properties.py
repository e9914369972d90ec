"""The properties of many records: their texts split at the two separators 0x01 and 0x02 all together."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq.spark.formats.arrays import Array, at_every_byte, decode_utf8, offsets_and_bytes, take_bytes

_WORD: Final = np.dtype(">u8")
_BITS, _BYTE = np.uint64(64), np.uint64(8)
_ODD: Final = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2^64 / golden ratio: its product's upper bits are well mixed
_FEW: Final = 12  # properties of a record up to which comparing all pairs costs less than sorting
_ROW: Final = np.uint64(40)  # bits below the number of a row


class Properties:
    """The properties of many records, in order, as two arrays `names` and `values`.

    The properties of record i are `offsets[i]` to `offsets[i + 1]`. A name ends at the first 0x01 after a
    0x02; a property without name or value is dropped. U+FFFD replaces bytes that are not UTF-8.
    """

    def __init__(self, buffer: Array, at: Array, size: Array) -> None:
        # Each text is taken with the byte before it, which becomes a separator: each property then begins
        # with one.
        filled = size > 0
        ends, texts = offsets_and_bytes(take_bytes(buffer, at - filled, size + filled))
        joined = _padded(texts)
        joined[ends[:-1][filled]] = 2
        if joined.max() >= 0x80:
            ends, joined = _readable(ends, joined)
        self._joined = joined
        self._split(joined[: ends[-1]])
        self.offsets = np.searchsorted(self._begins, ends).astype(np.int32)

    def _split(self, joined: Array) -> None:
        places = np.flatnonzero((joined - np.uint8(1)) < 2)
        opens = joined[places] == 2
        at = np.flatnonzero(opens)
        begins = places[at]
        names_end = np.append(places, len(joined))[at + 1]
        ends = np.append(begins[1:], len(joined))
        named = ~np.append(opens, True)[at + 1]
        good = named & (names_end > begins + 1) & (ends > names_end + 1)
        if not good.all():
            begins, names_end, ends = begins[good], names_end[good], ends[good]
        self._begins, self._names_end, self._ends = begins, names_end, ends

    @cached_property
    def rows(self) -> Array:
        """The number of its record for each property."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @cached_property
    def names(self) -> pa.Array:
        """The names of all properties."""
        return take_bytes(self._joined, self._begins + 1, self._names_end - self._begins - 1).view(
            pa.string()
        )

    @cached_property
    def values(self) -> pa.Array:
        """The values of all properties."""
        return take_bytes(self._joined, self._names_end + 1, self._ends - self._names_end - 1).view(
            pa.string()
        )

    @cached_property
    def _words(self) -> tuple[Array, Array]:
        """Each name's first eight bytes as a number, and its length: these two identify a short name."""
        begins = self._begins + 1
        size = (self._names_end - begins).view(np.uint64)
        words = at_every_byte(self._joined, _WORD)[begins].astype(np.uint64)
        words >>= _BITS - _BYTE * np.minimum(size, _WORD.itemsize)
        return words, size

    def values_of(self, name: str) -> pa.Array:
        """For each record the last value under `name`, or null."""
        key = name.encode()
        words, size = self._words
        found = (words == np.uint64(int.from_bytes(key[:8]))) & (size == len(key))
        chosen = np.flatnonzero(found)
        if len(key) > 8 and len(chosen):
            same = pc.equal(self.names.take(pa.array(chosen)), name)
            chosen = chosen[same.to_numpy(zero_copy_only=False)]
        places = np.full(len(self.offsets) - 1, -1, np.int64)
        places[self.rows[chosen]] = chosen
        return self.values.take(pa.array(places, mask=places < 0))

    def unrepeated(self) -> tuple[Array, pa.Array, pa.Array]:
        """Offsets, names and values of maps in which the last of several equal names counts."""
        if not self._may_repeat():
            return self.offsets, self.names, self.values
        found = self.names.dictionary_encode()
        numbers = self.rows * len(found.dictionary) + found.indices.to_numpy()
        last = len(numbers) - 1 - np.unique(numbers[::-1], return_index=True)[1]
        kept = np.sort(last)
        offsets = np.searchsorted(kept, self.offsets).astype(np.int32)
        return offsets, self.names.take(pa.array(kept)), self.values.take(pa.array(kept))

    def _may_repeat(self) -> bool:
        """True if a record has two names with the same begin and end in the compared bytes."""
        words, size = self._words
        mixed = (words + size) * _ODD >> (_BITS - _ROW)
        numbers = self.rows.astype(np.uint64) << _ROW | mixed
        most = int(np.diff(self.offsets).max(initial=0))
        if most > _FEW:
            numbers, most = np.sort(numbers), 2
        return any((numbers[step:] == numbers[:-step]).any() for step in range(1, most))


def _padded(texts: Array) -> Array:
    """A copy with zeros behind: a name's first bytes are read as a number, also at the end of the texts."""
    found = np.empty(len(texts) + _WORD.itemsize, np.uint8)
    found[: len(texts)] = texts
    found[len(texts) :] = 0
    return found


def _readable(ends: Array, joined: Array) -> tuple[Array, Array]:
    """The texts between `ends`, and their new places, with U+FFFD for bytes that are not UTF-8, as in
    RocketMQ."""
    content = [None, pa.py_buffer(ends), pa.py_buffer(joined)]
    ends, texts = offsets_and_bytes(decode_utf8(pa.Array.from_buffers(pa.binary(), len(ends) - 1, content)))
    return ends, _padded(texts)
