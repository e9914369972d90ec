"""Bloom filters: parameters and positions of the real implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.filtering.bloom import BloomFilter, murmur3_low64

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "golden" / "bloom.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("row", GOLDEN["parameters"], ids=str)
def test_sizes(row: dict[str, int]) -> None:
    bloom = BloomFilter(row["f"], row["n"])
    assert (bloom.hashes, bloom.bits) == (row["k"], row["m"])


@pytest.mark.parametrize("row", GOLDEN["vectors"], ids=lambda row: f"{row['f']}-{row['n']}-{row['s']}")
def test_positions(row: dict[str, Any]) -> None:
    bloom = BloomFilter(row["f"], row["n"])
    assert f"{murmur3_low64(row['s'].encode()):016x}" == row["murmur3_128_low64_hex"]
    assert bloom.positions(row["s"]) == row["positions"]


def test_the_least_size() -> None:
    assert BloomFilter(99, 1).bits == 8
