"""Masters that are killed and paused in sets of real processes: writes go on, nothing is lost."""

from __future__ import annotations

import pathlib

import pytest
import trio

from tests.system.failover import run


@pytest.mark.parametrize(("size", "kills", "pauses"), [(2, 2, 0), (3, 1, 1)])
def test_nothing_acknowledged_is_lost_when_masters_die(
    tmp_path: pathlib.Path, size: int, kills: int, pauses: int
) -> None:
    report = trio.run(lambda: run(tmp_path, size=size, kills=kills, pauses=pauses, load_s=1.0))

    assert report.lost == []
    assert len(report.acknowledged) > 10
    assert report.epochs == 1 + kills + pauses  # each time another one was elected, and nobody else
    assert len(report.gaps) == kills + pauses
