"""Brokers that are away, and a slave that answers in a master's place, seen by Spark itself: each message is
there once, or the query fails, or the report names the broker."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from rmq.client import blocking
from rmq.protocol.bodies import TopicConfig
from rmq.spark import archive, read_jobs, run_once
from tests.spark.cluster import Pair, another_broker, running
from tests.spark.reading.streams import SLAVE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "pair-b"
HERE, REPLICATED, COPIED = 160, 160, 42
"""Messages of the broker that stays, of the one with a slave, and of the latter what the slave has."""
QUEUES = 2


class Set:
    """A broker beside that of the pair: its master and its slave can be started."""

    def __init__(self, pair: Pair, folder: pathlib.Path) -> None:
        self.pair, self._folder = pair, folder

    @contextmanager
    def master(self) -> Iterator[None]:
        """Run the master."""
        with another_broker(self.pair, self._folder / "master", NAME):
            yield

    @contextmanager
    def only_slave(self) -> Iterator[None]:
        """Run the slave without its master: it is behind."""
        with ExitStack() as slave:
            with self.master():
                slave.enter_context(another_broker(self.pair, self._folder / "slave", NAME, SLAVE))
            yield


@pytest.fixture
def behind(tmp_path: pathlib.Path) -> Iterator[Set]:
    with running(tmp_path / "names") as pair:
        made = Set(pair, tmp_path)
        with made.master():
            with blocking.connect(pair.names) as client:
                client.admin.put_topic(TopicConfig("Orders", QUEUES, QUEUES))
            pair.send("Orders", HERE)
            pair.send("Orders", COPIED, first=HERE, broker=NAME)
        shutil.copytree(tmp_path / "master", tmp_path / "slave")
        with made.master():
            pair.send("Orders", REPLICATED - COPIED, first=HERE + COPIED, broker=NAME)
        yield made


def read(spark: SparkSession, made: Set, **more: object) -> DataFrame:
    given = made.pair.options("Orders", **{"pullTimeoutMs": 1500, "columns": "body", **more})
    return spark.read.format("rmq").options(**given).load()


def run(spark: SparkSession, made: Set, folder: pathlib.Path, **more: object) -> int:
    """Run the stream into Parquet to its end; return the number of bodies, of which none is there twice."""
    given = made.pair.options("Orders", pullTimeoutMs=1500, columns="body", startingOffsets="earliest")
    frame = spark.readStream.format("rmq").options(**given, **{k: str(v) for k, v in more.items()}).load()
    writer = frame.writeStream.format("parquet").option("path", str(folder / "rows"))
    query = writer.option("checkpointLocation", str(folder / "cp")).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    rows = spark.read.parquet(str(folder / "rows"))
    assert rows.count() == rows.distinct().count()
    return rows.count()


def test_a_slave_that_is_behind_is_not_believed(
    spark: SparkSession, behind: Set, tmp_path: pathlib.Path
) -> None:
    everything = HERE + REPLICATED
    known = {"requireBrokers": f"embedded,{NAME}", "stateLocation": tmp_path / "state"}
    with behind.master():
        assert read(spark, behind, **known).count() == everything
        assert run(spark, behind, tmp_path / "stream", failOnDataLoss=False) == everything
        assert run(spark, behind, tmp_path / "strict") == everything
    with behind.only_slave():
        with pytest.raises(PySparkException, match=f"masters waited for.*{NAME}"):
            read(spark, behind, **known).count()  # 202 of 320 once
        assert run(spark, behind, tmp_path / "stream", failOnDataLoss=False) == everything
        assert run(spark, behind, tmp_path / "strict") == everything, "no loss, as the master may come back"
    with behind.master():
        behind.pair.send("Orders", 10, first=everything, broker=NAME)
        assert run(spark, behind, tmp_path / "stream", failOnDataLoss=False) == everything + 10  # 440 once
        assert run(spark, behind, tmp_path / "strict") == everything + 10


def test_a_session_remembers_brokers_where_name_servers_do_not(
    spark: SparkSession, behind: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.namesrv.handlers.headers.WITH_MISSING", "unknown")  # answers like RocketMQ's
    with behind.master():
        assert read(spark, behind).count() == HERE + REPLICATED
    with pytest.raises(PySparkException, match=f"{NAME}.*this Spark session has read"):
        read(spark, behind).count()  # half of them, once, with a warning in the log at most
    assert read(spark, behind, onBrokerAway="skip").count() == HERE
    with behind.master():
        assert read(spark, behind).count() == HERE + REPLICATED


def test_a_batch_is_whole_or_fails_and_a_stream_that_skips_says_whom(
    spark: SparkSession, behind: Set, tmp_path: pathlib.Path
) -> None:
    with behind.master():
        assert read(spark, behind).count() == HERE + REPLICATED
    with pytest.raises(PySparkException, match=f"{NAME}.*without a drain"):
        read(spark, behind).count()  # half of them, silently, once
    assert read(spark, behind, onBrokerAway="skip").count() == HERE
    skips = {"nameServer": behind.pair.names, "onBrokerAway": "skip", "pullTimeoutMs": "1500"}
    with behind.master():
        done = archive(spark, {**skips, "topic": "Orders"}, tmp_path / "archive")
        assert (done.rows, done.away) == (HERE + REPLICATED, ())
    behind.pair.send("Orders", 20, first=1000)
    done = archive(spark, {**skips, "topic": "Orders"}, tmp_path / "archive")
    assert (done.rows, done.away) == (20, (NAME,))
    rows = {
        "source": {"topic": "Orders", "stateLocation": str(tmp_path / "archive" / "_rmq" / "state")},
        "to": {"format": "parquet", "path": str(tmp_path / "rows")},
        "checkpoint": str(tmp_path / "cp"),
    }
    ran = run_once(spark, read_jobs({"source": skips, "streams": {"rows": rows}}), tell=lambda line: None)
    assert (ran.rows, dict(ran.errors), dict(ran.away)) == (HERE + 20, {}, {"rows": (NAME,)})
