"""The features that RocketMQ's users rely on, with the Java client and ours side by side, on the Java broker
and on ours.

Where a test names no direction, it runs in both: Java's clients on our broker, and ours on Java's.
"""

from __future__ import annotations

import pathlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import trio

import rmq
from rmq.client import blocking
from tests.interop import sides
from tests.interop.conftest import Servers
from tests.interop.driver import Driver
from tests.interop.rocketmq import Java, Processes
from tests.interop.sides import (
    by_key,
    caught_up,
    check_broadcast,
    check_pulls,
    client_of,
    consuming,
    only_letter,
    send,
)

pytestmark = pytest.mark.interop


class Cluster(sides.Cluster):
    """Servers of one kind with a JVM of clients."""

    def __init__(self, servers: Servers, folder: pathlib.Path) -> None:
        super().__init__(servers, folder)
        self.java = Driver(servers.processes, self.names)

    async def mqadmin(self, *arguments: str) -> str:
        command = (arguments[0], "-n", self.names, *arguments[1:])
        return await trio.to_thread.run_sync(lambda: self.servers.processes.mqadmin(*command))


@pytest.fixture(scope="module", params=["java", "rmq"])
def cluster(
    request: pytest.FixtureRequest, java: Java, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp(request.param)
    with Processes(java, folder) as processes:
        yield Cluster(Servers(processes, request.param), folder)


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[rmq.Client]:
    async with client_of(cluster) as made:
        yield made


# --- 1: order ---


async def test_order_over_two_languages_and_a_rebalance(cluster: Cluster, client: rmq.Client) -> None:
    topic = await cluster.topic("Ordered")
    keys = [f"k{number}" for number in range(12)]
    java = cluster.java.do("consume", topic=topic, group="ordered", ordered=True)
    async with consuming(client, "ordered", topic, ordered=True) as ours:
        await java.until(lambda: java.told("locked")[-1:] == [[True, True]], "two locked queues")
        places: dict[str, set[int]] = defaultdict(set)
        for key in keys:
            bodies = [f"{key} {step}" for step in range(5)]
            for row in await cluster.java.do("send", topic=topic, bodies=bodies, key=key).done():
                places[key] |= {row["queue"]} if "queue" in row else set()
            for result in await send(client, topic, [f"{key} {step}" for step in range(5, 10)], key=key):
                places[key].add(result.message_queue.queue_id)
        assert {len(queues) for queues in places.values()} == {1}, "a key of both languages has one queue"
        await ours.until(lambda: len(ours.bodies) + len(java.bodies) >= 120)
        assert {message.queue_id for message in ours.messages}.isdisjoint(java.told("queue"))
        shared = by_key(java.bodies) | by_key(ours.bodies)
        assert shared == {key: list(range(10)) for key in keys}

        await java.stop()
        for key in keys:
            await cluster.java.do("send", topic=topic, bodies=[f"{key} 10", f"{key} 11"], key=key).done()
        await ours.until(lambda: len(ours.bodies) + len(java.bodies) >= 144)
    assert by_key(java.bodies + ours.bodies) == {key: list(range(12)) for key in keys}


async def test_an_ordered_message_of_java_holds_up_its_queue_then_dies(
    cluster: Cluster, client: rmq.Client
) -> None:
    topic = await cluster.topic("OrderedFails")
    await send(client, topic, ["bad", "good"], key="k")
    job = cluster.java.do("consume", topic=topic, group="o-fails", ordered=True, fail=["bad"], most=2)
    await job.until(lambda: "good" in job.bodies, "message behind the bad one")
    assert job.bodies == ["bad", "bad", "bad", "good"]
    assert job.told("times") == [0, 1, 2, 0]
    await job.stop()
    with trio.fail_after(30):
        while not (letters := await client.dead_letters("o-fails")):
            await trio.sleep(0.2)
    assert [(one.topic, one.message.body) for one in letters] == [(topic, b"bad")]


# --- 2: transactions ---


async def test_transactions_of_a_java_producer(cluster: Cluster, client: rmq.Client) -> None:
    topic = await cluster.topic("Transactions")
    job = cluster.java.do(
        "transact",
        topic=topic,
        group="java-pay",
        decisions={
            "committed": "COMMIT_MESSAGE",
            "rolled-back": "ROLLBACK_MESSAGE",
            "late": "UNKNOW",
            "refused": "UNKNOW",
            "never": "UNKNOW",
        },
        checks={"late": "COMMIT_MESSAGE", "refused": "ROLLBACK_MESSAGE", "never": "UNKNOW"},
    )
    async with consuming(client, "ledger", topic) as seen:
        await seen.until(lambda: sorted(seen.bodies) == ["committed", "late"])
        await job.until(lambda: job.told("checked").count("never") == 3, "third check-back")
        with trio.fail_after(60):
            while not (halves := await client.discarded_transactions()):
                await trio.sleep(0.2)
        assert [(one.message.body, one.group, one.topic, one.checks) for one in halves] == [
            (b"never", "java-pay", topic, 3)
        ]
        await client.resume_transaction(halves[0])
        await job.until(lambda: job.told("checked").count("never") == 4, "check-back after the resumption")
        assert job.told("checked").count("refused") == 1
        await job.stop()
        assert sorted(seen.bodies) == ["committed", "late"]


# --- 3: delay ---


async def test_delay_levels(cluster: Cluster, client: rmq.Client) -> None:
    topic = await cluster.topic("Levels")
    job = cluster.java.do("consume", topic=topic, group="levels")
    began = {"two": time.time()}
    await cluster.java.do("send", topic=topic, bodies=["two", "too"], delay=2).done()
    began["one"] = time.time()  # a program of Java takes seconds to start on a busy machine
    await send(client, topic, ["one"], delay_level=1)
    await job.until(lambda: len(job.bodies) == 3, "three messages")
    at = {row["body"]: row["at"] / 1000 for row in job.rows if "body" in row}
    assert at["one"] - began["one"] >= 1
    assert at["two"] - began["two"] >= 2
    assert job.bodies.index("two") < job.bodies.index("too") or at["two"] - at["too"] < 0.5
    await job.stop()


async def test_a_java_producer_names_a_time(cluster: Cluster, client: rmq.Client) -> None:
    if cluster.kind == "java":
        pytest.skip("RocketMQ 4.9's broker knows no delivery times")
    topic = await cluster.topic("AnyTime")
    due = int(time.time() * 1000) + 1_500
    properties = {"TIMER_DELIVER_MS": str(due)}
    job = cluster.java.do("consume", topic=topic, group="any-time")
    await cluster.java.do("send", topic=topic, bodies=["later"], properties=properties).done()
    await job.until(lambda: job.bodies, "the message")
    assert job.told("at")[0] >= due
    await job.stop()


# --- 4: retry and dead letters ---


async def test_what_a_java_consumer_gives_up_is_sent_again(cluster: Cluster, client: rmq.Client) -> None:
    topic = await cluster.topic("JavaFails")
    failing = cluster.java.do("consume", topic=topic, group="j-fails", fail=["bad"], most=2)
    (sent,) = await send(client, topic, ["bad"], tags="t", keys=["k"], properties={"amount": "3"})
    await failing.until(lambda: len(failing.bodies) == 3, "two retries")
    assert failing.told("times") == [0, 1, 2]
    letter = await only_letter(client, "j-fails")
    await caught_up(client, "j-fails")
    await failing.stop()
    assert (letter.topic, letter.message_id) == (topic, sent.message_id)

    assert (await client.redrive("j-fails")).sent == 1
    # Another group: a Java client that joins one just after another has left may wait 20 s for its queues.
    good = cluster.java.do("consume", topic=topic, group="j-fails-reads")
    await good.until(lambda: len(good.bodies) == 2, "the message, and the message again")
    (row,) = [row for row in good.rows if "DLQ_REDRIVE_KEY" in row.get("properties", ())]
    assert (row["topic"], row["times"]) == (topic, 0)
    properties = row["properties"]
    assert (row["id"], properties["TAGS"], properties["KEYS"]) == (sent.message_id, "t", "k")
    assert properties["amount"] == "3"
    with trio.fail_after(20):  # the index is written behind the log
        while (again := await client.redrive("j-fails", rmq.Letters(ids=[sent.message_id]))).sent:
            await trio.sleep(0.5)
    assert again.already == 1
    await good.stop()


async def test_what_our_consumer_gives_up_is_sent_again(cluster: Cluster, client: rmq.Client) -> None:
    topic = await cluster.topic("OursFails")
    await cluster.java.do("send", topic=topic, bodies=["bad", "good"], tags="t").done()
    async with consuming(client, "o-gives-up", topic, fail=["bad"], max_reconsume_times=2) as seen:
        await seen.until(lambda: seen.bodies.count("bad") == 3)
        assert [one.reconsume_times for one in seen.messages if one.body == b"bad"] == [0, 1, 2]
    letter = await only_letter(client, "o-gives-up")
    assert letter.topic == topic
    assert letter.reason == ("ValueError: no such customer" if cluster.kind == "rmq" else "")
    await client.redrive("o-gives-up")
    job = cluster.java.do("consume", topic=topic, group="o-gives-up", tags="t")
    await job.until(lambda: "bad" in job.bodies, "the message again")
    await job.stop()


# --- 5: filters ---


async def test_sql_of_both_languages(cluster: Cluster, client: rmq.Client) -> None:
    topic = await cluster.topic("Sql")
    expression = "amount BETWEEN 2 AND 4 AND TAGS IS NOT NULL AND region IN ('hz', 'sh')"
    for number in range(6):
        properties = {"amount": str(number), "region": "hz" if number % 2 else "sh"}
        options = {"topic": topic, "bodies": [f"j{number}"], "tags": "t", "properties": properties}
        await cluster.java.do("send", **options).done()
        await send(client, topic, [f"o{number}"], tags="t" if number < 4 else None, properties=properties)
    job = cluster.java.do("consume", topic=topic, group="sql-java", sql=expression)
    async with consuming(client, "sql-ours", topic, wanted=rmq.sql(expression)) as seen:
        wanted = ["j2", "j3", "j4", "o2", "o3"]
        await seen.until(lambda: sorted(seen.bodies) == wanted)
        await job.until(lambda: sorted(job.bodies) == wanted, "five messages")
    await job.stop()


# --- 6: consumption ---


async def test_members_of_both_languages_get_a_broadcast(cluster: Cluster, client: rmq.Client) -> None:
    topic = await cluster.topic("Broadcast")
    job = cluster.java.do("consume", topic=topic, group="broadcast", broadcasting=True)
    async with consuming(client, "broadcast", topic, broadcasting=True) as seen:
        await job.until(lambda: job.told("assigned")[-1:] == [[0, 1, 2, 3]], "all queues")
        await check_broadcast(client, cluster.java, topic, seen, job)
    await job.stop()


async def test_a_java_pull_consumer_assigns_and_seeks(cluster: Cluster, client: rmq.Client) -> None:
    topic = await cluster.topic("Lite")
    await check_pulls(client, cluster.java, topic, "lite")
    async with client.pull_consumer("lite") as puller:
        for queue in await puller.message_queues(topic):
            assert await puller.committed(queue) == 10
    shared = cluster.java.do("lite", topic=topic, group="lite-all", subscribe=True, count=40, stay=True)
    await shared.done()
    assert len(set(shared.bodies)) == 40
    members = await cluster.mqadmin("consumerConnection", "-g", "lite-all")
    assert shared.name in members
    assert "CONSUME_ACTIVELY" in members
    await shared.stop()


async def test_our_pull_consumer_is_a_member_that_mqadmin_sees(cluster: Cluster, client: rmq.Client) -> None:
    topic = await cluster.topic("Polled")
    await cluster.java.do("send", topic=topic, bodies=["a", "b"]).done()
    async with client.pull_consumer("polled") as puller:
        await puller.subscribe({topic: "*"}, consume_from="first")
        got: list[bytes] = []
        with trio.fail_after(30):
            while len(got) < 2:
                got += [message.body for message in await puller.poll(timeout=1)]
        members = await cluster.mqadmin("consumerConnection", "-g", "polled")
        assert client.client_id in members
        assert "CONSUME_ACTIVELY" in members


async def test_mqadmin_resets_our_running_consumer(cluster: Cluster, client: rmq.Client) -> None:
    topic = await cluster.topic("Reset")
    await send(client, topic, [f"m{number}" for number in range(8)])
    async with consuming(client, "reset", topic) as seen:
        await seen.until(lambda: len(seen.bodies) == 8)
        since = str(seen.messages[0].store_timestamp - 60_000)
        async with client.pull_consumer("reset") as puller:
            queues = await puller.message_queues(topic)
            with trio.fail_after(30):  # a broker resets a group only where it has committed
                while {await puller.committed(queue) for queue in queues} != {2}:
                    await trio.sleep(0.1)
        said = await cluster.mqadmin("resetOffsetByTime", "-g", "reset", "-t", topic, "-s", since)
        assert "consumer offset by specified" in said
        await seen.until(lambda: len(seen.bodies) == 16)


# --- 7: batches, compression, questions, namespaces ---


@pytest.mark.parametrize("size", [0, 5_000])
async def test_batches_and_compression(cluster: Cluster, client: rmq.Client, size: int) -> None:
    topic = await cluster.topic(f"Batches{size}")
    job = cluster.java.do("consume", topic=topic, group=f"batches{size}")
    theirs = [f"j{number}" for number in range(20)]
    await cluster.java.do("send", topic=topic, bodies=theirs, batch=not size, size=size).done()
    async with client.producer("ours") as producer:
        messages = [rmq.Message(topic, f"o{number}".ljust(size).encode()) for number in range(20)]
        if size:
            for message in messages:
                await producer.send(message)
        else:
            await producer.send_batch(messages)
    wanted = sorted([*theirs, *(f"o{number}" for number in range(20))])
    async with consuming(client, f"o-batches{size}", topic) as seen:
        await seen.until(lambda: sorted(seen.bodies) == wanted)
        await job.until(lambda: sorted(job.bodies) == wanted, "all messages")
    assert set(job.told("size")) == ({size} if size else {2, 3})
    assert {len(message.body) for message in seen.messages} == set(job.told("size"))
    await job.stop()


async def test_java_asks_and_we_answer(cluster: Cluster, client: rmq.Client) -> None:
    topic = await cluster.topic("JavaAsks")
    async with client.producer("answers") as producer, trio.open_nursery() as nursery:

        async def answer(message: rmq.StoredMessage) -> None:
            await producer.reply(message, b"a" + message.body)

        async with client.consumer("answering", {topic: "*"}, consume_from="first") as consumer:
            nursery.start_soon(consumer.run, answer)
            version = cluster.servers.processes.java.version
            job = cluster.java.do("ask", topic=topic, bodies=["q0", "q1", "q2"], callback=version >= "5")
            await job.done()
            nursery.cancel_scope.cancel()
    assert job.told("answer") == ["aq0", "aq1", "aq2"]


async def test_we_ask_and_java_answers(cluster: Cluster, client: rmq.Client) -> None:
    topic = await cluster.topic("WeAsk")
    job = cluster.java.do("consume", topic=topic, group="java-answers", answer=True)
    await job.until(lambda: job.told("assigned")[-1:] == [[0, 1, 2, 3]], "all queues")
    async with client.producer("asks") as producer:
        answers = [await producer.request(rmq.Message(topic, b"q%d" % n), timeout=30) for n in range(3)]
    assert [one.body for one in answers] == [b"aq0", b"aq1", b"aq2"]
    await job.stop()


async def test_namespaces_of_both_languages(cluster: Cluster) -> None:
    topic = (await cluster.topic("ns%Spaced")).removeprefix("ns%")
    job = cluster.java.do("consume", topic=topic, group="spaced", namespace="ns")
    config = rmq.ClientConfig(namespace="ns")
    async with rmq.connect(cluster.names, config=config) as inside:
        await cluster.java.do("send", topic=topic, bodies=["j"], namespace="ns").done()
        await send(inside, topic, ["o"])
        async with consuming(inside, "spaced-ours", topic, fail=["j"], max_reconsume_times=0) as seen:
            await seen.until(lambda: sorted(seen.bodies) == ["j", "o"])
            assert {message.topic for message in seen.messages} == {topic}
        letter = await only_letter(inside, "spaced-ours")
        assert letter.topic == topic
        await job.until(lambda: sorted(job.bodies) == ["j", "o"], "both messages")
        assert set(job.told("topic")) == {topic}
    await job.stop()


# --- 8: conflicts ---


async def test_java_members_that_want_different_things_are_told_of(
    cluster: Cluster, client: rmq.Client
) -> None:
    if cluster.kind == "java":
        pytest.skip("RocketMQ's broker says nothing")
    topic = await cluster.topic("Conflict")
    first = cluster.java.do("consume", topic=topic, group="conflict", tags="a")
    second = cluster.java.do("consume", topic=topic, group="conflict", tags="b")
    for job in (first, second):
        await job.until(lambda job=job: job.told("started"), "start")
    with trio.fail_after(40):
        while "subscribe differently" not in cluster.broker.said():
            await trio.sleep(0.1)
    assert cluster.broker.said().count("subscribe differently") == 1
    await first.stop()
    await second.stop()


# --- 9: trace ---


async def test_mqadmin_reads_the_trace_of_java_clients(cluster: Cluster) -> None:
    topic = await cluster.topic("JavaTrace")
    job = cluster.java.do("consume", topic=topic, group="java-traced", trace=True)
    said, count = "", 0
    with trio.fail_after(120):
        while "java-traced" not in said or "Pub" not in said:
            # RocketMQ's client drops a trace whose send fails, as the first one's may: so one more message.
            rows = await cluster.java.do("send", topic=topic, bodies=["m"], trace=True).done()
            (sent,) = [row for row in rows if "sent" in row]
            count += 1
            await job.until(lambda count=count: len(job.bodies) >= count, "the message")
            for _ in range(5):
                said = await cluster.mqadmin("queryMsgTraceById", "-i", sent["id"])
                if "java-traced" in said and "Pub" in said:
                    break
    assert "success" in said
    await job.stop()


# --- 10: comfort ---


async def test_a_script_without_async(cluster: Cluster) -> None:
    topic = await cluster.topic("Script")
    await cluster.java.do("send", topic=topic, bodies=["j"]).done()

    def script() -> list[bytes]:
        with blocking.connect(cluster.names) as client:
            with client.producer("script") as producer:
                producer.send(rmq.Message(topic, b"o"))
            got: list[bytes] = []
            with client.consumer("script", {topic: "*"}, consume_from="first") as consumer:
                while len(got) < 2:
                    delivery = consumer.take(30)
                    assert delivery is not None, got
                    with delivery as message:
                        got.append(message.body)
            return got

    assert sorted(await trio.to_thread.run_sync(script)) == [b"j", b"o"]


# --- 3 again: how exact ---


async def test_a_delayed_message_of_an_idle_broker_is_exact_to_50_ms(
    cluster: Cluster, client: rmq.Client, record_property: Callable[[str, object], None]
) -> None:
    if cluster.kind == "java":
        pytest.skip("a promise of ours")
    topic = await cluster.topic("Exact")
    lates: list[int] = []
    async with client.producer("exact") as producer, client.pull_consumer("exact") as puller:
        queues = await puller.message_queues(topic)
        for number in range(12):
            options = {"delay_level": 1} if number % 2 else {"delay_ms": 1_000 + 37 * number}
            await producer.send(rmq.Message(topic, b"x", **options), queue=queues[0])
            stored = (await puller.pull(queues[0], number, wait=10)).messages[0]
            due = stored.born_timestamp + options.get("delay_ms", 1_000)
            lates.append(stored.store_timestamp - due)
    record_property("late_ms", lates)
    print(f"late by {sorted(lates)} ms")
    assert min(lates) >= 0
    assert sorted(lates)[len(lates) // 2] <= 20  # of a machine that may have other work
    assert sorted(lates)[-2] <= 50
