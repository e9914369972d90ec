"""Bytes of a buffer as numpy and Arrow arrays: numbers at any place, and texts copied together."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array: TypeAlias = np.ndarray[Any, Any]

_KEPT: Final = 1 << 17
_EVERY_OTHER: Final = pa.array(np.arange(0, 2 * _KEPT, 2, dtype=np.int32))


def at_every_byte(buffer: Array, dtype: np.dtype[Any]) -> Array:
    """A view of `buffer` with one element for each byte: element i is `dtype` read at byte i, unaligned."""
    return np.ndarray(max(len(buffer) - dtype.itemsize + 1, 0), dtype, buffer, strides=(1,))


def gather(buffer: Array, dtype: np.dtype[Any], places: Array) -> Array:
    """`dtype` read at these places of `buffer`, copied."""
    # As plain bytes: numpy copies structures field by field, which takes ten times as long.
    return at_every_byte(buffer, np.dtype((np.void, dtype.itemsize)))[places].view(dtype)


def take_bytes(buffer: Array, at: Array, size: Array | int) -> pa.Array:
    """A copy of the bytes at ascending places that do not overlap, as a binary array with a value for each.

    An Arrow array is laid over the bytes: its offsets alternate between the ends of wanted ranges and of
    gaps. Every other value is taken: Arrow copies all in a single loop.
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


def offsets_and_bytes(values: pa.Array) -> tuple[Array, Array]:
    """(offsets, one more than there are values; data) of a binary or string array that is not a slice."""
    _, offsets, content = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[: len(values) + 1] if offsets else np.zeros(1, np.int32)
    return ends, np.frombuffer(content, np.uint8)[: ends[-1]] if content else np.empty(0, np.uint8)


def decode_utf8(values: pa.Array) -> pa.Array:
    """Binary values as strings, with U+FFFD for bytes that are not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in values.to_pylist()], pa.string())
