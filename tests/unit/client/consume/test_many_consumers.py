"""A hundred consumers in one client begin together, each with one worker."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import anyio
import pytest

import rmq
from rmq.client.consume.consumer import Consumer
from rmq.message import StoredMessage
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World
from .consuming import COMMIT, fill, offsets, take

COUNT = 100
KINDS = pytest.mark.parametrize("options", [{}, {"ordered": True}], ids=["any order", "ordered"])
TENANT: ContextVar[str] = ContextVar("TENANT", default="nobody")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", topics={f"T{number}": 2 for number in range(COUNT)})


def test_an_app_is_ready_within_two_seconds(in_memory: Play, cluster: Cluster) -> None:
    app = rmq.App()
    for number in range(COUNT):

        @app.consumer(f"T{number}", group=f"g{number}")
        async def handle(message: StoredMessage) -> None: ...

    async def scenario(world: World) -> None:
        cluster.slow(0.01)
        began = anyio.current_time()
        async with app.using(world.connect()):
            await app.client.ready(60)
            assert anyio.current_time() - began < 2
            assert list(app.consumers) == [f"g{number}" for number in range(COUNT)]
            assert all(len(consumer.queues) >= 2 for consumer in app.consumers.values())
            assert cluster["a"].count(RequestCode.HEART_BEAT) < 10

    in_memory(scenario, cluster)


def test_consumers_that_are_opened_at_the_same_time_are_too(in_memory: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        cluster.slow(0.01)
        async with world.connect() as client:
            began = anyio.current_time()
            consumers = [client.consumer(f"g{number}", {f"T{number}": "*"}) for number in range(COUNT)]
            async with anyio.create_task_group() as tasks:
                for consumer in consumers:
                    tasks.start_soon(consumer.start)
            await client.ready(60)
            assert anyio.current_time() - began < 2
            assert sorted(cluster["a"].members("g77")) == [client.client_id]

    in_memory(scenario, cluster)


def test_one_whose_opening_is_cancelled_keeps_no_other_from_it(in_memory: Play, cluster: Cluster) -> None:
    """The first of those that come together tells the brokers of all."""

    async def scenario(world: World) -> None:
        cluster.slow(1)
        opened: list[Consumer] = []

        async def open_soon(number: int, consumer: Consumer) -> None:
            with anyio.move_on_after(5 if number < 5 else 3600):
                opened.append(await consumer.start())

        async with world.connect(request_timeout_ms=30_000) as client:
            consumers = [client.consumer(f"g{number}", {f"T{number}": "*"}) for number in range(10)]
            async with anyio.create_task_group() as tasks:
                for number, consumer in enumerate(consumers):
                    tasks.start_soon(open_soon, number, consumer)
            assert {one.group for one in opened} == {f"g{number}" for number in range(5, 10)}
            cluster.slow(0)
            await client.ready(60)
            for number in range(10):
                assert len(cluster["a"].members(f"g{number}")) == (number >= 5)

    in_memory(scenario, cluster)


def test_a_group_that_is_refused_is_told_alone(in_memory: Play) -> None:
    """Others that come at the same time get in."""
    cluster = Cluster("a", topics={"T": 2})
    errors: list[str] = []

    async def scenario(world: World) -> None:
        broker = cluster["a"]

        def refuse(request, connection):  # type: ignore[no-untyped-def]
            if b'"bad"' in request.body:
                return request.reply(16, "no")
            return broker.answer(request, connection)

        broker.hook(RequestCode.HEART_BEAT, refuse)

        async def begin(group: str) -> None:
            try:
                await client.consumer(group, {"T": "*"}).start()
            except rmq.NoPermission:
                errors.append(group)

        async with world.connect() as client:
            async with anyio.create_task_group() as tasks:
                for group in ("g1", "bad", "g2"):
                    tasks.start_soon(begin, group)
            await client.ready(10)

    in_memory(scenario, cluster)
    assert errors == ["bad"]


# --- workers: as many as have work, at most `concurrency` ---


@pytest.fixture
def sixteen() -> Cluster:
    """A broker with a topic of 16 queues."""
    return Cluster("a", topics={"T": 16})


def workers() -> int:
    return sum("_keep_working" in (task.name or "") for task in anyio.get_running_tasks())


@KINDS
def test_there_are_as_many_as_have_work(in_memory: Play, sixteen: Cluster, options: dict[str, Any]) -> None:
    running = most = 0

    async def handle(message: StoredMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(10)
        running -= 1

    async def scenario(world: World) -> None:
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(lambda: consumer.run(handle, concurrency=5))
            await anyio.sleep(1)
            assert workers() == 1
            fill(sixteen, 2, queues=16)
            await anyio.sleep(1)
            assert (running, workers()) == (2, 3)
            fill(sixteen, 16, queues=16)
            await anyio.sleep(1)
            assert (running, workers()) == (5, 5)
            assert client.health().problems == ()
            await anyio.sleep(60)
            assert (most, running, workers()) == (5, 0, 5)
            tasks.cancel_scope.cancel()

    in_memory(scenario, sixteen)


def test_there_are_as_many_as_have_lists(in_memory: Play, sixteen: Cluster) -> None:
    most: list[int] = []

    async def handle(messages: list[StoredMessage]) -> None:
        most.append(workers())
        await anyio.sleep(10)

    async def scenario(world: World) -> None:
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(lambda: consumer.run_batches(handle, batch=1, concurrency=4))
            await anyio.sleep(1)
            assert workers() == 1
            fill(sixteen, 12)
            await anyio.sleep(35)
            assert (len(most), workers()) == (12, 4)
            tasks.cancel_scope.cancel()

    in_memory(scenario, sixteen)


def test_a_worker_that_begins_later_has_the_context_of_run(in_memory: Play, sixteen: Cluster) -> None:
    seen: list[str] = []

    async def handle(message: StoredMessage) -> None:
        seen.append(TENANT.get())
        TENANT.set(message.body.decode())
        await anyio.sleep(10)

    async def scenario(world: World) -> None:
        TENANT.set("of run")
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            for _ in range(4):
                fill(sixteen, 3)
                await anyio.sleep(4)
            tasks.cancel_scope.cancel()

    in_memory(scenario, sixteen)
    assert seen == ["of run"] * 12


def test_what_a_leaving_member_was_just_giving_up_is_committed(in_memory: Play) -> None:
    cluster = Cluster("a", topics={"T": 4})

    async def scenario(world: World) -> None:
        fill(cluster, 20, queues=4)
        front = cluster["a"]

        async def late(request: Command, connection: Connection) -> None:
            await anyio.sleep(1)
            connection.reply(front.answer(request, connection) or request.reply())

        def answer_late(request: Command, connection: Connection) -> None:
            tasks.start_soon(late, request, connection)

        async with (
            anyio.create_task_group() as tasks,
            world.connect(client_id="1") as one,
            world.connect(client_id="2") as two,
            one.consumer("g", {"T": "*"}, consume_from="first") as first,
        ):
            await take(first, 20)
            front.script(COMMIT, answer_late)
            async with two.consumer("g", {"T": "*"}, consume_from="first"):
                await anyio.sleep(0.1)
                assert front.count(COMMIT) == 1  # of the first of two queues that the second member gets
                await first.drain(0)
                await anyio.sleep(2)
                assert offsets(cluster) == {0: 5, 1: 5, 2: 5, 3: 5}

    in_memory(scenario, cluster)
