"""Pace: so many messages a second, and not more."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from attrs import define, field

SLICES_A_SECOND: Final = 10
LATE_SECONDS: Final = 1.0
"""What was missed for longer is not made up for."""


@define
class Pace:
    """Lets `rate` a second through: `wait(count)` returns when the next `count` may go."""

    rate: int
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _next_at: float | None = field(default=None, init=False)

    @property
    def step(self) -> int:
        """How many to let through at once."""
        return max(self.rate // SLICES_A_SECOND, 1)

    def wait(self, count: int) -> None:
        """Return when they may go."""
        now = self.clock()
        next_at = now if self._next_at is None else max(self._next_at, now - LATE_SECONDS)
        if next_at > now:
            self.sleep(next_at - now)
        self._next_at = next_at + count / self.rate
