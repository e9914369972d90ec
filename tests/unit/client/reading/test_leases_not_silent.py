"""Per-message consumers that do not consume say so, and a stray cancellation ends none of them."""

from __future__ import annotations

import asyncio

import anyio
import pytest

import rmq
from rmq.message import StoredMessage
from rmq.testing.cluster import Cluster
from tests.unit.client.consume.consuming import await_what_was_cancelled

from ..conftest import Play
from ..consume.consuming import fill
from ..world import World, play_in_memory


async def until_seen(client: rmq.Client, seen: list[bytes], count: int) -> None:
    with anyio.fail_after(1000):
        while len(seen) < count:
            await anyio.sleep(1)
    assert client.health().problems == ()
    await client.ready(1)


def test_a_stray_cancellation_is_a_failure_of_the_handler(in_memory: Play, cluster: Cluster) -> None:
    seen: list[bytes] = []

    async def handle(message: StoredMessage) -> None:
        if not message.reconsume_times:
            await await_what_was_cancelled()
        seen.append(message.body)

    async def scenario(world: World) -> None:
        fill(cluster, 6)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, per_message=True, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(lambda: consumer.run(handle, concurrency=2))
            await until_seen(client, seen, 6)
            assert client.health().consumers[0].workers == 2
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)


def test_a_handler_that_cancels_its_own_task_ends_no_worker(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []

    async def handle(message: StoredMessage) -> None:
        if not message.reconsume_times:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        seen.append(message.body)

    async def scenario(world: World) -> None:
        fill(cluster, 6)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, per_message=True, consume_from="first", lease=5) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(lambda: consumer.run(handle, concurrency=2))
            await until_seen(client, seen, 6)
            assert client.health().consumers[0].workers == 2
            tasks.cancel_scope.cancel()

    play_in_memory("asyncio", scenario, cluster)
    assert "the task of a handler was cancelled; its worker continues" in caplog.text


def test_a_run_that_has_ended(in_memory: Play, cluster: Cluster) -> None:
    async def fail(message: StoredMessage) -> None:
        raise ValueError(message.body)

    async def scenario(world: World) -> None:
        fill(cluster, 1, queues=1)
        options = {"on_error": "raise", "consume_from": "first"}
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, per_message=True, **options) as consumer,  # type: ignore[call-overload]
        ):
            assert client.health().problems == ()
            with pytest.raises(ValueError, match="0"):
                await consumer.run(fail)
            told = "g consumes nothing: its `run` has ended (ValueError: b'0')"
            assert client.health().problems == (told,)
            with pytest.raises(rmq.NotReady) as caught:
                await client.ready(1)
            assert str(caught.value) == told
            await consumer.drain()
            assert client.health().problems == ()

    in_memory(scenario, cluster)


@pytest.mark.parametrize("kind", ["handlers", "receive"])
def test_requests_that_nobody_answers(in_memory: Play, cluster: Cluster, kind: str) -> None:
    async def handle(message: StoredMessage) -> None: ...

    async def receive(consumer: rmq.SimpleConsumer) -> None:
        while True:
            try:
                await consumer.receive()
            except rmq.RmqError:
                await anyio.sleep(1)

    async def scenario(world: World) -> None:
        async with world.connect() as client, anyio.create_task_group() as tasks:
            if kind == "handlers":
                leased = await client.consumer("g", {"T": "*"}, per_message=True).start()
                tasks.start_soon(leased.run, handle)
            else:
                tasks.start_soon(receive, await client.simple_consumer("g", {"T": "*"}).start())
            await anyio.sleep(100)
            assert client.health().problems == ()
            await client.ready(1)
            cluster.network.partition("10.0.1.1")
            await anyio.sleep(70)
            (problem,) = [one for one in client.health().problems if one.startswith("g has had")]
            assert "no answer to its requests at broker a for" in problem
            with pytest.raises(rmq.RmqError):
                await client.ready(1)
            cluster.network.heal()
            await anyio.sleep(60)
            assert client.health().problems == ()
            await client.ready(1)
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)
