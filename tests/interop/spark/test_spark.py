"""Spark against the Java servers: what Java stored is read, what Spark writes Java's tools find."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from rmq.client import blocking
from rmq.message import Message, MessageQueue
from tests.interop.conftest import Servers
from tests.interop.rocketmq import Processes, cluster_text, wait_until

pytest.importorskip("pyspark")

pytestmark = pytest.mark.interop

COUNT = 1000


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from rmq.spark import session

    started = session("rmq interop", master="local[2]", settings={"spark.driver.memory": "512m"})
    yield started
    started.stop()


@pytest.fixture
def names(processes: Processes, tmp_path: pathlib.Path) -> str:
    """The name server of a Java pair with the topic T of 2 queues, which has COUNT messages."""
    servers = Servers(processes, "java")
    servers.broker(tmp_path / "store", enablePropertyFilter="true", brokerName="java-a")
    processes.make_topic(servers.namesrv, "T", 2)
    processes.make_topic(servers.namesrv, "Out", 2)
    with blocking.connect(servers.namesrv) as client, client.producer("p") as producer:
        for queue in (0, 1):
            messages = [
                Message("T", b"m%d" % number, tags=f"t{number % 3}", properties={"n": str(number)})
                for number in range(queue, COUNT, 2)
            ]
            producer.send_batch(messages, queue=MessageQueue("T", "java-a", queue))
    return servers.namesrv


def test_spark_on_java_servers(spark: Any, names: str, tmp_path: pathlib.Path) -> None:
    options = {"nameServer": names, "topic": "T"}

    def read(**more: str) -> list[Any]:
        return list(spark.read.format("rmq").options(**{**options, **more}).load().collect())

    rows = read()
    assert sorted(int(bytes(row.body)[1:]) for row in rows) == list(range(COUNT))
    assert all(row.properties["n"] == bytes(row.body)[1:].decode() for row in rows)
    assert len(read(filter="t1 || t2")) == sum(number % 3 > 0 for number in range(COUNT))
    assert len(read(filterSql="n between 100 and 299")) == 200

    def run(start: str, **more: str) -> int:
        given = {**options, "startingOffsets": start, "maxOffsetsPerTrigger": "300", **more}
        stream = spark.readStream.format("rmq").options(**given).load().select("body", "tags").writeStream
        stream = stream.format("rmq").options(nameServer=names, topic="Out")
        query = stream.option("checkpointLocation", str(tmp_path / f"check-{start}")).trigger(
            availableNow=True
        )
        started = query.start()
        started.awaitTermination()
        return sum(progress.numInputRows for progress in started.recentProgress)

    assert run("earliest") == COUNT
    assert run("earliest") == 0
    # A group that never committed: a young queue of Java's answers 0, which is not what `latest` means.
    assert run("latest", groupId="newcomers") == 0
    written = read(topic="Out")
    assert sorted(int(bytes(row.body)[1:]) for row in written) == list(range(COUNT))
    assert len({row.msgId for row in written}) == COUNT
    with blocking.connect(names) as client, client.pull_consumer("check") as puller:
        pulled = puller.pull(MessageQueue("Out", "java-a", 0), 0, max_messages=1).messages[0]
    assert pulled.tags in ("t0", "t1", "t2")
    assert pulled.properties["rmqSparkKey"].count("/") == 3


def test_a_batch_is_not_silently_half_though_javas_name_server_forgets_a_broker(
    spark: Any, processes: Processes, tmp_path: pathlib.Path
) -> None:
    from pyspark.errors import PySparkException

    servers = Servers(processes, "java")
    brokers = {name: servers.broker(tmp_path / name, brokerName=name) for name in ("java-a", "java-b")}
    processes.make_topic(servers.namesrv, "T", 2)
    with blocking.connect(servers.namesrv) as client, client.producer("p") as producer:
        for name in brokers:
            producer.send_batch(
                [Message("T", b"m%d" % n) for n in range(COUNT)], queue=MessageQueue("T", name, 0)
            )
    options = {"nameServer": servers.namesrv, "topic": "T", "columns": "body", "pullTimeoutMs": "3000"}

    def count(**more: str) -> int:
        return int(spark.read.format("rmq").options(**options, **more).load().count())

    assert count() == 2 * COUNT
    brokers["java-b"].kill()
    wait_until(lambda: "java-b" not in cluster_text(servers.namesrv), 180, "the name server forgets java-b")
    with pytest.raises(PySparkException, match=r"java-b.*this Spark session has read"):
        count()
    assert count(onBrokerAway="skip") == COUNT
