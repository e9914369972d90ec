"""The remoting client of Apache RocketMQ 5.3.3 against our servers."""

from __future__ import annotations

import pathlib

import pytest
import trio

import rmq
from rmq.protocol.bodies import SubscriptionGroupConfig
from tests.interop.driver import Driver
from tests.interop.five import client_of, in_thread, take, topic_of
from tests.interop.rocketmq import Process, Processes, wait_until

pytestmark = pytest.mark.interop


@pytest.fixture
def ours(five: Processes, tmp_path: pathlib.Path) -> str:
    """Our name server and broker: the name server's address."""
    names = five.rmq_namesrv()
    settings = {"enablePropertyFilter": "true", "traceTopicEnable": "true", "regionInMessages": "true"}
    five.rmq_broker(names, tmp_path / "store", **settings)
    return names


def rows_of(process: Process, key: str, count: int) -> list[dict[str, object]]:
    wait_until(lambda: len([one for one in process.rows if key in one]) >= count, 60, f"{count} rows")
    return [one for one in process.rows if key in one]


@pytest.mark.parametrize(
    ("mode", "size"), [("sync", 0), ("async", 0), ("oneway", 0), ("batch", 0), ("sync", 20_000)]
)
def test_java_sends_and_consumes(five: Processes, ours: str, mode: str, size: int) -> None:
    five.program("Produce", ours, "Kinds", mode, "60", "m", str(size)).finish()
    consumer = five.program("Consume", ours, "Kinds", "kinds")
    assert {one["body"] for one in rows_of(consumer, "body", 60)} == {f"m-{number}" for number in range(60)}


async def test_javas_traces(five: Processes, ours: str) -> None:
    """A client of RocketMQ drops a trace whose send fails, as the first may: so it sends until one comes."""

    def send() -> None:
        five.program("Produce", ours, "Traced", "sync", "3", "m", "0", options=("-Dtrace=true",)).finish()

    await in_thread(send)
    async with (
        client_of(ours, seconds=180) as client,
        client.consumer("traces", {"RMQ_SYS_TRACE_TOPIC": "*"}, consume_from="first") as consumer,
    ):
        while True:
            with trio.move_on_after(10):
                (trace,) = await take(consumer, 1)
                if b"Traced" in trace.body:
                    break
            await in_thread(send)


async def test_traces_of_its_consumer(five: Processes, ours: str) -> None:
    """The client traces only messages with MSG_REGION. Our broker writes this property if
    regionInMessages=true."""
    async with (
        client_of(ours, seconds=180) as client,
        client.producer("p") as producer,
        client.consumer("traces", {"RMQ_SYS_TRACE_TOPIC": "*"}, consume_from="first") as traces,
    ):
        topic, options = await topic_of(client, "Seen"), ("-Dtrace=true",)
        await in_thread(five.program, "Consume", ours, topic, "seen", options=options)
        while True:
            await producer.send(rmq.Message(topic, b"x"))
            with trio.move_on_after(10):
                (trace,) = await take(traces, 1)
                if b"SubAfter" in trace.body and b"seen" in trace.body:
                    break


# --- what a JVM with several clients does (java/Driver.java) ---


@pytest.fixture
def driver(five: Processes, ours: str) -> Driver:
    return Driver(five, ours)


async def test_its_lite_pull_consumer(ours: str, driver: Driver) -> None:
    """The pulls of this client are requests 361. It pulls queues of its choice from an offset on, and as a
    member of a group."""
    async with client_of(ours, seconds=180) as client, client.producer("five") as producer:
        topic = await topic_of(client, "Lite")
        results = [await producer.send(rmq.Message(topic, b"m%d" % number)) for number in range(40)]
        late = sorted(f"m{number}" for number, result in enumerate(results) if result.queue_offset >= 4)
        alone = driver.do("lite", topic=topic, group="lite", offset=4, count=len(late))
        await alone.until(lambda: alone.told("done"), "end", 90)
        assert sorted(alone.bodies) == late
        async with client.pull_consumer("lite") as puller:
            for queue in await puller.message_queues(topic):
                assert await puller.committed(queue) == 10
        member = driver.do("lite", topic=topic, group="lite-all", subscribe=True, count=40)
        await member.until(lambda: member.told("done"), "end", 90)
        assert len(set(member.bodies)) == 40


async def test_its_requests_are_replied_to(ours: str, driver: Driver) -> None:
    """Asked by the method with a queue and a callback: others of 5.3.0 to 5.3.3 do not wait for the reply."""
    async with client_of(ours, seconds=180) as client, client.producer("answers") as producer:
        topic = await topic_of(client, "Asks")

        async def answer(message: rmq.StoredMessage) -> None:
            await producer.reply(message, b"a" + message.body)

        async with client.consumer("answering", {topic: "*"}) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, answer)
            job = driver.do("ask", topic=topic, bodies=["q0", "q1", "q2"], callback=True)
            await job.until(lambda: job.told("done"), "end", 90)
            nursery.cancel_scope.cancel()
        assert job.told("answer") == ["aq0", "aq1", "aq2"]


async def test_it_recalls_a_timed_message(ours: str, driver: Driver) -> None:
    async with client_of(ours, seconds=180) as client:
        topic = await topic_of(client, "Recalled")
        rows = {}
        for body, ms in (("recalled", 15_000), ("last", 20_000)):
            timed = {"TIMER_DELAY_MS": str(ms)}
            sent = await driver.do("send", topic=topic, bodies=[body], properties=timed).done()
            rows[body] = next(row for row in sent if "sent" in row)
        (said, *_) = await driver.do("recall", topic=topic, handle=rows["recalled"]["handle"]).done()
        assert said["recalled"] == rows["recalled"]["id"]
        async with client.consumer("recalls", {topic: "*"}, consume_from="first") as consumer:
            (got,) = await take(consumer, 1)
        assert got.body == b"last"


# --- several brokers ---


async def test_its_traces_with_two_masters(five: Processes, tmp_path: pathlib.Path) -> None:
    """Traces of what is sent to, and consumed from, each of them."""
    names = await in_thread(five.rmq_namesrv)
    settings = {"traceTopicEnable": "true", "regionInMessages": "true"}
    for name in ("a", "b"):
        await in_thread(five.rmq_broker, names, tmp_path / name, brokerName=name, **settings)
    driver, wanted, said = Driver(five, names), set[tuple[str, str]](), set[tuple[str, str]]()
    async with (
        client_of(names, seconds=180) as client,
        client.consumer("traces", {"RMQ_SYS_TRACE_TOPIC": "*"}, consume_from="first") as traces,
        trio.open_nursery() as nursery,
    ):
        topic = await topic_of(client, "Two")
        job = driver.do("consume", topic=topic, group="traced", trace=True)

        async def note(trace: rmq.StoredMessage) -> None:
            for line in trace.body.decode().split("\x02"):
                words = line.split("\x01")
                said.update((words[0], word) for word in words)

        nursery.start_soon(traces.run, note)
        await driver.do("send", topic=topic, bodies=["first"], trace=True).done()  # a lost trace
        rows = await driver.do("send", topic=topic, bodies=[f"m{n}" for n in range(16)], trace=True).done()
        await job.until(lambda: len(job.bodies) >= 17, "the messages")
        ids = [str(row["id"]) for row in rows if "sent" in row]
        wanted = {(kind, one) for kind in ("Pub", "SubBefore", "SubAfter") for one in ids}
        while not wanted <= said:
            await trio.sleep(0.2)
        assert len({row["topic"] + str(row["queue"]) for row in job.rows if "body" in row}) > 1
        nursery.cancel_scope.cancel()


async def test_its_consumer_reads_where_it_is_guided(five: Processes, tmp_path: pathlib.Path) -> None:
    """A group with brokerId=1 gets its messages from the slave."""
    names = await in_thread(five.rmq_namesrv)
    pair = {"brokerName": "pair", "slaveReadEnable": "true"}
    await in_thread(five.rmq_broker, names, tmp_path / "master", brokerRole="SYNC_MASTER", **pair)
    slave = await in_thread(
        five.rmq_broker, names, tmp_path / "slave", brokerRole="SLAVE", brokerId="1", **pair
    )
    driver = Driver(five, names)
    async with client_of(names, seconds=180) as client, client.producer("five") as producer:
        topic = await topic_of(client, "Guided")
        await client.admin.put_group(SubscriptionGroupConfig("guided", broker_id=1))
        job = driver.do("consume", topic=topic, group="guided")
        await producer.send(rmq.Message(topic, b"first"))
        await job.until(lambda: job.bodies, "the first")
        for number in range(20):
            await producer.send(rmq.Message(topic, b"%d" % number), timeout=30)
        await job.until(lambda: len(set(job.bodies)) >= 21, "all")
        runtime = await client.admin.broker_runtime(f"127.0.0.1:{slave.port}")
        assert int(runtime["msgGetTotalTodayNow"]) >= 16


# ---- its push consumer that pops ----


def bodies(process: Process) -> list[str]:
    return [str(row["body"]) for row in process.rows if "body" in row]


def test_its_pop_consumer_gets_the_messages_of_two_brokers_once(
    five: Processes, tmp_path: pathlib.Path
) -> None:
    topic, group, count = "Popped", "poppers", 40
    names = five.rmq_namesrv()
    for name in ("a", "b"):
        five.rmq_broker(names, tmp_path / name, brokerName=name)
    made = five.mqadmin("updateTopic", "-n", names, "-c", "DefaultCluster", "-t", topic, "-r", "2", "-w", "2")
    assert "success" in made
    made = five.mqadmin("updateSubGroup", "-n", names, "-c", "DefaultCluster", "-g", group)
    assert "success" in made
    words = ("-n", names, "-c", "DefaultCluster", "-t", topic, "-g", group, "-m", "POP")
    told = five.mqadmin("setConsumeMode", *words)
    assert told.count("success") >= 2, told
    consumers = [five.program("Consume", names, topic, group, options=("-Dask=true",)) for _ in range(2)]
    five.program("Produce", names, topic, "sync", str(count), "m").finish()
    wanted = {f"m-{number}" for number in range(count)}
    wait_until(lambda: set(bodies(consumers[0]) + bodies(consumers[1])) == wanted, 120, "all messages")
    assert len(bodies(consumers[0]) + bodies(consumers[1])) == count
    brokers = {str(row["broker"]) for one in consumers for row in one.rows if "body" in row}
    assert brokers == {"a", "b"}
    progress = five.mqadmin("consumerProgress", "-n", names, "-g", group)
    assert topic in progress, progress
