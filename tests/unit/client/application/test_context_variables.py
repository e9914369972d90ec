"""Context variables: what one message sets is not seen with the next, nor by what outlives it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from typing import Any

import anyio
import pytest

import rmq
from rmq.client import blocking
from rmq.client.consume.consumer import Consumer
from rmq.client.consume.isolation import Isolated, Snapshot
from rmq.message import StoredMessage
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..consume.consuming import fill
from ..world import World, served_in_a_thread

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
other: ContextVar[str] = ContextVar("other", default="")
bare: ContextVar[str] = ContextVar("bare")

Handle = Callable[[StoredMessage], Awaitable[None]]
Run = Callable[[Consumer, Handle], Awaitable[None]]


async def by_run(consumer: Consumer, handle: Handle) -> None:
    await consumer.run(handle, concurrency=2)


async def in_batches(consumer: Consumer, handle: Handle) -> None:
    async def handle_all(messages: list[StoredMessage]) -> None:
        (message,) = messages
        await handle(message)

    await consumer.run_batches(handle_all, batch=1)


async def by_iteration(consumer: Consumer, handle: Handle) -> None:
    async for delivery in consumer:
        async with delivery as message:
            await handle(message)


WAYS = pytest.mark.parametrize("run", [by_run, in_batches, by_iteration])
KINDS = pytest.mark.parametrize("options", [{}, {"ordered": True}], ids=["any order", "ordered"])
WAITING = pytest.mark.parametrize("waits", [True, False], ids=["waits", "never waits"])


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(600):
        while not condition():
            await anyio.sleep(1)


@WAYS
@KINDS
@WAITING
def test_no_message_sees_what_another_has_set(
    in_memory: Play, cluster: Cluster, run: Run, options: dict[str, Any], waits: bool
) -> None:
    seen: list[tuple[str, str]] = []

    async def handle(message: StoredMessage) -> None:
        seen.append((tenant.get(), other.get()))
        tenant.set(message.body.decode())
        other.set("x")
        if waits:
            await anyio.sleep(0.01)
        assert tenant.get() == message.body.decode()
        if message.queue_offset == 1 and not message.reconsume_times:
            raise ValueError("a failure leaks no more")

    async def scenario(world: World) -> None:
        fill(cluster, 12)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tenant.set("of run")
            tasks.start_soon(run, consumer, handle)
            await until(lambda: len(seen) == 14)
            tasks.cancel_scope.cancel()
            assert tenant.get() == "of run"

    in_memory(scenario, cluster)
    assert set(seen) == {("of run", "")}


def test_in_an_app_and_in_what_a_handler_starts(in_memory: Play, cluster: Cluster) -> None:
    """Tasks that a handler starts have its variables, also after its end."""
    app = rmq.App()
    seen: list[str] = []
    started: list[str] = []

    @app.consumer("T", group="g", concurrency=1, consume_from="first")
    async def handle(message: StoredMessage) -> None:
        seen.append(tenant.get())
        tenant.set(message.body.decode())

        async def child() -> None:
            await anyio.sleep(0.1)
            started.append(tenant.get())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child)

    async def scenario(world: World) -> None:
        fill(cluster, 6)
        async with app.using(world.connect()):
            await until(lambda: len(started) == 6)

    in_memory(scenario, cluster)
    assert seen == ["nobody"] * 6
    assert sorted(started) == [str(number) for number in range(6)]


def test_a_handler_in_its_own_context_is_cancelled_as_any_other(in_memory: Play, cluster: Cluster) -> None:
    ended: list[str] = []

    async def handle(message: StoredMessage) -> None:
        tenant.set("x")
        if message.queue_offset:
            try:
                with anyio.move_on_after(5):
                    await anyio.sleep_forever()
                ended.append("in time")
                await anyio.sleep_forever()
            finally:
                ended.append(tenant.get())

    async def scenario(world: World) -> None:
        fill(cluster, 2, queues=1)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with anyio.move_on_after(30) as scope:
                await consumer.run(handle, concurrency=1)
            assert scope.cancelled_caught

    in_memory(scenario, cluster)
    assert ended == ["in time", "x"]


def test_listeners_and_check_backs(in_memory: Play, cluster: Cluster) -> None:
    """The first send of a handler dials; the connection's own tasks must not have its variables."""
    told: list[str] = []

    def on_event(event: object) -> None:
        told.append(tenant.get())
        tenant.set("on_event")

    async def on_assignment(change: object) -> None:
        told.append(tenant.get())
        await anyio.sleep(0)
        tenant.set("on_assignment")

    async def scenario(world: World) -> None:
        async with (
            rmq.connect(world.names, network=world.network, on_event=on_event) as client,
            client.producer("p") as producer,
        ):
            tenant.set("a caller")
            await producer.send(rmq.Message("T", b"1"))
            cluster.cut()
            await anyio.sleep(5)
            await producer.send(rmq.Message("T", b"1"))
            async with client.consumer("g", {"T": "*"}, on_assignment=on_assignment):
                await anyio.sleep(60)

    in_memory(scenario, cluster)
    assert len(told) > 4
    assert "on_event" not in told
    assert "on_assignment" not in told
    # What happens at once is told in the task that makes it happen, and a consumer is opened by a caller.
    assert "nobody" in told


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_deliveries_without_async(cluster: Cluster, backend: str) -> None:
    seen: list[str] = []
    with served_in_a_thread(cluster) as world:
        fill(cluster, 4)
        with (
            blocking.connect(world.names, backend=backend) as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            for delivery in consumer:
                with delivery as message:
                    seen.append(tenant.get())
                    tenant.set(message.body.decode())
                if len(seen) == 4:
                    break
    assert seen == ["nobody"] * 4


# --- the parts ---


def test_a_snapshot_puts_back_what_was_changed_taken_away_and_new(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def block() -> tuple[str, str, str]:
        token = tenant.set("before")
        snapshot = Snapshot()
        snapshot.restore()
        tenant.reset(token)
        other.set("new")
        bare.set("new")
        snapshot.restore()
        snapshot.restore()
        return tenant.get(), other.get(), bare.get()

    assert copy_context().run(block) == ("before", "", "new")
    (record,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert "context variable bare was set in a delivery's block and keeps its value" in record.getMessage()


def test_a_handler_that_leaves_its_context_alone_runs_in_the_task_itself(
    in_memory: Play, cluster: Cluster
) -> None:
    async def scenario(world: World) -> None:
        async def reset(message: object) -> None:
            other.reset(other.set("for a moment"))

        async def leak(message: object) -> None:
            other.set("for good")

        handle, before = Isolated(reset), copy_context()
        await handle(None)
        handle.look(before)
        assert not handle.is_needed
        handle, before = Isolated(leak), copy_context()
        await handle(None)
        handle.look(before)
        assert handle.is_needed
        token = other.set("")
        await handle(None)
        assert other.get() == ""
        other.reset(token)

    in_memory(scenario, cluster)


# --- OpenTelemetry ---


@WAYS
def test_each_message_has_its_own_trace_and_baggage(in_memory: Play, cluster: Cluster, run: Run) -> None:
    """Also where the handler attaches a context and forgets to detach it."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry import baggage, context, trace

    from rmq.client.observability.otel import OpenTelemetry

    seen: dict[bytes, tuple[str, object]] = {}

    async def handle(message: StoredMessage) -> None:
        span = trace.get_current_span().get_span_context()
        seen[message.body] = f"{span.trace_id:032x}"[-1], baggage.get_baggage("tenant")
        context.attach(baggage.set_baggage("tenant", "leaked"))
        tenant.set("x")

    async def scenario(world: World) -> None:
        for number in (1, 2, 3):
            parent = f"traceparent\x0100-{number:032x}-{7:016x}-01"
            carried = f"\x02baggage\x01tenant={number}" if number != 2 else ""
            cluster["a"].put("T", 0, b"%d" % number, f"UNIQ_KEY\x01ID{number}\x02{parent}{carried}")
        plugin = OpenTelemetry(sdk.TracerProvider())
        async with (
            rmq.connect(world.names, network=world.network, plugins=[plugin]) as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(run, consumer, handle)
            await until(lambda: len(seen) == 3)
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)
    assert seen == {b"1": ("1", "1"), b"2": ("2", None), b"3": ("3", "3")}
