from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from trio.testing import MockClock

from .cluster import Cluster
from .world import Scenario, play

Play = Callable[[Scenario, Cluster], None]


@pytest.fixture(params=["trio", "asyncio"])
def both(request: pytest.FixtureRequest) -> Play:
    """Plays a scenario; the test runs once on each event loop."""
    return partial(play, request.param)


@pytest.fixture
def clock(autojump_clock: MockClock) -> MockClock:
    """Virtual time for a test on trio; it must be an argument of the test itself."""
    return autojump_clock
