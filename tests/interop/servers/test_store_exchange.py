"""A store directory written by one broker is opened and served by the other."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import rmq
from rmq.protocol.bodies import TopicConfig
from tests.interop.conftest import Servers
from tests.interop.rocketmq import Processes, wait_until
from tests.interop.servers.ending import end

pytestmark = pytest.mark.interop

TOPIC = "Archive"
COUNT = 600  # of some 9 KB on average: two roll-overs of the 4 MiB log files

KINDS = (("java", "rmq"), ("rmq", "java"))
if os.environ.get("RMQ_INTEROP_SERVERS") == "java":  # proves the tests themselves right
    KINDS = (("java", "java"),)


def fill(processes: Processes, namesrv: str) -> None:
    """Send every kind of record that a producer makes: small, compressed, batched."""
    for mode, prefix, size in (("async", "big", 16_000), ("sync", "small", 0), ("batch", "batch", 100)):
        processes.program("Produce", namesrv, TOPIC, mode, str(COUNT // 3), prefix, str(size)).finish()


def read_all(processes: Processes, namesrv: str) -> tuple[dict[int, tuple[int, int]], list[dict[str, Any]]]:
    """Read the whole topic with the Java client: bounds of each queue, and each message."""
    rows = processes.program("ReadAll", namesrv, TOPIC).finish()
    bounds = {row["queue"]: (row["min"], row["max"]) for row in rows if "min" in row}
    found = [row for row in rows if "body" in row]
    return bounds, sorted(found, key=lambda row: (row["queue"], row["offset"]))


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize(("writer", "reader"), KINDS)
def test_a_store_changes_hands(
    processes: Processes, tmp_path: pathlib.Path, writer: str, reader: str, how: str
) -> None:
    store = tmp_path / "store"
    first = Servers(processes, writer)
    broker = first.broker(store)
    fill(processes, first.namesrv)
    before = read_all(processes, first.namesrv)
    assert sum(high - low for low, high in before[0].values()) == len(before[1]) == COUNT
    end(broker, how)

    second = Servers(processes, reader)
    broker = second.broker(store)
    assert read_all(processes, second.namesrv) == before

    # The new owner appends, and the old one can take the folder back.
    processes.program("Produce", second.namesrv, TOPIC, "sync", "40", "after").finish()
    after = read_all(processes, second.namesrv)
    assert len(after[1]) == COUNT + 40
    end(broker, how)
    first.broker(store)
    assert read_all(processes, first.namesrv) == after


@pytest.mark.parametrize(("writer", "reader"), KINDS)
def test_topic_settings_offsets_and_keys_change_hands(
    processes: Processes, tmp_path: pathlib.Path, writer: str, reader: str
) -> None:
    store = tmp_path / "store"
    first = Servers(processes, writer)
    broker = first.broker(store)
    processes.make_topic(first.namesrv, TOPIC, 3)
    processes.program("Produce", first.namesrv, TOPIC, "sync", "30", "m").finish()
    consume(processes, first.namesrv, 30)
    end(broker, "stop")

    second = Servers(processes, reader)
    second.broker(store)
    processes.program("Produce", second.namesrv, TOPIC, "sync", "9", "new").finish()

    assert {row["body"] for row in consume(processes, second.namesrv, 9)} == {f"new-{i}" for i in range(9)}
    bounds, _ = read_all(processes, second.namesrv)
    assert bounds == dict.fromkeys(range(3), (0, 13))
    said = processes.mqadmin("queryMsgByKey", "-n", second.namesrv, "-t", TOPIC, "-k", "m-17")
    assert len([line for line in said.splitlines() if line[:1].isalnum()]) == 1, said


def consume(processes: Processes, namesrv: str, count: int) -> list[dict[str, Any]]:
    """Consume `count` messages with the group `archive` and leave."""
    consumer = processes.program("Consume", namesrv, TOPIC, "archive")
    while len(rows := [row for row in consumer.rows if "body" in row]) < count:
        assert consumer.child.poll() is None, consumer.said()
    consumer.close_input()
    return rows


async def take_some(namesrv: str, acknowledge: Callable[[bytes], bool]) -> set[bytes]:
    """Take all messages one by one, with the group `archive`, and acknowledge some; what was acknowledged."""
    found: set[bytes] = set()
    async with (
        rmq.connect(namesrv) as client,
        client.simple_consumer("archive", {TOPIC: "*"}, consume_from="first") as consumer,
    ):
        while messages := await consumer.receive(32, wait=2, invisible=600):
            some = [message for message in messages if acknowledge(message.body)]
            if some:
                await consumer.ack(*some)
            found.update(message.body for message in some)
    return found


def until_saved(store: pathlib.Path, offset: int) -> None:
    """Wait until the group's offset is in its file, which brokers of both kinds write every five seconds."""
    path = store / "config" / "consumerOffset.json"
    row = f'"{TOPIC}@archive":{{0:{offset}}}'
    wait_until(lambda: path.exists() and row in "".join(path.read_text().split()), 30, f"{row} in {path}")


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_java_broker_opens_a_store_whose_group_takes_messages_one_by_one(
    processes: Processes, tmp_path: pathlib.Path, how: str
) -> None:
    store = tmp_path / "store"
    ours, java = Servers(processes, "rmq"), Servers(processes, "java")
    broker = ours.broker(store, flushDiskType="SYNC_FLUSH")
    processes.make_topic(ours.namesrv, TOPIC, 1)
    processes.program("Produce", ours.namesrv, TOPIC, "sync", "30", "m").finish()
    finished = anyio.run(take_some, ours.namesrv, lambda body: int(body[2:]) not in range(12, 29))
    first = min(number for number in range(30) if b"m-%d" % number not in finished)
    assert len(finished) == 13
    assert first == 12
    until_saved(store, first)
    end(broker, how)

    # Java delivers from the oldest unfinished message on, and knows nothing of those behind it.
    broker = java.broker(store)
    bodies = {row["body"] for row in consume(processes, java.namesrv, 30 - first)}
    assert bodies == {f"m-{number}" for number in range(first, 30)}
    processes.program("Produce", java.namesrv, TOPIC, "sync", "9", "new").finish()
    end(broker, "stop")

    broker = ours.broker(store)
    assert anyio.run(take_some, ours.namesrv, lambda body: True) == {b"new-%d" % at for at in range(9)}
    until_saved(store, 39)
    end(broker, how)
    java.broker(store)
    said = processes.mqadmin("consumerProgress", "-n", java.namesrv, "-g", "archive")
    assert "Diff Total: 0" in said


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_java_broker_opens_a_store_with_messages_that_a_limit_gave_up(
    processes: Processes, tmp_path: pathlib.Path, how: str
) -> None:
    """A Java broker knows no limits of topics: it shows all messages that the log still has, and stores
    more."""
    store = tmp_path / "store"
    ours, java = Servers(processes, "rmq"), Servers(processes, "java")
    broker = ours.broker(store, cleanResourceInterval="1000", flushDiskType="SYNC_FLUSH")
    processes.make_topic(ours.namesrv, TOPIC, 2)
    processes.program("Produce", ours.namesrv, TOPIC, "sync", "40", "m").finish()
    limits = TopicConfig(TOPIC, 2, 2, attributes={"retention.bytes": "2000"})

    async def limit() -> None:
        async with rmq.connect(ours.namesrv) as client:
            await client.admin.put_topic(limits)

    anyio.run(limit)
    wait_until(lambda: len(read_all(processes, ours.namesrv)[1]) < 20, 60, "messages are given up")
    kept = read_all(processes, ours.namesrv)
    rows = (store / "config" / "consumerOffset.json").read_text
    wait_until(lambda: "CID_RMQ_SYS_RETENTION" in rows(), 30, "the begin of the queues is saved")
    end(broker, how)

    broker = java.broker(store)
    assert len(read_all(processes, java.namesrv)[1]) == 40
    processes.program("Produce", java.namesrv, TOPIC, "sync", "10", "new").finish()
    end(broker, how)

    broker = ours.broker(store, flushDiskType="SYNC_FLUSH")
    bounds, found = read_all(processes, ours.namesrv)
    assert {queue: low for queue, (low, _) in bounds.items()} == {
        queue: low for queue, (low, _) in kept[0].items()
    }
    assert len(found) == len(kept[1]) + 10
