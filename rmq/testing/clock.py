"""Virtual time in a running loop: time stands still while tasks have work, and jumps to the next timer when
all wait.

Everything that reads the loop's clock is affected: sleeps, time-outs and deadlines of trio, of anyio and of
asyncio. While a worker thread runs, time passes as real time does, since the duration of its work is unknown.
Sockets are not waited for: a test that talks to servers outside of the cluster wants real time.

trio knows mock clocks, but only for a run that begins; asyncio has none. So this module puts a clock into
trio's runner, or its own `time` and selector into an asyncio loop written in Python. uvloop supports neither.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

import anyio.lowlevel

from rmq.remoting.loop import current_loop, forget_loop

THREAD_SECONDS: Final = 0.001
"""Seconds that trio's loop waits for a thread before it looks again."""


@contextmanager
def virtual_time() -> Iterator[bool]:
    """Put the running loop into virtual time for the length of the block, which another task may leave.
    Afterwards its clock continues from the present time, as real time. Yields whether this block changed the
    clock: under a mock clock of trio, or within another such block, nothing changes.

    Raises RuntimeError on a loop without support, as uvloop.
    """
    if current_loop().name == "trio":
        from rmq.testing import trio_clock  # only for programs on asyncio

        with trio_clock.virtual_time() as is_new:
            yield is_new
        return
    loop = asyncio.get_running_loop()
    clock = _times.get(loop)
    if clock is None:
        clock = _times[loop] = _AsyncioTime(loop)
        forget_loop()
    clock.users += 1
    if is_new := clock.users == 1:
        clock.begin()
    try:
        yield is_new
    finally:
        clock.users -= 1
        if clock.users == 0:
            clock.end()


_times: WeakKeyDictionary[Any, _AsyncioTime] = WeakKeyDictionary()


class _AsyncioTime:
    """The clock of an asyncio loop, and its selector, which moves the clock where it would wait."""

    def __init__(self, loop: Any) -> None:
        if not hasattr(loop, "_selector") or not hasattr(loop, "_scheduled"):
            raise RuntimeError(
                f"{type(loop).__module__} keeps its own time, which cannot be made virtual: run the test on"
                " asyncio's own loop, or the cluster in real time"
            )
        self.users = 0
        self._loop = loop
        self._selector, self._run_in_executor = loop._selector, loop.run_in_executor
        self._now: float | None = None  # None: real time
        self._ahead = 0.0
        self._threads = 0
        loop.time = self.time  # kept for good: other code may hold the function

    def time(self) -> float:
        """The loop's time."""
        return time.monotonic() + self._ahead if self._now is None else self._now

    def begin(self) -> None:
        """Begin virtual time."""
        self._now = self.time()
        self._loop._selector = _Selector(self._selector, self._select)
        self._loop.run_in_executor = self._in_executor

    def end(self) -> None:
        """Return to real time, from the present virtual time."""
        self._ahead, self._now = self.time() - time.monotonic(), None
        self._loop._selector = self._selector
        self._loop.run_in_executor = self._run_in_executor

    def _select(self, timeout: float | None) -> Any:
        ready = self._selector.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None or self._is_a_thread_at_work():
            began = time.monotonic()
            ready = self._selector.select(timeout)
            if timeout is not None:
                self._now = self.time() + time.monotonic() - began
            return ready
        timers = self._loop._scheduled
        self._now = max(self.time(), timers[0].when() if timers else self.time() + timeout)
        return ready

    def _in_executor(self, executor: Any, work: Callable[..., Any], *arguments: Any) -> Any:
        future = self._run_in_executor(executor, work, *arguments)
        self._threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: object) -> None:
        self._threads -= 1

    def _is_a_thread_at_work(self) -> bool:
        """True if a worker thread of anyio is at work: only anyio's own tasks see these threads."""
        if self._threads:
            return True
        backend = sys.modules["anyio._backends._asyncio"]
        known: Any = getattr(anyio.lowlevel, "_run_vars", {}).get(self._loop, {})
        made, idle = (
            known.get(getattr(backend, name, None), ())
            for name in ("_threadpool_workers", "_threadpool_idle_workers")
        )
        return len(made) > len(idle)


class _Selector:
    """A selector with its own way of waiting."""

    def __init__(self, selector: Any, select: Callable[[float | None], Any]) -> None:
        self._inner = selector
        self.select = select

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
