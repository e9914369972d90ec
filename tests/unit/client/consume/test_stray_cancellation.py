"""Cancellations that nobody aimed at a handler: they are failures of it, and no consumer dies in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import anyio
import pytest
import sniffio

import rmq
from rmq.client.consume.consumer import Consumer
from rmq.client.consume.rebalance import averagely
from rmq.message import StoredMessage
from rmq.remoting.cancellation import as_failure, cancel_requests, withdraw
from rmq.testing.cluster import Cluster
from tests.unit.client.consume.consuming import await_what_was_cancelled

from ..conftest import Play
from ..world import World, play_in_memory
from .consuming import fill


def ask_what_was_cancelled(*_: object) -> None:
    """The same without async: the result of a future that was cancelled."""
    future: Future[None] = Future()
    future.cancel()
    try:
        future.result(0)
    except BaseException as error:
        raise asyncio.CancelledError from error


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


Run = Callable[[Consumer, Callable[[StoredMessage], Awaitable[None]]], Awaitable[None]]


async def by_run(consumer: Consumer, handle: Callable[[StoredMessage], Awaitable[None]]) -> None:
    await consumer.run(handle, concurrency=2)


async def in_batches(consumer: Consumer, handle: Callable[[StoredMessage], Awaitable[None]]) -> None:
    async def handle_all(messages: list[StoredMessage]) -> None:
        for message in messages:
            await handle(message)

    await consumer.run_batches(handle_all, batch=1, concurrency=2)


async def by_iteration(consumer: Consumer, handle: Callable[[StoredMessage], Awaitable[None]]) -> None:
    async for delivery in consumer:
        async with delivery as message:
            await handle(message)


WAYS = pytest.mark.parametrize("run", [by_run, in_batches, by_iteration])
KINDS = pytest.mark.parametrize("options", [{}, {"ordered": True}], ids=["any order", "ordered"])


@WAYS
@KINDS
def test_it_is_a_failure_of_the_handler(
    in_memory: Play,
    cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
    run: Run,
    options: dict[str, Any],
) -> None:
    """More of them than there are workers, each of which ended one."""
    seen: list[bytes] = []

    async def handle(message: StoredMessage) -> None:
        if int(message.body) % 2 and not message.reconsume_times:
            await await_what_was_cancelled()
        seen.append(message.body)

    async def scenario(world: World) -> None:
        fill(cluster, 10)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(run, consumer, handle)
            with anyio.fail_after(600):
                while len(seen) < 10:
                    await anyio.sleep(1)
            await client.ready()
            assert client.health().problems == ()
            assert client.health().consumers[0].workers == (0 if run is by_iteration else 2)
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)
    assert sorted(seen) == [b"%d" % number for number in range(10)]
    failed = [line for line in errors(caplog) if "attempt 1 of" in line]
    assert len(failed) == 5
    assert "StrayCancellation" in caplog.text


@WAYS
def test_it_goes_to_the_dead_letters_in_the_end(in_memory: Play, cluster: Cluster, run: Run) -> None:
    letters: list[rmq.DeadLetter] = []

    async def handle(message: StoredMessage) -> None:
        await await_what_was_cancelled()

    async def scenario(world: World) -> None:
        fill(cluster, 1)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", max_reconsume_times=1) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(run, consumer, handle)
            with anyio.fail_after(600):
                while not letters:
                    await anyio.sleep(1)
                    letters.extend(await client.dead_letters("g"))
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)
    assert "another task has cancelled" in letters[0].reason


@WAYS
def test_it_comes_out_as_an_error_with_on_error_raise(in_memory: Play, cluster: Cluster, run: Run) -> None:
    async def handle(message: StoredMessage) -> None:
        await await_what_was_cancelled()

    async def scenario(world: World) -> None:
        fill(cluster, 1)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer,
        ):
            with pytest.raises(rmq.StrayCancellation):
                await run(consumer, handle)

    in_memory(scenario, cluster)


def test_it_comes_out_of_an_app(in_memory: Play, cluster: Cluster) -> None:
    app = rmq.App()
    seen: list[bytes] = []

    @app.consumer("T", group="g", concurrency=2, consume_from="first")
    async def handle(message: StoredMessage) -> None:
        if not message.reconsume_times:
            await await_what_was_cancelled()
        seen.append(message.body)

    async def scenario(world: World) -> None:
        fill(cluster, 6)
        async with app.using(world.connect()):
            with anyio.fail_after(600):
                while len(seen) < 6:
                    await anyio.sleep(1)

    in_memory(scenario, cluster)


def test_of_an_ordinary_function_in_a_thread(in_memory: Play, cluster: Cluster) -> None:
    seen: list[bytes] = []

    def handle(message: StoredMessage) -> None:
        if not message.reconsume_times:
            ask_what_was_cancelled()
        seen.append(message.body)

    async def scenario(world: World) -> None:
        fill(cluster, 4)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            with anyio.fail_after(600):
                while len(seen) < 4:
                    await anyio.sleep(1)
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)


def test_a_handler_that_cancels_its_own_task_ends_no_worker(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """An application may keep the tasks of its handlers, to end one of them."""
    seen: list[bytes] = []
    tries: dict[bytes, int] = {}

    async def handle(message: StoredMessage) -> None:
        tries[message.body] = tries.get(message.body, 0) + 1
        if tries[message.body] == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        seen.append(message.body)

    async def scenario(world: World) -> None:
        fill(cluster, 6)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(by_run, consumer, handle)
            with anyio.fail_after(600):
                while len(seen) < 6:
                    await anyio.sleep(1)
            assert client.health().problems == ()
            tasks.cancel_scope.cancel()

    play_in_memory("asyncio", scenario, cluster)
    assert "the task of a handler was cancelled; its worker continues" in caplog.text


@WAYS
def test_a_cancellation_of_the_consumer_itself_is_none(
    in_memory: Play, cluster: Cluster, caplog: pytest.LogCaptureFixture, run: Run
) -> None:
    async def handle(message: StoredMessage) -> None:
        await anyio.sleep_forever()

    async def scenario(world: World) -> None:
        fill(cluster, 4)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with anyio.move_on_after(5) as scope:
                await run(consumer, handle)
            assert scope.cancelled_caught
            if sniffio.current_async_library() == "asyncio":
                task = asyncio.ensure_future(run(consumer, handle))
                await asyncio.sleep(20)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

    in_memory(scenario, cluster)
    assert errors(caplog) == []


# --- what else the application's code may raise it from ---


def test_of_listeners(in_memory: Play, cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[bytes] = []

    async def on_assignment(change: object) -> None:
        await await_what_was_cancelled()

    async def handle(message: StoredMessage) -> None:
        seen.append(message.body)

    class Failing(rmq.Observer):
        def consuming(self, *_: object) -> None:
            ask_what_was_cancelled()

        def sending(self, *_: object) -> None:
            ask_what_was_cancelled()

    async def scenario(world: World) -> None:
        async with (
            rmq.connect(
                world.names, network=world.network, on_event=ask_what_was_cancelled, plugins=[Failing()]
            ) as client,
            client.consumer("g", {"T": "*"}, consume_from="first", on_assignment=on_assignment) as consumer,
            client.producer("p") as producer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            await producer.send(rmq.Message("T", b"x"))
            await anyio.sleep(120)
            assert seen == [b"x"]
            await client.ready()
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)
    for what in ("the on_event callback failed", "g: on_assignment failed", "Failing failed"):
        assert what in errors(caplog)


def test_a_strategy_or_an_observer_ends_the_block_and_not_in_silence(
    in_memory: Play, cluster: Cluster
) -> None:
    class Ending(rmq.Observer):
        async def run(self) -> None:
            await anyio.sleep(5)
            await await_what_was_cancelled()

    async def scenario(world: World) -> None:
        with pytest.raises(rmq.StrayCancellation):
            async with rmq.connect(world.names, network=world.network, plugins=[Ending()]):
                await anyio.sleep(60)
        client = rmq.connect(world.names, network=world.network, plugins=[Ending()])
        await client.start()
        await client.ready()
        await anyio.sleep(60)
        assert any("background tasks have ended" in problem for problem in client.health().problems)
        with pytest.raises(rmq.LocalProtocolError, match="background tasks have ended"):
            await client.ready()
        with pytest.raises(rmq.StrayCancellation):
            await client.aclose()

        rounds: list[int] = []

        def strategy(*arguments: Any) -> Any:
            rounds.append(1)
            if len(rounds) > 2:
                ask_what_was_cancelled()
            return averagely(*arguments)

        async with world.connect(rebalance_interval_ms=1000) as other:
            consumer = other.consumer("g", {"T": "*"}, strategy=strategy)
            await consumer.start()
            await anyio.sleep(60)
            assert any("g consumes nothing: its background tasks" in one for one in other.health().problems)
            with pytest.raises(rmq.NotReady, match="background tasks have ended"):
                await other.ready(1)
            with pytest.raises((rmq.StrayCancellation, asyncio.CancelledError)):  # on trio no cancellation
                await consumer.aclose()

    in_memory(scenario, cluster)


# --- health and ready know a consumer that does not consume ---


def test_a_run_that_has_ended(in_memory: Play, cluster: Cluster) -> None:
    async def fail(message: StoredMessage) -> None:
        raise ValueError(message.body)

    async def scenario(world: World) -> None:
        fill(cluster, 3, queues=1)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer,
        ):
            assert client.health().problems == ()
            with pytest.raises(ValueError, match="0"):
                await consumer.run(fail, concurrency=1)
            told = "g consumes nothing: its `run` has ended (ValueError: b'0')"
            assert client.health().problems == (told,)
            with pytest.raises(rmq.NotReady) as caught:
                await client.ready(1)
            assert str(caught.value) == told
            assert sum((await consumer.lag()).values()) >= 2
            await consumer.drain()
            assert client.health().problems == ()

    in_memory(scenario, cluster)


def test_pulls_that_nobody_answers(in_memory: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client, client.consumer("g", {"T": "*"}):
            await anyio.sleep(100)
            assert client.health().problems == ()
            cluster.network.partition("10.0.1.1")
            await anyio.sleep(60)
            (problem,) = [one for one in client.health().problems if one.startswith("g has had")]
            assert "no answer to the pulls of 3 of its 3 queues for" in problem
            with pytest.raises(rmq.RmqError):
                await client.ready(1)
            cluster.network.heal()
            await anyio.sleep(60)
            assert client.health().problems == ()
            await client.ready(1)

    in_memory(scenario, cluster)


# --- the pure part ---


def test_which_errors_are_failures(in_memory: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        failure = ValueError("x")
        assert as_failure(failure) is failure
        assert as_failure(KeyboardInterrupt()) is None
        assert as_failure(SystemExit()) is None
        stray = asyncio.CancelledError()
        found = as_failure(stray)
        assert isinstance(found, rmq.StrayCancellation)
        assert found.__cause__ is stray
        assert as_failure(BaseExceptionGroup("", [stray, failure])) is not None
        assert as_failure(BaseExceptionGroup("", [stray, KeyboardInterrupt()])) is None
        assert not withdraw(failure, cancel_requests())
        with anyio.CancelScope() as scope:
            scope.cancel()
            assert as_failure(stray) is None
            assert not withdraw(stray, cancel_requests())
            await anyio.sleep(0)

    in_memory(scenario, cluster)
