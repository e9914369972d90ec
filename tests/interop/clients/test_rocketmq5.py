"""Our client and commands against Apache RocketMQ 5.3.3."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import trio
from click.testing import CliRunner

import rmq
from rmq.cli import command
from rmq.message import MessageQueue, StoredMessage
from rmq.protocol.bodies import TopicConfig
from tests.interop.five import client_of, take, topic_of
from tests.interop.rocketmq import Java, Processes

pytestmark = pytest.mark.interop

SETTINGS = {
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "recallMessageEnable": "true",
    "messageDelayLevel": "1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
}


@pytest.fixture(scope="module")
def names(java5: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A name server and two masters of 5.3.3: the name server's address."""
    folder = tmp_path_factory.mktemp("five")
    with Processes(java5, folder) as started:
        address = started.java_namesrv()
        for name in ("five-a", "five-b"):
            started.java_broker(address, folder / name, brokerName=name, **SETTINGS)
        yield address


def run(names: str, *arguments: str, status: int = 0) -> str:
    """The output of a command."""
    said = CliRunner().invoke(command, [*arguments, "-n", names])
    assert said.exit_code == status, said.output
    return said.output


# --- sends and consumption ---


@pytest.mark.parametrize("size", [3, 20_000])
async def test_each_way_of_sending_arrives(names: str, size: int) -> None:
    async with client_of(names) as client, client.producer("five") as producer:
        topic = await topic_of(client, f"Sends{size}")
        result = await producer.send(
            rmq.Message(topic, b"a" * size, tags="t", keys=["k"], properties={"p": "v"})
        )
        assert result.status == "SEND_OK"
        await producer.send(rmq.Message(topic, b"b" * size), sharding_key="one")
        await producer.send(rmq.Message(topic, b"c" * size), queue=MessageQueue(topic, "five-b", 0))
        await producer.send_oneway(rmq.Message(topic, b"d" * size))
        await producer.send_batch([rmq.Message(topic, letter * size) for letter in (b"e", b"f")])
        async with producer.pipeline() as pipeline:
            for letter in (b"g", b"h"):
                await pipeline.send(rmq.Message(topic, letter * size))
        async with client.consumer("sends", {topic: "*"}, consume_from="first") as consumer:
            got = await take(consumer, 8)
        assert sorted(one.body[:1] for one in got) == [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"]
        assert {len(one.body) for one in got} == {size}
        (first,) = [one for one in got if one.body[:1] == b"a"]
        assert (first.tags, first.keys, first.properties["p"]) == ("t", ("k",), "v")
        assert first.message_id == result.message_id


async def test_an_idempotent_producer_is_an_ordinary_one(names: str) -> None:
    async with client_of(names) as client, client.producer("five", idempotent=True) as producer:
        topic = await topic_of(client, "Idempotent")
        for number in range(5):
            await producer.send(rmq.Message(topic, b"%d" % number))
        async with client.consumer("idempotent", {topic: "*"}, consume_from="first") as consumer:
            assert len(await take(consumer, 5)) == 5


async def test_tags_and_sql(names: str) -> None:
    async with client_of(names) as client, client.producer("five") as producer:
        topic = await topic_of(client, "Filters")
        for number in range(30):
            properties = {"amount": str(number)}
            await producer.send(
                rmq.Message(topic, b"%d" % number, tags=f"T{number % 3}", properties=properties)
            )
        async with client.consumer("tags", {topic: "T0 || T2"}, consume_from="first") as consumer:
            assert {one.tags for one in await take(consumer, 20)} == {"T0", "T2"}
        async with client.consumer("sql", {topic: rmq.sql("amount > 24")}, consume_from="first") as consumer:
            assert {int(one.body) for one in await take(consumer, 5)} == set(range(25, 30))


async def test_ordered_consumption(names: str) -> None:
    async with client_of(names) as client, client.producer("five") as producer:
        topic = await topic_of(client, "Ordered")
        for number in range(60):
            await producer.send(rmq.Message(topic, b"%d" % number), sharding_key=str(number % 3))
        got: dict[int, list[int]] = {0: [], 1: [], 2: []}

        async def handle(message: StoredMessage) -> None:
            number = int(message.body)
            got[number % 3].append(number)
            if sum(map(len, got.values())) == 60:
                done.set()

        done = trio.Event()
        async with (
            client.consumer("ordered", {topic: "*"}, ordered=True, consume_from="first") as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, handle)
            await done.wait()
            nursery.cancel_scope.cancel()
        assert got == {key: list(range(key, 60, 3)) for key in range(3)}


async def test_delays_and_recall(names: str) -> None:
    async with client_of(names) as client, client.producer("five") as producer:
        topic = await topic_of(client, "Delays")
        at = int(time.time() * 1000) + 2_000
        await producer.send(rmq.Message(topic, b"level", delay_level=1))
        await producer.send(rmq.Message(topic, b"ms", delay_ms=1_500))
        await producer.send(rmq.Message(topic, b"at", deliver_at_ms=at))
        gone = await producer.send(rmq.Message(topic, b"recalled", delay_ms=4_000))
        assert await producer.recall(gone.recall_handle) == gone.message_id
        await producer.send(rmq.Message(topic, b"last", delay_ms=6_000))
        async with client.consumer("delays", {topic: "*"}, consume_from="first") as consumer:
            got = await take(consumer, 4)
        assert {one.body for one in got} == {b"level", b"ms", b"at", b"last"}


# --- transactions ---


async def test_transactions(names: str) -> None:
    async with client_of(names) as client:
        topic = await topic_of(client, "Payments")
        async with client.transactional_producer("payments", lambda message: rmq.UNKNOWN) as producer:
            async with producer.transaction(rmq.Message(topic, b"committed")):
                pass
            with pytest.raises(RuntimeError):
                async with producer.transaction(rmq.Message(topic, b"rolled back")):
                    raise RuntimeError
        async with client.consumer("ledger", {topic: "*"}, consume_from="first") as consumer:
            assert [one.body for one in await take(consumer, 1)] == [b"committed"]


async def test_a_check_back_after_a_crash(names: str) -> None:
    """The process that began the transaction is gone; another of its group is asked."""
    async with client_of(names) as client:
        topic = await topic_of(client, "Crashed")
        with trio.CancelScope() as scope:
            async with (
                client.transactional_producer("crashed", lambda message: rmq.UNKNOWN) as producer,
                producer.transaction(rmq.Message(topic, b"half")),
            ):
                scope.cancel()
                await trio.sleep_forever()
        asked: list[bytes] = []

        def check(message: StoredMessage) -> rmq.Decision:
            asked.append(message.body)
            return rmq.COMMIT

        async with (
            client.transactional_producer("crashed", check),
            client.consumer("crashes", {topic: "*"}, consume_from="first") as consumer,
        ):
            assert [one.body for one in await take(consumer, 1)] == [b"half"]
        assert asked == [b"half"]


# --- retries, dead letters, requests ---


async def test_retries_dead_letters_and_redrive(names: str) -> None:
    async with client_of(names) as client, client.producer("five") as producer:
        topic = await topic_of(client, "Failing")
        tries: list[int] = []

        async def fail(message: StoredMessage) -> None:
            tries.append(message.reconsume_times)
            raise ValueError

        options = {"max_reconsume_times": 2, "consume_from": "first"}
        async with (
            client.consumer("failing", {topic: "*"}, **options) as consumer,  # type: ignore[arg-type]
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, fail)
            await producer.send(rmq.Message(topic, b"bad", keys=["k"]))
            while not await client.dead_letters("failing"):
                await trio.sleep(0.2)
            nursery.cancel_scope.cancel()
        assert tries == [0, 1, 2]
        (letter,) = await client.dead_letters("failing")
        assert (letter.message.body, letter.message.keys) == (b"bad", ("k",))
        assert (await client.redrive("failing")).sent == 1
        async with client.consumer("failing", {topic: "*"}) as consumer:
            assert [one.body for one in await take(consumer, 1)] == [b"bad"]


async def test_request_and_reply(names: str) -> None:
    async with client_of(names) as client, client.producer("five") as producer:
        topic = await topic_of(client, "Questions")

        async def answer(message: StoredMessage) -> None:
            await producer.reply(message, message.body.upper())

        async with client.consumer("answers", {topic: "*"}) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, answer)
            await client.ready(30)
            reply = await producer.request(rmq.Message(topic, b"question"), 30)
            assert reply.body == b"QUESTION"
            nursery.cancel_scope.cancel()


async def test_pulls(names: str) -> None:
    async with client_of(names) as client, client.producer("five") as producer:
        topic = await topic_of(client, "Pulls", queues=1)
        queue = MessageQueue(topic, "five-a", 0)
        for number in range(5):
            await producer.send(rmq.Message(topic, b"%d" % number), queue=queue)
        async with client.pull_consumer("pulls") as puller:
            assert sorted(await puller.message_queues(topic)) == [queue, MessageQueue(topic, "five-b", 0)]
            assert (await puller.min_offset(queue), await puller.max_offset(queue)) == (0, 5)
            found = await puller.pull(queue, 2)
            assert [one.body for one in found.messages] == [b"2", b"3", b"4"]
            await puller.commit(queue, 4)
            assert await puller.committed(queue) == 4
            assert await puller.search_offset(queue, int(time.time() * 1000) + 1_000) == 5
        async with client.pull_consumer("polls") as puller:
            await puller.subscribe({topic: "*"}, consume_from="first")
            bodies: list[bytes] = []
            while len(bodies) < 5:
                bodies += [one.body for one in await puller.poll()]
            assert sorted(bodies) == [b"%d" % number for number in range(5)]


async def test_traces(names: str) -> None:
    async with client_of(names, plugins=[rmq.MessageTrace()]) as client, client.producer("five") as producer:
        topic = await topic_of(client, "Traced")
        result = await producer.send(rmq.Message(topic, b"x"))
        async with client.consumer("traced", {topic: "*"}, consume_from="first") as consumer:
            await take(consumer, 1)
        while len((await client.admin.trace(result.message_id)).events) < 3:
            await trio.sleep(0.5)


# --- administration ---


async def test_attributes_of_topics_and_request_351(names: str) -> None:
    async with client_of(names) as client:
        config = TopicConfig("Typed", 4, 4, 6, attributes={"message.type": "DELAY"})
        await client.admin.put_topic(config)
        found = await client.admin.topic_config("Typed")
        assert {one.attributes.get("message.type") for one in found.values()} == {"DELAY"}
        assert {one.read_queue_nums for one in found.values()} == {4}


async def test_several_brokers_share_the_load(names: str) -> None:
    async with client_of(names) as client, client.producer("five") as producer:
        topic = await topic_of(client, "Shared")
        results = [await producer.send(rmq.Message(topic, b"x")) for _ in range(16)]
        assert {one.message_queue.broker_name for one in results} == {"five-a", "five-b"}
        health = client.health()
        assert health.is_healthy
        assert len(health.brokers) == 2


def test_the_commands(names: str) -> None:
    assert "five-a" in run(names, "cluster", "list")
    run(names, "topic", "create", "Commands", "--queues", "4")
    assert "Commands" in run(names, "topic", "list")
    run(names, "topic", "show", "Commands")
    run(names, "pub", "Commands", "hello")
    assert "hello" in run(names, "tail", "Commands", "--from", "earliest", "--max", "1")
    run(names, "sub", "Commands", "--group", "by-command", "--from", "first", "--max", "1")
    assert "by-command" in run(names, "group", "list")
    run(names, "group", "lag", "by-command")
    run(names, "group", "show", "by-command")
    run(names, "broker", "status", "five-a")
    said = CliRunner().invoke(command, ["doctor", "-n", names])
    assert said.exit_code in (0, 1), said.output
    assert "Traceback" not in said.output
