"""Consumers of single messages while something is wrong: damage from a broker, cancellation of the handlers'
block."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import rmq
from rmq.message import StoredMessage
from rmq.protocol import codes
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..consume.consuming import fill
from ..world import World

POP_ANSWER = {"popTime": "1", "invisibleTime": "60000", "reviveQid": "0", "restNum": "0"}


def damaged_record(request: Command, connection: Connection) -> Command:
    return request.reply(0, None, POP_ANSWER | {"startOffsetInfo": "0 0 0"}, b"\x00\x00\x00\x40" + b"x" * 60)


def damaged_offsets(request: Command, connection: Connection) -> Command:
    return request.reply(0, None, POP_ANSWER | {"startOffsetInfo": "what?"})


def damaged_header(request: Command, connection: Connection) -> Command:
    return request.reply(0, None, {"popTime": "never"})


DAMAGE = pytest.mark.parametrize("answer", [damaged_record, damaged_offsets, damaged_header])


@DAMAGE
def test_damage_from_a_broker_ends_no_simple_consumer(in_memory: Play, cluster: Cluster, answer: Any) -> None:
    async def scenario(world: World) -> None:
        fill(cluster, 1)
        cluster["a"].hook(codes.POP_MESSAGE, answer)
        async with (
            world.connect() as client,
            client.simple_consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with pytest.raises(rmq.RmqError):
                await consumer.receive(wait=5)
            cluster["a"].hook(codes.POP_MESSAGE, None)
            with anyio.fail_after(60):
                while not (found := await consumer.receive()):
                    pass
            assert [message.body for message in found] == [b"0"]

    in_memory(scenario, cluster)


@DAMAGE
def test_damage_from_a_broker_ends_no_handlers(in_memory: Play, cluster: Cluster, answer: Any) -> None:
    seen: list[bytes] = []

    async def handle(message: StoredMessage) -> None:
        seen.append(message.body)

    async def scenario(world: World) -> None:
        fill(cluster, 1)
        cluster["a"].hook(codes.POP_MESSAGE, answer)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, per_message=True, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            await anyio.sleep(30)
            cluster["a"].hook(codes.POP_MESSAGE, None)
            await anyio.sleep(60)
            assert seen == [b"0"]
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)


@pytest.mark.parametrize("end", ["the run is cancelled", "the block is left", "the client is left"])
def test_what_handlers_have_finished_is_acknowledged(in_memory: Play, cluster: Cluster, end: str) -> None:
    """Acknowledgements are gathered for a while, and that is when a service is stopped."""
    seen: list[bytes] = []

    async def handle(message: StoredMessage) -> None:
        seen.append(message.body)

    async def scenario(world: World) -> None:
        async with (
            anyio.create_task_group() as tasks,
            world.connect() as client,
            client.producer("p") as producer,
        ):
            consumer = client.consumer("g", {"T": "*"}, per_message=True, consume_from="first")
            await consumer.start()
            tasks.start_soon(consumer.run, handle)
            await anyio.sleep(1)
            for number in range(20):
                await producer.send(rmq.Message("T", b"%d" % number))
            with anyio.fail_after(60):
                while len(seen) < 20:
                    await anyio.sleep(0.001)
            if end == "the run is cancelled":
                tasks.cancel_scope.cancel()
            elif end == "the block is left":
                await consumer.aclose()
        async with world.connect() as client, client.simple_consumer("g", {"T": "*"}) as other:
            assert await other.receive(wait=90) == []

    in_memory(scenario, cluster)
