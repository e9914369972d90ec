"""Servers that are away for hours: brokers and clients go on trying, and go on when they are back."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from rmq.message import Message
from rmq.testing.cluster import Cluster

HOURS = 3
"""At one attempt in 4 s, the longest pause there is, more than the 1,024 doublings that a float can take."""


@pytest.mark.parametrize("away", [["10.0.0.1"], ["10.0.1.1"]], ids=["name server", "broker"])
async def test_an_outage_of_hours(autojump_clock: MockClock, away: list[str]) -> None:
    async with Cluster("a", topics={"T": 1}) as cluster, cluster.connect() as client:
        received: list[bytes] = []

        async def consume() -> None:
            async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:
                async for delivery in consumer:
                    async with delivery as message:
                        received.append(message.body)

        async with client.producer("p") as producer, trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            await producer.send(Message("T", b"before"))
            await cluster.advance(30)
            network = cluster.network
            network.partition(*away)
            for _ in range(HOURS * 60):
                await trio.sleep(60)
            network.heal()
            await cluster.advance(120)
            await producer.send(Message("T", b"after"))
            await cluster.advance(60)
            nursery.cancel_scope.cancel()
    assert received == [b"before", b"after"]
