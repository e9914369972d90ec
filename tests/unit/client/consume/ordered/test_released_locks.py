"""Locks that a member has released: it does not take them again."""

from __future__ import annotations

import anyio

from rmq.client.consume.queue_locks import QueueLocks
from rmq.message import MessageQueue
from rmq.protocol.codes import RequestCode
from rmq.testing.cluster import Cluster
from rmq.testing.front import HANG

from ...conftest import Play
from ...world import World
from ..consuming import fill, take


def test_a_drained_member_leaves_its_queues_to_others_while_its_block_goes_on(
    in_memory: Play, cluster: Cluster
) -> None:
    async def scenario(world: World) -> None:
        fill(cluster, 4)
        async with (
            world.connect() as one,
            one.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as first,
        ):
            await take(first, 2)
            await first.drain()
            await anyio.sleep(30)  # longer than the period of the renewal
            async with (
                world.connect() as two,
                two.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as second,
            ):
                with anyio.fail_after(10):
                    assert sorted(await take(second, 2)) == [b"2", b"3"]

    in_memory(scenario, cluster)


def test_a_lock_released_during_a_renewal_elsewhere_is_not_taken_again(in_memory: Play) -> None:
    cluster = Cluster("a", "b", topics={"T": 1})
    here, there = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)

    async def is_overtaken(queue: MessageQueue) -> bool:
        return False

    async def scenario(world: World) -> None:
        async with world.connect() as client, anyio.create_task_group() as tasks:
            session = client._session
            assert session is not None
            await session.refresh("T")
            locks, lost = QueueLocks(session, "g"), list[MessageQueue]()
            for queue in (here, there):
                assert await locks.acquire([queue])
            cluster["a"].script(RequestCode.LOCK_BATCH_MQ, HANG)
            tasks.start_soon(locks.keep, lambda: [here, there], is_overtaken, lambda _: None, lost.append)
            await anyio.sleep(session.config.lock_interval_ms / 1000 + 1)
            await locks.release([there])
            await anyio.sleep(5)
            assert cluster["b"].lock("g", "other", there) == {there}
            assert locks.holds(here)
            assert lost == []
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)
