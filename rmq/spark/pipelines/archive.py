"""Archive: topics to Parquet files by date and topic, each message once, whatever is killed in between; and
small files of an archive merged.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import define, evolve, field, frozen

from rmq.errors import ConfigError
from rmq.spark.options import MIB
from rmq.spark.pipelines.archive_folder import (
    ArchiveFolder,
    File,
    names_of,
    row_count,
    row_counts,
    write_parquet,
)
from rmq.spark.pipelines.progress import JobProgress, Watch, follow, follow_to_end, unwatched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


BATCH_ROWS: Final = "500000"
"""Default of maxOffsetsPerTrigger."""
MANY: Final = 32
"""Small files of about one size that are merged while an archive runs."""
TARGET_BYTES: Final = 128 * MIB
_TIER_BITS: Final = 4
_ORDER: Final = ("brokerName", "queueId", "queueOffset")
DATE_UTC: Final = "date_from_unix_date(cast(unix_millis(storeTimestamp) div 86400000 as int))"


@frozen
class ArchivedPart:
    """Result of a run in a partition."""

    date: str
    topic: str
    rows: int
    files: int
    bytes: int


@frozen
class Archived:
    """Result of a run. `rewritten` counts small files that were merged with others; `away` names the brokers
    whose queues were skipped (onBrokerAway=skip) when the run ended."""

    path: str
    rows: int
    batches: int
    bytes: int
    rewritten: int
    seconds: float
    parts: tuple[ArchivedPart, ...]
    away: tuple[str, ...] = ()


def archive(
    spark: SparkSession,
    options: Mapping[str, str],
    path: str | Path,
    *,
    every_seconds: float | None = None,
    compact_files: int = MANY,
    watch: Watch = unwatched,
) -> Archived:
    """Append topics to the archive in `path`, from the end of the last run; return the counts.

    `options` are those of the source `rmq`, for instance nameServer and topic; startingOffsets is `earliest`
    by default, and counts for the first run only. The files have all columns of a message and are partitioned
    by `date` (of storeTimestamp, UTC) and `topic`. Ends when everything that existed at the start is
    archived; with `every_seconds` the run continues, with a batch at this interval, until an interruption
    (KeyboardInterrupt), after which it returns. A partition with `compact_files` small files (0: never) is
    merged.

    A run that is killed at any moment neither loses nor doubles a message: just repeat the run. Raises
    ConfigError, ArchiveInUse, and StreamingQueryException when the topics cannot be read.
    """
    began = time.monotonic()
    away: tuple[str, ...] = ()
    with ArchiveFolder(path) as folder:
        job = _Job(spark, folder, compact_files)
        try:
            if every_seconds is None:
                away = follow_to_end(lambda: job.start(options, None), source_options(options), watch)
            else:
                away = follow(job.start(options, every_seconds), watch)
        except KeyboardInterrupt:
            if every_seconds is None:
                raise
    return evolve(job.archived(time.monotonic() - began), away=away)


def read_archive(spark: SparkSession, path: str | Path) -> DataFrame:
    """The rows of an archive: the columns of a message, and `date`.

    The archive may be written to at the same time: some files of a batch in progress may be missing, none is
    duplicated. When files are merged after they were listed by this call, the read fails with "file not
    found": read again. Raises ConfigError without an archive.
    """
    from pyspark.sql.types import DateType, StructField, StructType

    from rmq.spark.formats.schema import spark_schema

    if not Path(path, "_rmq").is_dir():
        raise ConfigError("path", str(path), "the folder of an archive")
    schema = StructType([*spark_schema().fields, StructField("date", DateType())])
    # A schema of its own: Spark would read a topic named 2026 as a number.
    frame = spark.read.schema(schema).parquet(str(path))
    return frame.select([one.name for one in schema.fields])


def source_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options of the archive's source: the given options and the defaults."""
    defaults = {} if "startingTimestamp" in options else {"startingOffsets": "earliest"}
    return {"maxOffsetsPerTrigger": str(BATCH_ROWS), **defaults, **options}


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

        reader = self.spark.readStream.format("rmq").options(**source_options(options))
        frame = reader.option("stateLocation", str(self.folder.state)).load()
        frame = frame.withColumn("date", F.expr(DATE_UTC))
        writer = frame.writeStream.option("checkpointLocation", str(self.folder.checkpoint))
        writer = writer.queryName("rmq archive").foreachBatch(self.take)
        if every_seconds is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{round(every_seconds * 1000)} milliseconds").start()

    def take(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch of the query, unless it exists."""
        batch = f"{query_id(self.folder.checkpoint)[:8]}-{batch_id:08}"
        if self.folder.has(batch):
            return
        staged = self.folder.aside()
        write_parquet(frame, staged, partition=("date", "topic"))
        found = self.folder.publish(batch, row_counts(staged))
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


# --- merging small files: see `archive_folder` for why a kill neither loses nor doubles a row ---


@frozen
class CompactedPart:
    """Result of merging a partition's files."""

    date: str
    topic: str
    rows: int
    files_before: int
    files_after: int


@frozen
class Compacted:
    """Result of a merge; `parts` has the partitions that were changed."""

    path: str
    files_before: int
    files_after: int
    seconds: float
    parts: tuple[CompactedPart, ...]


def compact(
    spark: SparkSession,
    path: str | Path,
    *,
    target_bytes: int = TARGET_BYTES,
    watch: Watch = unwatched,
) -> Compacted:
    """Merge the small files of each partition of an archive into files of about `target_bytes`. Not during
    writes to the archive: raises ArchiveInUse. Killed: merged files stay merged, no row is lost or
    doubled."""
    began = time.monotonic()
    parts = []
    with ArchiveFolder(path) as folder:
        places = folder.partitions()
        for number, place in enumerate(places):
            before = _sizes(place)
            compact_partition(spark, folder, place, 2, target_bytes=target_bytes, tiers=False)
            after = _sizes(place)
            if after != before:
                rows = sum(map(row_count, after))
                parts.append(CompactedPart(*names_of(str(place)), rows, len(before), len(after)))
            watch(JobProgress(number + 1, len(places), "partitions"))
    total_before, total_after = sum(p.files_before for p in parts), sum(p.files_after for p in parts)
    return Compacted(str(folder.path), total_before, total_after, time.monotonic() - began, tuple(parts))


def compact_partition(
    spark: SparkSession,
    folder: ArchiveFolder,
    partition: Path,
    least: int,
    *,
    target_bytes: int = TARGET_BYTES,
    tiers: bool = True,
) -> int:
    """Merge the small files of a partition with at least `least`; return their number."""
    merged = 0
    for old in crowds(_sizes(partition), least, target_bytes, tiers=tiers):
        staged = folder.aside()
        count = -(-sum(path.stat().st_size for path in old) // target_bytes)
        frame = spark.read.parquet(*map(str, old)).coalesce(count).sortWithinPartitions(*_ORDER)
        write_parquet(frame, staged)
        found = dict(row_counts(staged))
        rows = sum(map(row_count, old))
        assert sum(found.values()) == rows, f"{partition}: {rows} rows became {sum(found.values())}"
        folder.replace(partition, old, [_named(path, number) for number, path in enumerate(found)])
        merged += len(old)
    return merged


def crowds(sizes: Mapping[Path, int], least: int, target_bytes: int, *, tiers: bool) -> list[list[Path]]:
    """The small files to merge with each other. With `tiers` only files whose sizes are within a factor of 16
    are merged: so a row is rewritten a few times in its life, not with each merge."""
    found: dict[int, list[Path]] = defaultdict(list)
    for path, size in sizes.items():
        if size < target_bytes // 2:
            found[size.bit_length() // _TIER_BITS if tiers else 0].append(path)
    return [sorted(paths) for _, paths in sorted(found.items()) if len(paths) >= least]


def _sizes(partition: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in sorted(partition.glob("*.parquet"))}


def _named(path: Path, number: int) -> Path:
    """A new name for the file, which no other file of the archive has."""
    return path.rename(path.with_name(f"merged-{uuid.uuid4().hex[:12]}-{number:04}.parquet"))
