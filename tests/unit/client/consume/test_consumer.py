"""Consuming: who gets which queues, what is delivered and when, what is committed, and how one leaves."""

from __future__ import annotations

import threading

import anyio
import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.client.consume.consumer import Consumer
from rmq.client.consume.deliveries.delivery import Delivery
from rmq.errors import ConfigError, SubscriptionParseFailed
from rmq.message import MessageQueue, StoredMessage
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.testing.cluster import Cluster
from rmq.testing.front import HANG
from tests.unit.client.consume.consuming import of_topic, until

from ..conftest import Play
from ..world import World, world
from .consuming import COMMIT, fill, offsets, sent_back, take

LIST = RequestCode.GET_CONSUMER_LIST_BY_GROUP


LEAVE = RequestCode.UNREGISTER_CLIENT


class TestBothLoops:
    def test_a_backlog_is_consumed_and_committed(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            fill(cluster, 100)
            async with (
                world.connect() as client,
                client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            ):
                bodies = await take(consumer, 100)
            assert sorted(map(int, bodies)) == list(range(100))
            assert offsets(cluster) == {0: 50, 1: 50}
            assert not cluster["a"].members("g")

        both(scenario, cluster)

    async def test_what_a_cancelled_handler_had_comes_again(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        async def handle(message: StoredMessage) -> None:
            await trio.sleep(60)

        fill(cluster, 1, queues=1)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with trio.move_on_after(5):
                await consumer.run(handle)
            with trio.fail_after(60):
                assert await take(consumer, 1) == [b"0"]
        assert offsets(cluster)[0] == 1

    async def test_retries_of_a_group_that_is_new_here_are_consumed_from_their_start(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        """Retries are the group's own messages, independent of the place at which it begins with its
        topics."""
        await cluster.create_topic("%RETRY%g", 1)
        cluster["a"].put("T", 0, b"old")
        cluster["a"].put("%RETRY%g", 0, b"again", "RETRY_TOPIC\x01T")
        unknown = [ResponseCode.QUERY_NOT_FOUND] * 9
        cluster["a"].script(RequestCode.QUERY_CONSUMER_OFFSET, *unknown)
        async with setting.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
            with trio.fail_after(60):
                assert await take(consumer, 1) == [b"again"]

    async def test_routes_are_looked_at_when_pulls_fail(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        route = RequestCode.GET_ROUTEINFO_BY_TOPIC
        async with setting.connect() as client, client.consumer("g", {"T": "*"}):
            await trio.sleep(1)
            before = cluster.name_servers[0].count(route)
            cluster["a"].script(RequestCode.PULL_MESSAGE, *[ResponseCode.SYSTEM_ERROR] * 4)
            cluster["a"].put("T", 0, b"x")
            cluster["a"].put("T", 1, b"x")
            await trio.sleep(5)
            assert cluster.name_servers[0].count(route) > before

    def test_new_messages_come_as_they_are_stored(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            async with world.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
                for number in range(5):
                    cluster["a"].put("T", number % 2, b"%d" % number)
                    assert await take(consumer, 1) == [b"%d" % number]

        both(scenario, cluster)

    def test_many_are_handled_at_once(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            fill(cluster, 40)
            running, most, done = 0, 0, 0

            async def handle(message: StoredMessage) -> None:
                nonlocal running, most, done
                running += 1
                most = max(most, running)
                await anyio.sleep(0.01)
                running -= 1
                done += 1
                if done == 40:
                    scope.cancel()

            async with (
                world.connect() as client,
                client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            ):
                with anyio.CancelScope() as scope:
                    await consumer.run(handle, concurrency=10)
            assert most == 10

        both(scenario, cluster)

    def test_what_fails_is_delivered_again(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            fill(cluster, 4)
            seen = []

            async def handle(message: StoredMessage) -> None:
                seen.append((message.body, message.topic, message.reconsume_times))
                if message.body == b"2" and message.reconsume_times < 2:
                    raise ValueError("not yet")
                if len(seen) == 6:
                    scope.cancel()

            async with (
                world.connect() as client,
                client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            ):
                with anyio.CancelScope() as scope:
                    await consumer.run(handle)
            assert [entry for entry in seen if entry[0] == b"2"] == [(b"2", "T", n) for n in range(3)]
            (first, second) = sent_back(cluster)
            assert (first.origin_msg_id, first.origin_topic, first.delay_level) == ("ID2", "T", 0)
            assert first.max_reconsume_times == 16
            assert second.origin_topic == "T"
            assert offsets(cluster) == {0: 2, 1: 2}
            assert offsets(cluster, topic="%RETRY%g")[0] >= 1

        both(scenario, cluster)

    @pytest.mark.parametrize("way", ["handler", "batches", "deliveries"])
    def test_a_handler_says_when_a_message_comes_again(self, both: Play, cluster: Cluster, way: str) -> None:
        async def scenario(world: World) -> None:
            fill(cluster, 3)
            levels = {b"0": 5, b"2": -1}
            ended = 0

            async def handle(message: StoredMessage) -> None:
                nonlocal ended
                ended += 1
                if message.reconsume_times == 0 and message.body in levels:
                    raise rmq.Retry("out of stock", delay_level=levels[message.body])
                if ended == 4:  # the one with level -1 is dead
                    scope.cancel()

            async with (
                world.connect() as client,
                client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer,
            ):
                with anyio.CancelScope() as scope:
                    if way == "handler":
                        await consumer.run(handle)
                    elif way == "batches":
                        await consumer.run_batches(lambda messages: handle(messages[0]), batch=1)
                    async for delivery in consumer:
                        async with delivery as message:
                            await handle(message)
            returned = {header.origin_msg_id: header for header in sent_back(cluster)}
            assert {name: header.delay_level for name, header in returned.items()} == {"ID0": 5, "ID2": -1}

        both(scenario, cluster)

    def test_two_members_share_the_queues_until_one_leaves(self, both: Play, cluster: Cluster) -> None:
        cluster.topics["T"] = 4

        async def scenario(world: World) -> None:
            queues = [MessageQueue("T", "a", number) for number in range(4)]
            async with (
                world.connect() as one,
                world.connect() as two,
                one.consumer("g", {"T": "*"}) as first,
            ):
                assert of_topic(first) == queues
                async with two.consumer("g", {"T": "*"}) as second:
                    await until(lambda: len(of_topic(first)) == 2 == len(of_topic(second)))
                    assert sorted(of_topic(first) + of_topic(second)) == queues
                await until(lambda: of_topic(first) == queues)

        both(scenario, cluster)

    def test_batches(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            fill(cluster, 100)
            sizes = []

            async def handle(messages: list[StoredMessage]) -> None:
                sizes.append(len(messages))
                if sum(sizes) == 100:
                    scope.cancel()

            async with (
                world.connect() as client,
                client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            ):
                with anyio.CancelScope() as scope:
                    await consumer.run_batches(handle, batch=16)
            assert max(sizes) == 16
            assert sum(offsets(cluster).values()) == 100

        both(scenario, cluster)

    def test_ordinary_functions_run_in_threads(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            fill(cluster, 3)
            threads = set()

            def handle(message: StoredMessage) -> None:
                threads.add(threading.get_ident())
                left.append(message.body)

            left: list[bytes] = []
            async with (
                world.connect() as client,
                client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(consumer.run, handle)
                while len(left) < 3:
                    await anyio.to_thread.run_sync(threading.Event().wait, 0.001)
                tasks.cancel_scope.cancel()
            assert threading.get_ident() not in threads

        both(scenario, cluster)


class TestBeginning:
    @pytest.mark.parametrize(("consume_from", "begins"), [("first", 0), ("last", 10), (1005, 5), (5000, 10)])
    async def test_where_a_new_group_begins(
        self, setting: World, clock: MockClock, consume_from: str | int, begins: int
    ) -> None:
        for number in range(10):
            with setting.cluster.at(1000 + number):
                setting.cluster["a"].put("T", 0, b"%d" % number)
        # What a broker answers whose queue has lost its beginning; another lets a new group begin there.
        unknown = [ResponseCode.QUERY_NOT_FOUND] * 3
        setting.cluster["a"].script(RequestCode.QUERY_CONSUMER_OFFSET, *unknown)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from=consume_from) as consumer,
        ):
            setting.cluster["a"].put("T", 0, b"new")
            assert await take(consumer, 1) == [b"%d" % begins if begins < 10 else b"new"]

    @pytest.mark.parametrize("consume_from", ["first", "last", 1005])
    async def test_a_known_group_goes_on(
        self, setting: World, clock: MockClock, consume_from: str | int
    ) -> None:
        fill(setting.cluster, 10)
        setting.cluster["a"].commit("g", "T", 0, 3)
        setting.cluster["a"].commit("g", "T", 1, 5)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from=consume_from) as consumer,
        ):
            assert await take(consumer, 2) == [b"6", b"8"]

    async def test_another_word_is_refused(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client:
            with pytest.raises(ConfigError, match="'first', 'last' or a time"):
                client.consumer("g", {"T": "*"}, consume_from="latest")
            with pytest.raises(ConfigError, match="on_error"):
                client.consumer("g", {"T": "*"}, on_error="ignore")

    async def test_a_topic_that_comes_later_is_consumed_then(self, setting: World, clock: MockClock) -> None:
        async with (
            setting.connect() as client,
            client.consumer("g", {"Late": "*"}, consume_from="first") as consumer,
        ):
            await trio.sleep(5)
            assert of_topic(consumer, "Late") == []
            setting.cluster["a"].create_topic("Late", queues=3)
            setting.cluster["a"].put("Late", 1, b"x")
            assert await take(consumer, 1) == [b"x"]
            assert trio.current_time() < 15

    async def test_an_offset_that_cannot_be_asked_for_is_asked_for_again(
        self, setting: World, clock: MockClock
    ) -> None:
        fill(setting.cluster, 2)
        setting.cluster["a"].script(RequestCode.QUERY_CONSUMER_OFFSET, *[ResponseCode.SYSTEM_BUSY] * 9)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            assert sorted(await take(consumer, 2)) == [b"0", b"1"]
            assert trio.current_time() < 10

    async def test_an_expression_is_read_by_a_broker_first(self, setting: World, clock: MockClock) -> None:
        setting.cluster["a"].script(
            RequestCode.CHECK_CLIENT_CONFIG, 0, ResponseCode.SUBSCRIPTION_PARSE_FAILED
        )
        async with setting.connect() as client:
            async with client.consumer("g", {"T": rmq.sql("a > 1")}):
                pass
            with pytest.raises(SubscriptionParseFailed):
                async with client.consumer("g", {"T": rmq.sql("a >")}):
                    pass
            assert "g" not in client._session.members

    async def test_a_second_member_needs_a_second_client(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.consumer("g", {"T": "*"}):
            with pytest.raises(ConfigError, match="a second member needs a second client"):
                async with client.consumer("g", {"T": "*"}):
                    pass
            async with client.consumer("g2", {"T": "*"}):
                pass


class TestSharing:
    async def test_a_notice_rebalances_at_once(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as one, one.consumer("g", {"T": "*"}) as first:
            async with setting.connect() as two, two.consumer("g", {"T": "*"}) as second:
                await trio.sleep(0.5)
                assert [len(of_topic(first)), len(of_topic(second))] == [1, 1]
            await trio.sleep(0.5)
            assert len(of_topic(first)) == 2

    async def test_without_a_notice_it_is_done_every_20_s(self, setting: World, clock: MockClock) -> None:
        setting.cluster["a"].configure_group("g", notify_consumer_ids_changed_enable=False)
        async with setting.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
            setting.cluster["a"].join("g", "0@another")
            await trio.sleep(15)
            assert len(of_topic(consumer)) == 2
            await trio.sleep(6)
            assert len(of_topic(consumer)) == 1

    async def test_a_queue_that_goes_is_committed_first_and_then_left_alone(
        self, setting: World, clock: MockClock
    ) -> None:
        fill(setting.cluster, 20)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            bodies = await take(consumer, 4)
            gone = {number: sum(int(body) % 2 == number for body in bodies) for number in (0, 1)}
            setting.cluster["a"].join("g", "0@another")
            await trio.sleep(0.1)
            (kept,) = of_topic(consumer)
            other = 1 - kept.queue_id
            assert offsets(setting.cluster)[other] == gone[other]
            left = await take(consumer, 10 - gone[kept.queue_id])
            assert {int(body) % 2 for body in left} == {kept.queue_id}
            with trio.move_on_after(1):
                raise AssertionError(f"the other queue goes on: {await take(consumer, 1)}")
            setting.cluster["a"].commit("g", "T", other, 7)  # what the new member commits
        assert offsets(setting.cluster) == {kept.queue_id: 10, other: 7}

    async def test_a_delivery_of_a_queue_that_went_commits_nothing(
        self, setting: World, clock: MockClock
    ) -> None:
        fill(setting.cluster, 4)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            deliveries = [await anext(consumer) for _ in range(4)]
            setting.cluster["a"].join("g", "0@a", "0@b")
            await trio.sleep(0.1)
            assert of_topic(consumer) == []
            for delivery in deliveries:
                async with delivery:
                    pass
            with_error = deliveries[0]
            await with_error.retry()
        assert offsets(setting.cluster) == {0: 0, 1: 0}
        assert sent_back(setting.cluster) == []

    async def test_a_broker_that_forgot_us_is_told_again_and_nothing_is_given_up(
        self, setting: World, clock: MockClock
    ) -> None:
        async with setting.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
            pullers = dict(consumer._member.assignments.pullers)
            setting.cluster["a"].leave("g", client.client_id)
            consumer._member.rebalance_soon()
            await trio.sleep(1)
            assert client.client_id in setting.cluster["a"].members("g")
            assert consumer._member.assignments.pullers == pullers

    async def test_a_lost_connection_is_made_again_and_the_group_joined_again(
        self, cluster: Cluster, clock: MockClock
    ) -> None:
        async with (
            world(cluster) as setting,
            setting.connect() as client,
            client.consumer("g", {"T": "*"}) as consumer,
        ):
            await trio.sleep(5)
            cluster.cut()
            await trio.sleep(3)
            assert client.client_id in cluster["a"].members("g")
            cluster["a"].put("T", 0, b"x")
            assert await take(consumer, 1) == [b"x"]
            assert trio.current_time() < 15

    async def test_broadcasting_gives_every_member_everything(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 6)
        async with setting.connect(client_id="1") as one, setting.connect(client_id="2") as two:
            for client in (one, two):
                options = {"consume_from": "first", "broadcasting": True}
                async with client.consumer("g", {"T": "*"}, **options) as consumer:
                    assert len(consumer.queues) == 2
                    seen = 0
                    async for delivery in consumer:
                        async with delivery:
                            seen += 1
                            if seen == 6:
                                break
                            raise ValueError("is logged, and that is all")
        assert offsets(setting.cluster) == {}
        assert sent_back(setting.cluster) == []


class TestLeaving:
    async def test_what_is_being_consumed_is_waited_for(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 10, queues=1)
        done = []

        async def handle(message: StoredMessage) -> None:
            await trio.sleep(2)
            done.append(message.body)

        async with setting.connect() as client, trio.open_nursery() as nursery:
            async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:
                nursery.start_soon(lambda: consumer.run(handle, concurrency=4))
                await trio.sleep(1)
            assert trio.current_time() == pytest.approx(2, abs=0.1)
            assert sorted(done) == [b"0", b"1", b"2", b"3"]
            assert offsets(setting.cluster)[0] == 4
            leaves = [request.code for request in setting.cluster["a"].seen].index(LEAVE)
            assert COMMIT not in [request.code for request in setting.cluster["a"].seen[leaves:]]

    async def test_but_not_for_ever(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 2, queues=1)

        async with setting.connect() as client, trio.open_nursery() as nursery:
            async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:
                nursery.start_soon(consumer.run, lambda message: trio.sleep_forever())
                await trio.sleep(1)
            assert trio.current_time() == pytest.approx(4, abs=0.1)
            assert offsets(setting.cluster).get(0, 0) == 0
            assert not setting.cluster["a"].members("g")
            nursery.cancel_scope.cancel()

    async def test_iterating_ends_when_the_block_is_left(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 3)
        seen = []

        async def iterate(consumer: Consumer) -> None:
            async for delivery in consumer:
                async with delivery as message:
                    seen.append(message.body)

        async with (
            setting.connect() as client,
            trio.open_nursery() as nursery,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            for _ in range(3):
                nursery.start_soon(iterate, consumer)
            await trio.sleep(1)
        assert len(seen) == 3

    async def test_cancelled_from_outside_it_still_commits_and_leaves(
        self, setting: World, clock: MockClock
    ) -> None:
        fill(setting.cluster, 3, queues=1)
        async with setting.connect() as client:
            with trio.CancelScope() as scope:
                async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:
                    await take(consumer, 2)
                    scope.cancel()
                    await trio.sleep_forever()
            assert scope.cancelled_caught
            assert offsets(setting.cluster)[0] == 2
            assert not setting.cluster["a"].members("g")

    @pytest.mark.parametrize("busy", [False, True])
    async def test_leaving_while_messages_are_handled_is_said(
        self, setting: World, clock: MockClock, caplog: pytest.LogCaptureFixture, busy: bool
    ) -> None:
        fill(setting.cluster, 1)
        async with setting.connect() as client, trio.open_nursery() as nursery:

            async def handle(delivery: Delivery) -> None:
                async with delivery:
                    await trio.sleep(60 if busy else 0)

            async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:
                async for delivery in consumer:
                    nursery.start_soon(handle, delivery)
                    break
                await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert ("handlers still run" in caplog.text) is busy

    async def test_a_broker_that_hangs_does_not_hold_us_up(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 3, queues=1)
        async with setting.connect() as client:
            async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:
                await take(consumer, 2)
                setting.cluster["a"].script(COMMIT, *[HANG] * 9)
                setting.cluster["a"].script(LEAVE, *[HANG] * 9)
            assert trio.current_time() <= 5.1

    async def test_the_users_error_comes_out_bare(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client:
            with pytest.raises(ZeroDivisionError):
                async with client.consumer("g", {"T": "*"}):
                    raise ZeroDivisionError
            assert not setting.cluster["a"].members("g")
