"""DiskWork: pending disk work of a broker's tasks, its start, and the way to abandon it.

A sync may hang for minutes, on a network disk that stalls or on a disk that dies. No call can end it, since
its thread is in the kernel. The broker only knows that the sync is under way: so a master steps down, a
replica is not elected, and a broker that stops waits for a limited time.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any, Final, Protocol, TypeVar, cast, runtime_checkable

import anyio
import anyio.lowlevel
import anyio.to_thread

from rmq.errors import StoreError

SLOW_SECONDS: Final = 2.0
"""By so much longer than usual what is wanted of the disk takes before the disk counts as one that hangs."""
USUAL_MOST: Final = 3.0
"""No more than this is usual, however slow the disk was."""
FORGET: Final = 0.95
"""Of what was slowest each later one leaves so much as usual."""

T = TypeVar("T")
Run = Callable[[Callable[[], Any]], Awaitable[Any]]


@runtime_checkable
class HangingDisk(Protocol):
    """A disk of a simulation that can hang."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run work that may wait for the disk. Cancelled: the work is abandoned."""


async def _here(work: Callable[[], Any]) -> Any:
    return work()


def way_to_run(disk: object | None) -> Run:
    """The way to run blocking work: for real files, given as None, in a thread that may be abandoned; for a
    simulation's disk in the loop where its clock must see the work."""
    if disk is None:
        return partial(anyio.to_thread.run_sync, abandon_on_cancel=True)
    return disk.run if isinstance(disk, HangingDisk) else _here


class DiskWork:
    """See the module. `clock` is that of the event loop, in seconds; `run` runs work that blocks."""

    def __init__(self, clock: Callable[[], float], run: Run = _here) -> None:
        self.run = run
        self._clock = clock
        self._keys = count(1)
        self._under_way: dict[int, tuple[float, str]] = {}
        self._scopes: set[anyio.CancelScope] = set()
        self._until = math.inf
        self._usual = 0.0

    def begin(self, what: str) -> int:
        """Awaited work begins; return the key for `end`."""
        key = next(self._keys)
        self._under_way[key] = self._clock(), what
        return key

    def end(self, key: int) -> None:
        """The work has ended, with or without success."""
        began, _ = self._under_way.pop(key)
        self._usual = min(USUAL_MOST, max(self._clock() - began, FORGET * self._usual))

    async def do(self, work: Callable[[], T], what: str = "") -> T:
        """Run blocking work. With `what` a request waits for the work, and `hangs` includes it. Started work
        is completed even if the task is cancelled. Raises StoreError for abandoned work, which goes on by
        itself."""
        await anyio.lowlevel.checkpoint()
        return await self.do_now(work, what)

    async def do_now(self, work: Callable[[], T], what: str = "") -> T:
        """Like `do`, at once: the task yields to others only while it waits."""
        key = self.begin(what) if what else 0
        scope = anyio.CancelScope(shield=True, deadline=self._until)
        self._scopes.add(scope)
        try:
            with scope:
                return cast(T, await self.run(work))
        finally:
            self._scopes.remove(scope)
            if key:
                self.end(key)
        raise StoreError("the disk does not answer: pending work was abandoned")

    def give_up_in(self, seconds: float) -> None:
        """From now on wait at most `seconds` for work that is under way or begins."""
        self._until = min(self._until, self._clock() + seconds)
        for scope in self._scopes:
            scope.deadline = self._until

    def oldest(self) -> tuple[float, str]:
        """Seconds since the start of the oldest awaited work, and its name."""
        began, what = min(self._under_way.values(), default=(math.inf, ""))
        return max(0.0, self._clock() - began), what

    def hangs(self) -> str:
        """The awaited work that takes much longer than usual, and its seconds; empty without such work."""
        seconds, what = self.oldest()
        return f"{what} for {seconds:.0f} s" if seconds > self._usual + SLOW_SECONDS else ""
