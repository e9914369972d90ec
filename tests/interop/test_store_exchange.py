"""A store directory written by one broker is opened and served by the other."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest

from tests.interop.conftest import Servers
from tests.interop.rocketmq import Process, Processes

pytestmark = pytest.mark.interop

TOPIC = "Archive"
COUNT = 600  # of some 9 KB on average: two roll-overs of the 4 MiB log files

KINDS = (("java", "rmq"), ("rmq", "java"))
if os.environ.get("RMQ_INTEROP_SERVERS") == "java":  # proves the tests themselves right
    KINDS = (("java", "java"),)


def fill(processes: Processes, namesrv: str) -> None:
    """Sends every kind of record that a producer makes: small, compressed, batched."""
    for mode, prefix, size in (("async", "big", 16_000), ("sync", "small", 0), ("batch", "batch", 100)):
        processes.program("Produce", namesrv, TOPIC, mode, str(COUNT // 3), prefix, str(size)).finish()


def read_all(processes: Processes, namesrv: str) -> tuple[dict[int, tuple[int, int]], list[dict[str, Any]]]:
    """Reads the whole topic with the Java client: bounds of each queue, and each message."""
    rows = processes.program("ReadAll", namesrv, TOPIC).finish()
    bounds = {row["queue"]: (row["min"], row["max"]) for row in rows if "min" in row}
    found = [row for row in rows if "body" in row]
    return bounds, sorted(found, key=lambda row: (row["queue"], row["offset"]))


def end(broker: Process, how: str) -> None:
    """Ends a broker cleanly or by SIGKILL."""
    if how == "kill":
        broker.kill()
    else:
        assert broker.stop() in (0, 143)  # a JVM reports the signal


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
    """Consumes `count` messages with the group `archive` and leaves."""
    consumer = processes.program("Consume", namesrv, TOPIC, "archive")
    while len(rows := [row for row in consumer.rows if "body" in row]) < count:
        assert consumer.child.poll() is None, consumer.said()
    consumer.close_input()
    return rows
