"""Members of an ordered group, for its tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio

from rmq.client.consume.consumer import Consumer
from rmq.message import MessageQueue, StoredMessage
from rmq.testing.cluster import Cluster

from ...world import World

Handler: TypeAlias = Callable[[StoredMessage], Awaitable[None]]
CLIENTS = ("me", "1", "2")


class Order:
    """A handler that checks that no two messages of a queue are there at once, and notes all. Where locks are
    renewed meanwhile, `seconds` is such that no message ends at the moment when a lock does.
    """

    def __init__(self, seconds: float = 0.01) -> None:
        self.seconds = seconds
        self.seen: dict[int, list[int]] = defaultdict(list)
        self.running: set[int] = set()
        self.most = 0
        self.failing: dict[int, int] = {}
        self.overlaps = 0

    async def __call__(self, message: StoredMessage) -> None:
        queue, number = message.queue_id, int(message.body)
        self.overlaps += queue in self.running
        self.running.add(queue)
        self.most = max(self.most, len(self.running))
        try:
            await anyio.sleep(self.seconds)
            if self.failing.get(number, 0):
                self.failing[number] -= 1
                raise ValueError("not yet")
            self.seen[queue].append(number)
        finally:
            self.running.discard(queue)


@asynccontextmanager
async def handling(world: World, handler: Handler, **settings: Any) -> AsyncIterator[Consumer]:
    """A member of group g that handles T in order, from the first message on, for the length of the block."""
    async with (
        world.connect(**settings) as client,
        client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(consumer.run, handler)
        yield consumer
        tasks.cancel_scope.cancel()


def locked(cluster: Cluster, group: str = "g") -> dict[int, str]:
    """Queue of T -> the client that has locked it."""
    held = {n: cluster["a"].holder(group, MessageQueue("T", "a", n), CLIENTS) for n in (0, 1)}
    return {number: client_id for number, client_id in held.items() if client_id is not None}
