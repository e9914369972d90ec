"""Ordered consumption: one message of a queue at a time, under its lock, whatever comes between."""

from __future__ import annotations

import anyio
import trio
from trio.testing import MockClock

import rmq
from rmq.client.consume.consumer import Consumer
from rmq.message import StoredMessage
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.properties import decode_properties
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster
from rmq.testing.front import HANG

from ...conftest import Play
from ...world import World
from ..consuming import fill, offsets, sent_back, take
from .orders import Order, handling, locked


async def settle(consumer: Consumer, order: Order, count: int) -> None:
    """Run until so many messages have been handled."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.run, order)
            while sum(map(len, order.seen.values())) < count:
                await anyio.sleep(0.001)
            scope.cancel()


def buried(request: Command, _: Connection) -> Command:
    """The answer to a send that the broker makes a dead letter of."""
    return request.reply(header={"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"})


class TestOrder:
    def test_one_message_of_a_queue_at_a_time(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            fill(cluster, 40)
            order = Order(0.001)
            async with (
                world.connect(client_id="me") as client,
                client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            ):
                await settle(consumer, order, 40)
                assert {number: locked(cluster)[number] for number in (0, 1)} == {0: "me", 1: "me"}
            assert order.seen == {0: list(range(0, 40, 2)), 1: list(range(1, 40, 2))}
            assert order.overlaps == 0
            assert order.most == 2
            assert offsets(cluster) == {0: 20, 1: 20}
            assert locked(cluster) == {}

        both(scenario, cluster)

    def test_a_handler_and_a_loop_see_the_same_order(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            fill(cluster, 10, queues=1)
            async with (
                world.connect() as client,
                client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            ):
                assert await take(consumer, 10) == [b"%d" % number for number in range(10)]

        both(scenario, cluster)

    def test_batches_are_of_one_queue(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            fill(cluster, 40)
            batches: list[list[tuple[int, int]]] = []

            async def handle(messages: list[StoredMessage]) -> None:
                if len(batches) == 1:
                    batches.append([])
                    raise ValueError("the second batch fails once")
                batches.append([(message.queue_id, int(message.body)) for message in messages])
                if sum(map(len, batches)) >= 40:
                    scope.cancel()

            async with (
                world.connect(suspend_queue_ms=10) as client,
                client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            ):
                with anyio.CancelScope() as scope:
                    await consumer.run_batches(handle, batch=8, concurrency=2)
            assert all(len({queue for queue, _ in batch}) == 1 for batch in batches if batch)
            assert max(map(len, batches)) == 8
            numbers = [entry for batch in batches for entry in batch]
            assert [n for q, n in numbers if q == 0] == list(range(0, 40, 2))
            assert [n for q, n in numbers if q == 1] == list(range(1, 40, 2))

        both(scenario, cluster)


class TestFailures:
    async def test_a_batch_cancelled_on_its_way_to_the_dead_letters_comes_again_in_order(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        def stored(request: Command, _: Connection) -> Command:
            return request.reply(header={"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"})

        fill(cluster, 5, queues=1)
        cluster["a"].script(RequestCode.SEND_MESSAGE_V2, stored, HANG)

        async def handle(messages: list[StoredMessage]) -> None:
            raise rmq.Retry("the whole batch is dead", delay_level=-1)

        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
        ):
            with trio.move_on_after(0.5):
                await consumer.run_batches(handle)
            with trio.fail_after(10):
                assert await take(consumer, 4) == [b"1", b"2", b"3", b"4"]
        assert offsets(cluster)[0] == 5

    async def test_what_fails_holds_up_its_queue_only(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 8)
        order = Order(0.0)
        order.failing = {2: 3}
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            trio.open_nursery() as nursery,
        ):
            began = trio.current_time()
            nursery.start_soon(consumer.run, order)
            await trio.sleep(2.9)
            assert order.seen == {0: [0], 1: [1, 3, 5, 7]}
            await trio.sleep(0.2)
            assert order.seen[0] == [0, 2, 4, 6]
            assert trio.current_time() - began < 3.2
            nursery.cancel_scope.cancel()
        assert sent_back(cluster) == []

    async def test_queues_that_failed_together_go_on_however_late_the_clock_is(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 4)
        order = Order(0.0)
        order.failing = {0: 1, 1: 1}
        async with handling(setting, order):
            await trio.sleep(0.5)
            clock.jump(5)  # both were due at 1 s
            await trio.sleep(0.1)
            assert order.seen == {0: [0, 2], 1: [1, 3]}

    async def test_the_times_are_counted(self, setting: World, clock: MockClock, cluster: Cluster) -> None:
        fill(cluster, 1)
        times = []
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
        ):
            async for delivery in consumer:
                async with delivery as message:
                    times.append(message.reconsume_times)
                    if len(times) < 4:
                        raise ValueError("again")
                if len(times) == 4:
                    break
        assert times == [0, 1, 2, 3]

    async def test_after_the_last_time_it_is_a_dead_letter(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 3, queues=1)
        order = Order(0.0)
        order.failing = {1: 1000}
        cluster["a"].script(RequestCode.SEND_MESSAGE_V2, buried)
        async with (
            setting.connect() as client,
            client.consumer(
                "g", {"T": "*"}, consume_from="first", ordered=True, max_reconsume_times=2
            ) as consumer,
        ):
            await settle(consumer, order, 2)
        assert order.failing == {1: 997}
        assert order.seen == {0: [0, 2]}
        sent = [r for r in cluster["a"].seen if r.code == RequestCode.SEND_MESSAGE_V2]
        assert [(r.ext["b"], r.ext["j"], r.ext["l"], r.body) for r in sent] == [("%RETRY%g", "2", "2", b"1")]
        properties = decode_properties(sent[0].ext["i"])
        assert properties["RETRY_TOPIC"] == "T"
        assert properties["ORIGIN_MESSAGE_ID"] == "ID1"

    async def test_a_dead_letter_that_is_refused_is_tried_again(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 2, queues=1)
        cluster["a"].script(RequestCode.SEND_MESSAGE_V2, 1, buried)
        order = Order(0.0)
        order.failing = {0: 1000}
        async with (
            setting.connect() as client,
            client.consumer(
                "g", {"T": "*"}, consume_from="first", ordered=True, max_reconsume_times=0
            ) as consumer,
        ):
            await settle(consumer, order, 1)
        assert order.failing == {0: 998}
        assert order.seen == {0: [1]}

    async def test_a_cancelled_message_comes_again_first(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 3, queues=1)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
        ):
            with trio.move_on_after(1):
                async for delivery in consumer:
                    async with delivery:
                        await trio.sleep_forever()
            assert await take(consumer, 3) == [b"0", b"1", b"2"]
