"""Dead letters are sent to their topics again, once each, and discarded half messages are checked again."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.client.client import Client
from rmq.client.reading.dead_letters import Letters, message_again, read_letter
from rmq.errors import ConfigError, LocalProtocolError, NoRoute
from rmq.message import Message, MessageQueue, StoredMessage
from rmq.testing.cluster import Cluster


def letter(properties: dict[str, str], **more: object) -> rmq.DeadLetter:
    message = StoredMessage(
        "%DLQ%g",
        0,
        7,
        4711,
        100,
        b"body",
        properties,
        store_timestamp=1000,
        store_host="127.0.0.1:10911",
        broker_name="a",
        **more,
    )
    return read_letter(message)


JAVA = {"UNIQ_KEY": "AC1", "RETRY_TOPIC": "Orders", "ORIGIN_MESSAGE_ID": "0A", "KEYS": "k l", "TAGS": "t"}
OURS = {
    "UNIQ_KEY": "AC1",
    "DLQ_ORIGIN_TOPIC": "First",
    "RETRY_TOPIC": "Orders",
    "DLQ_ORIGIN_MESSAGE_ID": "AC0",
    "DLQ_RECONSUME_TIMES": "16",
    "DLQ_REASON": "ValueError('x')",
}


def test_what_a_letter_tells() -> None:
    java, ours = letter(JAVA, reconsume_times=3), letter(OURS)
    assert (java.topic, java.message_id, java.times, java.reason) == ("Orders", "AC1", 3, "")
    assert (ours.topic, ours.message_id, ours.times, ours.reason) == ("First", "AC0", 16, "ValueError('x')")
    assert (ours.key, ours.died_at_ms) == ("%DLQ%g@a-0-7", 1000)


def test_a_message_that_is_sent_again_is_the_applications_and_nothing_of_its_life() -> None:
    life = {"RECONSUME_TIME": "3", "DELAY": "3", "REAL_TOPIC": "x", "TIMER_DELIVER_MS": "1", "CLUSTER": "c"}
    message, extra = message_again(letter(JAVA | life | {"amount": "3"}, flag=5), "Orders")
    wanted = Message("Orders", b"body", tags="t", keys=("k", "l"), properties={"amount": "3"}, flag=5)
    assert attrs.asdict(message) == attrs.asdict(wanted)
    assert extra == {
        "UNIQ_KEY": "AC1",
        "DLQ_ORIGIN_TOPIC": "Orders",
        "DLQ_ORIGIN_MESSAGE_ID": "AC1",
        "DLQ_REDRIVE_KEY": "%DLQ%g@a-0-7",
    }
    with pytest.raises(LocalProtocolError, match="does not name its original topic"):
        message_again(letter({"UNIQ_KEY": "AC1"}), "")


@pytest.mark.parametrize(
    ("letters", "taken"),
    [
        (Letters(), True),
        (Letters(ids=["AC1"]), True),
        (Letters(ids=["AC0"]), True),
        (Letters(ids=["B"]), False),
        (Letters(since_ms=1000), True),
        (Letters(since_ms=1001), False),
        (Letters(until_ms=1000), False),
        (Letters(until_ms=1001), True),
        (Letters(where=lambda one: one.times > 15), True),
        (Letters(ids=["AC1"], where=lambda one: one.times > 16), False),
    ],
)
def test_which_letters_are_meant(letters: Letters, taken: bool) -> None:
    assert (letter(OURS) in letters) is taken


async def kill(client: Client, topic: str, bodies: list[bytes], group: str = "g") -> None:
    """Have `group` give up messages with these bodies."""

    async def fail(message: StoredMessage) -> None:
        raise ValueError(message.body.decode())

    async with client.producer("p") as producer:
        for body in bodies:
            message = Message(topic, body, keys=[body.decode()], properties={"n": body.decode()})
            await producer.send(message)
    options = {"consume_from": "first", "max_reconsume_times": 0}
    async with client.consumer(group, {topic: "*"}, **options) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, fail)
        with trio.fail_after(100):
            while len(await client.dead_letters(group)) < len(bodies):
                await trio.sleep(1)
        nursery.cancel_scope.cancel()


async def contents(client: Client, topic: str) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    async with client.pull_consumer("look") as puller:
        for queue in await puller.message_queues(topic):
            found += (await puller.pull(queue, 0, max_messages=100)).messages
    return found


async def numbers(made: Cluster, topic: str) -> list[int]:
    async with made.connect() as client:
        return sorted(int(message.body) for message in await contents(client, topic))


async def test_all_letters_go_back_once_however_often_it_is_run(clock: MockClock) -> None:
    async with Cluster("a", "b") as made, made.connect() as client:
        await kill(client, "Orders", [b"0", b"1", b"2", b"3"])
        listed = await client.dead_letters("g")
        assert sorted((one.topic, one.message.keys, one.times) for one in listed) == [
            ("Orders", (f"{n}",), 1) for n in range(4)
        ]
        assert {one.reason for one in listed} == {f"ValueError: {n}" for n in range(4)}
        seen: list[int] = []
        done = await client.redrive("g", progress=lambda so_far: seen.append(so_far.sent))
        assert (done.looked_at, done.sent, done.already, done.failed) == (4, 4, 0, [])
        assert seen == [1, 2, 3, 4]
        await trio.sleep(5)  # the index is written behind
        again = await client.redrive("g")
        assert (again.looked_at, again.sent, again.already) == (4, 0, 4)
        assert await numbers(made, "Orders") == [0, 0, 1, 1, 2, 2, 3, 3]
        sent = [one for one in await contents(client, "Orders") if "DLQ_REDRIVE_KEY" in one.properties]
        assert {one.message_id for one in sent} == {one.message_id for one in listed}
        assert {one.properties["n"] for one in sent} == {"0", "1", "2", "3"}
        assert {one.reconsume_times for one in sent} == {0}


async def test_a_letter_that_dies_again_can_go_back_again(clock: MockClock) -> None:
    async with Cluster("a") as made, made.connect(max_reconsume_times=0) as client:
        await kill(client, "Orders", [b"0"])
        assert (await client.redrive("g")).sent == 1

        async def fail(message: StoredMessage) -> None:
            raise ValueError("again")

        async with client.consumer("g", {"Orders": "*"}) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, fail)
            await trio.sleep(20)
            nursery.cancel_scope.cancel()
        first, second = await client.dead_letters("g")
        assert first.message_id == second.message_id
        assert (second.topic, second.reason) == ("Orders", "ValueError: again")
        done = await client.redrive("g")
        assert (done.sent, done.already) == (1, 1)


async def test_chosen_letters_go_to_another_topic_at_a_rate(clock: MockClock) -> None:
    async with Cluster("a") as made, made.connect() as client:
        await kill(client, "Orders", [b"%d" % n for n in range(10)])
        began = trio.current_time()
        even = Letters(where=lambda one: int(one.message.body) % 2 == 0)
        done = await client.redrive("g", even, to="Repair", rate=0.5)
        assert (done.looked_at, done.sent) == (10, 5)
        assert 8 <= trio.current_time() - began < 9  # the first at once
        assert await numbers(made, "Repair") == [0, 2, 4, 6, 8]
        assert await numbers(made, "Orders") == list(range(10))
        assert (await client.redrive("g", even)).sent == 5  # another topic, so not "already"
        with pytest.raises(ConfigError, match="rate"):
            await client.redrive("g", rate=0)


async def test_letters_of_a_time(clock: MockClock) -> None:
    async with Cluster("a") as made, made.connect() as client:
        await kill(client, "Orders", [b"0", b"1"])
        (*_, last) = await client.dead_letters("g")
        await trio.sleep(60)
        await kill(client, "Late", [b"2"], "other")
        later = Letters(since_ms=last.died_at_ms + 1)
        assert await client.dead_letters("g", later) == []
        assert len(await client.dead_letters("other", later)) == 1
        assert len(await client.dead_letters("g", limit=1)) == 1


async def test_an_ordered_consumer_tells_its_reason_too(clock: MockClock) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def fail(message: StoredMessage) -> None:
        raise Unprintable if message.body == b"0" else ValueError("line 1\nline 2\x02 \udc80")

    async with Cluster("a") as made, made.connect(suspend_queue_ms=100) as client:
        async with client.producer("p") as producer:
            for body in (b"0", b"1"):
                await producer.send(Message("Orders", body), sharding_key="k")
        options = {"consume_from": "first", "ordered": True, "max_reconsume_times": 1}
        async with (
            client.consumer("g", {"Orders": "*"}, **options) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, fail)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
        first, second = await client.dead_letters("g")
        assert "Unprintable" in first.reason
        assert second.reason == "ValueError: line 1 line 2  \\udc80"
        assert (first.topic, first.times) == ("Orders", 1)
        assert (await client.redrive("g")).sent == 2


async def test_a_group_without_dead_letters(clock: MockClock) -> None:
    async with Cluster("a") as made, made.connect() as client:
        assert await client.dead_letters("nobody") == []
        assert (await client.redrive("nobody")).looked_at == 0


async def test_in_a_namespace(clock: MockClock) -> None:
    async with Cluster("a") as made, made.connect(namespace="ns") as client:
        await kill(client, "Orders", [b"0"])
        (one,) = await client.dead_letters("g")
        assert (one.topic, one.message.topic) == ("Orders", "%DLQ%g")
        assert (await client.redrive("g")).sent == 1
        assert await numbers(made, "ns%Orders") == [0, 0]


async def test_a_letter_whose_topic_is_gone_fails_alone(clock: MockClock) -> None:
    async with Cluster("a") as made, made.connect() as client:
        await kill(client, "Orders", [b"0", b"1"])
        async with client.producer("p") as producer:
            await producer.send(Message("%DLQ%g", b"2"), queue=MessageQueue("%DLQ%g", "a", 0))
        done = await client.redrive("g")
        assert (done.looked_at, done.sent) == (3, 2)
        ((_, error),) = done.failed
        assert isinstance(error, LocalProtocolError)


async def test_a_run_that_a_lost_broker_ends_is_gone_on_with(clock: MockClock) -> None:
    async with Cluster("a") as made, made.connect() as client, trio.open_nursery() as nursery:
        await kill(client, "Orders", [b"%d" % n for n in range(6)])

        def stop(so_far: rmq.Redriven) -> None:
            if so_far.sent == 3:
                nursery.start_soon(made.stop, "a")

        with pytest.raises(rmq.RmqError) as caught:
            await client.redrive("g", rate=1, progress=stop)
        assert caught.value.retriable
        assert any("3 messages were resent" in note for note in caught.value.__notes__)
        await trio.sleep(60)
        await made.start("a")
        await trio.sleep(60)
        done = await client.redrive("g")
        assert (done.sent, done.already) == (3, 3)
        assert await numbers(made, "Orders") == sorted([*range(6), *range(6)])


async def test_a_discarded_half_message_is_listed_and_checked_again(clock: MockClock) -> None:
    asked: list[str] = []
    decision = rmq.UNKNOWN

    async def check_back(message: StoredMessage) -> rmq.Decision:
        asked.append(message.message_id)
        return decision

    async with Cluster() as made:
        await made.start(
            "a", transaction_time_out=1000, transaction_check_interval=1000, transaction_check_max=3
        )
        async with (
            made.connect() as client,
            client.transactional_producer("pay", check_back) as producer,
        ):
            assert await client.discarded_transactions() == []
            with pytest.raises(ValueError, match="limit"):
                await client.discarded_transactions(limit=-1)
            async with producer.transaction(Message("Payments", b"7")) as transaction:
                transaction.decision = rmq.UNKNOWN
            await trio.sleep(30)
            (half,) = await client.discarded_transactions()
            assert (half.group, half.topic, half.checks) == ("pay", "Payments", 3)
            assert (half.message.body, half.message.message_id) == (b"7", transaction.result.message_id)
            assert len(asked) == 3
            decision = rmq.COMMIT
            gone = attrs.evolve(half, message=attrs.evolve(half.message, broker_name="gone"))
            with pytest.raises(NoRoute, match="no master of gone is known"):
                await client.resume_transaction(gone)
            await client.resume_transaction(half)
            async with (
                client.consumer("g", {"Payments": "*"}, consume_from="first") as consumer,
                await anext(consumer) as message,
            ):
                assert message.body == b"7"
            assert len(asked) == 4
