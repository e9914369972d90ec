"""Reads make the columns that a query uses, and give the same rows as reads of all columns."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from attrs import evolve
from pyspark.errors import PySparkException
from pyspark.serializers import CPickleSerializer
from pyspark.sql import functions as F

from rmq.protocol.codes import SYS_COMPRESSED
from rmq.spark.formats.narrowing import narrow_reads, narrowed
from rmq.spark.formats.schema import arrow_schema, spark_schema
from tests.spark.cluster import Pair, running
from tests.spark.reading.stores import simple, write_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXCLUDED = "spark.sql.optimizer.excludedRules"
QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "count": lambda rows: rows.groupBy().count(),
    "one column": lambda rows: rows.select("tags"),
    "columns in another order": lambda rows: rows.select("queueOffset", "topic", F.length("body")),
    "a condition on another column": lambda rows: rows.where("queueOffset > 3").select("queueId", "msgId"),
    "a condition that Spark has to check": lambda rows: rows.where("length(body) = 300").select("keys"),
    "groups": lambda rows: rows.groupBy("queueId").agg(F.max("queueOffset"), F.count_distinct("msgId")),
    "a part of a map": lambda rows: rows.select(F.col("properties")["TAGS"]),
    "a join with itself": lambda rows: rows.select("msgId", "body").join(
        rows.where("queueId = 1").select("msgId", "flag"), "msgId"
    ),
    "a subquery": lambda rows: rows.sparkSession.sql(
        "select msgId from {rows} where queueOffset = (select max(queueOffset) from {rows})", rows=rows
    ),
    "unions": lambda rows: rows.select("topic").union(rows.select("tags")),
    "all columns": lambda rows: rows,
}


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    """40 messages."""
    write_store(tmp_path, [simple(number) for number in range(40)])
    return tmp_path


@pytest.fixture
def whole(spark: SparkSession) -> Iterator[Callable[[], None]]:
    """Has reads make all columns from the call on."""
    yield lambda: spark.conf.set(EXCLUDED, "rmq.spark.Narrowing")
    spark.conf.unset(EXCLUDED)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(tmp_path_factory.mktemp("narrowing")) as found:
        yield found


def made(frame: DataFrame) -> list[list[str]]:
    """The columns that the scans of a plan make."""
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    scans = [line.partition("RelationV2[")[2] for line in plan.splitlines() if "RelationV2[" in line]
    return [[name.partition("#")[0] for name in scan.partition("]")[0].split(", ")] for scan in scans]


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_gives_the_rows_that_a_read_of_all_columns_gives(
    spark: SparkSession, store: pathlib.Path, whole: Callable[[], None], name: str
) -> None:
    frame = spark.read.format("rmqstore").load(str(store))
    rows = QUERIES[name](frame).collect()
    scans = made(QUERIES[name](frame))
    whole()
    wide = QUERIES[name](spark.read.format("rmqstore").load(str(store)))
    assert {len(columns) for columns in made(wide)} == {18}
    assert sorted(map(repr, rows)) == sorted(map(repr, wide.collect()))
    assert rows
    assert name == "all columns" or all(len(columns) < 5 for columns in scans), scans


def test_a_count_reads_no_bodies(spark: SparkSession, tmp_path: pathlib.Path) -> None:
    """Seen by a body that cannot be decompressed."""
    bad = evolve(simple(1), sys_flag=SYS_COMPRESSED)
    write_store(tmp_path, [simple(0), bad])
    frame = spark.read.format("rmqstore").load(str(tmp_path))
    assert frame.count() == 2
    assert made(frame.groupBy().count()) == [["queueId"]]
    assert frame.where("queueOffset >= 0").count() == 2
    with pytest.raises(PySparkException, match="decompress"):
        frame.select("body").collect()


def test_queries_of_a_frame_read_the_same_messages(spark: SparkSession, pair: Pair) -> None:
    pair.make_topic("Narrow", 2)
    pair.send("Narrow", 6)
    frame = spark.read.format("rmq").options(**pair.options("Narrow")).load()
    assert frame.count() == 6
    pair.send("Narrow", 3, first=6)
    assert len(frame.collect()) == len(frame.select("body").collect()) == 6
    assert spark.read.format("rmq").options(**pair.options("Narrow")).load().count() == 9


def test_columns_in_the_case_that_the_schema_has(spark: SparkSession, store: pathlib.Path) -> None:
    frame = spark.read.format("rmqstore").schema("QUEUEOFFSET bigint, Topic string").load(str(store))
    assert frame.count() == 40
    assert frame.select("TOPIC").distinct().collect() == [("T",)]


def test_the_rule_is_added_once(spark: SparkSession) -> None:
    def rules() -> int:
        return int(spark._jsparkSession.experimental().extraOptimizations().size())

    before = rules()
    assert narrow_reads(spark, ("rmq", "rmqstore"))
    assert rules() == before


def test_a_spark_that_does_not_take_the_rule_reads_all_columns() -> None:
    spark: Any = SimpleNamespace(_jsparkSession=object())
    assert not narrow_reads(spark, ("rmq",))


class Reader:
    """A reader that gives two rows of its columns."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def narrowed(self, schema: Any) -> Reader:
        return Reader(schema.names)

    def read(self) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({name: [1, 2] for name in self._names})


def test_a_read_of_an_unknown_spark_makes_all_columns_and_gives_the_asked_ones() -> None:
    whole = Reader(["topic", "queueId", "queueOffset"])
    schema = spark_schema(["topic", "queueId", "queueOffset"])
    reader, return_type = whole, schema

    def known(parts: Any) -> Iterator[pa.RecordBatch]:
        assert parts is not None
        assert return_type.names
        return reader.read()

    def unknown(parts: Any) -> Iterator[pa.RecordBatch]:
        assert parts is not None
        return whole.read()

    for function in (known, unknown):
        command = CPickleSerializer().dumps((function, schema))
        read, few = narrowed(command, "queueId\nqueueOffset")
        assert few == spark_schema(["queueId", "queueOffset"])
        (batch,) = read(iter(()))
        assert batch.schema.names == arrow_schema(few.names).names
