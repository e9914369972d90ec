"""What a controlled set keeps when its master or its controllers are others: real ones in memory."""

from __future__ import annotations

from functools import partial

import trio
import trio.testing

from rmq.controller import service as controller_service
from rmq.controller.config import ControllerConfig
from rmq.controller.controller import Add, Drop
from rmq.controller.raft import NotLeader
from rmq.controller.requests import answer_of, request_of
from rmq.errors import RmqError
from rmq.testing.disk import MemoryDisk
from tests.sim.brokers import CONTROLLERS, Set, controlled_set

NEW = [f"10.0.8.{number}:9878" for number in (4, 5, 6)]


async def join(found: Set, address: str) -> None:
    host = address.partition(":")[0]
    config = ControllerConfig(
        controllers=address, controller_joins=True, bind_address=host, controller_path="/controller"
    )
    run = partial(
        controller_service.run,
        config,
        network=found.network.host(host),
        disk=MemoryDisk(seed=9),
        clock=trio.current_time,
    )
    await found.nursery.start(run)


async def changed(found: Set, question: Add | Drop) -> None:
    with trio.fail_after(30):
        while True:
            for address in CONTROLLERS + NEW:
                try:
                    answer = answer_of(await found.pool.call(address, request_of(question), 5))
                except (NotLeader, RmqError):
                    continue
                known = question.address in answer.controllers
                if not answer.refusal and known == isinstance(question, Add):
                    return
            await trio.sleep(0.1)


async def test_running_brokers_go_on_when_all_their_controllers_are_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        assert await found.master() is first
        await client.admin.create_topic("T", broker="s", queues=1)
        await found.until(inSync=[1, 2])
        async with client.producer("P") as producer:
            for new, old in zip(NEW, CONTROLLERS, strict=True):
                await join(found, new)
                await changed(found, Add(new))
                await changed(found, Drop(old))
                assert found.acting() == [first], "its lease outlives the election of another leader"
                assert await found.send(producer, new)
                found.network.cut(old.partition(":")[0])
                found.network.partition(old.partition(":")[0], *found.network._hosts())
            await trio.sleep(10)
            assert await found.send(producer, "all are others")
            await found.kill(first)
            assert await found.master() is second
            while not await found.send(producer, "another master"):
                await trio.sleep(0.1)
            assert set(found.acknowledged) <= set(found.stored(second))
