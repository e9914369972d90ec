"""Ordered consumption: one message of a queue at a time, under its lock, whatever comes between."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import anyio
import trio
from trio.testing import MockClock

import rmq
from rmq.client.client import Client
from rmq.client.consume.consumer import Consumer
from rmq.client.consume.delivery import Delivery
from rmq.message import MessageQueue, StoredMessage
from rmq.protocol.bodies import UnlockBatchRequestBody
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.properties import decode_properties
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster
from rmq.testing.front import HANG

from ..conftest import Play
from ..world import World
from .test_consumer import fill, offsets, sent_back, take

CLIENTS = ("me", "1", "2")
LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ


class Order:
    """A handler that checks that no two messages of a queue are there at once, and notes all. Where locks are
    renewed meanwhile, `seconds` is such that no message ends at the moment when a lock does.
    """

    def __init__(self, seconds: float = 0.01) -> None:
        self.seconds = seconds
        self.seen: dict[int, list[int]] = defaultdict(list)
        self.running: set[int] = set()
        self.most = 0
        self.failing: dict[int, int] = {}
        self.overlaps = 0

    async def __call__(self, message: StoredMessage) -> None:
        queue, number = message.queue_id, int(message.body)
        self.overlaps += queue in self.running
        self.running.add(queue)
        self.most = max(self.most, len(self.running))
        try:
            await anyio.sleep(self.seconds)
            if self.failing.get(number, 0):
                self.failing[number] -= 1
                raise ValueError("not yet")
            self.seen[queue].append(number)
        finally:
            self.running.discard(queue)


def locked(cluster: Cluster, group: str = "g") -> dict[int, str]:
    """Queue of T -> the client that has locked it."""
    held = {n: cluster["a"].holder(group, MessageQueue("T", "a", n), CLIENTS) for n in (0, 1)}
    return {number: client_id for number, client_id in held.items() if client_id is not None}


def steal(cluster: Cluster, queue: MessageQueue) -> None:
    """Have another client of the group lock a queue that is locked."""
    for client_id in cluster["a"].members("g"):
        cluster["a"].unlock("g", client_id, queue)
    assert cluster["a"].lock("g", "other", queue)


async def settle(consumer: Consumer, order: Order, count: int) -> None:
    """Run until so many messages have been handled."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.run, order)
            while sum(map(len, order.seen.values())) < count:
                await anyio.sleep(0.001)
            scope.cancel()


def note_unlocks(cluster: Cluster) -> list[tuple[str, int, int]]:
    """(who, queue, offset that is committed) of each unlock that comes."""
    noted: list[tuple[str, int, int]] = []
    broker = cluster["a"]

    def unlock(request: Command, connection: Connection) -> Command | None:
        body = UnlockBatchRequestBody.from_json(request.body)
        for queue in sorted(body.mq_set):
            if queue.topic == "T":
                noted.append((body.client_id, queue.queue_id, broker.offsets("g", "T")[queue.queue_id]))
        return broker.answer(request, connection)

    broker.script(UNLOCK, *[unlock] * 20)
    return noted


async def join(
    client: Client, options: dict[str, Any], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Be another member until cancelled."""
    async with client.consumer("g", {"T": "*"}, **options):
        task_status.started()
        await trio.sleep_forever()


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
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, order)
            await trio.sleep(0.5)
            clock.jump(5)  # both were due at 1 s
            await trio.sleep(0.1)
            assert order.seen == {0: [0, 2], 1: [1, 3]}
            nursery.cancel_scope.cancel()

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


class TestLocks:
    async def test_a_queue_that_others_have_locked_waits_for_its_turn(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 2)
        cluster["a"].lock("g", "other", MessageQueue("T", "a", 0))
        order = Order(0.0)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, order)
            await trio.sleep(59)
            assert order.seen == {1: [1]}
            await trio.sleep(22)
            assert order.seen == {0: [0], 1: [1]}
            nursery.cancel_scope.cancel()

    async def test_the_next_member_begins_when_the_last_message_has_ended(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 12)
        order = Order(7.0)
        async with setting.connect(client_id="1") as one, setting.connect(client_id="2") as two:
            options = {"consume_from": "first", "ordered": True}
            async with trio.open_nursery() as nursery:
                first = one.consumer("g", {"T": "*"}, **options)  # type: ignore[arg-type]
                second = two.consumer("g", {"T": "*"}, **options)  # type: ignore[arg-type]
                async with first:
                    nursery.start_soon(first.run, order)
                    await trio.sleep(10)
                    async with second:
                        nursery.start_soon(second.run, order)
                        await trio.sleep(0.1)
                        assert locked(cluster) == {0: "1", 1: "1"}  # its message goes on
                        await trio.sleep(10)
                        assert (first.queues, second.queues) == (
                            [MessageQueue("%RETRY%g", "a", 0), MessageQueue("T", "a", 0)],
                            [MessageQueue("T", "a", 1)],
                        )
                        assert locked(cluster)[1] == "2"
                        await trio.sleep(60)
                        nursery.cancel_scope.cancel()
        assert order.seen == {0: [0, 2, 4, 6, 8, 10], 1: [1, 3, 5, 7, 9, 11]}
        assert order.overlaps == 0

    async def test_a_queue_that_comes_back_waits_for_its_own_message(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 4)
        order = Order(30.0)
        async with setting.connect(client_id="1") as one, setting.connect(client_id="2") as two:
            first = one.consumer("g", {"T": "*"}, consume_from="first", ordered=True)
            async with first, trio.open_nursery() as nursery:
                nursery.start_soon(first.run, order)
                await trio.sleep(5)
                async with two.consumer("g", {"T": "*"}, consume_from="first", ordered=True):
                    await trio.sleep(5)
                await trio.sleep(100)
                nursery.cancel_scope.cancel()
        assert order.overlaps == 0
        assert order.seen == {0: [0, 2], 1: [1, 3]}

    async def test_what_comes_meanwhile_waits(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        order = Order(5.0)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, order)
            for number in range(4):
                await trio.sleep(1)
                cluster["a"].put("T", 0, b"%d" % number)
            await trio.sleep(30)
            nursery.cancel_scope.cancel()
        assert (order.seen, order.overlaps) == ({0: [0, 1, 2, 3]}, 0)

    async def test_a_lock_that_is_not_renewed_is_not_relied_on(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        order, broker = Order(0.0), cluster["a"]
        began = trio.current_time()

        def late(request: Command, connection: Connection) -> Command | None:
            return broker.answer(request, connection) if trio.current_time() >= began + 38 else None

        async with (
            setting.connect(lock_interval_ms=20_000) as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, order)
            await trio.sleep(1)
            broker.script(LOCK, *[late] * 100)
            await trio.sleep(35)
            cluster["a"].put("T", 0, b"7")
            await trio.sleep(0.5)
            assert order.seen == {}
            await trio.sleep(5)
            assert order.seen == {0: [7]}
            nursery.cancel_scope.cancel()

    async def test_a_lock_that_is_lost_begins_anew_where_the_others_have_come_to(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 10, queues=1)
        order = Order(9.0)
        queue = MessageQueue("T", "a", 0)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, order)
            await trio.sleep(15)
            steal(cluster, queue)
            await trio.sleep(10)
            cluster["a"].commit("g", "T", 0, 8)
            await trio.sleep(10)
            assert order.seen == {0: [0, 1, 2]}  # the third had begun when the lock was found lost
            cluster["a"].unlock("g", "other", queue)
            await trio.sleep(60)
            assert order.seen == {0: [0, 1, 2, 8, 9]}
            nursery.cancel_scope.cancel()
        assert offsets(cluster) == {0: 10, 1: 0}

    async def test_a_lock_that_is_lost_while_the_members_are_asked_for_ends_nothing(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        """The other member's share has the queue that was given up meanwhile."""
        fill(cluster, 12)
        order, broker = Order(0.7), cluster["a"]
        options = {"consume_from": "first", "ordered": True}
        async with (
            setting.connect(client_id="1", lock_interval_ms=20_000) as one,
            setting.connect(client_id="2") as two,
            one.consumer("g", {"T": "*"}, **options) as first,  # type: ignore[arg-type]
            trio.open_nursery() as nursery,
        ):

            async def answer(request: Command, connection: Connection) -> None:
                await trio.sleep(2.5)
                response = broker.answer(request, connection)
                assert response is not None
                connection.reply(response)

            def late(request: Command, connection: Connection) -> None:
                nursery.start_soon(answer, request, connection)

            nursery.start_soon(first.run, order)
            await trio.sleep(18)
            broker.script(RequestCode.GET_CONSUMER_LIST_BY_GROUP, late, late)
            nursery.start_soon(join, two, options)
            await trio.sleep(1)
            steal(cluster, MessageQueue("T", "a", 1))
            await trio.sleep(10)
            broker.unlock("g", "other", MessageQueue("T", "a", 1))
            await trio.sleep(60)
            assert locked(cluster) == {0: "1", 1: "2"}
            assert len(order.seen[0]) == 6
            nursery.cancel_scope.cancel()

    async def test_a_queue_is_committed_before_it_is_unlocked(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        """Else the next member begins where this one was some seconds ago, and the order is lost."""
        fill(cluster, 12)
        order = Order(7.0)
        at_unlock = note_unlocks(cluster)
        options = {"consume_from": "first", "ordered": True}
        async with (
            setting.connect(client_id="1") as one,
            setting.connect(client_id="2") as two,
            one.consumer("g", {"T": "*"}, **options) as first,  # type: ignore[arg-type]
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(first.run, order)
            await trio.sleep(10)
            async with two.consumer("g", {"T": "*"}, **options):  # type: ignore[arg-type]
                await trio.sleep(10)
                assert at_unlock == [("1", 1, 2)]
            nursery.cancel_scope.cancel()

    async def test_leaving_commits_a_queue_that_is_being_given_up_before_it_is_unlocked(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 4)
        at_unlock = note_unlocks(cluster)
        options = {"consume_from": "first", "ordered": True}

        async def hold(delivery: Delivery) -> None:
            with trio.CancelScope(shield=True):
                async with delivery:
                    await trio.sleep(10)

        async with (
            setting.connect(client_id="1", shutdown_timeout_ms=60_000) as one,
            setting.connect(client_id="2") as two,
            trio.open_nursery() as nursery,
        ):
            async with one.consumer("g", {"T": "*"}, **options) as first:  # type: ignore[arg-type]
                for _ in range(2):
                    nursery.start_soon(hold, await anext(first))
                await trio.sleep(1)
                await nursery.start(join, two, options)
                await trio.sleep(1)  # queue 1 is being given up: its message goes on
            assert ("1", 1, 1) in at_unlock
            nursery.cancel_scope.cancel()

    async def test_a_lock_that_was_lost_and_won_back_begins_where_the_others_have_come_to(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 10, queues=1)
        order, broker, queue = Order(11.0), cluster["a"], MessageQueue("T", "a", 0)
        began = trio.current_time()

        def late(request: Command, connection: Connection) -> Command | None:
            return broker.answer(request, connection) if trio.current_time() >= began + 75 else None

        async with (
            setting.connect(lock_interval_ms=20_000) as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, order)
            await trio.sleep(15)
            broker.script(LOCK, *[late] * 100)
            await trio.sleep(47)
            assert order.seen == {0: [0, 1, 2]}  # the lock is not relied on after 30 s
            steal(cluster, queue)
            await trio.sleep(5)
            broker.commit("g", "T", 0, 8)
            broker.unlock("g", "other", queue)
            await trio.sleep(60)
            assert order.seen == {0: [0, 1, 2, 8, 9]}
            nursery.cancel_scope.cancel()

    async def test_a_lock_that_a_restarted_broker_has_forgotten_counts_as_lost(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 10, queues=1)
        order, broker = Order(12.0), cluster["a"]
        async with (
            setting.connect(lock_interval_ms=20_000) as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, order)
            await trio.sleep(15)
            await cluster.stop("a")
            await cluster.start("a")
            broker.commit("g", "T", 0, 8)  # another member had the queue for a moment
            await trio.sleep(80)
            assert order.seen == {0: [0, 1, 8, 9]}
            nursery.cancel_scope.cancel()

    async def test_a_lock_that_nobody_else_can_have_had_is_gone_on_with(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        """Not renewed for 40 s: not relied on meanwhile, but the broker kept it."""
        fill(cluster, 6, queues=1)
        order, broker = Order(11.0), cluster["a"]
        began = trio.current_time()

        def late(request: Command, connection: Connection) -> Command | None:
            return broker.answer(request, connection) if trio.current_time() >= began + 40 else None

        async with (
            setting.connect(lock_interval_ms=20_000) as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, order)
            await trio.sleep(15)
            broker.script(LOCK, *[late] * 20)
            await trio.sleep(42)  # to 57 s: between the ends of two messages
            nursery.cancel_scope.cancel()
        assert order.seen == {0: [0, 1, 2, 3]}

    async def test_a_lock_is_relied_on_from_when_it_was_asked_for(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        order, broker = Order(0.0), cluster["a"]
        async with trio.open_nursery() as answering:

            def slow(request: Command, connection: Connection) -> None:
                async def answer() -> None:
                    response = broker.answer(request, connection)
                    assert response is not None
                    await trio.sleep(25)
                    connection.reply(response)

                answering.start_soon(answer)

            async with (
                setting.connect(lock_interval_ms=20_000, request_timeout_ms=60_000) as client,
                client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(consumer.run, order)
                await trio.sleep(1)
                broker.script(LOCK, slow, *[HANG] * 20)
                await trio.sleep(47)  # the answer came 3 s ago
                broker.put("T", 0, b"1")
                await trio.sleep(0.5)
                assert order.seen == {0: [1]}
                await trio.sleep(8)
                broker.put("T", 0, b"2")
                await trio.sleep(0.5)
                assert order.seen == {0: [1]}
                nursery.cancel_scope.cancel()

    async def test_a_lost_queue_that_comes_back_waits_for_its_own_message(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 2, queues=1)
        order, queue = Order(30.0), MessageQueue("T", "a", 0)
        async with (
            setting.connect(lock_interval_ms=10_000) as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, order)
            await trio.sleep(5)
            steal(cluster, queue)
            await trio.sleep(10)
            cluster["a"].unlock("g", "other", queue)
            await trio.sleep(100)
            nursery.cancel_scope.cancel()
        assert (order.overlaps, order.seen) == (0, {0: [0, 0, 1]})

    async def test_a_queue_is_not_given_up_while_a_message_from_before_a_reset_goes_on(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 4)
        order = Order(30.0)
        options = {"consume_from": "first", "ordered": True}
        async with (
            setting.connect(client_id="1") as one,
            setting.connect(client_id="2") as two,
            one.consumer("g", {"T": "*"}, **options) as first,  # type: ignore[arg-type]
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(first.run, order)
            await trio.sleep(5)
            first._member.reset_offsets("T", {MessageQueue("T", "a", 1): 0})
            await trio.sleep(1)
            async with two.consumer("g", {"T": "*"}, **options) as second:  # type: ignore[arg-type]
                nursery.start_soon(second.run, order)
                await trio.sleep(10)
                assert locked(cluster)[1] == "1"
                await trio.sleep(30)
                assert locked(cluster)[1] == "2"
                nursery.cancel_scope.cancel()
        assert order.overlaps == 0

    async def test_leaving_with_a_message_in_hand_keeps_its_lock(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 2)
        async with setting.connect(client_id="me") as client, trio.open_nursery() as nursery:
            async with client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer:

                async def hold() -> None:
                    async for delivery in consumer:
                        async with delivery:
                            with trio.CancelScope(shield=True):
                                await trio.sleep(30)

                nursery.start_soon(hold)
                await trio.sleep(1)
            assert list(locked(cluster).values()) == ["me"]
            nursery.cancel_scope.cancel()

    async def test_an_offset_reset_waits_for_the_message_in_hand(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 6, queues=1)
        order = Order(1.0)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, order)
            await trio.sleep(2.5)
            consumer._member.reset_offsets("T", {MessageQueue("T", "a", 0): 1})
            await trio.sleep(6)
            assert order.seen == {0: [0, 1, 2, 1, 2, 3, 4, 5]}
            nursery.cancel_scope.cancel()

    async def test_administrators_see_it(self, setting: World, clock: MockClock, cluster: Cluster) -> None:
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, ordered=True) as consumer,
        ):
            info = consumer._member.running_info()
            assert info.properties["PROP_CONSUMEORDERLY"] == "true"
            assert all(entry.locked for entry in info.mq_table.values())
