"""Requests that a broker holds while their consumer is left: what they bring goes to other consumers."""

from __future__ import annotations

import anyio

from rmq.message import Message, StoredMessage
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World


async def comes_soon(world: World) -> None:
    """Another consumer gets a message; leased to the consumer that was left, it would come after 60 s."""
    async with (
        world.connect() as client,
        client.simple_consumer("g", {"T": "*"}, consume_from="first") as consumer,
    ):
        with anyio.fail_after(5):
            while not await consumer.receive(wait=10):
                pass


def test_a_left_consumer_takes_no_message(in_memory: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client, client.producer("p") as producer:
            async with client.simple_consumer("g", {"T": "*"}, consume_from="first") as consumer:
                with anyio.move_on_after(1):
                    await consumer.receive(wait=10)
            await producer.send(Message("T", b"x"))
            await comes_soon(world)

    in_memory(scenario, cluster)


def test_a_drained_consumer_takes_no_message_in_its_block(in_memory: Play, cluster: Cluster) -> None:
    async def handle(message: StoredMessage) -> None:
        raise AssertionError("it is drained")

    async def scenario(world: World) -> None:
        async with (
            world.connect() as client,
            client.producer("p") as producer,
            client.consumer("g", {"T": "*"}, per_message=True, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            await anyio.sleep(1)
            await consumer.drain()
            await producer.send(Message("T", b"x"))
            await comes_soon(world)

    in_memory(scenario, cluster)
