"""Fixtures of these tests."""

from __future__ import annotations

import pytest

from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork(3)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk(3)
