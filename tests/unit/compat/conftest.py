"""A cluster in memory, served over sockets, which programs with blocking calls can use on any system."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from rmq.testing.cluster import Cluster
from tests.unit.client.world import served_in_a_thread

_NUMBERS = count()


@pytest.fixture(scope="package")
def names() -> Iterator[str]:
    """The name server address of a cluster that lives as long as the tests of this folder."""
    with served_in_a_thread(Cluster("broker-a")) as world:
        yield world.names


@pytest.fixture
def topic() -> str:
    """The name of a topic that no other test has."""
    return f"Compat-{next(_NUMBERS)}"
