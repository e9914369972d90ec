"""A store of RocketMQ 5.3.3 is opened by rmq's broker, and then by RocketMQ 5.3.3 again."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import pytest
import trio

import rmq
from rmq.protocol.bodies import TopicConfig
from tests.interop.rocketmq import Processes

pytestmark = pytest.mark.interop

TOPIC, TYPED, GROUP, KEEP = "Orders", "Typed", "auditors", {"flushConsumerOffsetInterval": "500"}
PATIENT: dict[str, Any] = {"request_timeout_ms": 60_000, "send_timeout_ms": 60_000}


async def send(names: str, stage: str) -> None:
    """Send 40 messages, and one that is delivered after a delay level."""
    async with rmq.connect(names, **PATIENT) as client, client.producer("shop") as producer:
        for number in range(40):
            await producer.send(rmq.Message(TOPIC, f"{stage}-{number}".encode(), keys=[f"{stage}-{number}"]))
        await producer.send(rmq.Message(TOPIC, f"{stage}-late".encode(), delay_level=1))


async def consume(names: str, count: int) -> list[str]:
    """Consume `count` messages as a member of the group, and commit."""
    bodies: list[str] = []
    async with (
        rmq.connect(names, **PATIENT) as client,
        client.consumer(GROUP, {TOPIC: "*"}, consume_from="first") as consumer,
    ):
        with trio.fail_after(300):
            while len(bodies) < count:
                async with await anext(consumer) as message:
                    bodies.append(message.body.decode())
    return bodies


async def read_all(names: str) -> list[str]:
    """All messages of the topic, by offset."""
    found: list[str] = []
    async with rmq.connect(names, **PATIENT) as client, client.pull_consumer("reader") as puller:
        for queue in await puller.message_queues(TOPIC):
            offset = await puller.min_offset(queue)
            while (batch := await puller.pull(queue, offset, max_messages=32)).messages:
                found += [message.body.decode() for message in batch.messages]
                offset = batch.next_offset
    return found


async def attributes(names: str) -> dict[str, str]:
    """The attributes of the second topic."""
    async with rmq.connect(names, **PATIENT) as client:
        (config,) = (await client.admin.topic_config(TYPED)).values()
        return {name.lstrip("+"): value for name, value in (config.attributes or {}).items()}


async def set_type(names: str, kind: str) -> None:
    """Make the second topic one for messages of this type."""
    async with rmq.connect(names, **PATIENT) as client:
        config = TopicConfig(TYPED, 1, 1, attributes={"message.type": kind})
        await client.admin.put_topic(config, cluster="DefaultCluster")


async def send_delayed(names: str) -> None:
    async with rmq.connect(names, **PATIENT) as client, client.producer("shop") as producer:
        await producer.send(rmq.Message(TYPED, b"delayed", delay_level=1))


def sent(*stages: str) -> set[str]:
    return {f"{stage}-{what}" for stage in stages for what in (*range(40), "late")}


def test_a_5_3_3_broker_becomes_ours_and_java_again(five: Processes, tmp_path: pathlib.Path) -> None:
    names, store = five.java_namesrv(), tmp_path / "store"
    java = five.java_broker(names, store, **KEEP)

    async def make() -> None:
        async with rmq.connect(names, **PATIENT) as client:
            await client.admin.put_topic(TopicConfig(TOPIC, 4, 4), cluster="DefaultCluster")

    trio.run(make)
    trio.run(set_type, names, "NORMAL")
    trio.run(send_delayed, names)  # RocketMQ's broker does not compare the types
    before = trio.run(attributes, names)
    trio.run(send, names, "java")
    first = trio.run(consume, names, 20)
    assert java.stop() in (0, 143)

    check = [sys.executable, "-m", "rmq", "store", "check", str(store)]
    assert subprocess.run(check, check=False, timeout=300).returncode == 0
    ours = five.rmq_broker(names, store, **KEEP)
    assert trio.run(attributes, names) == before == {"message.type": "NORMAL"}
    with pytest.raises(rmq.errors.MessageIllegal):
        trio.run(send_delayed, names)
    trio.run(set_type, names, "MIXED")
    trio.run(send_delayed, names)
    trio.run(send, names, "ours")
    second = trio.run(consume, names, 41)
    assert ours.stop() == 0

    assert subprocess.run(check, check=False, timeout=300).returncode == 0
    five.java_broker(names, store, **KEEP)
    assert trio.run(attributes, names) == {"message.type": "MIXED"}
    trio.run(send_delayed, names)
    trio.run(send, names, "again")
    third = trio.run(consume, names, 3 * 41 - len(first) - len(second))
    # The three readers share no message: the group's offsets went along, in both directions.
    assert sorted(first + second + third) == sorted(sent("java", "ours", "again"))
    assert sorted(trio.run(read_all, names)) == sorted(sent("java", "ours", "again"))
