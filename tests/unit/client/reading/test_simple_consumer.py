"""Messages one by one: receive, acknowledge, give back, extend; handlers with leases that are renewed."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq import Message
from rmq.errors import ConfigError, LocalProtocolError, ResponseError
from rmq.message import MessageQueue, dlq_topic
from rmq.protocol import codes
from rmq.protocol.bodies import SubscriptionGroupConfig
from rmq.protocol.command import Command
from rmq.protocol.pop import AckMessageRequestHeader, PopMessageRequestHeader
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World

TOPIC = "Orders"


def cluster(brokers: str = "a", queues: int = 2) -> Cluster:
    return Cluster(*brokers, topics={TOPIC: queues})


async def send(client: rmq.Client, *bodies: bytes, **more: object) -> None:
    async with client.producer("p") as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body, **more))  # type: ignore[arg-type]


def test_receive_and_ack(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client:
            await send(client, b"0", b"1", b"2")
            topics = {TOPIC: "*"}
            async with client.simple_consumer("g", topics, consume_from="first") as consumer:
                messages = await consumer.receive(10, wait=5, invisible=10)
                assert sorted(message.body for message in messages) == [b"0", b"1", b"2"]
                assert {message.attempt for message in messages} == {1}
                await consumer.ack(*messages[:2])
                last = messages[2]
                (again,) = await consumer.receive(10, wait=15, invisible=10)
                assert (again.body, again.attempt) == (last.body, 2)
                await again.ack()
                assert await consumer.receive(10, wait=15) == []
                with pytest.raises(ResponseError):
                    await consumer.extend(again, 10)

    in_memory(scenario, cluster())


def test_the_answer_of_one_broker_brings_back_nothing_that_another_one_had_brought(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        async with (
            world.connect() as client,
            client.producer("p") as producer,
            client.simple_consumer("g", {TOPIC: "*"}, consume_from="first") as consumer,
        ):
            for number, broker in enumerate("abba"):  # while the other broker has been asked, and waits
                queue = MessageQueue(TOPIC, broker, 0)
                await producer.send(Message(TOPIC, b"%d" % number), queue=queue)
                found = await consumer.receive(8, wait=10, invisible=600)
                assert [message.body for message in found] == [b"%d" % number]
                await consumer.ack(*found)

    in_memory(scenario, cluster("ab"))


def test_more_consumers_than_queues_share_a_topic(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client:
            await send(client, *(b"%d" % number for number in range(40)))
            found: list[bytes] = []

            async def consume() -> None:
                async with (
                    world.connect() as own,
                    own.simple_consumer("g", {TOPIC: "*"}, consume_from="first") as consumer,
                ):
                    while messages := await consumer.receive(2, wait=3):
                        found.extend(message.body for message in messages)
                        await consumer.ack(*messages)

            async with anyio.create_task_group() as tasks:
                for _ in range(6):
                    tasks.start_soon(consume)
            assert sorted(found, key=int) == [b"%d" % number for number in range(40)]

    in_memory(scenario, cluster(queues=1))


def test_nack_and_extend(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client:
            await send(client, b"0")
            async with client.simple_consumer("g", {TOPIC: "*"}, consume_from="first") as consumer:
                (message,) = await consumer.receive(wait=5, invisible=5)
                for _ in range(4):
                    await anyio.sleep(4)
                    await message.extend(5)
                begun = anyio.current_time()
                await message.nack(after=3)
                (again,) = await consumer.receive(wait=30)
                assert 2.9 <= anyio.current_time() - begun <= 3.2
                assert again.attempt == 2
                begun = anyio.current_time()
                await again.nack()
                (again,) = await consumer.receive(wait=60)
                assert 29.9 <= anyio.current_time() - begun <= 30.2  # the policy's second delay
                await again.ack()

    in_memory(scenario, cluster())


def test_a_send_wakes_a_receive(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client, client.simple_consumer("g", {TOPIC: "*"}) as consumer:
            assert await consumer.receive(wait=1) == []

            async def later() -> None:
                await anyio.sleep(2)
                await send(client, b"new")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(later)
                begun = anyio.current_time()
                (message,) = await consumer.receive(wait=20)
            assert message.body == b"new"
            assert anyio.current_time() - begun < 2.5

    in_memory(scenario, cluster("ab"))


def test_all_brokers_are_asked(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        for broker in "ab":
            world.cluster[broker].put(TOPIC, 0, broker.encode())
        async with world.connect() as client:
            found: list[bytes] = []
            async with client.simple_consumer("g", {TOPIC: "*"}, consume_from="first") as consumer:
                while messages := await consumer.receive(1, wait=2):
                    found += [message.body for message in messages]
                    await consumer.ack(*messages)
            assert sorted(found) == [b"a", b"b"]

    in_memory(scenario, cluster("ab"))


def test_messages_of_a_group_come_in_order(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client:
            for number in range(6):
                key = {"__SHARDINGKEY": "ab"[number % 2]}
                await send(client, b"%d" % number, properties=key)
            seen: list[bytes] = []
            options = {"consume_from": "first", "in_order": True}
            async with client.simple_consumer("g", {TOPIC: "*"}, **options) as consumer:  # type: ignore[arg-type]
                while messages := await consumer.receive(10, wait=2):
                    assert len({message.properties["__SHARDINGKEY"] for message in messages}) == len(messages)
                    seen += [message.body for message in messages]
                    await consumer.ack(*messages)
            assert [body for body in seen if int(body) % 2 == 0] == [b"0", b"2", b"4"]
            assert [body for body in seen if int(body) % 2] == [b"1", b"3", b"5"]

    in_memory(scenario, cluster(queues=1))


def test_handlers_run_with_leases_that_are_renewed(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client:
            await send(client, *(b"%d" % number for number in range(10)))
            seen: list[bytes] = []
            failed: list[bytes] = []

            async def handle(message: rmq.StoredMessage) -> None:
                if message.body == b"3" and not failed:
                    failed.append(message.body)
                    raise rmq.Retry("once more", after=2)
                await anyio.sleep(100 if message.body == b"5" else 0.1)
                seen.append(message.body)

            topics = {TOPIC: "*"}
            made = client.consumer("g", topics, per_message=True, consume_from="first", lease=10.0)
            async with made as consumer, anyio.create_task_group() as tasks:
                tasks.start_soon(partial(consumer.run, handle, concurrency=4))
                await anyio.sleep(130)
                assert await consumer.drain(5)
            assert sorted(seen, key=int) == [b"%d" % number for number in range(10)]
            assert sum(world.cluster["a"].offsets("g", TOPIC).values()) == 10

    in_memory(scenario, cluster())


def test_acknowledgements_of_handlers_share_requests(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client:
            await send(client, *(b"%d" % number for number in range(200)))
            done: list[bytes] = []
            async with client.consumer("g", {TOPIC: "*"}, consume_from="first", per_message=True) as consumer:

                async def handle(message: rmq.StoredMessage) -> None:
                    done.append(message.body)
                    if len(done) == 200:
                        tasks.start_soon(consumer.drain)

                async with anyio.create_task_group() as tasks:
                    await consumer.run(handle, concurrency=20)
            front = world.cluster["a"]
            pops, acks = front.count(codes.POP_MESSAGE), front.count(codes.BATCH_ACK_MESSAGE)
            assert acks <= 2
            assert pops <= 8
            async with client.simple_consumer("g", {TOPIC: "*"}) as other:
                assert await other.receive(1, wait=61) == []

    in_memory(scenario, cluster())


def test_fast_handlers_take_a_backlog_in_few_requests(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        front, count = world.cluster["a"], 4_000
        for number in range(count):
            front.put(TOPIC, number % 2, b"%d" % number)
        async with world.connect() as client:
            done: set[bytes] = set()
            async with client.consumer("g", {TOPIC: "*"}, consume_from="first", per_message=True) as consumer:

                async def handle(message: rmq.StoredMessage) -> None:
                    done.add(message.body)
                    if len(done) == count:
                        tasks.start_soon(consumer.drain)

                async with anyio.create_task_group() as tasks:
                    await consumer.run(handle, concurrency=20)
            assert front.count(codes.POP_MESSAGE) <= 18
            assert front.count(codes.BATCH_ACK_MESSAGE) + front.count(codes.ACK_MESSAGE) <= 4
            async with client.simple_consumer("g", {TOPIC: "*"}) as other:
                assert await other.receive(1, wait=61) == []

    in_memory(scenario, cluster())


def test_slow_handlers_leave_messages_to_others(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        front = world.cluster["a"]
        for number in range(200):
            front.put(TOPIC, number % 2, b"%d" % number)

        async def handle(message: rmq.StoredMessage) -> None:
            await anyio.sleep(2)

        async with world.connect() as client, world.connect() as beside:
            made = client.consumer("g", {TOPIC: "*"}, consume_from="first", per_message=True)
            async with made as consumer, anyio.create_task_group() as tasks:
                tasks.start_soon(partial(consumer.run, handle, concurrency=4))
                await anyio.sleep(7)
                assert consumer.in_flight <= 12
                async with beside.simple_consumer("g", {TOPIC: "*"}) as other:
                    assert len(await other.receive(500)) > 150
                tasks.cancel_scope.cancel()

    in_memory(scenario, cluster())


def test_a_broker_that_refuses_many_at_a_time_is_asked_for_fewer(in_memory: Play) -> None:
    """RocketMQ's brokers refuse many messages at a time."""

    async def scenario(world: World) -> None:
        front, asked = world.cluster["a"], list[int]()
        for number in range(100):
            front.put(TOPIC, number % 2, b"%d" % number)

        def answer(request: Command, connection: Connection) -> Command | None:
            asked.append(request.read(PopMessageRequestHeader).max_msg_nums)
            if asked[-1] > 32:
                return request.reply(1, "the broker[10.0.0.9] pop message's num is greater than 32")
            return front.answer(request, connection)

        front.hook(codes.POP_MESSAGE, answer)
        async with (
            world.connect() as client,
            client.simple_consumer("g", {TOPIC: "*"}, consume_from="first") as consumer,
        ):
            found = [len(await consumer.receive(100)) for _ in range(4)]
            assert (found, asked) == ([32, 32, 32, 4], [100, 32, 32, 32, 32])

    in_memory(scenario, cluster())


def test_only_the_handle_of_its_own_delivery_is_believed(in_memory: Play) -> None:
    """A message that was copied from a RocketMQ broker keeps the property of its handle there."""

    async def scenario(world: World) -> None:
        front = world.cluster["a"]
        for handle in ("7 1700000000000 60000 3 1 other 0 9", "nonsense", ""):
            front.put(TOPIC, 0, handle.encode(), f"POP_CK\x01{handle}\x02" if handle else "")
        async with (
            world.connect() as client,
            client.simple_consumer("g", {TOPIC: "*"}, consume_from="first") as consumer,
        ):
            found = await consumer.receive(10)
            assert len(found) == 3
            await consumer.ack(*found)
            assert await consumer.receive(1, wait=70) == []

            def answer(request: Command, connection: Connection) -> Command | None:
                header = request.read(AckMessageRequestHeader)
                assert (header.extra_info, header.queue_id) == ("1 1700000000000 60000 3 1 a 0 3", 0)
                assert header.topic == f"%RETRY%g_{TOPIC}"  # in which that broker keeps the message
                return request.reply()

            front.put(TOPIC, 0, b"again", "POP_CK\x011 1700000000000 60000 3 1 a 0 3\x02")
            (again,) = await consumer.receive(10)
            front.hook(codes.ACK_MESSAGE, answer)
            await again.ack()

    in_memory(scenario, cluster())


def test_a_drain_gives_back_what_waits(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client, world.connect() as other:
            await send(client, *(b"%d" % number for number in range(8)))

            async def handle(message: rmq.StoredMessage) -> None:
                await anyio.sleep(5)

            topics = {TOPIC: "*"}
            made = client.consumer("g", topics, per_message=True, consume_from="first")
            async with made as consumer, anyio.create_task_group() as tasks:
                tasks.start_soon(partial(consumer.run, handle, concurrency=2))
                await anyio.sleep(1)
                assert await consumer.drain(10)
            async with other.simple_consumer("g", topics) as rest:
                left = await rest.receive(32, wait=5)
                assert [message.attempt for message in left] == [1] * 6  # no handler has seen them

    in_memory(scenario, cluster())


async def test_messages_of_a_client_that_is_gone_come_at_once(autojump_clock: MockClock) -> None:
    async with Cluster("a", topics={TOPIC: 1}) as made, made.connect() as client:
        await send(client, b"0")
        topics = {TOPIC: "*"}
        async with client.simple_consumer("g", topics) as consumer:
            async with (
                made.connect() as gone,
                gone.simple_consumer("g", topics, consume_from="first") as first,
            ):
                assert len(await first.receive(wait=5, invisible=3600)) == 1
            begun = trio.current_time()
            assert len(await consumer.receive(wait=20)) == 1
            assert trio.current_time() - begun < 1


async def test_a_stop_of_the_broker_counts_no_attempt(autojump_clock: MockClock) -> None:
    async with Cluster("a", topics={TOPIC: 1}) as made, made.connect() as client:
        await send(client, b"0")
        topics = {TOPIC: "*"}
        async with client.simple_consumer("g", topics, consume_from="first") as consumer:
            assert len(await consumer.receive(wait=5, invisible=3600)) == 1
            await made.stop("a")
            await made.start("a")
            (again,) = await consumer.receive(wait=60)
            assert again.attempt == 1


async def test_a_broker_that_was_restarted_knows_what_is_finished(autojump_clock: MockClock) -> None:
    async with Cluster("a", topics={TOPIC: 1}) as made, made.connect() as client:
        await send(client, b"0", b"1", b"2")
        async with client.simple_consumer("g", {TOPIC: "*"}, consume_from="first") as consumer:
            messages = await consumer.receive(wait=5, invisible=600)
            await messages[1].ack()
            await made.stop("a")
            await made.start("a")
            await messages[0].ack()  # its handle is good over the restart
            found: list[bytes] = []
            while len(found) < 1:
                found += [message.body for message in await consumer.receive(wait=5)]
            assert found == [b"2"]


async def test_a_message_that_always_fails_is_a_dead_letter(autojump_clock: MockClock) -> None:
    async with Cluster("a", topics={TOPIC: 1}) as made, made.connect() as client:
        await client.admin.put_group(SubscriptionGroupConfig("g", retry_max_times=2))
        await send(client, b"0")
        attempts = 0

        async def handle(message: rmq.StoredMessage) -> None:
            nonlocal attempts
            attempts += 1
            raise rmq.Retry("never", after=1)

        consuming = client.consumer("g", {TOPIC: "*"}, per_message=True, consume_from="first")
        async with consuming as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            await trio.sleep(20)
            await consumer.drain()
        assert attempts == 3
        assert [letter.body for letter in made["a"].messages(dlq_topic("g"))] == [b"0"]


async def test_an_app_takes_messages_one_by_one(autojump_clock: MockClock) -> None:
    seen: list[bytes] = []
    async with Cluster("a", topics={TOPIC: 1}) as made, made.connect() as client:
        app: rmq.App[None] = rmq.App(made.namesrv_address, network=made.network)

        @app.consumer(TOPIC, group="g", per_message=True, consume_from="first")
        async def handle(message: rmq.StoredMessage) -> None:
            seen.append(message.body)

        await send(client, b"0", b"1")
        async with app:
            await trio.sleep(5)
        assert sorted(seen) == [b"0", b"1"]


def test_a_consumer_is_used_in_its_block(in_memory: Play) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client:
            with pytest.raises(LocalProtocolError):
                await client.simple_consumer("g", {TOPIC: "*"}).receive()
            with pytest.raises(ConfigError):
                client.simple_consumer("g", {TOPIC: "*"}, consume_from="there")
            with pytest.raises(ConfigError):
                client.consumer("g", {TOPIC: "*"}, per_message=True, broadcasting=True)  # type: ignore[call-overload]

    in_memory(scenario, cluster())
