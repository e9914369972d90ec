"""ConsumeTimeouts: messages whose handlers take too long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio
from attrs import define, field

from rmq.client.consume.message_view import PulledMessage

SCANS: Final = 15
"""Looks at a message before it has taken too long."""


@define(eq=False)
class InFlight:
    """The messages of one task or delivery."""

    messages: Sequence[PulledMessage] = ()


@define(eq=False)
class ConsumeTimeouts:
    """Checks the messages in flight at intervals; `on_timeout(message)` is called for each message that takes
    too long. Times count from the first check, so that taking a message costs nothing."""

    seconds: float
    on_timeout: Callable[[PulledMessage], Awaitable[None]]
    in_flight: set[InFlight] = field(factory=set)
    _since: dict[int, tuple[PulledMessage, float]] = field(factory=dict)

    async def watch(self) -> None:
        """Check at intervals until cancelled."""
        while True:
            await anyio.sleep(self.seconds / SCANS)
            for message in self.scan(anyio.current_time()):
                await self.on_timeout(message)

    def extend(self, message: PulledMessage, until: float) -> None:
        """Let a message take until the time `until`."""
        self._since[id(message)] = message, until - self.seconds

    def scan(self, now: float) -> list[PulledMessage]:
        """The messages that have taken too long; each message is given once."""
        before, self._since = self._since, {}
        late: list[PulledMessage] = []
        for message in [message for one in list(self.in_flight) for message in one.messages]:
            _, since = self._since[id(message)] = before.get(id(message), (message, now))
            if since <= now - self.seconds:
                self._since[id(message)] = (message, float("inf"))
                late.append(message)
        return late
