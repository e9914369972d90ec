"""Retry policies of groups: how long after a failed attempt a message comes again."""

from __future__ import annotations

from typing import Final

from attrs import frozen

DEFAULT_DELAYS_MS: Final = (
    *(10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000),
    *(420_000, 480_000, 540_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000),
)
"""The delays after the first and each further attempt where the group says nothing: RocketMQ's levels 3 to
18."""


@frozen
class RetryPolicy:
    """Delays between attempts: listed one by one, or growing by a factor when `initial_ms` is given."""

    delays_ms: tuple[int, ...] = DEFAULT_DELAYS_MS
    initial_ms: int = 0
    max_ms: int = 0
    multiplier: float = 2.0

    @property
    def is_exponential(self) -> bool:
        """Whether the delays grow by a factor."""
        return self.initial_ms > 0

    def delay_ms(self, attempt: int) -> int:
        """The delay after a failed attempt; the first attempt is 1."""
        if self.is_exponential:
            most = self.max_ms or self.initial_ms
            try:
                return int(min(self.initial_ms * self.multiplier ** (attempt - 1), most))
            except OverflowError:
                return most
        if not self.delays_ms:
            return 0
        return self.delays_ms[min(max(attempt, 1), len(self.delays_ms)) - 1]
