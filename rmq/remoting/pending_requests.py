"""The requests of a connection that wait for their responses: the timed-out requests, the requests that a
busy loop delayed, and the silence of the peer.

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
"""Waiter, deadline, code, timeout, and the end of the frame in all bytes that were queued."""

LATE_SECONDS: Final = 0.1
"""A timer that wakes this late shows that the loop was busy with other work."""
SPARED_SECONDS: Final = 3.0
LEAST_SILENCE_SECONDS: Final = 1.0
"""Shortest silence, in seconds: a peer that sends nothing for less time is slow, not silent, however short
the time-out of a request was."""


def timed_out(
    pending: dict[int, PendingRequest], now: float, late: float, spared: set[int]
) -> tuple[list[int], float]:
    """The requests whose time is over, and the earliest deadline of the other requests.

    A busy loop may not have written the request yet, nor read its response: fifty thousand sends begun at
    once keep a loop busy for seconds. So when the timer itself wakes `late`, requests get their time again,
    at most `SPARED_SECONDS` and once: such requests are `spared`.
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
    """Silence of a peer. A connection whose other end has failed without notice looks like an idle
    connection: NAT forgot it, a firewall drops its packets, the machine was moved or lost its power. A
    request that timed out, with no byte received since its write, tells the two apart."""

    since: float = math.inf
    """Time of the write of the first request that timed out without a byte received."""

    def is_broken(self, over: Iterable[PendingRequest], heard_at: float, now: float) -> bool:
        """True if the connection must be cut. `over` are the requests that have timed out now, `heard_at` is
        the arrival of the peer's last bytes."""
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
        """Start the waiting task in `tasks`; it also serves earlier calls."""
        self._tasks = tasks
        if self._pending:
            self.wake_at(min(deadline for _, deadline, *_ in self._pending.values()))

    def wake_at(self, deadline: float) -> None:
        """Wake the task earlier, for a call whose deadline is before all others."""
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
