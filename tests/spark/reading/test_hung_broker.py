"""A broker that hangs, with its connections open, seen by Spark itself: the rows of the other one come."""

from __future__ import annotations

import pathlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import PySparkException

from rmq.client import blocking
from rmq.message import Message, MessageQueue
from rmq.protocol.bodies import TopicConfig
from tests.interop.rocketmq import Process, Processes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EACH, QUEUES = 40, 2
NAMES = ("one", "two")


class Two:
    """Two brokers as processes, of which one can be stopped."""

    def __init__(self, processes: Processes, folder: pathlib.Path) -> None:
        self.names = processes.rmq_namesrv()
        self._brokers: dict[str, Process] = {
            name: processes.rmq_broker(self.names, folder / name, brokerName=name) for name in NAMES
        }
        self.sent = 0

    @contextmanager
    def hung(self) -> Iterator[None]:
        """The broker `two` does nothing in the block."""
        child = self._brokers["two"].child
        child.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            child.send_signal(signal.SIGCONT)

    def fill(self, *names: str) -> None:
        """EACH messages to each of these brokers."""
        with blocking.connect(self.names) as client, client.producer("tests") as producer:
            for name in names:
                bodies = [b"m%d" % number for number in range(self.sent, self.sent + EACH)]
                self.sent += EACH
                for queue in range(QUEUES):
                    messages = [Message("Orders", body) for body in bodies[queue::QUEUES]]
                    producer.send_batch(messages, queue=MessageQueue("Orders", name, queue))


@pytest.fixture
def two(tmp_path: pathlib.Path) -> Iterator[Two]:
    with Processes(cast(Any, None), tmp_path) as processes:
        made = Two(processes, tmp_path)
        with blocking.connect(made.names) as client:
            client.admin.put_topic(TopicConfig("Orders", QUEUES, QUEUES))
        made.fill(*NAMES)
        yield made


def test_a_broker_that_hangs_is_named_or_skipped_and_read_later(
    spark: SparkSession, two: Two, tmp_path: pathlib.Path
) -> None:
    given = {"nameServer": two.names, "topic": "Orders", "columns": "body"}
    quick = {"requestTimeoutMs": "1000", "pullTimeoutMs": "2500"}

    def count(**more: str) -> int:
        return spark.read.format("rmq").options(**given, **quick, **more).load().count()

    def run() -> int:
        """Run the stream to its end; return the number of rows, of which none is there twice."""
        more = {"startingOffsets": "earliest", "onBrokerAway": "skip", "groupId": "lag"}
        frame = spark.readStream.format("rmq").options(**given, **quick, **more).load()
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        query = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        rows = spark.read.parquet(str(tmp_path / "rows"))
        assert rows.count() == rows.distinct().count()
        return rows.count()

    assert run() == 2 * EACH
    two.fill(*NAMES)
    with two.hung():
        with pytest.raises(
            PySparkException, match=r"two does not answer, and was waited for \(pullTimeoutMs\)"
        ):
            count()
        assert count(onBrokerAway="skip") == 2 * EACH
        assert run() == 3 * EACH
    assert (run(), count()) == (4 * EACH, 4 * EACH)
