"""From record to record, many at a time.

A record's size leads to the next one, so a walk is a chain. It is walked in *lanes*: a search for the magic
gives many places to start from, and all lanes take their steps together. A lane must arrive at exactly the
place where the next one began; then that place was a record's start, and not a body that holds the magic.
When one does not, the bytes are walked again one by one.
"""

from __future__ import annotations

import re
from math import isqrt
from typing import Any, Final, TypeAlias

import numpy as np

from rmq.protocol.record import FIXED_SIZE, MESSAGE_MAGIC, part

Array: TypeAlias = np.ndarray[Any, Any]

MAGIC: Final = re.compile(re.escape(MESSAGE_MAGIC.to_bytes(4, "big")))
_PAIR: Final = part("size", "magic")
_PAIRS: Final = np.dtype(">u8")  # size and magic as one number
_FIRST: Final = 64  # records that are walked one by one, to know their size
_FEW: Final = 2048  # records up to which one by one is quicker
_LONG: Final = 8192  # bytes of a record from which on searching costs more than walking


def every(buffer: Array, form: np.dtype[Any]) -> Array:
    """`form` read at each byte of `buffer`: indexing with positions gathers. No copy is made."""
    return np.ndarray(max(len(buffer) - form.itemsize + 1, 0), form, buffer, strides=(1,))


def gather(buffer: Array, form: np.dtype[Any], places: Array) -> Array:
    """`form` read at these places, copied."""
    # As plain bytes: numpy copies structures field by field, which takes ten times as long.
    return every(buffer, np.dtype((np.void, form.itemsize)))[places].view(form)


def walk(buffer: Array, at: int, end: int) -> tuple[Array, int]:
    """The records that follow each other from `at` on and begin before `end`, and the place after the last.

    That place is below `end` where no whole record begins. Only sizes and magics are looked at.
    """
    first, reached = _one_by_one(buffer, at, end, _FIRST)
    if reached >= end or len(first) < _FIRST:
        return first, reached
    mean = (reached - at) // _FIRST
    count = (end - reached) // mean
    lanes = None
    if count > _FEW and mean < _LONG:
        # A step of all lanes costs ten times what finding a lane costs: so the sum is least.
        lanes = _lanes(buffer, reached, end, mean * isqrt(count // 10))
    rest = _together(buffer, lanes, end) if lanes is not None else None
    if rest is None:
        rest = _one_by_one(buffer, reached, end, len(buffer))
    return np.concatenate((first, rest[0])), rest[1]


def _one_by_one(buffer: Array, at: int, end: int, most: int) -> tuple[Array, int]:
    view = buffer.data
    found: list[int] = []
    last = len(buffer) - FIXED_SIZE
    while at < end and at <= last and len(found) < most:
        size, magic = _PAIR.unpack_from(view, at)
        if magic != MESSAGE_MAGIC or size < FIXED_SIZE or at + size > len(view):
            break
        found.append(at)
        at += size
    return np.array(found, np.int64), at


def _lanes(buffer: Array, at: int, end: int, stride: int) -> Array:
    """Places to start from, the first being `at`; the others may be false."""
    lanes = [at]
    view = buffer.data
    found = MAGIC.search(view, at + stride, end)
    while found is not None:
        lanes.append(found.start() - 4)
        found = MAGIC.search(view, found.end() + stride, end)
    return np.array(lanes, np.int64)


def _together(buffer: Array, lanes: Array, end: int) -> tuple[Array, int] | None:
    """Walk all lanes; None when one does not arrive where the next began."""
    pairs = every(buffer, _PAIRS)
    last = len(buffer) - FIXED_SIZE
    at, stop = lanes, np.append(lanes[1:], end)
    steps, reached = [], end
    while len(at):
        found = pairs[np.minimum(at, last)].astype(np.uint64)
        after = at + (found >> np.uint64(32)).astype(np.int64)
        good = (found & np.uint64(0xFFFF_FFFF)) == MESSAGE_MAGIC
        good &= (after >= at + FIXED_SIZE) & (after <= len(buffer)) & (at <= last)
        # Only the last lane may end at what is no record, or reach over its stop.
        if (~good | (after > stop))[stop != end].any():
            return None
        if stop[-1] == end:
            reached = int(after[-1] if good[-1] else at[-1])
        steps.append(at[good])
        going = good & (after < stop)
        at, stop = after[going], stop[going]
    return np.sort(np.concatenate(steps)), reached
