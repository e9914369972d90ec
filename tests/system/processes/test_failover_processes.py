"""Masters that are killed, paused, stopped and replaced in sets of real processes: writes go on, nothing is
lost."""

from __future__ import annotations

import pathlib

import pytest
import trio

from tests.system.failover import run


@pytest.mark.parametrize(
    ("size", "kills", "pauses"), [(2, 1, 0), pytest.param(3, 2, 1, marks=pytest.mark.long)]
)
def test_nothing_acknowledged_is_lost_when_masters_die(
    tmp_path: pathlib.Path, size: int, kills: int, pauses: int
) -> None:
    report = trio.run(lambda: run(tmp_path, size=size, kills=kills, pauses=pauses, load_s=1.0))

    assert report.lost == []
    assert len(report.acknowledged) > 10
    assert report.epochs == 1 + kills + pauses  # each time another one was elected, and nobody else
    assert len(report.gaps) == kills + pauses


def test_no_send_fails_when_a_master_hands_over_or_is_stopped(tmp_path: pathlib.Path) -> None:
    report = trio.run(lambda: run(tmp_path, size=2, kills=0, handovers=1, stops=1, load_s=1.0))

    assert report.lost == []
    assert report.failed == 0
    assert report.epochs == 3
    assert len(report.planned) == 2
    assert max(report.planned) < 30  # 0.7 s, where nothing else runs
