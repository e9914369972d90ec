from __future__ import annotations

from rmq.cli.latency import percentile


def test_percentiles_of_known_values() -> None:
    values = [float(number) for number in range(1, 101)]

    assert [percentile(values, share) for share in (0.5, 0.9, 0.99, 1.0)] == [51, 91, 100, 100]
    assert percentile([], 0.5) == 0.0
