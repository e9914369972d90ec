"""Ordered consumers over reconnects: they keep their queue locks, and deliver nothing twice."""

from __future__ import annotations

from itertools import pairwise

import anyio
import pytest

from rmq.message import StoredMessage
from rmq.protocol.codes import RequestCode
from rmq.testing.cluster import Cluster

from ...conftest import Play
from ...world import World
from ..consuming import fill
from .orders import handling


@pytest.mark.parametrize("loses", ["cut", "black_hole"])
def test_a_connection_that_is_lost_makes_nothing_come_twice(
    in_memory: Play, cluster: Cluster, loses: str
) -> None:
    seen: list[int] = []

    async def handle(message: StoredMessage) -> None:
        await anyio.sleep(0.4)
        seen.append(int(message.body))

    async def scenario(world: World) -> None:
        fill(cluster, 300)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            for _ in range(10 if loses == "cut" else 1):
                await anyio.sleep(1.7)
                getattr(cluster, loses)("a")
            with anyio.fail_after(200):
                while len(seen) < 300:
                    await anyio.sleep(1)
            assert client.health().problems == ()
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)
    assert len(seen) == 300
    assert [n for n in seen if n % 2 == 0] == list(range(0, 300, 2))
    assert [n for n in seen if n % 2] == list(range(1, 300, 2))


def test_the_lock_is_renewed_at_once_when_the_connection_is_back(in_memory: Play, cluster: Cluster) -> None:
    """No message is delivered before the renewal: the broker may have been started again."""
    times: list[float] = []

    async def handle(message: StoredMessage) -> None:
        times.append(anyio.current_time())
        await anyio.sleep(0.5)

    async def scenario(world: World) -> None:
        fill(cluster, 60)
        async with handling(world, handle, lock_interval_ms=20_000):
            await anyio.sleep(3.3)
            cluster.cut("a")
            await anyio.sleep(20)

    in_memory(scenario, cluster)
    assert len(times) == 60
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert max(gaps) < 1.5


def test_another_member_that_went_further_is_noticed(in_memory: Play, cluster: Cluster) -> None:
    """The broker has forgotten the lock, and gives it again."""
    seen: list[int] = []

    async def handle(message: StoredMessage) -> None:
        await anyio.sleep(1)
        seen.append(message.queue_offset)

    async def scenario(world: World) -> None:
        fill(cluster, 20, queues=1)
        async with handling(world, handle):
            await anyio.sleep(3.5)
            cluster["a"].commit("g", "T", 0, 12)
            cluster.cut("a")
            await anyio.sleep(30)

    in_memory(scenario, cluster)
    assert seen == [0, 1, 2, 3, *range(12, 20)]


def test_a_place_that_the_consumer_gave_up_itself_is_not_another_member_s(
    in_memory: Play, cluster: Cluster
) -> None:
    """The consumer went back by `seek`, and the group's place, which is still ahead, was its own."""
    seen: list[int] = []

    async def handle(message: StoredMessage) -> None:
        await anyio.sleep(1)
        seen.append(message.queue_offset)

    async def scenario(world: World) -> None:
        fill(cluster, 12, queues=1)
        async with handling(world, handle, commit_interval_ms=100) as consumer:
            await anyio.sleep(6.5)
            (queue,) = [one for one in consumer.queues if (one.topic, one.queue_id) == ("T", 0)]
            cluster["a"].script(RequestCode.UPDATE_CONSUMER_OFFSET, *[lambda *_: None] * 2)
            consumer.seek(queue, 2)
            cluster.cut("a")
            await anyio.sleep(30)

    in_memory(scenario, cluster)
    assert seen == [*range(7), *range(2, 12)]
