"""Connections that fall silent without an end: NAT forgets them, a machine is moved, a laptop sleeps."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import rmq
from rmq.client.client import Client
from rmq.client.config import ClientConfig
from rmq.message import StoredMessage
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World

KINDS = pytest.mark.parametrize("options", [{}, {"ordered": True}], ids=["any order", "ordered"])


@KINDS
def test_sends_and_consumption_go_on(in_memory: Play, cluster: Cluster, options: dict[str, Any]) -> None:
    sent: list[bytes] = []
    failed: list[bytes] = []
    seen: list[bytes] = []

    async def produce(producer: rmq.Producer) -> None:
        for number in range(100):
            body = b"%d" % number
            try:
                await producer.send(rmq.Message("T", body))
                sent.append(body)
            except rmq.RmqError:
                failed.append(body)
            await anyio.sleep(1)

    async def handle(message: StoredMessage) -> None:
        seen.append(message.body)

    async def scenario(world: World) -> None:
        async with (
            world.connect() as client,
            world.connect() as other,
            client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
            other.producer("p") as producer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            tasks.start_soon(produce, producer)
            await anyio.sleep(20)
            cluster.black_hole()
            await anyio.sleep(40)
            cluster.black_hole()
            await anyio.sleep(100)
            assert client.health().problems == ()
            assert other.health().problems == ()
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)
    assert len(sent) + len(failed) == 100
    assert len(failed) <= 2, "one for each time, whose request was on its way"
    assert set(sent) <= set(seen)


def test_a_consumer_that_only_waits_is_soon_back(in_memory: Play, cluster: Cluster) -> None:
    """The broker holds the pulls of this consumer when the connection falls silent."""
    seen: list[float] = []

    async def handle(message: StoredMessage) -> None:
        seen.append(anyio.current_time())

    async def scenario(world: World) -> None:
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            await anyio.sleep(100)
            cluster.black_hole()
            began = anyio.current_time()
            cluster["a"].put("T", 0, b"x", "UNIQ_KEY\x01ID")
            await anyio.sleep(60)
            assert len(seen) == 1
            assert seen[0] - began <= 34
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)


def test_the_settings_reach_the_connections() -> None:
    client = Client("127.0.0.1:1", config=ClientConfig(tcp_keepalive_ms=7_000, tcp_user_timeout_ms=9_000))
    limits = client._pool(None)._limits  # type: ignore[arg-type]
    assert (limits.keepalive_seconds, limits.unacknowledged_seconds) == (7, 9)


@pytest.mark.parametrize("patience", [0.7, 2.0])
def test_sends_that_their_callers_give_up_show_the_silence_too(
    in_memory: Play, cluster: Cluster, patience: float
) -> None:
    """The case is that of asyncio.wait_for: no request runs out of its own time."""
    results: list[bool] = []

    async def scenario(world: World) -> None:
        async with world.connect() as client, client.producer("p") as producer:
            await producer.send(rmq.Message("T", b"x"))
            await anyio.sleep(5)  # no heartbeat is on its way, which would show it
            cluster.black_hole()
            for _ in range(30):
                with anyio.move_on_after(patience) as scope:
                    await producer.send(rmq.Message("T", b"x"))
                results.append(not scope.cancelled_caught)

    in_memory(scenario, cluster)
    assert results.count(False) <= 5, results
