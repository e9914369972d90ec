"""No power cut, at whatever write or sync, loses a message that was acknowledged at `disk`.

RMQ_CRASH_IMAGES says how many images (20000), RMQ_CRASH_SEED the first run's seed. A few of them
are among the tests that always run.
"""

from __future__ import annotations

import logging
import os
import time

import pytest

from .images import campaign

IMAGES = int(os.environ.get("RMQ_CRASH_IMAGES", "20000"))
SEED = int(os.environ.get("RMQ_CRASH_SEED", "1"))


def test_a_few_images_lack_nothing() -> None:
    logging.disable(logging.ERROR)
    try:
        made, boundaries = campaign(SEED + 7, 120)
    finally:
        logging.disable(logging.NOTSET)
    assert made == 120
    assert boundaries > 30


@pytest.mark.crash
def test_no_image_lacks_an_acknowledged_message() -> None:
    logging.disable(logging.ERROR)  # every image has its torn tail to report
    try:
        begun = time.monotonic()
        made, boundaries = campaign(SEED, IMAGES)
    finally:
        logging.disable(logging.NOTSET)
    seconds = time.monotonic() - begun
    print(f"\n{made} images of {boundaries} boundaries from seed {SEED}: {made / seconds:.0f} images/s")
    assert made == IMAGES
