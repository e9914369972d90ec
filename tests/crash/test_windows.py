"""No power cut between any two syncs loses what was acknowledged, whatever is under way.

RMQ_CRASH_WINDOWS says how many images (5000), RMQ_CRASH_SEED the first run's seed. A few of them are among
the tests that always run.
"""

from __future__ import annotations

import os
import time

import pytest

from .windows import campaign

pytestmark = pytest.mark.usefixtures("quiet")

IMAGES = int(os.environ.get("RMQ_CRASH_WINDOWS", "5000"))
SEED = int(os.environ.get("RMQ_CRASH_SEED", "1"))


@pytest.mark.parametrize(("seed", "images"), [(3, 40), (8, 20), (9, 20)])
def test_a_few_power_cuts_lose_nothing(seed: int, images: int) -> None:
    made, boundaries = campaign(seed, images)
    assert made == images
    assert boundaries > 50


@pytest.mark.crash
def test_no_window_between_two_syncs_loses_what_was_acknowledged() -> None:
    begun = time.monotonic()
    made, boundaries = campaign(SEED, IMAGES)
    seconds = time.monotonic() - begun
    print(f"\n{made} images of {boundaries} boundaries from seed {SEED}: {made / seconds:.0f} images/s")
    assert made == IMAGES
