"""What the benchmarks beside other brokers are made of: bytes of other protocols, and the page."""

from __future__ import annotations

import pytest

from benchmarks.peers.page import chart, page
from benchmarks.peers.wires import SHARES, Histogram, crc32c, varint


def test_the_checksum_of_kafkas_batches_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, appendix B.4, and all tables of CRCs


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, b"\0"), (-1, b"\1"), (1, b"\2"), (63, b"\x7e"), (64, b"\x80\1"), (-65, b"\x81\1")],
)
def test_numbers_of_kafkas_records_are_zigzag(value: int, encoded: bytes) -> None:
    assert varint(value) == encoded


def test_the_page_has_a_bar_for_each_broker() -> None:
    row = {"durability": "in <memory>", "work": "alone", "words": "nothing", "cpu_us": 1.0, "rate": 2e6}
    text = page("Taken today", [row | {"broker": "rmq"}, row | {"broker": "kafka", "cpu_us": 4.0}])
    assert text.count("<rect") == 4
    assert 'class="bar ours" x="150" y="4" width="115.0"' in text
    assert "2,000,000" in text
    assert "In &lt;memory&gt;" in text


def test_a_chart_of_zeros_has_bars_without_length() -> None:
    assert 'width="0.0"' in chart("none", [("rmq", 0.0, "0")])


def test_latencies_are_counted_in_buckets_of_under_one_percent() -> None:
    histogram = Histogram()
    for value in range(1, 100_001):
        histogram.add(value + 0.5)
    for share in SHARES:
        assert histogram.at(share) == pytest.approx(share * 100_000, rel=0.01)
    assert (histogram.count, histogram.most) == (100_000, 100_000.5)
    histogram.add(5e6, 1_000_000)
    assert histogram.at(0.5) == pytest.approx(5e6, rel=0.01)
    assert Histogram().at(0.5) == 0


def test_the_page_shows_latencies_and_memory_where_there_are_any() -> None:
    row = {"durability": "d", "work": "sends at 50%", "broker": "rmq", "words": "w", "cpu_us": 1.0}
    row |= {"rate": 5_000.0}
    assert "latency" not in page("c", [row])
    shown = page("c", [row | {"latency": {"p50": 99.0, "max": 12_345.0}, "memory": 31.4}])
    assert "latency of a message, p50, ms" in shown
    assert ">12.35<" in shown
    assert ">31<" in shown
