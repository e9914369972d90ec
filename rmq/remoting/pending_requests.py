"""The requests of a connection that wait for their answers: which have timed out, which the loop kept from
being answered, and whether the peer is silent.

All but `Deadlines` is pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import anyio
import anyio.abc
import attrs

PendingRequest = tuple[Any, float, int, float, int]
"""Waiter, deadline, code, timeout, and where the frame ends in all that was queued."""

LATE_SECONDS: Final = 0.1
"""A timer that wakes so long after its time tells of a loop that was busy with something else."""
SPARED_SECONDS: Final = 3.0
LEAST_SILENCE_SECONDS: Final = 1.0
"""A peer that says nothing for less is slow, not silent, however short the time of a request was."""


def timed_out(
    pending: dict[int, PendingRequest], now: float, late: float, spared: set[int]
) -> tuple[list[int], float]:
    """The requests whose time is over, and the earliest deadline of the rest.

    A loop that was busy may not have written the request yet, nor read its response: fifty thousand sends
    begun at once keep a loop busy for seconds. So when the timer itself wakes `late`, requests get their time
    again, at most `SPARED_SECONDS` and once: such requests are `spared`.
    """
    over, earliest = list[int](), float("inf")
    is_late = late > LATE_SECONDS
    for opaque, (waiter, deadline, code, seconds, end) in pending.items():
        if deadline <= now:
            if not is_late or opaque in spared:
                over.append(opaque)
                continue
            spared.add(opaque)
            deadline = now + min(seconds, SPARED_SECONDS)
            pending[opaque] = (waiter, deadline, code, seconds, end)
        earliest = min(earliest, deadline)
    spared.intersection_update(pending)
    return over, earliest


@attrs.define
class Silence:
    """Whether a peer is silent. A connection whose other end is gone without notice looks like an idle
    connection: NAT forgot it, a firewall drops it, the machine was moved or lost its power. A request that
    ran out of time, with no byte received since its write, tells both apart."""

    since: float = math.inf
    """When the first request was written that ran out of time unheard."""

    def is_broken(self, over: Iterable[PendingRequest], heard_at: float, now: float) -> bool:
        """Whether the connection is to be cut. `over` are requests that have timed out now, `heard_at` is
        when the last bytes of the peer came."""
        if self.since < heard_at:
            self.since = math.inf
        for _, deadline, _, seconds, _ in over:
            if deadline - seconds >= heard_at:
                self.since = min(self.since, deadline - seconds)
        return now - self.since >= LEAST_SILENCE_SECONDS


class Deadlines:
    """The deadlines of all calls of a connection: a single task, asleep until the earliest deadline."""

    __slots__ = ("_now", "_on_over", "_pending", "_tasks", "_timer", "at")

    def __init__(
        self,
        pending: dict[int, PendingRequest],
        now: Callable[[], float],
        on_over: Callable[[list[PendingRequest], float], None],
    ) -> None:
        """`on_over(requests, now)` gets the requests whose time is over, which are no longer pending."""
        self.at = math.inf
        """The earliest deadline that is waited for."""
        self._pending, self._now, self._on_over = pending, now, on_over
        self._timer: anyio.CancelScope | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    def begin(self, tasks: anyio.abc.TaskGroup) -> None:
        """Wait in one of `tasks` from now on, also for calls that came before."""
        self._tasks = tasks
        if self._pending:
            self.wake_at(min(deadline for _, deadline, *_ in self._pending.values()))

    def wake_at(self, deadline: float) -> None:
        """A call has a deadline before all others."""
        if self._tasks is None:
            return  # `begin` looks at the table
        self.at = deadline
        if self._timer is None:
            self._timer = anyio.CancelScope(deadline=deadline)
            self._tasks.start_soon(self._watch)
        else:
            self._timer.deadline = deadline

    async def _watch(self) -> None:
        spared: set[int] = set()
        while True:
            self._timer = anyio.CancelScope(deadline=self.at)
            with self._timer:
                await anyio.sleep_forever()
            now = self._now()
            over, self.at = timed_out(self._pending, now, now - self.at, spared)
            if over:
                self._on_over([self._pending.pop(opaque) for opaque in over], now)
