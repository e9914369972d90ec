"""The last step of `rmq demo`: its topic is archived as Parquet by Spark, and counted."""

from __future__ import annotations

import importlib.util
import json
import pathlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import frozen
from rich.table import Table

from rmq import embedded
from rmq.cli.demo import Plan
from rmq.cli.demo.rows import Row
from rmq.cli.spark.job import JobProgress, reason_of, show_progress, spark_session
from rmq.printable import counted
from rmq.spark.pipelines.progress import Watch, unwatched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS_MAX: Final = 12
SHORT: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Java's second compiler does not pay in so short a job: without it the job took a third less CPU time."""
EXPECTED: Final = "Spark archives the topic as Parquet: some 20 s; --no-spark leaves that out."


@frozen
class ArchiveCounts:
    """Counts of this run in the archive: its messages by the values of `column`."""

    column: str
    groups: Sequence[tuple[str, int]]
    path: pathlib.Path

    @property
    def rows(self) -> int:
        """The messages of this run."""
        return sum(count for _, count in self.groups)


class SparkFailed(Exception):
    """Spark has failed; the text has the reason."""


def has_spark() -> bool:
    """True if the extra `spark` is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("pyspark", "pyarrow"))


def archive_demo(plan: Plan) -> ArchiveCounts:
    """Start Spark, and a broker on the demo's folder again; archive and count.

    Raises SparkFailed, RmqError, OSError."""
    from pyspark.errors import PySparkException

    try:
        with show_progress() as shown, spark_session(shown, "local[2]", "512m", SHORT) as spark:
            return trio.run(_with_broker, spark, plan, shown)
    except PySparkException as error:
        raise SparkFailed(reason_of(error)) from error


async def _with_broker(spark: SparkSession, plan: Plan, shown: JobProgress) -> ArchiveCounts:
    async with embedded.open(plan.folder) as system:
        work = partial(archive_and_count, spark, plan, system.namesrv_address, shown.watch)
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


def archive_and_count(
    spark: SparkSession, plan: Plan, namesrv: str, watch: Watch = unwatched
) -> ArchiveCounts:
    """Append the topic to the archive in the plan's folder and count this run's messages."""
    from pyspark.sql import functions as F

    from rmq.spark import archive, read_archive

    path = plan.folder / "archive"
    archive(spark, {"nameServer": namesrv, "topic": plan.topic}, path, watch=watch)
    rows = read_archive(spark, path).where(F.col("properties").getItem("demo") == plan.run_id)
    column = column_to_count(plan.rows)
    value: Any = F.col("queueId").cast("string")
    if column is not None:
        value = F.from_json(F.col("body").cast("string"), "map<string,string>").getItem(column)
    counts = rows.groupBy(value.alias("value")).count().orderBy(F.desc("count"), "value").collect()
    return ArchiveCounts(column or "queue", [(str(row[0]), row[1]) for row in counts], path)


def column_to_count(rows: Sequence[Row]) -> str | None:
    """The first column that has two to twelve values; None without such a column."""
    records = [json.loads(row.body) for row in rows]
    for name in records[0]:
        values = {str(record.get(name)) for record in records}
        if 2 <= len(values) <= GROUPS_MAX:
            return str(name)
    return None


def count_table(counts: ArchiveCounts) -> Table:
    """The grouped count."""
    table = Table(title="Archived by Spark")
    table.add_column(counts.column, no_wrap=True)
    table.add_column("messages", justify="right", no_wrap=True)
    for value, count in counts.groups:
        table.add_row(value, f"{count:,}")
    return table


def archive_line(counts: ArchiveCounts) -> str:
    """The place of the files, and their number."""
    files = counted(len(list(counts.path.glob("date=*/topic=*/*.parquet"))), "Parquet file")
    rows = counted(counts.rows, "message", ",")
    return f"Archive: {rows} of this run in {counts.path}, {files} in all"
