"""The client against our own name server and broker, in memory and in virtual time."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.client.client import Client
from rmq.message import Message, MessageQueue, StoredMessage
from rmq.protocol.codes import RequestCode
from rmq.protocol.headers import DeleteTopicRequestHeader
from rmq.testing.cluster import Cluster

from .traffic import fill, take
from .world import World


async def test_two_members_share_a_backlog_and_nothing_comes_twice(clock: MockClock) -> None:
    async with Cluster("a", "b") as made:
        await fill(made, "Orders", 500)
        seen: Counter[bytes] = Counter()
        members: Counter[int] = Counter()

        async def handle(member: int, message: StoredMessage) -> None:
            await trio.sleep(0.01)
            seen[message.body] += 1
            members[member] += 1
            if len(seen) == 500:
                nursery.cancel_scope.cancel()

        async with made.connect() as one, made.connect() as two:
            async with (
                one.consumer("g", {"Orders": "*"}, consume_from="first") as first,
                two.consumer("g", {"Orders": "*"}, consume_from="first") as second,
            ):
                await trio.sleep(1)  # the second one's coming is known to the first
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(first.run, partial(handle, 1))
                    nursery.start_soon(second.run, partial(handle, 2))
            assert set(seen.values()) == {1}
            assert all(count > 100 for count in members.values())
            async with one.pull_consumer("g") as puller:
                for queue in await puller.message_queues("Orders"):
                    assert await puller.committed(queue) == await puller.max_offset(queue)


async def test_a_failing_message_comes_later_and_later_and_then_dies(clock: MockClock) -> None:
    async with Cluster("a") as made:
        times: list[float] = []

        async def fail(message: StoredMessage) -> None:
            times.append(trio.current_time())
            raise ValueError("cannot")

        async with made.connect(max_reconsume_times=2) as client:
            async with client.producer("p") as producer:
                await producer.send(Message("Orders", b"7", keys=["k"]))
            async with client.consumer("g", {"Orders": "*"}, consume_from="first") as consumer:
                with trio.move_on_after(300):
                    await consumer.run(fail)
            waits = [later - sooner for sooner, later in pairwise(times)]
            assert [round(wait) for wait in waits] == [10, 30]
            async with client.pull_consumer("x") as puller:
                (dead,) = (await puller.pull(MessageQueue("%DLQ%g", "a", 0), 0)).messages
            assert (dead.body, dead.keys, dead.properties["RETRY_TOPIC"]) == (b"7", ("k",), "Orders")


async def test_a_delayed_message_comes_when_it_is_due(clock: MockClock) -> None:
    async with (
        Cluster("a") as made,
        made.connect() as client,
        client.producer("p") as producer,
        client.consumer("g", {"Late": "*"}, consume_from="first") as consumer,
    ):
        began = trio.current_time()
        await producer.send(Message("Late", b"1", delay_level=3))
        assert await take(consumer, 1) == [1]
        assert 10 <= trio.current_time() - began < 12


@pytest.mark.parametrize("expression", ["a", rmq.sql("n > 4 AND TAGS = 'a'")])
async def test_filters(clock: MockClock, expression: str | rmq.Sql) -> None:
    async with Cluster("a") as made, made.connect() as client, client.producer("p") as producer:
        for number in range(10):
            message = Message("Orders", b"%d" % number, tags="ab"[number % 2], properties={"n": str(number)})
            await producer.send(message)
        async with client.consumer("g", {"Orders": expression}, consume_from="first") as consumer:
            wanted = [0, 2, 4, 6, 8] if expression == "a" else [6, 8]
            assert sorted(await take(consumer, len(wanted))) == wanted


async def test_a_restarted_broker_is_found_again_and_nothing_is_lost(clock: MockClock) -> None:
    async with Cluster("a") as made:
        acknowledged: set[int] = set()
        seen: set[int] = set()

        async def produce(client: Client) -> None:
            async with client.producer("p") as producer:
                for number in range(200):
                    while number not in acknowledged:
                        try:
                            await producer.send(Message("Orders", b"%d" % number))
                            acknowledged.add(number)
                        except rmq.RmqError:
                            await trio.sleep(0.5)
                    await trio.sleep(0.1)

        async def handle(message: StoredMessage) -> None:
            seen.add(int(message.body))

        async with (
            made.connect() as client,
            client.consumer("g", {"Orders": "*"}, consume_from="first") as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, handle)
            nursery.start_soon(produce, client)
            await trio.sleep(5)
            await made.stop("a")
            await trio.sleep(8)
            await made.start("a")
            with trio.fail_after(120):
                while len(seen) < 200:
                    await trio.sleep(0.5)
            nursery.cancel_scope.cancel()
        assert seen == acknowledged == set(range(200))


async def test_one_key_stays_in_order(clock: MockClock) -> None:
    async with Cluster("a", "b") as made, made.connect() as client, client.producer("p") as producer:
        for step in range(5):
            for order in range(20):
                await producer.send(Message("Orders", b"%d" % step), sharding_key=f"order-{order}")
        async with client.pull_consumer("x") as puller:
            for queue in await puller.message_queues("Orders"):
                steps = [int(message.body) for message in (await puller.pull(queue, 0)).messages]
                assert steps == sorted(steps)


async def test_a_topic_that_is_deleted_at_its_broker_leaves_the_routes(
    setting: World, clock: MockClock
) -> None:
    """No name server is told of it by whoever deletes it, as when that one is away."""
    async with setting.connect() as client:
        assert await client.admin.topic_exists("T")
        header = DeleteTopicRequestHeader("T")
        assert setting.cluster["a"].ask(RequestCode.DELETE_TOPIC_IN_BROKER, header).code == 0
        await setting.cluster.advance(31)
        assert not await client.admin.topic_exists("T")
