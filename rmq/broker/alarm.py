"""Alarm: wakes one loop of a service."""

from __future__ import annotations

import math

import trio


class Alarm:
    """Wakes one loop: `ring` may come any number of times before it looks."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def ring(self) -> None:
        """Wake who waits, or who waits next."""
        self._event.set()

    async def wait(self, deadline: float = math.inf) -> bool:
        """Sleep until it rings or until the deadline; says whether it rang."""
        with trio.move_on_at(deadline):
            await self._event.wait()
        if not self._event.is_set():
            return False
        self._event = trio.Event()
        return True
