"""Archive in tables: topics into Parquet on any Hadoop path, into Delta or into Iceberg, each batch once.

A batch is identified by the id of its query and its number, which Spark keeps in the checkpoint: a batch that
is repeated after a kill has both again. Iceberg's snapshots carry them as properties, Delta's log as a
transaction, and Parquet has a folder for each batch:

    TARGET/batch=<query>-<number>/date=2026-11-21/topic=Orders/part-....parquet

The folder of a batch is whole when it has `_SUCCESS`, which Spark writes last; an incomplete folder is
written again. rmq renames nothing, so object stores work. Merged batches name the batches that they replace
in `_replaces`, which is written before the old batches are deleted; readers ignore replaced batches.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from attrs import define, frozen

from rmq.errors import ConfigError
from rmq.spark.pipelines.archive import BATCH_ROWS, DATE_UTC
from rmq.spark.pipelines.progress import Watch, follow, follow_to_end, unwatched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Form = Literal["parquet", "delta", "iceberg"]
FORMS: Final = ("parquet", "delta", "iceberg")
PARTITION: Final = ("date", "topic")
QUERY: Final = "rmq.query"
BATCH: Final = "rmq.batch"
"""Properties of an Iceberg snapshot: the batch that it added."""
_REPLACES: Final = "_replaces"
_DONE: Final = "_SUCCESS"
_MERGED: Final = "merged-"
_COMMITS: Final = 50
"""Number of last commits of a Delta table in which a repeated batch is searched for."""


@frozen
class ArchivedTable:
    """Result of a run. `skipped` batches were in the table already; `away` names the brokers whose queues
    were skipped (onBrokerAway=skip) when the run ended."""

    target: str
    form: str
    rows: int
    batches: int
    skipped: int
    seconds: float
    away: tuple[str, ...] = ()


def archive_table(
    spark: SparkSession,
    options: Mapping[str, str],
    target: str,
    *,
    to: Form,
    checkpoint: str,
    partition: Sequence[str] = PARTITION,
    every_seconds: float | None = None,
    watch: Watch = unwatched,
) -> ArchivedTable:
    """Append topics to a table, from the end of the last run with this checkpoint.

    `target` is a folder as Hadoop names it for `parquet` (s3a://…, hdfs://…, file:///…), such a folder or the
    name of a table for `delta`, and the name of a table for `iceberg`; a missing table is created. `options`
    are those of the source `rmq`; startingOffsets is `earliest` by default, and a moving start (`latest`, a
    time) needs a stateLocation or groupId. `partition` names columns of a message, or `date` (of
    storeTimestamp, UTC). `checkpoint` is a folder too, of this target only.

    Ends when everything that existed at the start is in the table, or with `every_seconds` when it is
    interrupted. Killed at any moment it neither loses nor doubles a message; an Iceberg table must keep the
    snapshot of the last batch for that. Only a single process may use a checkpoint. Raises ConfigError, and
    StreamingQueryException when the topics cannot be read or the table cannot be written.
    """
    from pyspark.sql import functions as F

    if to not in FORMS:
        raise ConfigError("to", to, f"one of {', '.join(FORMS)}")
    began = time.monotonic()
    away: tuple[str, ...] = ()
    defaults = {} if any("starting" in name.lower() for name in options) else {"startingOffsets": "earliest"}
    given = {"maxOffsetsPerTrigger": str(BATCH_ROWS), **defaults, **options}
    frame = spark.readStream.format("rmq").options(**given).load().withColumn("date", F.expr(DATE_UTC))
    if lacking := set(partition) - set(frame.columns):
        raise ConfigError("partition", ", ".join(sorted(lacking)), f"some of {', '.join(frame.columns)}")
    job = TableJob(spark, target, to, checkpoint, tuple(partition))
    writer = frame.writeStream.option("checkpointLocation", checkpoint).foreachBatch(job.take)
    writer = writer.queryName(f"rmq archive into {to}")
    try:
        if every_seconds is None:
            away = follow_to_end(writer.trigger(availableNow=True).start, given, watch)
        else:
            pause = f"{round(every_seconds * 1000)} milliseconds"
            away = follow(writer.trigger(processingTime=pause).start(), watch)
    except KeyboardInterrupt:
        if every_seconds is None:
            raise
    seconds = time.monotonic() - began
    return ArchivedTable(target, to, job.rows, job.batches, job.skipped, seconds, away)


def read_table(spark: SparkSession, target: str, *, to: Form) -> DataFrame:
    """The rows of a table of `archive_table`, each once, also while batches are merged."""
    if to == "iceberg":
        spark.catalog.refreshTable(target)  # sessions keep their view of tables for half a minute
        return spark.table(target)
    if to == "delta":
        return spark.read.format("delta").load(target) if _is_path(target) else spark.table(target)
    from pyspark.sql.types import DateType, StringType, StructField, StructType

    from rmq.spark.formats.schema import spark_schema

    fields = [*spark_schema(nullable=True).fields, StructField("date", DateType())]
    schema = StructType([*fields, StructField("batch", StringType())])
    whole = _Folder(spark, target).whole()
    reader = spark.read.schema(schema).option("basePath", target)
    frame = reader.parquet(*(f"{target}/batch={name}" for name in whole)) if whole else None
    found = spark.createDataFrame([], schema) if frame is None else frame
    return found.select([field.name for field in fields])


@define
class TableJob:
    """A run: takes batches from the query."""

    spark: SparkSession
    target: str
    to: Form
    checkpoint: str
    partition: tuple[str, ...]
    rows: int = 0
    batches: int = 0
    skipped: int = 0

    def take(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch of the query, unless the table has it."""
        query = self.query_id(self.spark, self.checkpoint)
        done = {"parquet": self._parquet, "delta": self._delta, "iceberg": self._iceberg}[self.to]
        if done(frame, query, batch_id):
            self.batches += 1
        else:
            self.skipped += 1

    @staticmethod
    def query_id(spark: SparkSession, checkpoint: str) -> str:
        """Spark's id of the query, from its checkpoint: it stays over restarts."""
        first = spark.read.text(f"{checkpoint}/metadata").first()
        assert first is not None
        return str(json.loads(first[0])["id"])

    @staticmethod
    def whole_batches(spark: SparkSession, target: str) -> list[str]:
        """The batches of a Parquet target that are whole, each row of them once."""
        return _Folder(spark, target).whole()

    def _counted(self, frame: DataFrame, write: Callable[[DataFrame], object]) -> None:
        """Write a frame and count its rows on the way, without reading it twice."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        write(frame.observe(seen, F.count(F.lit(1)).alias("rows")))
        self.rows += int(seen.get["rows"])

    def _parquet(self, frame: DataFrame, query: str, batch_id: int) -> bool:
        name = f"{query}-{batch_id:010}"
        folder = _Folder(self.spark, self.target)
        if folder.is_whole(name):
            return False

        def write(some: DataFrame) -> None:
            writer = some.write.mode("overwrite").option("compression", "zstd")
            writer.partitionBy(*self.partition).parquet(f"{self.target}/batch={name}")

        self._counted(frame, write)
        folder.finish(name)
        return True

    def _delta(self, frame: DataFrame, query: str, batch_id: int) -> bool:
        """Write with Delta, which ignores a transaction that its log has. In this case it does not run the
        plan, so that an observation would never end: the counts come from the table's history."""
        name = f"rmq-{query}-{batch_id}"
        if self._delta_rows(frame, name) is not None:
            return False
        writer = frame.write.format("delta").mode("append").partitionBy(*self.partition)
        writer = writer.option("txnAppId", f"rmq-{query}").option("txnVersion", batch_id)
        writer = writer.option("userMetadata", name)
        if _is_path(self.target):
            writer.save(self.target)
        else:
            writer.saveAsTable(self.target)
        rows = self._delta_rows(frame, name)
        self.rows += rows or 0
        return rows is not None

    def _delta_rows(self, frame: DataFrame, name: str) -> int | None:
        """The rows of the commit of that name; None when it is not among the last."""
        if _is_path(self.target):
            place, is_there = f"delta.`{self.target}`", _Folder(self.spark, self.target).has("_delta_log")
        else:
            place, is_there = self.target, frame.sparkSession.catalog.tableExists(self.target)
        if not is_there:
            return None
        history = frame.sparkSession.sql(f"DESCRIBE HISTORY {place} LIMIT {_COMMITS}")
        metrics = [row.operationMetrics for row in history.collect() if row.userMetadata == name]
        return int(metrics[0].get("numOutputRows", 0)) if metrics else None

    def _iceberg(self, frame: DataFrame, query: str, batch_id: int) -> bool:
        from pyspark.sql import functions as F

        session = frame.sparkSession  # the query's own, whose view of the table differs from ours
        if not session.catalog.tableExists(self.target):
            columns = [F.col(name) for name in self.partition]
            maker = session.createDataFrame([], frame.schema).writeTo(self.target).using("iceberg")
            (maker.partitionedBy(*columns) if columns else maker).create()
        else:
            session.catalog.refreshTable(self.target)
            snapshots = session.table(f"{self.target}.snapshots").where(
                (F.col("summary")[QUERY] == query) & (F.col("summary")[BATCH].cast("long") >= batch_id)
            )
            if snapshots.count():
                return False
        tagged = {f"snapshot-property.{QUERY}": query, f"snapshot-property.{BATCH}": str(batch_id)}

        def write(some: DataFrame) -> None:
            some.writeTo(self.target).options(**tagged).option("fanout-enabled", "true").append()

        self._counted(frame, write)
        return True


# --- merging small files ---


def compact_table(spark: SparkSession, target: str, *, to: Form, least: int = 2) -> int:
    """Merge the small files of a table; returns how many files (of `parquet`: batches) were merged.

    Parquet: `least` batches at least, all but the last of each query, which Spark may bring again. Do not
    call it while another process merges. Killed: no row is lost, and `read_table` sees none twice; rows that
    other tools would see twice are deleted by the next call.
    """
    if to == "delta":
        name = f"delta.`{target}`" if _is_path(target) else target
        (row,) = spark.sql(f"OPTIMIZE {name}").collect()
        return int(row["metrics"]["numFilesRemoved"])
    if to == "iceberg":
        catalog, _, table = target.partition(".")
        options = f"map('min-input-files', '{least}')"
        call = f"CALL {catalog}.system.rewrite_data_files(table => '{table}', options => {options})"
        spark.catalog.refreshTable(target)
        (row,) = spark.sql(call).collect()
        return int(row["rewritten_data_files_count"])
    folder = _Folder(spark, target)
    folder.delete_replaced()
    names = folder.whole()
    newest: dict[str, str] = {}
    for name in sorted(name for name in names if not name.startswith(_MERGED)):
        newest[name.rpartition("-")[0]] = name
    old = sorted(set(names) - set(newest.values()))
    if len(old) < least:
        return 0
    merged = f"{_MERGED}{uuid.uuid4().hex}"
    frame = spark.read.option("basePath", target).parquet(*(f"{target}/batch={name}" for name in old))
    partition = folder.partition(old[0])
    chosen = frame.drop("batch")
    if partition:
        chosen = chosen.repartition(*partition).sortWithinPartitions(*partition, "queueId", "queueOffset")
    else:
        chosen = chosen.coalesce(1)
    writer = chosen.write.mode("overwrite").option("compression", "zstd")
    writer.partitionBy(*partition).parquet(f"{target}/batch={merged}")
    folder.replace(merged, old)
    return len(old)


def _is_path(target: str) -> bool:
    return "/" in target


class _Folder:
    """The folder of a Parquet table, through Hadoop's file systems."""

    def __init__(self, spark: SparkSession, target: str) -> None:
        context = spark.sparkContext
        assert context._jvm is not None
        self._jvm: Any = context._jvm
        self._root = self._jvm.org.apache.hadoop.fs.Path(target)
        self._files = self._root.getFileSystem(context._jsc.hadoopConfiguration())

    def has(self, name: str) -> bool:
        """True if there is a file or folder of that name."""
        return bool(self._files.exists(self._jvm.org.apache.hadoop.fs.Path(self._root, name)))

    def is_whole(self, name: str) -> bool:
        """True if all files of a batch exist; a merged batch counts once it names the batches that it
        replaces."""
        mark = _REPLACES if name.startswith(_MERGED) else _DONE
        return bool(self._files.exists(self._path(name, mark)))

    def whole(self) -> list[str]:
        """The batches that are whole and not replaced by others."""
        names = [name for name in self._batches() if self.is_whole(name)]
        replaced = {old for name in names for old in self._replaced_by(name)}
        return [name for name in names if name not in replaced]

    def finish(self, name: str) -> None:
        """Mark a batch as whole, if Spark is set not to do so."""
        if not self.is_whole(name):
            self._write(self._path(name, _DONE), "")

    def replace(self, merged: str, old: Iterable[str]) -> None:
        """Replace batches by a merged batch, which is written."""
        self._write(self._path(merged, _REPLACES), json.dumps(sorted(old)))
        self.delete_replaced()

    def partition(self, name: str) -> list[str]:
        """The columns by which a batch is partitioned, by its folders."""
        found: list[str] = []
        path = self._path(name)
        while True:
            below = [one for one in self._files.listStatus(path) if one.isDirectory()]
            named = [one for one in below if "=" in one.getPath().getName()]
            if not named:
                return found
            path = named[0].getPath()
            found.append(path.getName().partition("=")[0])

    def delete_replaced(self) -> None:
        for name in self._batches():
            if self.is_whole(name):
                for old in self._replaced_by(name):
                    self._files.delete(self._path(old), True)

    def _batches(self) -> list[str]:
        if not self._files.exists(self._root):
            return []
        names = [one.getPath().getName() for one in self._files.listStatus(self._root) if one.isDirectory()]
        return sorted(name.removeprefix("batch=") for name in names if name.startswith("batch="))

    def _replaced_by(self, name: str) -> list[str]:
        if not name.startswith(_MERGED):
            return []
        stream = self._files.open(self._path(name, _REPLACES))
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        found: list[str] = json.loads(text)
        return found

    def _path(self, name: str, file: str = "") -> Any:
        path = self._jvm.org.apache.hadoop.fs.Path(self._root, f"batch={name}")
        return self._jvm.org.apache.hadoop.fs.Path(path, file) if file else path

    def _write(self, path: Any, text: str) -> None:
        stream = self._files.create(path, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
