"""Virtual time in a run of trio that has begun: see `clock`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import trio
from trio._core._run import GLOBAL_RUN_CONTEXT
from trio.testing import MockClock, active_thread_count

from rmq.testing.clock import THREAD_SECONDS

_users: WeakKeyDictionary[MockClock, int] = WeakKeyDictionary()
"""The clocks made by this module."""


@contextmanager
def virtual_time() -> Iterator[bool]:
    """See `clock.virtual_time`."""
    runner: Any = GLOBAL_RUN_CONTEXT.runner
    clock = runner.clock
    if isinstance(clock, MockClock) and clock not in _users:
        yield False
        return
    if clock not in _users:
        made: Any = MockClock()  # a class that cannot be subclassed
        made.jump(clock.current_time())
        made._autojump = partial(_go_on, made)
        _users[made] = 0
        clock = runner.clock = made
    _users[clock] += 1
    if is_new := _users[clock] == 1:
        clock.rate, clock.autojump_threshold = 0, 0
    try:
        yield is_new
    finally:
        _users[clock] -= 1
        if _users[clock] == 0:
            clock.rate, clock.autojump_threshold = 1, math.inf


def _go_on(clock: MockClock) -> None:
    """Move the clock to the next deadline: all tasks wait."""
    seconds = trio.lowlevel.current_statistics().seconds_to_next_deadline
    if active_thread_count():
        time.sleep(THREAD_SECONDS)
        seconds = min(THREAD_SECONDS, seconds)
    if 0 < seconds < math.inf:
        clock.jump(seconds)
