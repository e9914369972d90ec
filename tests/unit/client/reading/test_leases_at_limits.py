"""Messages one by one at the limits: very long times, and very many acknowledgements."""

from __future__ import annotations

import math

import anyio
import pytest

import rmq
from rmq.errors import ConfigError, ResponseError
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World

TOPIC = "Orders"
DAY = 86_400.0


def cluster() -> Cluster:
    return Cluster("a", topics={TOPIC: 1})


async def send(client: rmq.Client, count: int = 1) -> None:
    async with client.producer("p") as producer:
        for _ in range(count):
            await producer.send(rmq.Message(TOPIC, b"0"))


def test_a_nack_may_be_for_days(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client:
            await send(client)
            async with client.simple_consumer("g", {TOPIC: "*"}, consume_from="first") as consumer:
                (message,) = await consumer.receive(wait=5)
                await message.nack(after=40 * DAY)
                assert await consumer.receive(wait=1) == []

    in_memory(scenario, cluster())


@pytest.mark.parametrize("seconds", [12 * 3_600 + 1, 1e18, math.inf, math.nan])
def test_times_beyond_the_limits_are_refused_before_a_request(in_memory: Play, seconds: float) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client:
            await send(client)
            async with client.simple_consumer("g", {TOPIC: "*"}, consume_from="first") as consumer:
                (message,) = await consumer.receive(wait=5)
                with pytest.raises(ConfigError):
                    await message.extend(seconds)
                with pytest.raises(ConfigError):
                    await consumer.receive(invisible=seconds)
                with pytest.raises(ConfigError):
                    await message.nack(after=seconds * 81)
                with pytest.raises(ConfigError):
                    client.consumer("g", {TOPIC: "*"}, per_message=True, lease=seconds)
                await message.ack()

    in_memory(scenario, cluster())


def test_leases_of_very_many_messages_in_work_are_extended_over_a_slow_network(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        world.cluster.network.latency = (0.05, 0.05)  # type: ignore[attr-defined]
        async with world.connect() as client:
            await send(client, 400)
            attempts: list[int] = []

            async def work(message: rmq.StoredMessage) -> None:
                assert isinstance(message, rmq.ReceivedMessage)
                attempts.append(message.attempt)
                await anyio.sleep(90)

            topics, more = {TOPIC: "*"}, {"consume_from": "first", "lease": 30}
            async with client.consumer("g", topics, per_message=True, **more) as consumer:  # type: ignore[call-overload]
                with anyio.move_on_after(150):
                    await consumer.run(work, concurrency=500)
            assert attempts == [1] * 400

    in_memory(scenario, cluster())


def test_very_many_messages_are_acknowledged_at_once(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client:
            await send(client, 1_500)
            async with client.simple_consumer("g" * 120, {TOPIC: "*"}, consume_from="first") as consumer:
                messages: list[rmq.ReceivedMessage] = []
                while len(messages) < 1_500:
                    messages += await consumer.receive(1, wait=5, invisible=600)
                await messages[3].nack(after=0)
                (again,) = await consumer.receive(1, wait=5, invisible=600)
                with pytest.raises(ResponseError):  # for the one that has another lease
                    await consumer.ack(*messages)
                await again.ack()
                await consumer.ack(*messages)
                assert world.cluster.brokers["a"].offsets("g" * 120, TOPIC) == {0: 1_500}

    in_memory(scenario, cluster())
