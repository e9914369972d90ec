"""A stream from two brokers into an Iceberg table, killed by SIGKILL again and again, while the brokers are
killed and started again in turn: `nox -s iceberg_kill`. RMQ_SPARK_KILLS says how often (20).

Driver, Java and workers die at once, at any moment of a batch. The topic has the truth in the end: each of
its messages is in the table, and none twice.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest

from rmq.client import blocking
from rmq.errors import RmqError
from rmq.message import Message
from tests.crash.test_spark_kill import signal_all
from tests.interop.rocketmq import Process, Processes
from tests.ports import free_ports

pytest.importorskip("pyspark")

pytestmark = pytest.mark.crash

FORM, _, JAR = os.environ.get("RMQ_LAKEHOUSE", "").partition(":")
KILLS = int(os.environ.get("RMQ_SPARK_KILLS", "20"))
SEED = int(os.environ.get("RMQ_KILL_SEED", "1"))
BROKERS = ("one", "two")
TOPIC = "Lake"
TABLE = "lake.shop.orders"
START_SECONDS = 180

JOB = """
import json, sys
from rmq.spark import archive_table, session

given = json.loads(sys.argv[1])
spark = session("killed", master="local[2]", settings=given["settings"])
archive_table(spark, given["options"], given["table"], to="iceberg", checkpoint=given["checkpoint"],
              every_seconds=given["every"])
spark.stop()
"""


@pytest.fixture
def processes(tmp_path: pathlib.Path) -> Iterator[Processes]:
    with Processes(cast(Any, None), tmp_path) as started:
        yield started


class Writers:
    """Sends to both brokers until stopped; `acknowledged` are the bodies of what was."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.acknowledged: list[bytes] = []
        self.refused = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writers:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join(120)

    def _run(self) -> None:
        number = 0
        with blocking.connect(self.namesrv) as client, client.producer("writers") as producer:
            while not self._stopped.wait(0.05):
                bodies = [b"%d-" % n + b"x" * (n % 300) for n in range(number, number + 20)]
                number += 20
                try:
                    producer.send_batch([Message(TOPIC, body) for body in bodies])
                    self.acknowledged += bodies
                except (RmqError, TimeoutError):
                    self.refused += 1


class Stream:
    """The job, started and killed, and the brokers beside it."""

    def __init__(self, processes: Processes, folder: pathlib.Path) -> None:
        self.processes = processes
        self.folder = folder
        self.namesrv = processes.rmq_namesrv()
        self._ports = dict(zip(BROKERS, free_ports(8)[::4], strict=True))
        self.brokers = {name: self._broker(name) for name in BROKERS}
        self.checkpoint = folder / "checkpoint"
        self.settings = {
            "spark.jars" if JAR.endswith(".jar") else "spark.jars.packages": JAR,
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(folder / "lake"),
        }

    def _broker(self, name: str) -> Process:
        settings = {"brokerName": name, "listenPort": str(self._ports[name])}
        return self.processes.rmq_broker(self.namesrv, self.folder / name, **settings)

    def restart(self, name: str, seconds: float) -> None:
        """Kill a broker, and start it again some seconds later."""
        self.brokers[name].kill()
        time.sleep(seconds)
        self.brokers[name] = self._broker(name)

    def start(self, *, every: float | None, **more: object) -> Process:
        options = {"nameServer": self.namesrv, "topic": TOPIC, "requireBrokers": ",".join(BROKERS)}
        given = {
            "settings": self.settings,
            "options": options | {name: str(value) for name, value in more.items()},
            "table": TABLE,
            "checkpoint": str(self.checkpoint),
            "every": every,
        }
        plugins = pathlib.Path(__file__).parents[2] / "plugins"
        path = os.pathsep.join([str(plugins.parent), str(plugins)])
        command = [sys.executable, "-c", JOB, json.dumps(given)]
        return self.processes.start(command, "stream", env={"PYTHONPATH": path})

    def steps(self) -> int:
        """Batches that are planned, and those that are finished."""
        logs = [*self.checkpoint.glob("offsets/[0-9]*"), *self.checkpoint.glob("commits/[0-9]*")]
        return len(logs)

    def killed_after(self, steps: int, seconds: float, broker: str, away: float) -> None:
        """Run until the checkpoint has got so many steps on, with a broker killed and started on the way, and
        some seconds longer; then kill all of it."""
        began, process = self.steps(), self.start(every=0.1, maxOffsetsPerTrigger=400)
        deadline = time.monotonic() + START_SECONDS
        restarting = threading.Thread(target=self.restart, args=(broker, away))
        try:
            while self.steps() < began + steps:
                assert process.child.poll() is None, process.said()
                assert time.monotonic() < deadline, process.said()
                if self.steps() > began and not restarting.ident:
                    restarting.start()
                time.sleep(0.02)
            time.sleep(seconds)
        finally:
            signal_all(process, signal.SIGKILL)
            process.kill()
            if not restarting.ident:
                restarting.start()
            restarting.join(120)


def stored(namesrv: str) -> dict[tuple[str, int, int], bytes]:
    """What the topic has: (broker, queue, offset) and body of each message."""
    found = {}
    with blocking.connect(namesrv) as client, client.pull_consumer("auditors") as consumer:
        for queue in consumer.message_queues(TOPIC):
            at, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while at < end:
                for message in consumer.pull(queue, at).messages:
                    found[queue.broker_name, queue.queue_id, message.queue_offset] = message.body
                    at = message.queue_offset + 1
    return found


def test_a_stream_into_iceberg_that_is_killed_again_and_again_has_every_message_once(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    if FORM != "iceberg":
        pytest.skip("RMQ_LAKEHOUSE names no jar of Iceberg")
    stream, chance = Stream(processes, tmp_path), random.Random(SEED)
    with blocking.connect(stream.namesrv) as client:
        client.admin.create_topic(TOPIC, queues=2)
    with Writers(stream.namesrv) as writers:
        for number in range(KILLS):
            steps = 1 if number == 0 else chance.randint(2, 8)
            broker = BROKERS[number % 2]
            stream.killed_after(steps, chance.random(), broker, chance.uniform(0, 3))
            sent = len(writers.acknowledged)
            print(f"kill {number + 1}, broker {broker}: {stream.steps()} steps, {sent} sent", flush=True)
    last = stream.start(every=None, maxOffsetsPerTrigger=100_000)
    last.child.wait(600)
    assert last.child.returncode == 0, last.said()

    from rmq.spark import read_table, session

    spark = session("check", master="local[2]", settings=stream.settings)
    rows = (
        read_table(spark, TABLE, to="iceberg")
        .select("brokerName", "queueId", "queueOffset", "body")
        .collect()
    )
    spark.stop()
    expected = stored(stream.namesrv)
    found = Counter((row.brokerName, row.queueId, row.queueOffset) for row in rows)
    lost = len(expected.keys() - found.keys())
    doubled = sum(count - 1 for count in found.values())
    print(
        f"seed {SEED}: {KILLS} kills, {len(expected)} messages ({len(writers.acknowledged)} acknowledged,"
        f" {writers.refused} batches refused), {len(rows)} rows, {lost} lost, {doubled} doubled"
    )
    assert len(expected) > 100 * KILLS
    assert (lost, doubled) == (0, 0)
    assert {(row.brokerName, row.queueId, row.queueOffset): bytes(row.body) for row in rows} == expected
    assert set(writers.acknowledged) <= set(expected.values())
