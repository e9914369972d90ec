"""Members of an ordered group, for its tests."""

from __future__ import annotations

from collections import defaultdict

import anyio

from rmq.message import MessageQueue, StoredMessage
from rmq.testing.cluster import Cluster

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


def locked(cluster: Cluster, group: str = "g") -> dict[int, str]:
    """Queue of T -> the client that has locked it."""
    held = {n: cluster["a"].holder(group, MessageQueue("T", "a", n), CLIENTS) for n in (0, 1)}
    return {number: client_id for number, client_id in held.items() if client_id is not None}
