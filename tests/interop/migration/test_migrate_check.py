"""`rmq migrate check` at clusters of RocketMQ 4.9.7 and 5.3.3 whose features are in use."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import trio

import rmq
from rmq.protocol.bodies import TopicConfig
from tests.interop.rocketmq import Process, Processes, wait_until

pytestmark = pytest.mark.interop


def checked(names: str, status: int) -> list[dict[str, str]]:
    """The findings, by the command."""
    command = [sys.executable, "-m", "rmq", "migrate", "check", names, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == status, done.stdout + done.stderr
    rows: list[dict[str, str]] = json.loads(done.stdout)
    return rows


def whats(rows: list[dict[str, str]], level: str) -> list[str]:
    return [row["what"] for row in rows if row["level"] == level]


def has(found: list[str], start: str) -> bool:
    return any(one.startswith(start) for one in found)


async def use(names: str, **fields: Any) -> None:
    """Send one message of the topic Orders."""
    async with rmq.connect(names, send_timeout_ms=15_000) as client, client.producer("shop") as producer:
        await producer.send(rmq.Message("Orders", b"one", **fields))


def consumer_of(processes: Processes, names: str) -> Process:
    """A Java consumer, which is connected."""
    consumer = processes.program("Consume", names, "Orders", "java-readers")
    wait_until(lambda: consumer.rows, 90, "a message")
    return consumer


def test_a_cluster_of_4_9_7(processes: Processes, tmp_path: pathlib.Path) -> None:
    names = processes.java_namesrv()
    processes.java_broker(
        names, tmp_path / "a", brokerName="a", maxDelayTime="7", enableCalcFilterBitMap="true"
    )

    async def make() -> None:
        async with rmq.connect(names, request_timeout_ms=15_000) as client:
            await client.admin.create_topic("Orders", queues=4)
            await client.admin.put_kv_config("ORDER_TOPIC_CONFIG", "Orders", "a:4")

    trio.run(make)
    trio.run(lambda: use(names, delay_level=1))
    trio.run(lambda: use(names))
    consumer_of(processes, names)

    rows = checked(names, 0)

    assert whats(rows, "stop") == []
    assert has(whats(rows, "act"), "name servers keep the order of topics: Orders")
    notes = whats(rows, "note")
    assert "settings without effect: enableCalcFilterBitMap=true, maxDelayTime=7" in notes
    assert has(notes, "delayed messages: 1 are stored")
    assert has(notes, "JAVA V4_9_7, java-readers")
    assert not has(notes, "version V")


def test_a_cluster_of_5_3_3(five: Processes, tmp_path: pathlib.Path) -> None:
    names = five.java_namesrv()
    five.java_broker(names, tmp_path / "a", brokerName="a", enableSlaveActingMaster="true")

    async def make() -> None:
        async with rmq.connect(names, request_timeout_ms=15_000) as client:
            await client.admin.create_topic("Orders", queues=2)
            fifo = TopicConfig("Fifo", 2, 2, attributes={"message.type": "FIFO"})
            compact = TopicConfig("Compact", 2, 2, attributes={"cleanup.policy": "COMPACTION"})
            for config in (fifo, compact):
                await client.admin.put_topic(config, cluster="DefaultCluster")

    trio.run(make)
    mapped = tmp_path / "a" / "config" / "topicQueueMapping.json"
    make_static = ("updateStaticTopic", "-n", names, "-t", "Static", "-qn", "4", "-c", "DefaultCluster")
    wait_until(
        lambda: five.mqadmin(*make_static) and mapped.exists() and "Static" in mapped.read_text(),
        120,
        "a static topic",
    )
    trio.run(lambda: use(names))
    trio.run(lambda: use(names, delay_ms=3_600_000))
    consumer_of(five, names)

    rows = checked(names, 1)

    stops = whats(rows, "stop")
    assert has(stops, "static topics, whose queues are mapped over brokers: Static")
    assert has(stops, "compacted topics, cleanup.policy=COMPACTION: Compact")
    acts = whats(rows, "act")
    assert has(acts, "enableSlaveActingMaster=true")
    assert has(acts, "message.type=FIFO: Fifo")
    assert has(acts, "messages with a delivery time of their own: 1")
    notes = whats(rows, "note")
    assert has(notes, "JAVA V5_3_3, java-readers")
    assert not has(notes, "settings without effect")
