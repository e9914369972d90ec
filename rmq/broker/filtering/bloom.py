"""Bloom filters as RocketMQ's broker calculates them, over murmur3."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attrs import frozen

else:
    from rmq.lazy_attrs import frozen


log = logging.getLogger("rmq.broker")


_MASK = 2**64 - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


@frozen(slots=True)
class BloomFilter:
    """`error_percent` 1 to 99, `entries` at least 1; `hashes` and `bits` follow from them."""

    error_percent: int
    entries: int

    @property
    def hashes(self) -> int:
        return math.ceil(math.log(self.error_percent / 100) / math.log(0.5))

    @property
    def bits(self) -> int:
        exact = self.entries * math.log(100 / self.error_percent) / math.log(2) / math.log(2)
        return -(-math.ceil(exact) // 8) * 8

    def positions(self, text: str) -> list[int]:
        """The bit positions of `text`, in hash order; the broker's text is ``group#topic``."""
        low64 = murmur3_low64(text.encode("utf-8", "surrogatepass"))
        first, second = _signed(low64), _signed(low64 >> 32)
        places = []
        for i in range(1, self.hashes + 1):
            combined = _signed(first + i * second)
            places.append((~combined if combined < 0 else combined) % self.bits)
        return places


def murmur3_low64(data: bytes) -> int:
    """The first 8 bytes (little-endian) of murmur3 x64 128 with seed 0."""
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        h1 ^= _mix1(int.from_bytes(data[at : at + 8], "little"))
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 ^= _mix2(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x38495AB5 & _MASK
    tail = data[whole:]
    h2 ^= _mix2(int.from_bytes(tail[8:], "little"))
    h1 ^= _mix1(int.from_bytes(tail[:8], "little"))
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = h1 + h2 & _MASK
    h2 = h1 + h2 & _MASK
    return _finished(h1) + _finished(h2) & _MASK


def _mix1(k: int) -> int:
    return _rotated(k * _C1 & _MASK, 31) * _C2 & _MASK


def _mix2(k: int) -> int:
    return _rotated(k * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


def _finished(k: int) -> int:
    k = (k ^ k >> 33) * 0xFF51AFD7ED558CCD & _MASK
    k = (k ^ k >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return k ^ k >> 33


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value
