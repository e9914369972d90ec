"""Campaigns of crashes: brokers that fail on purpose."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """No log lines of brokers that fail on purpose."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)
