"""ConsumeTimeouts: messages whose handlers take too long."""

from __future__ import annotations

from collections import deque
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
    too long. Times count from the first check, so that taking a message costs nothing.

    `on_timeout` returns False when the message's broker did not answer: that broker's other messages wait for
    the next check. Each broker has a task of its own, so that no broker holds up another."""

    seconds: float
    on_timeout: Callable[[PulledMessage], Awaitable[bool]]
    in_flight: set[InFlight] = field(factory=set)
    _since: dict[int, tuple[PulledMessage, float]] = field(factory=dict)

    async def watch(self) -> None:
        """Check at intervals until cancelled."""
        while True:
            await anyio.sleep(self.seconds / SCANS)
            by_broker: dict[str, deque[PulledMessage]] = {}
            for message in self.scan(anyio.current_time()):
                by_broker.setdefault(message.broker_name, deque()).append(message)
            until = anyio.current_time() + self.seconds / SCANS
            async with anyio.create_task_group() as tasks:
                for late in by_broker.values():
                    tasks.start_soon(self._report, late, until)
            for late in by_broker.values():
                for message in late:
                    self.extend(message, anyio.current_time())

    async def _report(self, late: deque[PulledMessage], until: float) -> None:
        """Report messages of a broker until that time, as far as the broker answers; leave the rest."""
        while late and anyio.current_time() < until:
            if not await self.on_timeout(late[0]):
                return
            late.popleft()

    def extend(self, message: PulledMessage, until: float) -> None:
        """Let a message take until the time `until`."""
        self._since[id(message)] = message, until - self.seconds

    def scan(self, now: float) -> list[PulledMessage]:
        """The messages that have taken too long; each message is given once, unless it is extended."""
        before, self._since = self._since, {}
        late: list[PulledMessage] = []
        for message in [message for one in list(self.in_flight) for message in one.messages]:
            _, since = self._since[id(message)] = before.get(id(message), (message, now))
            if since <= now - self.seconds:
                self._since[id(message)] = (message, float("inf"))
                late.append(message)
        return late
