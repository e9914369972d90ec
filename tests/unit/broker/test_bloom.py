"""Bloom filters: parameters, positions and bytes of the real implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.bloom import BloomFilter, murmur3_low64

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "bloom.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("row", GOLDEN["parameters"], ids=str)
def test_sizes(row: dict[str, int]) -> None:
    bloom = BloomFilter(row["f"], row["n"])
    assert (bloom.hashes, bloom.bits) == (row["k"], row["m"])


@pytest.mark.parametrize("row", GOLDEN["vectors"], ids=lambda row: f"{row['f']}-{row['n']}-{row['s']}")
def test_positions_and_bytes(row: dict[str, Any]) -> None:
    bloom = BloomFilter(row["f"], row["n"])
    assert f"{murmur3_low64(row['s'].encode()):016x}" == row["murmur3_128_low64_hex"]
    assert bloom.positions(row["s"]) == row["positions"]
    assert bloom.bytes_of(row["positions"]).hex() == row["bits_hex"]


def test_bit_order() -> None:
    example = GOLDEN["bit_order_example"]
    assert BloomFilter(99, 1).bits == 8
    assert BloomFilter(50, 8).bytes_of(example["bits_set"]).hex() == example["bytes_hex"]
