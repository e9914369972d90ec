"""Opened by one task and closed by another: what fixtures, notebooks and hooks of web applications do."""

from __future__ import annotations

import asyncio
import logging
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

import rmq
from rmq import embedded
from rmq.errors import LocalProtocolError
from rmq.message import Message
from rmq.remoting.loop import TaskScope


class Broken(Exception):
    pass


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: pathlib.Path = tmp_path_factory.mktemp("embedded")
    with (
        start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(embedded.open(folder)) as made,
    ):
        portal.call(made.create_topic, "T", 2)
        yield made.namesrv_address


async def in_a_task(call: Callable[[], Awaitable[object]]) -> None:
    """Of its own, which has ended when this returns."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)


async def use(client: rmq.Client, group: str) -> None:
    """Send and consume, each object opened in one task and closed in another."""
    producer, puller = client.producer(group), client.pull_consumer(f"{group}-pull")
    consumer = client.consumer(group, {"T": "*"}, consume_from="first")
    for one in (producer, puller, consumer):
        await in_a_task(one.start)
    body = group.encode()
    result = await producer.send(Message("T", body))
    assert result.status == "SEND_OK"
    assert len(await puller.message_queues("T")) == 2
    with anyio.fail_after(30):
        while True:
            async with await anext(consumer) as message:
                if message.body == body:
                    break
    for one in (consumer, puller, producer):
        await in_a_task(one.aclose)
    with pytest.raises(LocalProtocolError):
        await producer.send(Message("T", body))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_started_in_one_task_and_closed_in_another(names: str, backend: str) -> None:
    async def main() -> None:
        client = rmq.connect(names)
        await client.aclose()  # never opened: nothing
        await in_a_task(client.start)
        with pytest.raises(LocalProtocolError, match="open already"):
            await client.start()
        await use(client, f"started-{backend}")
        await in_a_task(client.aclose)
        await client.aclose()

    anyio.run(main, backend=backend)


def test_a_generator_of_a_fixture_is_ended_by_another_task(names: str) -> None:
    """As with pytest-asyncio: each step of the fixture is a task of the loop."""

    async def fixture() -> AsyncIterator[rmq.Client]:
        async with rmq.connect(names) as client:
            yield client

    with asyncio.Runner() as runner:
        generator = fixture()
        client = runner.run(anext(generator))
        runner.run(use(client, "fixture"))
        with pytest.raises(StopAsyncIteration):
            runner.run(anext(generator))


def test_an_exit_stack_is_closed_by_another_task(names: str) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def opened() -> rmq.Client:
            return await stack.enter_async_context(rmq.connect(names))

        runner.run(use(runner.run(opened()), "stack"))
        runner.run(stack.aclose())


def test_hooks_of_a_web_application(names: str) -> None:
    """Start and stop are events of their own; requests are tasks between them."""

    async def main() -> None:
        client = rmq.connect(names)
        await asyncio.create_task(client.start())
        await asyncio.gather(*(asyncio.create_task(use(client, f"web-{n}")) for n in range(2)))
        await asyncio.create_task(client.aclose())
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    asyncio.run(main())


@asynccontextmanager
async def scope_with(task: Callable[[], Awaitable[None]]) -> AsyncIterator[TaskScope]:
    async with TaskScope() as scope:
        scope.tasks.start_soon(task)
        yield scope


async def fail() -> None:
    raise Broken


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_task_that_fails_ends_the_block_it_serves(backend: str) -> None:
    async def main() -> None:
        with pytest.raises(Broken):
            async with scope_with(fail):
                await anyio.sleep_forever()
        await anyio.sleep(0.001)  # the cancellation of the block is spent
        if backend == "asyncio":
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_error_of_a_task_without_a_block_comes_out_at_its_end(backend: str) -> None:
    async def main() -> None:
        scope = TaskScope()
        scope.detach()
        await scope.__aenter__()
        scope.tasks.start_soon(fail)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Broken):
            await scope.__aexit__(None, None, None)

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_what_is_never_closed_ends_with_the_loop(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    ended: list[bool] = []

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    async def main() -> None:
        scope = TaskScope()
        scope.detach()
        await scope.__aenter__()
        scope.tasks.start_soon(wait)
        await anyio.sleep(0.001)

    with caplog.at_level(logging.ERROR):
        anyio.run(main, backend=backend)
    assert ended == [True]
    assert not caplog.records


def test_leaving_a_block_on_asyncio_that_is_cancelled_waits_for_its_tasks() -> None:
    ended: list[str] = []

    async def task() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.001)
            ended.append("task")

    async def block() -> None:
        async with scope_with(task):
            await anyio.sleep_forever()

    async def main() -> None:
        running = asyncio.create_task(block())
        await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended == ["task"]

    asyncio.run(main())
