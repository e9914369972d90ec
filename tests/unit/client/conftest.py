from __future__ import annotations

import os
import pathlib
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest
from trio.testing import MockClock

from rmq.testing.cluster import Cluster

from .world import Scenario, World, play, play_in_memory, world

Play = Callable[[Scenario, Cluster], None]


LOOPS = os.environ.get("RMQ_TEST_LOOPS", "trio,asyncio").split(",")
"""tests/system/processes/test_hosts.py has all on uvloop, too."""


@pytest.fixture(params=LOOPS)
def both(request: pytest.FixtureRequest) -> Play:
    """Play a scenario; the test runs once on each event loop."""
    return partial(play, request.param)


@pytest.fixture(params=["trio", "asyncio"])
def in_memory(request: pytest.FixtureRequest) -> Play:
    """Same as `both`, in virtual time on asyncio, too."""
    return partial(play_in_memory, request.param)


@pytest.fixture(autouse=True)
def own_home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A home directory for the offsets of broadcasting consumers."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def clock(autojump_clock: MockClock) -> MockClock:
    """Virtual time for a test on trio; it must be an argument of the test itself."""
    return autojump_clock


@pytest.fixture
def cluster() -> Cluster:
    """One broker with a topic of two queues; a module may have its own."""
    return Cluster("a", topics={"T": 2})


@pytest.fixture
async def setting(cluster: Cluster) -> AsyncIterator[World]:
    """The cluster of the fixture, served in memory."""
    async with world(cluster) as made:
        yield made
