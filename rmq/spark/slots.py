"""Pieces of bytes that lie here and there, as one Arrow array."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq.spark.walk import Array

_KEPT: Final = 1 << 17
_EVERY_OTHER: Final = pa.array(np.arange(0, 2 * _KEPT, 2, dtype=np.int32))


def slots(buffer: Array, at: Array, size: Array | int) -> pa.Array:
    """A copy of the bytes at ascending places that do not overlap, one value each.

    An array lies over the bytes as they are: its offsets alternate between the ends of what is wanted and of
    the gap that follows. Every other value of it is taken.
    """
    count = len(at)
    if count == 0:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = at
    np.add(at, size, out=offsets[1::2], casting="unsafe")
    content = [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
    chosen = _EVERY_OTHER[:count] if count <= _KEPT else pa.array(np.arange(0, 2 * count, 2))
    return pc.take(pa.Array.from_buffers(pa.binary(), 2 * count - 1, content), chosen, boundscheck=False)


def bytes_of(values: pa.Array) -> tuple[Array, Array]:
    """(the ends of the values, one more than there are; their bytes) of an array that begins at its buffer's
    first value."""
    _, offsets, content = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[: len(values) + 1] if offsets else np.zeros(1, np.int32)
    return ends, np.frombuffer(content, np.uint8)[: ends[-1]] if content else np.empty(0, np.uint8)


def readable(values: pa.Array) -> pa.Array:
    """The bytes as text, with U+FFFD for what is not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in values.to_pylist()], pa.string())
