"""Targets of streams that are written batch by batch: rows added once each, or merged by key.

Rows with a key are merged: a row replaces the table's row of the same key if its `rmq_order` is higher, so
that late and repeated changes have no effect. A deletion leaves a row with `rmq_deleted`, or with `deletes:
remove` no row. Delta and Iceberg have MERGE. Parquet has no MERGE: each batch writes a new version of the
whole table, which is for tables of some million rows:

    PATH/version=<number>-<query>-<batch>/part-....parquet

The highest version with `_SUCCESS` counts; the version before stays for its readers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from attrs import define, field

from rmq.spark.jobs.cdc import DELETED, ORDER
from rmq.spark.jobs.evolve import Evolution, evolution
from rmq.spark.jobs.spec import Stream, sink_options
from rmq.spark.pipelines.tables import Form, TableJob, compact_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

VERSION: Final = "version="
SCHEMA_FILE: Final = "_schema.json"
VERSIONS_KEPT: Final = 2
_SOURCE: Final = "rmq_changes"
_WIDENS: Final = "delta.enableTypeWidening"


class Target(Protocol):
    """A target of the rows of batches."""

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch, unless the target has it."""

    def compact(self, frame: DataFrame) -> None:
        """Merge small files."""


def target_of(spark: SparkSession, stream: Stream) -> Target:
    """The target of a stream whose batches rmq writes."""
    if stream.to["format"] == "rmq":
        return Topic(stream)
    if not stream.key:
        return Added(spark, stream)
    return MergedFiles(spark, stream) if stream.to["format"] == "parquet" else MergedTable(stream)


def read_merged(spark: SparkSession, path: str) -> DataFrame:
    """The rows of a Parquet target with a key, without the deleted ones. Raises AnalysisException before the
    first version."""
    from pyspark.sql import functions as F

    folder = HadoopFolder(spark, path)
    versions = folder.versions()
    frame = spark.read.parquet(f"{path}/{versions[-1] if versions else VERSION}")
    return frame.where(~F.col(DELETED)).drop(ORDER, DELETED)


def read_added(spark: SparkSession, path: str) -> DataFrame:
    """The rows of a Parquet target without a key: the rows of whole batches, each once."""
    from pyspark.sql.types import StringType, StructField, StructType

    folder = HadoopFolder(spark, path)
    text = folder.read(SCHEMA_FILE)
    schema = StructType.fromJson(json.loads(text)) if text else StructType()
    whole = TableJob.whole_batches(spark, path)
    if not whole:
        return spark.createDataFrame([], schema)
    fields = StructType([*schema.fields, StructField("batch", StringType())])
    reader = spark.read.schema(fields).option("basePath", path)
    return reader.parquet(*(f"{path}/batch={name}" for name in whole)).select(schema.fieldNames())


@define
class Topic:
    """A topic: each row of a batch once, if brokers support it."""

    stream: Stream

    def write(self, frame: DataFrame, batch_id: int) -> None:
        frame.write.format("rmq").options(**sink_options(self.stream.to)).mode("append").save()

    def compact(self, frame: DataFrame) -> None:
        """Do nothing: a topic has no files of Spark's."""


@define
class Added:
    """A table to which rows are added, each batch once."""

    spark: SparkSession
    stream: Stream
    _job: TableJob = field(init=False)

    def __attrs_post_init__(self) -> None:
        to: Any = self.stream.to["format"]
        partition = tuple(self.stream.partition)
        self._job = TableJob(self.spark, self.stream.target, to, self.stream.checkpoint, partition)

    def write(self, frame: DataFrame, batch_id: int) -> None:
        self._evolve(frame)
        self._job.take(frame, batch_id)

    def compact(self, frame: DataFrame) -> None:
        form: Form = self.stream.to["format"]  # type: ignore[assignment]
        compact_table(frame.sparkSession, self.stream.target, to=form)

    def _evolve(self, frame: DataFrame) -> None:
        stream, session = self.stream, frame.sparkSession
        if stream.to["format"] != "parquet":
            evolve_table(session, stream, frame.schema)
            return
        from pyspark.sql.types import StructType

        folder = HadoopFolder(session, stream.target)
        text = folder.read(SCHEMA_FILE)
        known = StructType.fromJson(json.loads(text)) if text else None
        if known is None:
            folder.write(SCHEMA_FILE, frame.schema.json())
            return
        found = evolution(known, frame.schema, stream.evolve, stream.name)
        if found != Evolution():
            folder.write(SCHEMA_FILE, evolved(known, found).json())


def evolved(table: StructType, found: Evolution) -> StructType:
    """The schema of a table after an evolution."""
    from pyspark.sql.types import StructType

    wider = {one.name: one for one in found.widened}
    return StructType([*(wider.get(one.name, one) for one in table.fields), *found.added])


def table_name(stream: Stream) -> str:
    """The table in SQL."""
    return stream.to["table"] if stream.to.get("table") else f"delta.`{stream.target}`"


def evolve_table(session: SparkSession, stream: Stream, batch: StructType) -> None:
    """Widen a table of Delta or Iceberg for the rows of a batch, if it exists. Raises ConfigError."""
    if not table_exists(session, stream):
        return
    name = table_name(stream)
    if stream.to["format"] == "iceberg":
        session.catalog.refreshTable(name)  # sessions keep their view of tables for half a minute
    found = evolution(session.table(name).schema, batch, stream.evolve, stream.name)
    if found.added:
        columns = ", ".join(f"`{one.name}` {one.dataType.simpleString()}" for one in found.added)
        session.sql(f"ALTER TABLE {name} ADD COLUMNS ({columns})")
    if found.widened and stream.to["format"] == "delta":  # a table that was made with another rule lacks it
        session.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{_WIDENS}' = 'true')")
    for one in found.widened:
        session.sql(f"ALTER TABLE {name} ALTER COLUMN `{one.name}` TYPE {one.dataType.simpleString()}")


def table_exists(session: SparkSession, stream: Stream) -> bool:
    """True if the table of Delta or Iceberg exists."""
    if stream.to.get("table"):
        return session.catalog.tableExists(stream.to["table"])
    return HadoopFolder(session, stream.target).has("_delta_log")


def merge_sql(stream: Stream, columns: Sequence[str]) -> str:
    """The statement that merges the rows of the view `rmq_changes`, which has these columns."""
    removes = stream.cdc is not None and stream.cdc.deletes == "remove"
    on = " AND ".join(f"t.`{name}` <=> s.`{name}`" for name in stream.key)
    newer = f"s.{ORDER} > t.{ORDER}"
    updated = ", ".join(f"t.`{name}` = s.`{name}`" for name in columns)
    named = ", ".join(f"`{name}`" for name in columns)
    values = ", ".join(f"s.`{name}`" for name in columns)
    clauses = [f"WHEN MATCHED AND {newer} AND s.{DELETED} THEN DELETE"] if removes else []
    clauses.append(f"WHEN MATCHED AND {newer} THEN UPDATE SET {updated}")
    only = f" AND NOT s.{DELETED}" if removes else ""
    clauses.append(f"WHEN NOT MATCHED{only} THEN INSERT ({named}) VALUES ({values})")
    return f"MERGE INTO {table_name(stream)} t USING {_SOURCE} s ON {on} " + " ".join(clauses)


def newest(frame: DataFrame, stream: Stream) -> DataFrame:
    """The last change of each key, by `rmq_order`; rows without it are ordered by `order`, or by time and
    place in the topic."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if ORDER not in frame.columns:
        order = stream.order or ("unix_millis(storeTimestamp)", "queueOffset")
        numbers = [F.coalesce(F.expr(one).cast("bigint"), F.lit(0)) for one in order]
        frame = frame.withColumn(ORDER, F.array(*numbers))
    if DELETED not in frame.columns:
        frame = frame.withColumn(DELETED, F.lit(False))
    window = Window.partitionBy(*stream.key).orderBy(F.desc(ORDER))
    return frame.withColumn("_rank", F.row_number().over(window)).where("_rank = 1").drop("_rank")


@define
class MergedTable:
    """A table of Delta or Iceberg into which rows are merged."""

    stream: Stream

    def write(self, frame: DataFrame, batch_id: int) -> None:
        rows, session = newest(frame, self.stream), frame.sparkSession
        self._create(rows)
        evolve_table(session, self.stream, rows.schema)
        rows.createOrReplaceTempView(_SOURCE)
        session.sql(merge_sql(self.stream, rows.columns))

    def compact(self, frame: DataFrame) -> None:
        form: Form = self.stream.to["format"]  # type: ignore[assignment]
        compact_table(frame.sparkSession, self.stream.target, to=form)

    def _create(self, rows: DataFrame) -> None:
        from pyspark.sql import functions as F

        stream, session = self.stream, rows.sparkSession
        if table_exists(session, stream):
            return
        empty = session.createDataFrame([], rows.schema)
        if stream.to["format"] == "iceberg":
            columns = [F.col(name) for name in stream.partition]
            maker = empty.writeTo(stream.target).using("iceberg")
            (maker.partitionedBy(*columns) if columns else maker).create()
            return
        writer = empty.write.format("delta").partitionBy(*stream.partition)
        if stream.evolve == "widen":
            writer = writer.option(_WIDENS, "true")
        if stream.to.get("table"):
            writer.saveAsTable(stream.to["table"])
        else:
            writer.save(stream.target)


@define
class MergedFiles:
    """Parquet files that each batch writes again, merged with its rows."""

    spark: SparkSession
    stream: Stream

    def write(self, frame: DataFrame, batch_id: int) -> None:
        from pyspark.sql import functions as F

        stream, session = self.stream, frame.sparkSession
        folder = HadoopFolder(session, stream.target)
        versions = folder.versions()
        mark = f"{TableJob.query_id(session, stream.checkpoint)}-{batch_id:010}"
        if versions and versions[-1].endswith(mark):
            return
        rows = newest(frame, stream)
        number = 0
        if versions:
            number = int(versions[-1].removeprefix(VERSION).split("-")[0]) + 1
            old = session.read.parquet(f"{stream.target}/{versions[-1]}")
            found = evolution(old.schema, rows.schema, stream.evolve, stream.name)
            whole = evolved(old.schema, found)
            old = _as(old, whole)
            rows = newest(old.unionByName(_as(rows, whole)), stream)
        if stream.cdc is not None and stream.cdc.deletes == "remove":
            rows = rows.where(~F.col(DELETED))
        name = f"{VERSION}{number:010}-{mark}"
        writer = rows.write.mode("overwrite").option("compression", "zstd").partitionBy(*stream.partition)
        writer.parquet(f"{stream.target}/{name}")
        if not folder.has(f"{name}/_SUCCESS"):
            folder.write(f"{name}/_SUCCESS", "")
        for former in folder.versions()[:-VERSIONS_KEPT]:
            folder.delete(former)

    def compact(self, frame: DataFrame) -> None:
        """Do nothing: each batch writes all files again."""


def _as(frame: DataFrame, schema: StructType) -> DataFrame:
    """The rows with the columns and types of a schema; null where a column is missing."""
    from pyspark.sql import functions as F

    known = set(frame.columns)
    return frame.select(
        *[
            (F.col(one.name) if one.name in known else F.lit(None)).cast(one.dataType).alias(one.name)
            for one in schema.fields
        ]
    )


class HadoopFolder:
    """A folder, through Hadoop's file systems."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        context = spark.sparkContext
        assert context._jvm is not None
        self._jvm: Any = context._jvm
        self._root = self._jvm.org.apache.hadoop.fs.Path(path)
        self._files = self._root.getFileSystem(context._jsc.hadoopConfiguration())

    def has(self, name: str) -> bool:
        """True if there is a file or folder of that name."""
        return bool(self._files.exists(self._path(name)))

    def versions(self) -> list[str]:
        """The folders of whole versions, the newest last."""
        if not self._files.exists(self._root):
            return []
        names = [one.getPath().getName() for one in self._files.listStatus(self._root) if one.isDirectory()]
        return sorted(name for name in names if name.startswith(VERSION) and self.has(f"{name}/_SUCCESS"))

    def read(self, name: str) -> str:
        """The text of a file; empty without the file."""
        if not self.has(name):
            return ""
        stream = self._files.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a file, over an existing file."""
        stream = self._files.create(self._path(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def delete(self, name: str) -> None:
        """Delete a file or folder with its content."""
        self._files.delete(self._path(name), True)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)
