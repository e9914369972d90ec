"""Simulations of nothing, whose seeds do what a campaign must bear."""

from __future__ import annotations

import os
import signal
import threading


class Quick:
    """Half an hour passes in a seed, and its number of messages is taken."""

    kind = "quick"

    def __init__(self, seed: int) -> None:
        self.now, self.accepted, self.counts = 1800.0, seed, {"fault": 2}

    @classmethod
    def of(cls, seed: int) -> Quick:
        return cls(seed)

    def run(self) -> None:
        pass


class Planted(Quick):
    """Seed 3 shows a violation, seed 4 ends its process, seed 5 has no end."""

    kind = "planted"

    def run(self) -> None:
        if self.accepted == 3:
            raise AssertionError("two masters")
        if self.accepted == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.accepted == 5:
            threading.Event().wait()
