"""The clocks of leases in the simulation of real brokers: one on each machine, which goes on while the
machine stands still. In half of the seeds they run apart, each by up to 4 % fast or slow; the protocol allows
a tenth.
"""

from __future__ import annotations

import random
from typing import Final

import trio

SLOW: Final = 0.96
FAST: Final = 1.04
BEGAN: Final = (1e4, 1e6)
"""What clocks show at the start: more than the simulation lasts, so that no wait is shorter than trio's clock
can tell."""


class LeaseClocks:
    """The lease clocks of all machines. Without a seed all run at the same rate."""

    def __init__(self, seed: int | None = None) -> None:
        self._chance = random.Random(f"{seed} clocks")
        self.run_apart = seed is not None and self._chance.random() < 0.5
        self._began: dict[str, float] = {}
        self._rates: dict[str, float] = {}

    def now(self, machine: str, true: float | None = None) -> float:
        """The time of a machine's clock now, or at another true time."""
        true = trio.current_time() if true is None else true
        if not self.run_apart:
            return true
        if machine not in self._rates:
            # The borders often: what the drift of clocks allows shows between the fastest and the slowest.
            self._rates[machine] = self._chance.choice((SLOW, FAST, self._chance.uniform(SLOW, FAST)))
            self._began[machine] = self._chance.uniform(*BEGAN)
        return self._began[machine] + self._rates[machine] * true
