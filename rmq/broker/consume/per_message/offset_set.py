"""A set of queue offsets, as a floor below which it has all of them and bitmaps above it.

One bitmap holds `SPAN` offsets in 512 bytes, so a million finished messages in any pattern take about 150
KiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

SPAN: Final = 4096
"""Offsets of one bitmap."""
_FULL: Final = (1 << SPAN) - 1


class OffsetSet:
    """Offsets of a queue: all below `base`, and some above it. `base` itself is never in the set."""

    __slots__ = ("_maps", "base")

    def __init__(self, base: int) -> None:
        self.base = base
        self._maps: dict[int, int] = {}

    def __contains__(self, offset: int) -> bool:
        if offset < self.base:
            return True
        return bool(self._maps.get(offset // SPAN, 0) >> offset % SPAN & 1)

    def add(self, start: int, mask: int) -> bool:
        """Add offset `start + i` for each bit `i` of `mask`. Return whether `base` has moved."""
        if start == self.base and not self._maps and not mask & (mask + 1):  # the usual case
            self.base = start + mask.bit_length()
            return mask > 0
        if start < self.base:
            mask >>= self.base - start
            start = self.base
        maps = self._maps
        at, bits = divmod(start, SPAN)
        mask <<= bits
        while mask:
            if part := mask & _FULL:
                maps[at] = maps.get(at, 0) | part
            mask >>= SPAN
            at += 1
        return self._advance()

    def add_range(self, start: int, end: int) -> bool:
        """Add the offsets from `start` up to `end`, which is not added. Return whether `base` has moved."""
        start = max(start, self.base)
        if start >= end:
            return False
        if start == self.base:
            return self.advance_to(end)
        maps = self._maps
        for at in range(start // SPAN, (end - 1) // SPAN + 1):
            low, high = max(0, start - at * SPAN), min(SPAN, end - at * SPAN)
            maps[at] = maps.get(at, 0) | (1 << high) - (1 << low)
        return False

    def advance_to(self, base: int) -> bool:
        """Add all offsets below `base`. Return whether `base` has moved."""
        if base <= self.base:
            return False
        first, last = self.base // SPAN, base // SPAN
        if last - first > len(self._maps):
            self._maps = {at: bits for at, bits in self._maps.items() if at >= last}
        else:
            for at in range(first, last):
                self._maps.pop(at, None)
        self.base = base
        self._advance()
        return True

    def _advance(self) -> bool:
        """Move `base` over the offsets that are in the set."""
        maps, base = self._maps, self.base
        while True:
            at, shift = divmod(base, SPAN)
            bits = maps.get(at, 0) >> shift
            if not bits & 1:
                break
            missing = ~bits
            run = (missing & -missing).bit_length() - 1
            base += run
            if base % SPAN == 0:
                del maps[at]
        moved = base != self.base
        self.base = base
        return moved

    def bits(self, start: int, width: int) -> int:
        """A mask of the offsets among `width` from `start` on that are in the set."""
        if width <= 0:
            return 0
        found = 0
        if start < self.base:
            found = (1 << min(width, self.base - start)) - 1
        maps = self._maps
        if maps:
            for at in range(start // SPAN, (start + width - 1) // SPAN + 1):
                if part := maps.get(at, 0):
                    shift = at * SPAN - start
                    found |= part << shift if shift >= 0 else part >> -shift
        return found & (1 << width) - 1

    def next_missing(self, offset: int) -> int:
        """The first offset from `offset` on that is not in the set."""
        offset = max(offset, self.base)
        while True:
            at, shift = divmod(offset, SPAN)
            bits = self._maps.get(at, 0) >> shift
            if not bits & 1:
                return offset
            missing = ~bits
            offset += (missing & -missing).bit_length() - 1

    def run(self, offset: int, most: int) -> int:
        """The number of offsets from `offset` on, `most` at most, before the next one in the set."""
        found = self.bits(offset, most)
        return most if not found else (found & -found).bit_length() - 1

    def above(self, end: int) -> int:
        """The number of offsets between `base` and `end` that are in the set."""
        count = sum(bits.bit_count() for bits in self._maps.values())
        floor = self._maps.get(self.base // SPAN, 0) & (1 << self.base % SPAN) - 1
        count -= floor.bit_count()
        last = end // SPAN
        for at, bits in self._maps.items():
            if at > last:
                count -= bits.bit_count()
            elif at == last:
                count -= (bits >> end % SPAN).bit_count()
        return count

    def cut(self, end: int) -> None:
        """Remove the offsets from `end` on."""
        last, shift = divmod(end, SPAN)
        self._maps = {at: bits for at, bits in self._maps.items() if at <= last}
        if last in self._maps:
            kept = self._maps[last] & (1 << shift) - 1
            if kept:
                self._maps[last] = kept
            else:
                del self._maps[last]
        self.base = min(self.base, end)

    def pieces(self) -> Iterator[tuple[int, int]]:
        """The offsets above `base`: (start, mask) for each bitmap."""
        for at, bits in sorted(self._maps.items()):
            yield at * SPAN, bits
