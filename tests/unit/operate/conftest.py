from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import rmq
from rmq.testing.cluster import Cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Two brokers in memory with the topic Orders, two queues each."""
    async with Cluster("a", "b", topics={"Orders": 2}) as made:
        yield made


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[rmq.Client]:
    async with cluster.connect() as made:
        yield made


async def send(client: rmq.Client, topic: str, count: int, **fields: object) -> None:
    """Send messages with the bodies 0, 1, 2 ... and the keys k0, k1, k2 ..."""
    async with client.producer("p") as producer:
        for number in range(count):
            await producer.send(rmq.Message(topic, b"%d" % number, keys=[f"k{number}"], **fields))  # type: ignore[arg-type]


async def consume(client: rmq.Client, group: str, topic: str, count: int) -> None:
    """Consume so many messages from the beginning, and leave."""
    async with client.consumer(group, {topic: "*"}, consume_from="first") as consumer:
        for _ in range(count):
            async with await anext(consumer):
                pass
