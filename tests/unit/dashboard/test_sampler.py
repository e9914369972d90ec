"""What sampling costs a broker."""

from __future__ import annotations

import pytest

from rmq.dashboard.history.sampler import ROW_SECONDS, SHARE, pause_after


@pytest.mark.parametrize("rows", [0, 100, 5_000, 10_000, 200_000])
def test_a_broker_spends_at_most_its_share_on_being_sampled(rows: int) -> None:
    pause = pause_after(rows, 30.0)
    assert pause >= 30
    assert rows * ROW_SECONDS / pause <= SHARE * (1 + 1e-9)


def test_few_queues_are_sampled_as_often_as_asked_for() -> None:
    assert pause_after(1_000, 30.0) == 30
    assert pause_after(10_000, 30.0) == pytest.approx(60)
