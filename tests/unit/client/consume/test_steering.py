"""Steering a consumer while it runs: longer handlers, pause and resume, other offsets, what it is told of its
queues, draining, and how much it holds."""

from __future__ import annotations

import logging
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.client.consume.consumer import Consumer
from rmq.message import MessageQueue, StoredMessage
from rmq.testing.cluster import Cluster
from tests.unit.client.consume.consuming import of_topic, until

from ..conftest import Play
from ..world import World
from .consuming import fill, offsets, sent_back

KINDS = pytest.mark.parametrize("options", [{}, {"ordered": True}], ids=["any order", "ordered"])
ZERO, ONE = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


class Gate:
    """A handler that notes what it gets, and waits where it is told to."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.ended: list[int] = []
        self.held: set[int] = set()
        self.opened = anyio.Event()

    async def __call__(self, message: StoredMessage) -> None:
        number = int(message.body)
        self.seen.append(number)
        if number in self.held:
            await self.opened.wait()
        self.ended.append(number)


# --- longer handlers ---


async def test_a_delivery_that_asks_for_more_time_is_not_sent_back(setting: World, clock: MockClock) -> None:
    fill(setting.cluster, 1)
    async with (
        setting.connect(consume_timeout_ms=60_000) as client,
        client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer,
    ):
        delivery = await anext(consumer)
        async with delivery:
            for _ in range(5):
                await trio.sleep(50)
                assert delivery.extend()
            assert delivery.extend(200)
            await trio.sleep(195)
            assert sent_back(setting.cluster) == []
            assert delivery.extend(30)
            await trio.sleep(45)
            assert len(sent_back(setting.cluster)) == 1, "the time that it asked for last counts"
            assert not delivery.extend(), "too late: others get it"
            await trio.sleep(200)
        assert len(sent_back(setting.cluster)) == 1
        assert not delivery.extend(), "its block has ended"


async def test_without_more_time_it_is(setting: World, clock: MockClock) -> None:
    fill(setting.cluster, 1)
    async with (
        setting.connect(consume_timeout_ms=60_000) as client,
        client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer,
    ):
        async with await anext(consumer):
            await trio.sleep(70)
        assert len(sent_back(setting.cluster)) == 1
        with pytest.raises(rmq.ConfigError, match="seconds"):
            (await anext(consumer)).extend(-1)


# --- pause, resume, seek ---


@KINDS
def test_a_queue_that_is_paused_waits_and_the_others_go_on(
    both: Play, cluster: Cluster, options: dict[str, Any]
) -> None:
    async def scenario(world: World) -> None:
        fill(cluster, 8)
        handle = Gate()
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
            anyio.create_task_group() as tasks,
        ):
            consumer.pause(ONE)
            tasks.start_soon(consumer.run, handle)
            await until(lambda: len(handle.ended) == 4)
            fill(cluster, 4)
            await until(lambda: len(handle.ended) == 6)
            assert {number % 2 for number in handle.seen} == {0}
            consumer.resume(ONE)
            await until(lambda: len(handle.ended) == 12)
            assert [number for number in handle.seen if number % 2] == [1, 3, 5, 7, 1, 3]
            tasks.cancel_scope.cancel()

    both(scenario, cluster)


@KINDS
async def test_all_queues_wait_also_what_was_pulled_and_what_comes(
    setting: World, clock: MockClock, options: dict[str, Any]
) -> None:
    fill(setting.cluster, 8)
    handle = Gate()
    async with (
        setting.connect() as client,
        client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
        trio.open_nursery() as nursery,
    ):
        await trio.sleep(1)  # all is pulled
        consumer.pause()
        consumer.resume(ZERO)  # says nothing of the others' pause
        nursery.start_soon(consumer.run, handle)
        await setting.cluster.create_topic("T", 3)
        await trio.sleep(60)
        setting.cluster["a"].put("T", 2, b"9")
        await trio.sleep(60)
        assert handle.seen == []
        assert len(of_topic(consumer)) == 3, "it is still a member"
        consumer.resume()
        await trio.sleep(1)
        assert sorted(handle.ended) == [0, 1, 2, 3, 4, 5, 6, 7, 9]
        nursery.cancel_scope.cancel()


async def test_what_fails_in_a_queue_that_is_paused_waits_too(setting: World, clock: MockClock) -> None:
    fill(setting.cluster, 1)
    seen: list[int] = []
    async with (
        setting.connect(redelivery_delay_ms=1000) as client,
        client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer,
    ):
        with trio.CancelScope() as scope:
            async with await anext(consumer):
                consumer.pause(ZERO)
                scope.cancel()
                await trio.sleep(1)
        with trio.move_on_after(100):
            async for delivery in consumer:
                async with delivery as message:
                    seen.append(int(message.body))
        assert seen == []
        consumer.resume(ZERO)
        async with await anext(consumer) as message:
            assert message.body == b"0"


@KINDS
async def test_a_consumer_goes_on_at_another_offset(
    setting: World, clock: MockClock, options: dict[str, Any]
) -> None:
    fill(setting.cluster, 20)
    handle = Gate()
    async with (
        setting.connect() as client,
        client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(consumer.run, handle)
        await trio.sleep(1)
        assert len(handle.ended) == 20
        handle.seen.clear()
        consumer.seek(ONE, 8)
        await trio.sleep(1)
        assert handle.seen == [17, 19]
        consumer.seek(ONE, 3)
        await trio.sleep(1)
        assert handle.seen == [17, 19, 7, 9, 11, 13, 15, 17, 19]
        consumer.seek(ZERO, 1000)  # there is nothing: the nearest is the end
        await trio.sleep(1)
        fill(setting.cluster, 2)
        await trio.sleep(1)
        assert sorted(handle.seen[9:]) == [0, 1]
        with pytest.raises(rmq.LocalProtocolError, match="is not assigned"):
            consumer.seek(MessageQueue("T", "a", 9), 0)
        with pytest.raises(rmq.ConfigError, match="offset"):
            consumer.seek(ZERO, -1)
        with pytest.raises(rmq.InvalidType, match="MessageQueue"):
            consumer.seek("T", 0)  # type: ignore[arg-type]
        nursery.cancel_scope.cancel()


async def test_the_place_that_was_sought_is_committed(setting: World, clock: MockClock) -> None:
    fill(setting.cluster, 20)
    async with (
        setting.connect() as client,
        client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer,
    ):
        for _ in range(20):
            async with await anext(consumer):
                pass
        await trio.sleep(6)
        assert offsets(setting.cluster) == {0: 10, 1: 10}
        consumer.pause()
        consumer.seek(ONE, 3)
        await trio.sleep(6)
        assert offsets(setting.cluster) == {0: 10, 1: 3}


# --- what it is told of its queues ---


@KINDS
def test_a_consumer_is_told_of_its_queues(both: Play, cluster: Cluster, options: dict[str, Any]) -> None:
    async def scenario(world: World) -> None:
        told: list[rmq.Assigned] = []

        async def listen(change: rmq.Assigned) -> None:
            await anyio.sleep(0)
            told.append(change)

        async with world.connect() as one, world.connect() as two:
            async with one.consumer("g", {"T": "*"}, on_assignment=listen, **options) as first:
                assert told == [rmq.Assigned("g", (ZERO, ONE))]
                async with two.consumer("g", {"T": "*"}, on_assignment=told.append, **options):
                    await until(lambda: len(of_topic(first)) == 1 and len(told) == 3)
                    (mine,) = of_topic(first)
                    other = ({ZERO, ONE} - {mine}).pop()
                    assert rmq.Assigned("g", (), (other,)) in told
                    assert rmq.Assigned("g", (other,)) in told
                await until(lambda: len(told) == 5)
                assert told[3:] == [rmq.Assigned("g", (), (other,)), rmq.Assigned("g", (other,))]
            assert told[5:] == [rmq.Assigned("g", (), (ZERO, ONE))]

    both(scenario, cluster)


@KINDS
async def test_nothing_is_delivered_before_the_listener_has_said_where(
    setting: World, clock: MockClock, options: dict[str, Any]
) -> None:
    """Offsets that are kept elsewhere: the listener seeks, and no message from before is seen."""
    fill(setting.cluster, 20)
    handle = Gate()

    async def listen(change: rmq.Assigned) -> None:
        await trio.sleep(10)  # to look them up
        for queue in change.taken:
            consumer.seek(queue, 7)

    async with setting.connect() as client:
        consumer = client.consumer("g", {"T": "*"}, consume_from="first", on_assignment=listen, **options)
        async with consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            await trio.sleep(30)
            nursery.cancel_scope.cancel()
    assert sorted(handle.seen) == [14, 15, 16, 17, 18, 19]


async def test_that_holds_too_for_a_queue_that_comes_later(setting: World, clock: MockClock) -> None:
    handle = Gate()

    async def listen(change: rmq.Assigned) -> None:
        await trio.sleep(10)
        if change.taken != (ZERO, ONE):
            consumer.seek(change.taken[0], 2)

    async with setting.connect() as client:
        consumer = client.consumer("g", {"T": "*"}, consume_from="first", on_assignment=listen)
        async with consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            await setting.cluster.create_topic("T", 3)
            for number in range(4):
                setting.cluster["a"].put("T", 2, b"%d" % number)
            await trio.sleep(100)
            nursery.cancel_scope.cancel()
    assert handle.seen == [2, 3]


async def test_a_listener_may_pause_what_it_is_given(setting: World, clock: MockClock) -> None:
    fill(setting.cluster, 2)
    handle = Gate()
    async with setting.connect() as client:
        consumer = client.consumer(
            "g", {"T": "*"}, consume_from="first", on_assignment=lambda change: consumer.pause(ONE)
        )
        async with consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            await trio.sleep(30)
            assert handle.seen == [0]
            nursery.cancel_scope.cancel()


async def test_a_listener_that_fails_stops_nothing(
    setting: World, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    fill(setting.cluster, 2)
    handle = Gate()

    def listen(change: rmq.Assigned) -> None:
        raise RuntimeError("no database")

    async with (
        setting.connect() as client,
        client.consumer("g", {"T": "*"}, consume_from="first", on_assignment=listen) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(consumer.run, handle)
        await trio.sleep(1)
        assert sorted(handle.ended) == [0, 1]
        nursery.cancel_scope.cancel()
    assert "g: on_assignment failed" in caplog.messages


# --- draining ---


@KINDS
def test_draining_ends_what_runs_and_takes_nothing_new(
    both: Play, cluster: Cluster, options: dict[str, Any]
) -> None:
    async def scenario(world: World) -> None:
        fill(cluster, 20)
        handle = Gate()
        handle.held = {4, 5}
        ended: list[bool] = []
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
        ):

            async def serve() -> None:
                await consumer.run(handle, concurrency=2)
                ended.append(True)

            async def drain() -> None:
                assert await consumer.drain(60)
                assert cluster["a"].members("g") == []
                ended.append(True)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve)
                await until(lambda: {4, 5} <= set(handle.seen))
                seen = sorted(handle.seen)
                tasks.start_soon(drain)
                for _ in range(20):
                    await anyio.sleep(0.001)
                assert not ended
                assert cluster["a"].members("g") != [], "its queues stay its own meanwhile"
                handle.opened.set()
            assert len(ended) == 2
            assert [delivery async for delivery in consumer] == []
        assert sorted(handle.ended) == seen
        assert len(seen) < 20
        assert offsets(cluster) == {n: sum(number % 2 == n for number in seen) for n in (0, 1)}
        assert sent_back(cluster) == []

    both(scenario, cluster)


def test_draining_that_takes_too_long_cancels_handlers(both: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        fill(cluster, 2)
        handle = Gate()
        handle.held = {0}
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            await until(lambda: set(handle.seen) == {0, 1})
            assert not await consumer.drain(0.05)
        assert handle.ended == [1]
        assert offsets(cluster) == {0: 0, 1: 1}, "the message that was cancelled is another member's"

    both(scenario, cluster)


@pytest.mark.parametrize("by_app", [False, True])
def test_draining_does_not_wait_for_threads_past_its_time(
    in_memory: Play, cluster: Cluster, caplog: pytest.LogCaptureFixture, by_app: bool
) -> None:
    """An ordinary function cannot be cancelled; the drain ends all the same, and the message comes again."""
    began, release = threading.Event(), threading.Event()

    def handle(message: StoredMessage) -> None:
        began.set()
        release.wait(60)

    async def scenario(world: World) -> None:
        fill(cluster, 1, queues=1)
        try:
            if by_app:
                app = rmq.App(drain=0.05)
                app.consumer("T", group="g", consume_from="first")(handle)
                async with app.using(world.connect()):
                    await anyio.to_thread.run_sync(began.wait, 60)
            else:
                async with (
                    world.connect() as client,
                    client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
                    anyio.create_task_group() as tasks,
                ):
                    tasks.start_soon(consumer.run, handle)
                    await anyio.to_thread.run_sync(began.wait, 60)
                    assert not await consumer.drain(0.05)
            assert not release.is_set(), "nobody has waited for it"
            assert offsets(cluster).get(0, 0) == 0
        finally:
            release.set()

    in_memory(scenario, cluster)
    assert "g: handlers still running in threads after 0.05 s: 1" in caplog.text


async def test_draining_waits_as_long_as_the_setting_says(setting: World, clock: MockClock) -> None:
    fill(setting.cluster, 1)
    handle = Gate()
    handle.held = {0}
    async with (
        setting.connect(drain_timeout_ms=42_000) as client,
        client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(consumer.run, handle)
        await trio.sleep(1)
        began = trio.current_time()
        assert not await consumer.drain()
        assert trio.current_time() - began == pytest.approx(42, abs=0.1)
        assert await consumer.drain(), "there is nothing more"


async def test_what_ends_while_it_drains_is_committed_at_once(setting: World, clock: MockClock) -> None:
    """A consumer that is killed in the middle repeats only messages that had not ended."""
    fill(setting.cluster, 2)
    handle = Gate()
    handle.held = {0}
    async with (
        setting.connect(commit_interval_ms=5000) as client,
        client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(consumer.run, handle)
        await trio.sleep(1)
        nursery.start_soon(consumer.drain, 3600)
        await trio.sleep(6)
        assert offsets(setting.cluster) == {0: 0, 1: 1}
        handle.opened.set()


async def test_a_drain_that_is_cancelled_leaves_with_the_block(setting: World, clock: MockClock) -> None:
    fill(setting.cluster, 1)
    async with setting.connect() as client:
        async with client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer:
            delivery = await anext(consumer)
            async with delivery:
                with trio.move_on_after(3):
                    await consumer.drain(3600)
            assert setting.cluster["a"].members("g") != []
        assert setting.cluster["a"].members("g") == []
    assert offsets(setting.cluster) == {0: 1, 1: 0}


# --- how much it holds ---


def held(consumer: Consumer) -> int:
    return sum(puller.window.bytes for puller in consumer._member.assignments.pullers.values())


@pytest.mark.parametrize(("queues", "size"), [(4, 60_000), (64, 60_000), (4, 1_500_000)])
async def test_one_slow_handler_holds_what_the_setting_says(clock: MockClock, queues: int, size: int) -> None:
    cluster = Cluster("a", topics={"T": queues}, store={"mapped_file_size_commit_log": 1 << 26})
    total = 16 << 20
    async with cluster, cluster.connect(total_max_bytes=total, queue_max_span=100_000) as client:
        for number in range(24_000_000 // size):
            cluster["a"].put("T", number % queues, bytes(size))
        async with client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer:
            async with await anext(consumer):
                await trio.sleep(60)
                most = total + (queues * size if size > 1 << 20 else 0)
                assert total * 0.7 < held(consumer) <= most
            count = 1
            async for delivery in consumer:
                async with delivery:
                    assert held(consumer) <= most
                count += 1
                if count == 24_000_000 // size:
                    break


def test_the_default_is_64_mib() -> None:
    assert rmq.ClientConfig().total_max_bytes == 64 << 20


async def test_a_share_of_less_than_one_message_still_gets_on(setting: World, clock: MockClock) -> None:
    fill(setting.cluster, 40)
    async with (
        setting.connect(total_max_bytes=1) as client,
        client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer,
    ):
        with trio.fail_after(100):
            for _ in range(40):
                async with await anext(consumer):
                    pass


def test_what_the_listener_is_must_be_a_function(both: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client:
            with pytest.raises(rmq.InvalidType, match="on_assignment"):
                client.consumer("g", {"T": "*"}, on_assignment="print")  # type: ignore[arg-type]

    both(scenario, cluster)


async def test_a_lock_that_is_lost_is_told(
    setting: World, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    told: list[rmq.Assigned] = []
    async with (
        setting.connect(lock_interval_ms=1000) as client,
        client.consumer("g", {"T": "*"}, ordered=True, on_assignment=told.append),
    ):
        (holder,) = setting.cluster["a"].members("g")
        setting.cluster["a"].unlock("g", holder, ONE)
        assert setting.cluster["a"].lock("g", "other", ONE)
        await trio.sleep(100.5)  # the locks are not renewed at the very moment of the end
    assert told == [
        rmq.Assigned("g", (ZERO, ONE)),
        rmq.Assigned("g", (), (ONE,)),
        rmq.Assigned("g", (ONE,)),
        rmq.Assigned("g", (), (ZERO, ONE)),
    ]


@KINDS
@pytest.mark.parametrize("use", ["run", "run_batches", "iterate", "lag"])
def test_a_consumer_that_was_never_opened_says_so(
    in_memory: Play, cluster: Cluster, options: dict[str, Any], use: str
) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client:
            consumer = client.consumer("g", {"T": "*"}, **options)
            uses = {
                "run": lambda: consumer.run(lambda message: None),
                "run_batches": lambda: consumer.run_batches(lambda messages: None),
                "iterate": consumer.__anext__,
                "lag": consumer.lag,
            }
            with pytest.raises(rmq.LocalProtocolError, match="the consumer of g is not open"):
                await uses[use]()

    in_memory(scenario, cluster)
