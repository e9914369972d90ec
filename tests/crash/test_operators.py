"""Accidents of a master and its slave, and actions of operators: each machine keeps its promises.

RMQ_CRASH_OPERATORS says how many runs (100), RMQ_CRASH_SEED the first one's seed. A short one is among the
tests that always run.
"""

from __future__ import annotations

import os
import time

import pytest

from .operators import campaign

pytestmark = pytest.mark.usefixtures("quiet")

RUNS = int(os.environ.get("RMQ_CRASH_OPERATORS", "100"))
SEED = int(os.environ.get("RMQ_CRASH_SEED", "1"))


def test_an_accident_and_an_empty_master_lose_nothing() -> None:
    assert campaign(1, 1, steps=2) > 50


@pytest.mark.crash
def test_no_accident_and_no_operator_loses_what_was_acknowledged() -> None:
    begun = time.monotonic()
    acknowledged = campaign(SEED, RUNS)
    print(f"\n{RUNS} runs from seed {SEED}: {acknowledged} acknowledged, {time.monotonic() - begun:.0f} s")
    assert acknowledged > 50 * RUNS
