"""Archive: topics to Parquet files by date and topic, each message once, whatever is killed in between."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from rmq.errors import ConfigError
from rmq.spark.pipelines.compaction import MANY, compact_partition
from rmq.spark.pipelines.folder import ArchiveFolder, File
from rmq.spark.pipelines.parquet import names_of, with_rows, write
from rmq.spark.pipelines.progress import Watch, follow, unwatched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCH_ROWS: Final = "500000"
"""maxOffsetsPerTrigger, if nothing is said."""
DATE_UTC: Final = "date_from_unix_date(cast(unix_millis(storeTimestamp) div 86400000 as int))"


@frozen
class ArchivedPart:
    """What a run has put into a partition."""

    date: str
    topic: str
    rows: int
    files: int
    bytes: int


@frozen
class Archived:
    """What a run has archived. `rewritten` counts small files that were merged with others."""

    path: str
    rows: int
    batches: int
    bytes: int
    rewritten: int
    seconds: float
    parts: tuple[ArchivedPart, ...]


def archive(
    spark: SparkSession,
    options: Mapping[str, str],
    path: str | Path,
    *,
    every_seconds: float | None = None,
    compact_files: int = MANY,
    watch: Watch = unwatched,
) -> Archived:
    """Append topics to the archive in `path`, from where the last run ended; returns what was archived.

    `options` are those of the source `rmq`, for instance nameServer and topic; startingOffsets is `earliest`
    if nothing is said, and counts for the first run only. The files have all columns of a message and are
    partitioned by `date` (of storeTimestamp, UTC) and `topic`. Ends when all is archived that was there at
    the start; with `every_seconds` it goes on, with a batch so often, until it is interrupted
    (KeyboardInterrupt), and returns then too. When a partition has got `compact_files` small files (0:
    never), they are merged.

    A run that is killed at any moment neither loses nor doubles a message: just run it again. Raises
    ConfigError, ArchiveInUse, and StreamingQueryException when the topics cannot be read.
    """
    began = time.monotonic()
    with ArchiveFolder(path) as folder:
        job = _Job(spark, folder, compact_files)
        query = job.start(options, every_seconds)
        try:
            follow(query, watch)
        except KeyboardInterrupt:
            if every_seconds is None:
                raise
    return job.archived(time.monotonic() - began)


def read_archive(spark: SparkSession, path: str | Path) -> DataFrame:
    """The rows of an archive: the columns of a message, and `date`.

    It may be written to meanwhile: of a batch that is just being added some files may be missing, none is
    there twice. When files are merged after they were listed here, the read fails with "file not found":
    read again. Raises ConfigError when there is no archive."""
    from pyspark.sql.types import DateType, StructField, StructType

    from rmq.spark.schema import spark_schema

    if not Path(path, "_rmq").is_dir():
        raise ConfigError("path", str(path), "the folder of an archive")
    schema = StructType([*spark_schema().fields, StructField("date", DateType())])
    # A schema of its own: Spark would take a topic called 2026 for a number.
    frame = spark.read.schema(schema).parquet(str(path))
    return frame.select([one.name for one in schema.fields])


@define
class _Job:
    """A run of the archive: takes batches from the query."""

    spark: SparkSession
    folder: ArchiveFolder
    compact_files: int
    files: list[File] = field(factory=list)
    batches: int = 0
    rewritten: int = 0

    def start(self, options: Mapping[str, str], every_seconds: float | None) -> StreamingQuery:
        from pyspark.sql import functions as F

        defaults = {} if "startingTimestamp" in options else {"startingOffsets": "earliest"}
        given = {"maxOffsetsPerTrigger": BATCH_ROWS, **defaults, **options}
        reader = self.spark.readStream.format("rmq").options(**given)
        frame = reader.option("stateLocation", str(self.folder.state)).load()
        frame = frame.withColumn("date", F.expr(DATE_UTC))
        writer = frame.writeStream.option("checkpointLocation", str(self.folder.checkpoint))
        writer = writer.queryName("rmq archive").foreachBatch(self.take)
        if every_seconds is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{round(every_seconds * 1000)} milliseconds").start()

    def take(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch of the query, unless it is there."""
        batch = f"{query_id(self.folder.checkpoint)[:8]}-{batch_id:08}"
        if self.folder.has(batch):
            return
        staged = self.folder.aside()
        write(frame, staged, partition=("date", "topic"))
        found = self.folder.publish(batch, with_rows(staged))
        self.files += found
        self.batches += 1
        if self.compact_files:
            for partition in sorted({file.partition for file in found}):
                place = self.folder.path / partition
                self.rewritten += compact_partition(self.spark, self.folder, place, self.compact_files)

    def archived(self, seconds: float) -> Archived:
        rows: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for file in self.files:
            rows[file.partition] += file.rows
            sizes[file.partition] += file.bytes
        counts = Counter(file.partition for file in self.files)
        parts = tuple(
            ArchivedPart(*names_of(partition), rows[partition], counts[partition], sizes[partition])
            for partition in sorted(counts)
        )
        total, size = sum(rows.values()), sum(sizes.values())
        return Archived(str(self.folder.path), total, self.batches, size, self.rewritten, seconds, parts)


def query_id(checkpoint: Path) -> str:
    """The id that Spark gave the query of a checkpoint."""
    return str(json.loads((checkpoint / "metadata").read_text())["id"])
