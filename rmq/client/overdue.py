"""Messages whose handler does not end: after `consume_timeout_ms` they are sent back, so that another member
gets them and the queue's offset goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

import anyio
from attrs import define, field

from rmq.client.pulled import PulledMessage

LOOKS = 15
"""How often a message is looked at before it is overdue."""


@define(eq=False)
class Hand:
    """The messages that one task, or one delivery, is consuming."""

    messages: Sequence[PulledMessage] = ()


@define(eq=False)
class Overdue:
    """Looks now and then at what is being consumed; `expire(message)` is called for what takes too long.

    Times are counted from the first look, so nothing is noted when a message is taken.
    """

    seconds: float
    expire: Callable[[PulledMessage], Awaitable[None]]
    hands: set[Hand] = field(factory=set)
    _since: dict[int, tuple[PulledMessage, float]] = field(factory=dict)

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await anyio.sleep(self.seconds / LOOKS)
            for message in self.look(anyio.current_time()):
                await self.expire(message)

    def look(self, now: float) -> list[PulledMessage]:
        """What is overdue now; each message is given once."""
        before, self._since = self._since, {}
        overdue: list[PulledMessage] = []
        for message in self._in_hand():
            _, since = self._since[id(message)] = before.get(id(message), (message, now))
            if since <= now - self.seconds:
                self._since[id(message)] = (message, float("inf"))
                overdue.append(message)
        return overdue

    def _in_hand(self) -> Iterable[PulledMessage]:
        return [message for hand in self.hands for message in hand.messages]
