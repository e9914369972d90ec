"""Work that waits for a hanging disk in memory, in virtual time.

A sync that hangs is in the middle of plain functions, so it cannot wait as a task does. Work that may call
such a sync runs in a thread, in turns with the event loop: the loop stands still until the work is done or
hangs, and continues during the hang. Only a single side runs at any time, so that the same seed gives the
same trace.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import anyio
import trio

SCAN_SECONDS: Final = 0.02
"""Seconds between two looks at hanging work."""

T = TypeVar("T")
_own = threading.local()


class _LeftAlone(BaseException):
    """The error that ends abandoned work at its hang."""


class _Turns:
    """Work in a thread that takes turns with the loop."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.is_done = False
        self.may_go_on: Callable[[], bool] = lambda: True
        self.result: Any = None
        self.error: BaseException | None = None
        self._work = work
        self._its, self._ours = threading.Semaphore(0), threading.Semaphore(0)
        self._is_left = False
        self._context = dict(trio._core._run.GLOBAL_RUN_CONTEXT.__dict__)
        threading.Thread(target=self._run, name="rmq-hanging", daemon=True).start()

    def turn(self, *, leave: bool = False) -> None:
        """Run the work until its end or its hang; with `leave`, end the work."""
        self._is_left = leave
        self._its.release()
        self._ours.acquire()

    def hang(self, may_go_on: Callable[[], bool]) -> None:
        """In the thread: wait at the hang."""
        while not may_go_on():
            self.may_go_on = may_go_on
            self._ours.release()
            self._its.acquire()
            if self._is_left:
                raise _LeftAlone

    def _run(self) -> None:
        self._its.acquire()
        _own.turns = self
        trio._core._run.GLOBAL_RUN_CONTEXT.__dict__.update(self._context)  # clocks are read here, too
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error
        self.is_done = True
        self._ours.release()


def hang_until(may_go_on: Callable[[], bool]) -> None:
    """Wait, in work that `run` began; no other code can wait here."""
    turns: _Turns | None = getattr(_own, "turns", None)
    if turns is not None:
        turns.hang(may_go_on)


async def run(work: Callable[[], T]) -> T:
    """Run work that may hang. Cancelled: the work ends at its hang."""
    turns = _Turns(work)
    turns.turn()
    try:
        while not turns.is_done:
            await anyio.sleep(SCAN_SECONDS)
            if turns.may_go_on():
                turns.turn()
    finally:
        while not turns.is_done:
            turns.turn(leave=True)
    if turns.error is not None:
        raise turns.error
    result: T = turns.result
    return result


class Guard:
    """A lock that may be held while the disk hangs. The event loop must not wait for it."""

    def __init__(self) -> None:
        self._is_held = False

    def __enter__(self) -> Self:
        hang_until(lambda: not self._is_held)
        assert not self._is_held, "the event loop would stand still: a sync that hangs holds this lock"
        self._is_held = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_held = False
