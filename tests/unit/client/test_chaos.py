"""A service that cannot die in silence: stray cancellations, silent peers, restarts, in virtual time."""

from __future__ import annotations

import logging
import random
from contextvars import ContextVar

import anyio
import pytest

import rmq
from rmq.client.consume.consumer import Consumer
from rmq.message import StoredMessage
from rmq.testing.cluster import Cluster
from tests.unit.client.consume.consuming import await_what_was_cancelled

from .conftest import Play
from .world import World

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")

MINUTE = 60.0
SETTLING = 10 * MINUTE
"""After the last fault all is delivered within this time, retries too."""


class Service:
    """Handlers that fail at random by the cancellations of others, and remember what they have done."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.done: set[bytes] = set()
        self.leaks: list[str] = []

    async def handle(self, message: StoredMessage) -> None:
        if tenant.get() != "nobody":
            self.leaks.append(tenant.get())
        tenant.set(message.body.decode())
        await anyio.sleep(self.chance.choice((0, 0, 0.1, 1)))
        if self.chance.random() < 0.15 and message.reconsume_times < 3:
            await await_what_was_cancelled()
        self.done.add(message.body)

    async def iterate(self, consumer: Consumer) -> None:
        async for delivery in consumer:
            async with delivery as message:
                await self.handle(message)


async def produce(producer: rmq.Producer, sent: set[bytes], until: float) -> None:
    number = 0
    while anyio.current_time() < until:
        body = b"%d" % number
        number += 1
        try:
            await producer.send(rmq.Message("T", body))
            sent.add(body)
        except rmq.RmqError:
            pass
        await anyio.sleep(5)


async def disturb(cluster: Cluster, chance: random.Random, until: float) -> None:
    while anyio.current_time() < until:
        await anyio.sleep(chance.uniform(5, 90))
        broker, what = (
            chance.choice("ab"),
            chance.choice(("black hole", "cut", "restart", "partition", "all")),
        )
        if what == "black hole":
            cluster.black_hole(broker)
        elif what == "cut":
            cluster.cut(broker)
        elif what == "all":
            cluster.black_hole()
        elif what == "restart":
            await cluster.stop(broker)
            await anyio.sleep(chance.uniform(0, 20))
            await cluster.start(broker)
        else:
            host = cluster[broker].address.partition(":")[0]
            cluster.network.partition(host)  # type: ignore[attr-defined]
            await anyio.sleep(chance.uniform(1, 40))
            cluster.network.heal()  # type: ignore[attr-defined]


def chaos(in_memory: Play, seed: int, seconds: float) -> None:
    cluster, chance = Cluster("a", "b", topics={"T": 2}), random.Random(seed)
    groups = ("by run", "ordered", "by iteration")
    services = {group.replace(" ", "-"): Service(random.Random(seed + n)) for n, group in enumerate(groups)}
    sent: set[bytes] = set()

    async def scenario(world: World) -> None:
        until = anyio.current_time() + seconds
        async with (
            world.connect(client_id="consuming", retry_times=5) as client,
            world.connect(client_id="producing") as other,
            other.producer("p") as producer,
            client.consumer("by-run", {"T": "*"}, consume_from="first") as one,
            client.consumer("ordered", {"T": "*"}, consume_from="first", ordered=True) as two,
            client.consumer("by-iteration", {"T": "*"}, consume_from="first") as three,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(one.run, services["by-run"].handle)
            tasks.start_soon(two.run, services["ordered"].handle)
            tasks.start_soon(services["by-iteration"].iterate, three)
            async with anyio.create_task_group() as faults:
                faults.start_soon(produce, producer, sent, until)
                faults.start_soon(disturb, cluster, chance, until)
            await anyio.sleep(SETTLING)
            assert client.health().problems == ()
            assert other.health().problems == ()
            await client.ready(30)
            assert [one.workers > 0 for one in client.health().consumers] == [True, True, False]
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)
    assert len(sent) > seconds / 20, "most sends go through"
    for group, service in services.items():
        assert sent - service.done == set(), group
        assert service.leaks == [], group


@pytest.mark.parametrize("seed", [1, 2])
def test_half_an_hour(in_memory: Play, caplog: pytest.LogCaptureFixture, seed: int) -> None:
    caplog.set_level(logging.CRITICAL)
    chaos(in_memory, seed, 30 * MINUTE)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_a_day(in_memory: Play, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    chaos(in_memory, 3, 24 * 60 * MINUTE)
