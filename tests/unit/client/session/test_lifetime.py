"""Opened by one task and closed by another: what fixtures, notebooks and hooks of web applications do."""

from __future__ import annotations

import asyncio
import logging
import pathlib
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import anyio
import pytest
from anyio._backends import _asyncio as backend
from anyio.from_thread import start_blocking_portal

import rmq
from rmq import embedded
from rmq.errors import LocalProtocolError
from rmq.message import Message
from rmq.remoting.loop import TaskGroupScope
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World

T = TypeVar("T")
LOOPS = ("asyncio", "uvloop", "trio")


class Broken(Exception):
    pass


def run(main: Callable[[], Awaitable[T]], loop: str) -> T:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
        return anyio.run(main, backend_options={"use_uvloop": True})
    return anyio.run(main, backend=loop)


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Each call of its `run` is a task of the same loop."""
    factory = pytest.importorskip("uvloop").new_event_loop if request.param == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as made:
        yield made


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


@pytest.mark.parametrize("loop", LOOPS)
def test_started_in_one_task_and_closed_in_another(names: str, loop: str) -> None:
    async def main() -> None:
        client = rmq.connect(names)
        await client.aclose()  # never opened: nothing
        await in_a_task(client.start)
        with pytest.raises(LocalProtocolError, match="open already"):
            await client.start()
        await use(client, f"started-{loop}")
        await in_a_task(client.aclose)
        await client.aclose()

    run(main, loop)


def test_a_generator_of_a_fixture_is_ended_by_another_task(names: str, runner: asyncio.Runner) -> None:
    """The case is that of pytest-asyncio: each step of the fixture is a task of the loop."""

    async def fixture() -> AsyncIterator[rmq.Client]:
        async with rmq.connect(names) as client:
            yield client

    generator = fixture()
    client = runner.run(anext(generator))
    runner.run(use(client, "fixture"))
    with pytest.raises(StopAsyncIteration):
        runner.run(anext(generator))


def test_an_exit_stack_is_closed_by_another_task(names: str, runner: asyncio.Runner) -> None:
    stack = AsyncExitStack()

    async def opened() -> rmq.Client:
        client = await stack.enter_async_context(rmq.connect(names))
        await stack.enter_async_context(client.producer("stacked"))
        stack.push_async_callback((await client.pull_consumer("stacked-pull").start()).aclose)
        return client

    runner.run(use(runner.run(opened()), "stack"))
    runner.run(stack.aclose())


def tasks_besides_this() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_hooks_of_a_web_application(names: str, loop: str) -> None:
    """Start and stop are events of their own; requests are tasks between them."""

    async def main() -> None:
        client = rmq.connect(names)
        await asyncio.create_task(client.start())
        await asyncio.gather(*(asyncio.create_task(use(client, f"web-{n}")) for n in range(2)))
        await asyncio.create_task(client.aclose())
        assert not tasks_besides_this()

    run(main, loop)


def hooks(names: str) -> tuple[Any, Any, Any]:
    """Start, stop, and a route that sends; each is called in a task of its server's choice."""
    client = rmq.connect(names)

    async def start() -> None:
        await client.start()

    async def stop() -> None:
        await client.aclose()

    async def send() -> Any:
        async with client.producer("web") as producer:
            return {"status": (await producer.send(Message("T", b"web"))).status}

    return start, stop, send


def by_event_handlers(start: Any, stop: Any, send: Any) -> Any:
    web = pytest.importorskip("fastapi").FastAPI()
    for event, hook in (("startup", start), ("shutdown", stop)):
        if not hasattr(web, "on_event"):
            pytest.skip("this FastAPI has no on_event any more")
        with pytest.warns(DeprecationWarning, match="on_event"):
            web.on_event(event)(hook)
    web.get("/")(send)
    return web


def by_lifespan_of_fastapi(start: Any, stop: Any, send: Any) -> Any:
    @asynccontextmanager
    async def lifespan(application: Any) -> AsyncIterator[None]:
        await start()
        yield
        await stop()

    web = pytest.importorskip("fastapi").FastAPI(lifespan=lifespan)
    web.get("/")(send)
    return web


def by_lifespan_of_starlette(start: Any, stop: Any, send: Any) -> Any:
    applications, responses = (
        pytest.importorskip(f"starlette.{name}") for name in ("applications", "responses")
    )
    routing = pytest.importorskip("starlette.routing")

    @asynccontextmanager
    async def lifespan(application: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await start()
            stack.push_async_callback(stop)
            yield

    async def page(request: Any) -> Any:
        return responses.JSONResponse(await send())

    return applications.Starlette(routes=[routing.Route("/", page)], lifespan=lifespan)


@pytest.mark.parametrize("use_uvloop", [False, True], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("web", [by_event_handlers, by_lifespan_of_fastapi, by_lifespan_of_starlette])
def test_start_and_stop_of_fastapi_and_starlette(names: str, web: Any, use_uvloop: bool) -> None:
    if use_uvloop:
        pytest.importorskip("uvloop")
    made = web(*hooks(names))
    testclient = pytest.importorskip("starlette.testclient")
    with testclient.TestClient(made, backend_options={"use_uvloop": use_uvloop}) as browser:
        for _ in range(2):
            assert browser.get("/").json() == {"status": "SEND_OK"}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_closes_what_was_started_of_it(names: str, loop: str) -> None:
    async def main() -> None:
        client = await rmq.connect(names, config=rmq.ClientConfig(shutdown_timeout_ms=3_600_000)).start()
        producer = await client.producer("forgotten").start()
        consumer = await client.consumer("forgotten-too", {"T": "*"}).start()
        puller = await client.pull_consumer("forgotten-three").start()
        with anyio.fail_after(30):
            await client.aclose()
        for closed in (producer, consumer, puller):
            await closed.aclose()
        with pytest.raises(LocalProtocolError):
            await producer.send(Message("T", b"late"))

    run(main, loop)


FORKED = """
import asyncio, os, sys
import rmq

client, named = rmq.connect(sys.argv[1]), rmq.connect(sys.argv[1], client_id="own")

async def main():
    async with client, named:
        print(client.client_id, named.client_id, flush=True)

for _ in range(2):
    if not (child := os.fork()):
        asyncio.run(main())
        os._exit(0)
    os.waitpid(child, 0)
print(client.client_id, named.client_id, flush=True)
"""


def test_a_client_made_before_a_fork_and_opened_after_it_has_an_id_of_its_own(names: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, names], capture_output=True, text=True, timeout=60, check=True
    )
    ids = [line.split() for line in done.stdout.splitlines()]
    assert [len(pair) for pair in ids] == [2, 2, 2], (done.stdout, done.stderr)
    assert [named for _, named in ids] == ["own"] * 3
    pids = {one.partition("@")[2].partition("#")[0] for one, _ in ids}
    chances = {one.partition("#")[2] for one, _ in ids}
    assert (len(pids), len(chances)) == (3, 3)


@asynccontextmanager
async def scope_with(task: Callable[[], Awaitable[None]]) -> AsyncIterator[TaskGroupScope]:
    async with TaskGroupScope() as scope:
        scope.tasks.start_soon(task)
        yield scope


async def fail() -> None:
    raise Broken


@pytest.mark.parametrize("loop", LOOPS)
def test_a_task_that_fails_ends_the_block_it_serves(loop: str) -> None:
    async def main() -> None:
        with pytest.raises(Broken):
            async with scope_with(fail):
                await anyio.sleep_forever()
        await anyio.sleep(0.001)  # the cancellation of the block is spent
        if loop != "trio":
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()

    run(main, loop)


async def broken_while_shielded() -> list[str]:
    """Run a block whose task fails while the block is shielded; return the work that the block has done."""
    done: list[str] = []

    async def block() -> None:
        async with scope_with(fail):
            with anyio.CancelScope(shield=True):
                for _ in range(20):
                    await anyio.sleep(0)
                done.append("shielded")
            await anyio.sleep_forever()

    with pytest.raises(Broken):
        await block()
    return done


@pytest.mark.parametrize("loop", LOOPS)
def test_a_task_that_fails_waits_for_what_the_block_has_shielded(loop: str) -> None:
    assert run(broken_while_shielded, loop) == ["shielded"]


@pytest.mark.parametrize("missing", ["_task_states", "cancel_scope", "_parent_scope"])
def test_an_anyio_that_keeps_its_scopes_elsewhere_ends_the_block_all_the_same(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attribute that `_cancel_scope` reads is private to anyio."""

    class Missing:
        """anyio's backend, without one of its names."""

        def __init__(self, real: Any) -> None:
            self._real = real

        def get(self, task: Any) -> Any:
            return None if missing == "cancel_scope" else Missing(self._real[task])

        def __getattr__(self, name: str) -> Any:
            if name == missing:
                raise AttributeError(name)
            found = getattr(self._real, name)
            return found if isinstance(found, (bool, type(None))) else Missing(found)

    monkeypatch.setattr("anyio._backends._asyncio", Missing(backend), raising=False)
    done = run(broken_while_shielded, "asyncio")
    assert done == (["shielded"] if missing == "_parent_scope" else [])


@pytest.mark.parametrize("loop", LOOPS)
def test_the_error_of_a_task_without_a_block_comes_out_at_its_end(loop: str) -> None:
    async def main() -> None:
        scope = TaskGroupScope()
        scope.detach()
        await scope.__aenter__()
        scope.tasks.start_soon(fail)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Broken):
            await scope.__aexit__(None, None, None)

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_what_is_never_closed_ends_with_the_loop(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    ended: list[bool] = []

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    async def main() -> None:
        scope = TaskGroupScope()
        scope.detach()
        await scope.__aenter__()
        scope.tasks.start_soon(wait)
        await anyio.sleep(0.001)

    with caplog.at_level(logging.ERROR):
        run(main, loop)
    assert ended == [True]
    assert not caplog.records


def test_leaving_a_block_on_asyncio_that_is_cancelled_waits_for_its_tasks(runner: asyncio.Runner) -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def task() -> None:
        begun.set()
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
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended == ["task"]

    runner.run(main())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_scope_that_is_entered_for_an_opening_stays_open_or_is_left_with_the_error(loop: str) -> None:
    ended: list[str] = []

    async def wait(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(name)

    async def open_and_fail(scope: TaskGroupScope) -> None:
        async with scope.entering():
            scope.tasks.start_soon(wait, "failed")
            await anyio.wait_all_tasks_blocked()
            raise Broken

    async def main() -> None:
        opened, failed, cancelled = TaskGroupScope(), TaskGroupScope(), TaskGroupScope()
        async with opened.entering():
            opened.tasks.start_soon(wait, "opened")
        await anyio.wait_all_tasks_blocked()
        assert ended == []
        with pytest.raises(Broken):
            await open_and_fail(failed)
        assert ended == ["failed"]
        with anyio.CancelScope() as around:
            async with cancelled.entering():
                cancelled.tasks.start_soon(wait, "cancelled")
                await anyio.wait_all_tasks_blocked()
                around.cancel()
                await anyio.sleep_forever()
        assert around.cancelled_caught
        assert ended == ["failed", "cancelled"]
        await opened.__aexit__(None, None, None)
        assert ended == ["failed", "cancelled", "opened"]

    run(main, loop)


def test_a_send_after_the_end_of_the_client_fails_at_once(in_memory: Play, cluster: Cluster) -> None:
    """It looked for a broker for `send_queue_ms`."""
    closed = anyio.Event()

    async def scenario(world: World) -> None:
        async def sends() -> None:
            async with client.producer("p") as producer:
                await producer.send(rmq.Message("T", b"x"))
                await closed.wait()
                with anyio.fail_after(1), pytest.raises(LocalProtocolError, match="client"):
                    await producer.send(rmq.Message("T", b"y"))

        async with anyio.create_task_group() as tasks:
            async with world.connect() as client:
                tasks.start_soon(sends)
                await anyio.sleep(1)
            closed.set()

    in_memory(scenario, cluster)
