"""What every test may use: the vectors taken from Apache RocketMQ 4.9.7."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A slow machine is no failure of the code; the same examples each time make a failure repeatable.
settings.register_profile("checks", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "checks"))


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of the captured vectors; its README says what each file holds."""
    return Path(__file__).parent / "golden"
