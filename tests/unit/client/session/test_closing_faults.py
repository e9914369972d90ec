"""Closing and opening that fail half way leave nothing behind: other members leave, names are free again."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

import rmq
from rmq.client.consume.rebalance import averagely
from rmq.message import StoredMessage
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..consume.consuming import fill
from ..world import World


@pytest.mark.parametrize("broken_first", [True, False])
def test_one_that_fails_at_its_end_keeps_no_other_from_leaving(
    in_memory: Play, cluster: Cluster, broken_first: bool
) -> None:
    async def scenario(world: World) -> None:
        fill(cluster, 4)
        seen: list[bytes] = []

        async def handle(message: StoredMessage) -> None:
            seen.append(message.body)

        async with anyio.create_task_group() as tasks:
            client = await world.connect().start()
            flag = {"on": False}

            def strategy(*given: Any) -> Any:
                if flag["on"]:
                    raise ZeroDivisionError
                return averagely(*given)

            made = []
            for is_broken in (broken_first, not broken_first, False):
                options: dict[str, Any] = {"strategy": strategy} if is_broken else {}
                consumer = client.consumer(f"g{len(made)}", {"T": "*"}, consume_from="first", **options)
                made.append(await consumer.start())
            tasks.start_soon(made[2].run, handle)
            await anyio.sleep(1)
            flag["on"] = True
            await anyio.sleep(60)
            assert client.health().problems != ()
            with pytest.raises(ZeroDivisionError):
                await client.aclose()
            assert [cluster["a"].members(f"g{number}") for number in range(3)] == [[], [], []]
            assert cluster["a"].offsets("g2", "T") == {0: 2, 1: 2}
            assert len(seen) == 4
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)


@pytest.mark.parametrize("turns", range(4))
def test_an_opening_that_asyncio_cancels_leaves_the_name_free(cluster: Cluster, turns: int) -> None:
    """asyncio's own cancellation, which no shield stops, in each turn of the loop that opening takes."""

    async def check(message: StoredMessage) -> rmq.Decision:
        return rmq.COMMIT

    async def scenario() -> None:
        async with cluster:
            client = rmq.connect(cluster.namesrv_address, network=cluster.network)
            async with client:
                for open_one in (
                    lambda: client.producer("p"),
                    lambda: client.transactional_producer("t", check),
                    lambda: client.consumer("g", {"T": "*"}),
                    lambda: client.consumer("m", {"T": "*"}, per_message=True),
                    lambda: client.simple_consumer("s", {"T": "*"}),
                    lambda: client.pull_consumer("q"),
                ):
                    task = asyncio.ensure_future(open_one().start())
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    (result,) = await asyncio.gather(task, return_exceptions=True)
                    if not isinstance(result, BaseException):
                        await result.aclose()
                    async with open_one():
                        pass
                began = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - began < 1, "the client waits for nobody who has left"

    asyncio.run(scenario())


def test_a_block_left_during_a_drain_ends_with_the_handlers(in_memory: Play, cluster: Cluster) -> None:
    """Two tasks wait for the same handlers: one on a signal, the other because its block is over."""

    async def handle(message: StoredMessage) -> None:
        await anyio.sleep(14)

    async def scenario(world: World) -> None:
        fill(cluster, 2)
        ended: dict[str, float] = {}
        async with world.connect(drain_timeout_ms=60_000, shutdown_timeout_ms=60_000) as client:
            consumer = await client.consumer("g", {"T": "*"}, consume_from="first").start()

            async def drain() -> None:
                assert await consumer.drain()
                ended["drain"] = anyio.current_time() - began

            async def close() -> None:
                await anyio.sleep(1)
                await consumer.aclose()
                ended["close"] = anyio.current_time() - began

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run, handle)
                await anyio.sleep(1)
                began = anyio.current_time()
                tasks.start_soon(drain)
                tasks.start_soon(close)
        assert max(ended.values()) < 14.1, ended
        assert cluster["a"].offsets("g", "T") == {0: 1, 1: 1}

    in_memory(scenario, cluster)
