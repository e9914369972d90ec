"""The first seeds of all kinds, which conftest.py began beside the other tests: nothing failed in them."""

from __future__ import annotations

import pytest

from tests.sim.campaign import rows
from tests.sim.conftest import SEEDS, Beside


@pytest.mark.parametrize("kind", SEEDS)
def test_nothing_fails_in_the_first_seeds(kind: str, first_seeds: dict[str, Beside]) -> None:
    beside = first_seeds[kind]
    code = beside.process.wait()
    report = beside.report.read_text("utf-8")
    assert code == 0, report  # which names the seed that failed, and how to run it again
    seeds, _, faults, acknowledged, failed = rows(report)[kind]
    assert (int(seeds), int(failed)) == (SEEDS[kind], 0)
    assert int(faults) > 0
    assert int(acknowledged) > 0
