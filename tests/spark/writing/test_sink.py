"""The sink on real Spark against a real broker: every row is there, and what is there twice has one key."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from rmq.errors import NoRoute
from rmq.spark.options import write_options
from rmq.spark.sink import without_duplicates, write_rows
from tests.spark.cluster import Pair, running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(tmp_path_factory.mktemp("pair")) as started:
        yield started


def read(spark: SparkSession, pair: Pair, topic: str, **more: object) -> DataFrame:
    return spark.read.format("rmq").options(**pair.options(topic, **more)).load()


def write(frame: DataFrame, pair: Pair, topic: str, **more: object) -> None:
    frame.write.format("rmq").options(**pair.options(topic, **more)).mode("append").save()


def test_every_row_of_a_batch_is_written(spark: SparkSession, pair: Pair) -> None:
    pair.make_topic("Rows", 4)
    frame = spark.range(20_000).select(
        F.concat(F.lit("row "), "id").alias("body"),
        F.when(F.col("id") % 2 == 0, "even").alias("tags"),
        F.col("id").cast("string").alias("keys"),
        F.create_map(F.lit("id"), F.col("id").cast("string")).alias("properties"),
    )
    write(frame, pair, "Rows", sendBatchBytes="64k")
    rows = read(spark, pair, "Rows").collect()
    assert Counter(bytes(row.body).decode() for row in rows) == Counter(f"row {n}" for n in range(20_000))
    assert all(row.properties["id"] == row.keys for row in rows)
    assert all((row.tags == "even") == (int(row.keys) % 2 == 0) for row in rows)
    assert len({row.msgId for row in rows}) == 20_000
    assert {row.queueId for row in rows} == {0, 1, 2, 3}


def test_rows_may_choose_topic_queue_and_delay(spark: SparkSession, pair: Pair) -> None:
    for topic in ("To1", "To2"):
        pair.make_topic(topic, 4)
    found = [
        (f"{number}", f"To{number % 2 + 1}", 3 if number < 10 else None, pair.broker, None, 0)
        for number in range(40)
    ]
    found += [(f"s{number}", "To1", None, None, f"key {number % 3}", None) for number in range(30)]
    found += [("late", "To1", None, None, None, 1)]
    schema = "body string, topic string, queueId int, brokerName string, shardingKey string, delayLevel int"
    write(spark.createDataFrame(found, schema).coalesce(1), pair, "To2")
    rows = read(spark, pair, "To1,To2").collect()
    by_body = {bytes(row.body).decode(): row for row in rows}
    assert {body for body in by_body if body != "late"} == {row[0] for row in found} - {"late"}
    assert all(by_body[str(number)].queueId == 3 for number in range(10))
    assert all(by_body[str(number)].topic == f"To{number % 2 + 1}" for number in range(40))
    for key in range(3):
        mine = sorted(
            (row for row in rows if row.properties.get("__SHARDINGKEY") == f"key {key}"), key=_place
        )
        assert len({row.queueId for row in mine}) == 1
        assert [bytes(row.body).decode() for row in mine] == [f"s{number}" for number in range(key, 30, 3)]
    waiting = read(spark, pair, "SCHEDULE_TOPIC_XXXX").collect()
    assert [bytes(row.body) for row in waiting] == [b"late"]


def _place(row: Any) -> int:
    return int(row.queueOffset)


def test_what_a_task_writes_twice_is_read_once(spark: SparkSession, pair: Pair) -> None:
    pair.make_topic("Twice", 2)
    options = write_options(pair.options("Twice", sendBatchBytes=2000))
    batches = [pa.record_batch({"body": [f"{n}" for n in range(at, at + 100)]}) for at in (0, 100, 200)]
    write_rows(options, iter(batches[:2]), "run/0/5")  # a task that failed after two of three
    sent = write_rows(options, iter(batches), "run/0/5")
    assert (sent.rows, sent.late) == (300, 0)
    assert sent.requests > 3
    found = read(spark, pair, "Twice")
    assert found.count() == 500
    once = without_duplicates(found).collect()
    assert sorted(int(bytes(row.body)) for row in once) == list(range(300))
    keys = {row.properties["rmqSparkKey"]: int(bytes(row.body)) for row in once}
    assert keys == {f"run/0/5/{number}": number for number in range(300)}


def test_rows_with_keys_of_their_own_are_read_once_though_they_come_in_another_order(
    spark: SparkSession, pair: Pair
) -> None:
    pair.make_topic("Keyed", 2)
    frame = spark.range(100).select(F.concat(F.lit("o"), "id").alias("order"), F.lit("x").alias("body"))
    for rows in (frame, frame.orderBy(F.desc("order"))):
        write(rows, pair, "Keyed", dedupeKey="order")
    found = read(spark, pair, "Keyed")
    assert found.count() == 200
    keys = [row.properties["rmqSparkKey"] for row in without_duplicates(found).collect()]
    assert sorted(keys) == sorted(f"o{number}" for number in range(100))


def test_a_batch_of_a_stream_that_is_run_again_writes_the_same_keys(
    spark: SparkSession, pair: Pair, tmp_path: pathlib.Path
) -> None:
    for topic in ("In", "Out"):
        pair.make_topic(topic, 2)
    pair.send("In", 50)

    def run() -> None:
        options = pair.options("In", startingOffsets="earliest", maxOffsetsPerTrigger=20)
        frame = spark.readStream.format("rmq").options(**options).load().select("body")
        stream = frame.writeStream.format("rmq").options(**pair.options("Out"))
        stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        stream.trigger(availableNow=True).start().awaitTermination()

    run()
    assert read(spark, pair, "Out").count() == 50
    for file in (tmp_path / "checkpoint" / "commits").glob("*2*"):
        file.unlink()  # as if the last batch had been written, but not finished
    run()
    out = read(spark, pair, "Out")
    assert out.count() == 60
    assert sorted(bytes(row.body) for row in without_duplicates(out).collect()) == sorted(
        b"b%d" % number for number in range(50)
    )


@pytest.mark.parametrize(
    ("schema", "row", "says"),
    [
        ("body string, tag string", ("a", "b"), "column = 'tag'"),
        ("body string", ("",), "its body is empty"),
        (
            "body string, properties map<string,string>",
            ("a", {"KEYS": "b"}),
            "KEYS is RocketMQ's own",
        ),
    ],
)
def test_rows_that_cannot_be_messages_fail(
    spark: SparkSession, pair: Pair, schema: str, row: tuple[Any, ...], says: str
) -> None:
    pair.make_topic("Bad", 2)
    with pytest.raises(PySparkException, match=says):
        write(spark.createDataFrame([row], schema), pair, "Bad")


def test_overwrite_is_refused(spark: SparkSession, pair: Pair) -> None:
    frame = spark.createDataFrame([("a",)], "body string")
    with pytest.raises(PySparkException, match="messages cannot be overwritten"):
        frame.write.format("rmq").options(**pair.options("Bad")).mode("overwrite").save()


def test_an_error_of_a_send_comes_out(pair: Pair) -> None:
    options = write_options(pair.options("Bad", nameServer="127.0.0.1:9", sendTimeoutMs=500, retries=0))
    batch = pa.record_batch({"body": ["a"]})
    with pytest.raises(NoRoute, match=r"127\.0\.0\.1:9"):
        write_rows(options, iter([batch]), "r/0/0")
