"""The sink and brokers that store a row once: batches that come twice, tasks that are killed or run twice at
once, a broker that is killed between, and what is done where brokers cannot."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from rmq.client import blocking
from rmq.errors import ConfigError, MessageIllegal, RequestCodeNotSupported
from rmq.message import MessageQueue
from rmq.spark.cluster import BrokersAway
from rmq.spark.idempotent import BLOCK_ROWS, BrokerPartitioner, Line, producer_id
from rmq.spark.options import write_options
from rmq.spark.sink import Sent, write_rows
from tests.interop.rocketmq import Processes
from tests.ports import free_ports
from tests.spark.cluster import Pair, another_broker, running
from tests.spark.writing.keeping import KEEPS, bodies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(tmp_path_factory.mktemp("pair"), settings=KEEPS) as started:
        yield started


@pytest.fixture
def topic(pair: Pair, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")[-100:]
    pair.make_topic(name, 4)
    return str(name)


def write(
    names: str,
    topic: str,
    count: int,
    *,
    columns: dict[str, Any] | None = None,
    first: int = 0,
    **more: object,
) -> Sent:
    """Write "first" to "count - 1" as a task does, in Arrow batches of 1000 rows."""
    texts = {key: str(value) for key, value in {"nameServer": names, "topic": topic, **more}.items()}
    made = [
        pa.record_batch({"body": [f"{n}" for n in range(at, min(at + 1000, count))]})
        for at in range(first, count, 1000)
    ]
    for name, value in (columns or {}).items():
        made = [
            batch.append_column(name, pa.array([value(int(b.as_py())) for b in batch[0]])) for batch in made
        ]
    return write_rows(write_options(texts), iter(made), "run/0/5")


def expected(count: int) -> Counter[str]:
    return Counter(map(str, range(count)))


def test_what_a_task_writes_twice_is_stored_once(pair: Pair, topic: str) -> None:
    write(pair.names, topic, 1700, sendBatchBytes=20_000)  # a task that failed
    sent = write(pair.names, topic, 3000, sendBatchBytes=7_000)
    assert (sent.rows, sent.plain, sent.late) == (3000, 0, 0)
    assert Counter(bodies(pair.names, topic)) == expected(3000)
    write(pair.names, topic, 3000, exactlyOnce="true", requireBrokers=pair.broker)
    assert Counter(bodies(pair.names, topic)) == expected(3000)


def test_two_attempts_at_once_store_rows_once(pair: Pair, topic: str) -> None:
    errors: list[BaseException] = []

    def attempt(size: int) -> None:
        try:
            write(pair.names, topic, 5000, sendBatchBytes=size)
        except BaseException as error:
            errors.append(error)

    attempts = [threading.Thread(target=attempt, args=(size,)) for size in (3_000, 4_100, 50_000)]
    for one in attempts:
        one.start()
    for one in attempts:
        one.join(120)
    assert errors == []
    assert Counter(bodies(pair.names, topic)) == expected(5000)


@pytest.mark.parametrize("by", ["queue", "key", "topic"])
def test_rows_that_choose_where_they_go_are_stored_once(pair: Pair, topic: str, by: str) -> None:
    ways: dict[str, dict[str, Any]] = {
        "queue": {"queueId": lambda n: n % 3, "brokerName": lambda n: pair.broker},
        "key": {"shardingKey": lambda n: f"k{n % 7}"},
        "topic": {"topic": lambda n: topic if n % 3 else f"{topic}-other"},
    }
    pair.make_topic(f"{topic}-other", 4)
    for count in (1500, 2500):
        write(pair.names, topic, count, columns=ways[by])
    found = bodies(pair.names, topic) + (bodies(pair.names, f"{topic}-other") if by == "topic" else [])
    assert Counter(found) == expected(2500)


def test_rows_with_keys_of_their_own_and_delayed_rows_are_written_at_least_once(
    pair: Pair, topic: str
) -> None:
    for columns in ({"rowKey": lambda n: f"k{n}"}, {"delayLevel": lambda n: n % 2}):
        for _ in range(2):
            write(pair.names, topic, 40, columns=columns)
    assert (
        len(bodies(pair.names, topic)) == 2 * 40 + 20
    )  # of the delayed rows those without a delay were there


def test_rows_that_come_in_another_order_are_not_lost(
    pair: Pair, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(pair.names, topic, 10)
    sent = write(pair.names, topic, 20, first=5)
    assert sent.plain == 1
    assert "differ from those of an earlier attempt" in caplog.text
    assert Counter(bodies(pair.names, topic)) == expected(10) + Counter(map(str, range(5, 20)))
    with pytest.raises(MessageIllegal, match="another as number 0"):
        write(pair.names, topic, 20, first=5, exactlyOnce="true", requireBrokers=pair.broker)


def test_brokers_that_cannot_are_written_to_at_least_once(tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as plain:
        plain.make_topic("T", 2)
        for _ in range(2):
            sent = write(plain.names, "T", 100, sendBatchBytes=1000)
            assert sent.plain == sent.requests > 3
        assert Counter(bodies(plain.names, "T")) == expected(100) + expected(100)
        with pytest.raises(RequestCodeNotSupported):
            write(plain.names, "T", 100, exactlyOnce="true", requireBrokers="embedded")


def test_of_two_brokers_a_row_goes_to_the_same_again_and_one_that_is_away_is_waited_for(
    tmp_path: pathlib.Path,
) -> None:
    with running(tmp_path / "one", settings=KEEPS) as pair:
        count, more = 3 * BLOCK_ROWS, {"requireBrokers": "embedded,broker-b"}
        with another_broker(pair, tmp_path / "two", "broker-b", KEEPS):
            with blocking.connect(pair.names) as client:
                client.admin.create_topic("T", queues=2)
            write(pair.names, "T", count // 2, **more)
            write(pair.names, "T", count, **more)
            assert Counter(bodies(pair.names, "T")) == expected(count)
        with pytest.raises(BrokersAway, match="broker-b"):
            write(pair.names, "T", count, sendTimeoutMs=200, retries=1, **more)
        returned = threading.Event()

        def come_back() -> None:
            with another_broker(pair, tmp_path / "two", "broker-b", KEEPS):
                returned.wait(120)

        again = threading.Thread(target=come_back)
        again.start()
        try:
            write(pair.names, "T", count, sendTimeoutMs=60_000, **more)
            assert Counter(bodies(pair.names, "T")) == expected(count)
        finally:
            returned.set()
            again.join(120)


def test_a_broker_that_is_killed_and_started_again_between_stores_rows_once(tmp_path: pathlib.Path) -> None:
    (port,) = free_ports(1)
    settings = {**KEEPS, "brokerName": "here", "listenPort": str(port)}
    with Processes(cast(Any, None), tmp_path) as processes:
        names = processes.rmq_namesrv()
        broker = processes.rmq_broker(names, tmp_path / "store", **settings)
        with blocking.connect(names) as client:
            client.admin.create_topic("T", queues=4)
        for count in (4000, 7000, 7000):
            write(names, "T", count, sendBatchBytes=20_000)
            broker.kill()
            broker = processes.rmq_broker(names, tmp_path / "store", **settings)
        assert Counter(bodies(names, "T")) == expected(7000)


# --- on Spark ---


def test_a_job_that_fails_midway_and_is_run_again_stores_rows_once(
    spark: SparkSession, pair: Pair, topic: str, tmp_path: pathlib.Path
) -> None:
    mark, names = str(tmp_path / "failed"), pair.names

    def dies(number: int) -> str:
        if number == 3500 and not pathlib.Path(mark).exists():
            # The rows before it are on their way to the writer, a process of its own that may be slow.
            with blocking.connect(names) as client, client.pull_consumer("looks") as consumer:
                queue, *_ = consumer.message_queues(topic)
                consumer.pull(queue, 0, wait=15)
            pathlib.Path(mark).touch()
            raise RuntimeError("killed midway")
        return str(number)

    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "300")
    try:
        rows = spark.range(0, 6000, numPartitions=3).select(F.udf(dies, useArrow=False)("id").alias("body"))
        writer = rows.write.format("rmq").options(**pair.options(topic, runId="june", sendBatchBytes=2000))
        with pytest.raises(PySparkException, match="killed midway"):
            writer.mode("append").save()
        stored = len(bodies(pair.names, topic))
        assert stored > 0
        writer.mode("append").save()
    finally:
        spark.conf.set(name, before)
    assert Counter(bodies(pair.names, topic)) == expected(6000)


JOB = """
import os, pathlib, sys
from pyspark import TaskContext
from pyspark.sql import functions as F
from rmq.spark import session

names, topic, mark = sys.argv[1:]
spark = session("dies", master="local[2,4]", settings={"spark.sql.execution.arrow.maxRecordsPerBatch": "300"})

def dies(number):
    if number in (1500, 3500) and TaskContext.get().attemptNumber() < 2:
        pathlib.Path(f"{mark}-{number}-{TaskContext.get().attemptNumber()}").touch()
        os._exit(9)
    return str(number)

rows = spark.range(0, 6000, numPartitions=3).select(F.udf(dies, useArrow=False)("id").alias("body"))
options = {"nameServer": names, "topic": topic, "sendBatchBytes": "2000"}
rows.write.format("rmq").options(**options).mode("append").save()
spark.stop()
"""


def test_a_task_whose_process_is_killed_and_that_spark_runs_again_stores_rows_once(
    pair: Pair, topic: str, tmp_path: pathlib.Path
) -> None:
    command = [sys.executable, "-c", JOB, pair.names, topic, str(tmp_path / "died")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list(tmp_path.glob("died-*"))) == 4  # two tasks, twice each
    assert Counter(bodies(pair.names, topic)) == expected(6000)


def test_a_batch_of_a_stream_that_is_run_again_is_stored_once(
    spark: SparkSession, pair: Pair, topic: str, tmp_path: pathlib.Path
) -> None:
    out = f"{topic}-out"
    pair.make_topic(out, 2)
    pair.send(topic, 50)

    def run() -> None:
        options = pair.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=20)
        frame = spark.readStream.format("rmq").options(**options).load().select("body")
        stream = frame.writeStream.format("rmq").options(**pair.options(out))
        stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        stream.trigger(availableNow=True).start().awaitTermination()

    run()
    for _ in range(2):
        for file in (tmp_path / "checkpoint" / "commits").glob("*2*"):
            file.unlink()  # as if the last batch had been written, but not finished
        run()
    assert sorted(bodies(pair.names, out)) == sorted(f"b{number}" for number in range(50))


# --- what is computed ---


@pytest.mark.parametrize("slices", [[40_000], [1] * 9 + [20_000, 8191, 11_800], [8192] * 5])
def test_rows_are_numbered_and_cut_in_blocks(slices: Sequence[int]) -> None:
    line, found = Line("p"), []
    for count in slices:
        end = 0
        for number, start, stop in line.blocks(count):
            assert start == end
            assert number // BLOCK_ROWS == (number + stop - start - 1) // BLOCK_ROWS
            found += range(number, number + stop - start)
            end = stop
        assert end == count
    assert found == list(range(sum(slices)))


def test_a_block_goes_to_one_broker_whatever_the_order_of_queues() -> None:
    queues = [MessageQueue("T", broker, number) for broker in ("b", "a", "c") for number in range(4)]
    homes, others = BrokerPartitioner(queues), BrokerPartitioner(queues[::-1][:-2])
    chosen = Counter()
    for number in range(0, 300 * BLOCK_ROWS, BLOCK_ROWS // 2):
        home = homes.queue("run/0/1", number)
        assert home.broker_name == others.queue("run/0/1", number).broker_name
        chosen[home] += 1
    assert len(chosen) == 12
    assert min(chosen.values()) > 20


def test_producers_are_named_by_what_a_broker_takes() -> None:
    queue = MessageQueue("T", "b", 3)
    assert producer_id("run/0/1", None) == "run/0/1"
    assert producer_id("run/0/1", queue) == "run/0/1@3"
    for odd in ("käse/0/1", "a b/0/1", "x" * 101):
        assert len(producer_id(odd, None)) == 32
        assert producer_id(odd, None) != producer_id(odd + "2", None)


@pytest.mark.parametrize("column", ["rowKey string", "delayLevel int"])
def test_what_cannot_be_stored_once_is_refused_where_it_must_be(
    spark: SparkSession, pair: Pair, column: str
) -> None:
    options = pair.options("T", exactlyOnce="true", requireBrokers="embedded")
    frame = spark.createDataFrame([], f"body string, {column}")
    with pytest.raises(PySparkException, match="at least once"):
        frame.write.format("rmq").options(**options).mode("append").save()
    with pytest.raises(ConfigError, match="requireBrokers"):
        write_options(pair.options("T", exactlyOnce="true"))
