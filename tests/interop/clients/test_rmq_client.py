"""Our client against the Java servers, and side by side with the Java client."""

from __future__ import annotations

import json
import pathlib
import zlib

import pytest
import trio

import rmq
from tests.interop.conftest import Servers
from tests.interop.rocketmq import Process, Processes, wait_until

pytestmark = pytest.mark.interop

COUNT = 200


@pytest.fixture(params=["java", "rmq"])
def servers(request: pytest.FixtureRequest, processes: Processes) -> Servers:
    """Each test here runs on the Java servers and on ours."""
    return Servers(processes, request.param)


@pytest.fixture
def namesrv(servers: Servers, broker: Process) -> str:
    return servers.namesrv


def message(topic: str, number: int, size: int = 0) -> rmq.Message:
    text = f"m-{number}"
    return rmq.Message(topic, text.ljust(size).encode(), tags=f"T{number % 3}", keys=[text])


async def produce(namesrv: str, topic: str, size: int = 0) -> dict[str, rmq.SendResult]:
    """Send by each of the doors; return the results of the doors that give one."""
    results: dict[str, rmq.SendResult] = {}
    async with rmq.connect(namesrv) as client, client.producer("interop-rmq") as producer:

        async def send(number: int) -> None:
            results[f"m-{number}"] = await producer.send(message(topic, number, size))

        await send(0)
        async with trio.open_nursery() as nursery:
            for number in range(1, 120):
                nursery.start_soon(send, number)
        for number in range(120, 160):
            await producer.send_oneway(message(topic, number, size))
        await producer.send_batch([message(topic, number, size) for number in range(160, COUNT)])
    return results


async def consume(
    namesrv: str, topic: str, group: str, count: int, expression: str = "*"
) -> list[rmq.StoredMessage]:
    """Consume `count` messages, and wait half a second for further messages."""
    got: list[rmq.StoredMessage] = []
    async with (
        rmq.connect(namesrv) as client,
        client.consumer(group, {topic: expression}, consume_from="first") as consumer,
    ):
        with trio.move_on_after(60) as scope:
            async for delivery in consumer:
                async with delivery as one:
                    got.append(one)
                if len(got) == count:
                    scope.deadline = trio.current_time() + 0.5
    return got


@pytest.mark.parametrize("size", [0, 20_000])
async def test_rmq_to_rmq(namesrv: str, size: int) -> None:
    results = await produce(namesrv, "Kinds", size)

    got = await consume(namesrv, "Kinds", "rmq-kinds", COUNT)

    assert sorted(one.body.decode().strip() for one in got) == sorted(f"m-{n}" for n in range(COUNT))
    for one in got:
        text = one.body.decode().strip()
        assert (one.keys, one.tags) == ((text,), f"T{int(text[2:]) % 3}")
        assert len(one.body) == max(size, len(text))
        result = results.get(text)
        if result is not None:
            assert result.status == "SEND_OK"
            assert (result.message_queue.queue_id, result.queue_offset) == (one.queue_id, one.queue_offset)
            assert (result.message_id, result.offset_message_id) == (one.message_id, one.offset_message_id)


async def test_rmq_to_java(processes: Processes, namesrv: str) -> None:
    await produce(namesrv, "ToJava", 6_000)

    consumer = processes.program("Consume", namesrv, "ToJava", "java-group")

    await trio.to_thread.run_sync(
        wait_until, lambda: len([row for row in consumer.rows if "body" in row]) >= COUNT, 60, "all messages"
    )
    rows = [row for row in consumer.rows if "body" in row]
    assert sorted(row["body"] for row in rows) == sorted(f"m-{n}" for n in range(COUNT))
    assert {(row["keys"], row["tags"], row["size"]) for row in rows} == {
        (f"m-{n}", f"T{n % 3}", 6_000) for n in range(COUNT)
    }


@pytest.mark.parametrize(("mode", "size"), [("sync", 0), ("async", 0), ("batch", 0), ("sync", 20_000)])
async def test_java_to_rmq(processes: Processes, namesrv: str, mode: str, size: int) -> None:
    sent = processes.program("Produce", namesrv, "ToRmq", mode, str(COUNT), "m", str(size)).finish()

    got = await consume(namesrv, "ToRmq", "rmq-group", COUNT)

    assert sorted(one.body.decode().strip() for one in got) == sorted(f"m-{n}" for n in range(COUNT))
    ids = {one.message_id for one in got}
    assert {answer["id"].split(",")[0] for answer in sent} <= ids


async def test_tags_are_filtered_alike(processes: Processes, namesrv: str) -> None:
    processes.program("Produce", namesrv, "Tags", "sync", "90", "m").finish()

    got = await consume(namesrv, "Tags", "rmq-tags", 60, "T0 || T2")

    assert len(got) == 60
    assert {one.tags for one in got} == {"T0", "T2"}


async def test_a_java_and_an_rmq_consumer_share_one_group(processes: Processes, namesrv: str) -> None:
    processes.make_topic(namesrv, "Mixed")
    java = processes.program("Consume", namesrv, "Mixed", "mixed")
    async with rmq.connect(namesrv) as client, client.consumer("mixed", {"Mixed": "*"}) as consumer:
        with trio.fail_after(40):
            while len(ours := {q.queue_id for q in consumer.queues if q.topic == "Mixed"}) != 2:
                await trio.sleep(0.05)
            while len(theirs := last_assigned(java)) != 2:
                await trio.sleep(0.05)
        assert ours | theirs == {0, 1, 2, 3}

        await trio.to_thread.run_sync(
            lambda: processes.program("Produce", namesrv, "Mixed", "sync", "40", "m").finish()
        )
        got: list[str] = []
        with trio.fail_after(30):
            async for delivery in consumer:
                async with delivery as one:
                    assert one.queue_id in ours
                    got.append(one.body.decode())
                if len(got) == 20:
                    break
        with trio.fail_after(30):
            while len(rest := [row for row in java.rows if "body" in row]) < 20:
                await trio.sleep(0.05)
    assert {row["queue"] for row in rest} == theirs
    assert {f"m-{n}" for n in range(40)} == {*got, *(row["body"] for row in rest)}
    await trio.to_thread.run_sync(wait_until, lambda: last_assigned(java) == {0, 1, 2, 3}, 30, "take-over")


def last_assigned(consumer: Process) -> set[int]:
    sets = [row["assigned"] for row in consumer.rows if "assigned" in row]
    return set(sets[-1]) if sets else set()


async def test_pull_and_seek(processes: Processes, namesrv: str) -> None:
    sent = processes.program("Produce", namesrv, "Seek", "sync", "40", "m").finish()
    wanted = {(row["queue"], row["offset"]): row["sent"] for row in sent}

    got = {}
    async with rmq.connect(namesrv) as client, client.pull_consumer("rmq-seek") as puller:
        for queue in await puller.message_queues("Seek"):
            assert await puller.search_offset(queue, 0) == await puller.min_offset(queue) == 0
            offset, end = 0, await puller.max_offset(queue)
            while offset < end:
                batch = await puller.pull(queue, offset, max_messages=3)
                for one in batch.messages:
                    got[one.queue_id, one.queue_offset] = one.body.decode()
                offset = batch.next_offset
            await puller.commit(queue, offset)
    assert got == wanted


async def test_the_orders_of_the_demo_survive_a_restart(
    servers: Servers, broker: Process, tmp_path: pathlib.Path
) -> None:
    """A sharding key keeps an order's steps in one queue, also over a restart of the broker."""
    steps = ("created", "paid", "shipped")
    async with rmq.connect(servers.namesrv) as client, client.producer("orders") as producer:
        for step in steps:
            for order in range(20):
                body = json.dumps({"order": order, "step": step}).encode()
                await producer.send(rmq.Message("Orders", body), sharding_key=f"o-{order}")
    assert broker.stop() in (0, 143)
    servers.broker(tmp_path / "store")

    got = await consume(servers.namesrv, "Orders", "orders-reader", 60)

    seen: dict[int, list[str]] = {}
    for one in sorted(got, key=lambda one: (one.queue_id, one.queue_offset)):
        row = json.loads(one.body)
        seen.setdefault(row["order"], []).append(row["step"])
        assert one.body_crc == zlib.crc32(one.body) & 0x7FFFFFFF
    assert seen == {order: list(steps) for order in range(20)}
