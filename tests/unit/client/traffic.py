"""Messages that number themselves, sent and consumed on a cluster in memory."""

from __future__ import annotations

import trio

from rmq.client.consume.consumer import Consumer
from rmq.message import Message
from rmq.testing.cluster import Cluster


async def fill(made: Cluster, topic: str, count: int) -> None:
    async with made.connect() as client, client.producer("p") as producer, trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(producer.send, Message(topic, b"%d" % number, tags="ab"[number % 2]))


async def take(consumer: Consumer, count: int) -> list[int]:
    got: list[int] = []
    async for delivery in consumer:
        async with delivery as message:
            got.append(int(message.body))
        if len(got) == count:
            break
    return got
