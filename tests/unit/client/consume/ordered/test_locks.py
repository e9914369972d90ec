"""Locks of ordered consumers: whose turn it is, and when a lock is relied on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from trio.testing import MockClock

from rmq.client.client import Client
from rmq.client.consume.deliveries.delivery import Delivery
from rmq.message import MessageQueue
from rmq.protocol.bodies import UnlockBatchRequestBody
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster
from rmq.testing.front import HANG, BrokerFront

from ...world import World
from ..consuming import fill, offsets
from .orders import Order, handling, locked

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ


def steal(cluster: Cluster, queue: MessageQueue) -> None:
    """Have another client of the group lock a queue that is locked."""
    for client_id in cluster["a"].members("g"):
        cluster["a"].unlock("g", client_id, queue)
    assert cluster["a"].lock("g", "other", queue)


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


def answers_after(broker: BrokerFront, seconds: float) -> Callable[[Command, Connection], Command | None]:
    """An answer for a script: none for the next `seconds`, then the broker's."""
    end = trio.current_time() + seconds
    return lambda request, connection: (
        broker.answer(request, connection) if trio.current_time() >= end else None
    )


async def join(
    client: Client, options: dict[str, Any], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Be another member until cancelled."""
    async with client.consumer("g", {"T": "*"}, **options):
        task_status.started()
        await trio.sleep_forever()


class TestLocks:
    async def test_a_queue_that_others_have_locked_waits_for_its_turn(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 2)
        cluster["a"].lock("g", "other", MessageQueue("T", "a", 0))
        order = Order(0.0)
        async with handling(setting, order):
            await trio.sleep(59)
            assert order.seen == {1: [1]}
            await trio.sleep(22)
            assert order.seen == {0: [0], 1: [1]}

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
        async with handling(setting, order):
            for number in range(4):
                await trio.sleep(1)
                cluster["a"].put("T", 0, b"%d" % number)
            await trio.sleep(30)
        assert (order.seen, order.overlaps) == ({0: [0, 1, 2, 3]}, 0)

    async def test_a_lock_that_is_not_renewed_is_not_relied_on(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        order, broker = Order(0.0), cluster["a"]
        late = answers_after(broker, 38)

        async with handling(setting, order, lock_interval_ms=20_000):
            await trio.sleep(1)
            broker.script(LOCK, *[late] * 100)
            await trio.sleep(35)
            cluster["a"].put("T", 0, b"7")
            await trio.sleep(0.5)
            assert order.seen == {}
            await trio.sleep(5)
            assert order.seen == {0: [7]}

    async def test_a_lock_that_is_lost_begins_anew_where_the_others_have_come_to(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 10, queues=1)
        order = Order(9.0)
        queue = MessageQueue("T", "a", 0)
        async with handling(setting, order):
            await trio.sleep(15)
            steal(cluster, queue)
            await trio.sleep(10)
            cluster["a"].commit("g", "T", 0, 8)
            await trio.sleep(10)
            assert order.seen == {0: [0, 1, 2]}  # the third had begun when the lock was found lost
            cluster["a"].unlock("g", "other", queue)
            await trio.sleep(60)
            assert order.seen == {0: [0, 1, 2, 8, 9]}
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
        """Otherwise the next member would begin at the position of some seconds ago, and the order would be
        lost."""
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
        late = answers_after(broker, 75)

        async with handling(setting, order, lock_interval_ms=20_000):
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

    async def test_a_lock_that_a_restarted_broker_has_forgotten_counts_as_lost(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 10, queues=1)
        order, broker = Order(12.0), cluster["a"]
        async with handling(setting, order, lock_interval_ms=20_000):
            await trio.sleep(15)
            await cluster.stop("a")
            await cluster.start("a")
            broker.commit("g", "T", 0, 8)  # another member had the queue for a moment
            await trio.sleep(80)
            assert order.seen == {0: [0, 1, 8, 9]}

    async def test_a_lock_that_nobody_else_can_have_had_is_gone_on_with(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        """The lock was not renewed for 40 s: the member does not rely on it in this time, but the broker kept
        it."""
        fill(cluster, 6, queues=1)
        order, broker = Order(11.0), cluster["a"]
        late = answers_after(broker, 40)

        async with handling(setting, order, lock_interval_ms=20_000):
            await trio.sleep(15)
            broker.script(LOCK, *[late] * 20)
            await trio.sleep(42)  # to 57 s: between the ends of two messages
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

            async with handling(setting, order, lock_interval_ms=20_000, request_timeout_ms=60_000):
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

    async def test_a_lost_queue_that_comes_back_waits_for_its_own_message(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        fill(cluster, 2, queues=1)
        order, queue = Order(30.0), MessageQueue("T", "a", 0)
        async with handling(setting, order, lock_interval_ms=10_000):
            await trio.sleep(5)
            steal(cluster, queue)
            await trio.sleep(10)
            cluster["a"].unlock("g", "other", queue)
            await trio.sleep(100)
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
        async with handling(setting, order) as consumer:
            await trio.sleep(2.5)
            consumer._member.reset_offsets("T", {MessageQueue("T", "a", 0): 1})
            await trio.sleep(6)
            assert order.seen == {0: [0, 1, 2, 1, 2, 3, 4, 5]}

    async def test_administrators_see_it(self, setting: World, clock: MockClock, cluster: Cluster) -> None:
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, ordered=True) as consumer,
        ):
            info = consumer._member.running_info()
            assert info.properties["PROP_CONSUMEORDERLY"] == "true"
            assert all(entry.locked for entry in info.mq_table.values())
