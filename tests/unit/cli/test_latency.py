from __future__ import annotations

import pytest

from rmq.cli.latency import percentile
from rmq.client.admin.reports import first_number


def test_percentiles_of_known_values() -> None:
    values = [float(number) for number in range(1, 101)]

    assert [percentile(values, share) for share in (0.5, 0.9, 0.99, 1.0)] == [51, 91, 100, 100]
    assert percentile([], 0.5) == 0.0


@pytest.mark.parametrize(("text", "first"), [("1.5 2 3", 1.5), ("7", 7.0), ("", 0.0), ("n/a 3", 0.0)])
def test_of_the_rates_that_a_broker_writes_the_first_counts(text: str, first: float) -> None:
    assert first_number(text) == first
