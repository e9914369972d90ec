"""trio's loop in virtual time, with less work in each turn: nothing waits for sockets or for a real clock.

What runs when is as with `trio.testing.MockClock` alone, and so are traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import trio
import trio.testing
from trio._core import _run


def virtual_clock() -> trio.testing.MockClock:
    """A clock that jumps to the next deadline as soon as nothing is left to do."""
    clock: Any = trio.testing.MockClock(autojump_threshold=0)

    def jump() -> None:
        seconds = _run.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline() - clock._virtual_base
        if 0 < seconds < float("inf"):
            clock._virtual_base += seconds

    clock.current_time = lambda: clock._virtual_base  # it goes on by jumps only
    clock._autojump = jump
    found: trio.testing.MockClock = clock
    return found


@contextmanager
def no_sockets() -> Iterator[None]:
    """The loop asks the system only when a signal, a thread or a finalizer has left work for it."""
    backend = _run.TheIOManager
    ask = backend.get_events

    def events(manager: Any, timeout: float) -> Any:
        entries = _run.GLOBAL_RUN_CONTEXT.runner.entry_queue
        if timeout > 0 or entries.queue or entries.idempotent_queue:
            return ask(manager, timeout)
        return ()

    with mock.patch.object(backend, "get_events", events):
        yield
