"""`rmq spark archive` and `rmq spark compact`."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import click

from rmq.cli.output import Format, output_option
from rmq.cli.spark.running import run_pipeline, source_options, spark_options, tell
from rmq.cli.target import Target, target_options
from rmq.cli.times import Place, as_duration, as_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmq.spark.pipelines.archive import Archived
    from rmq.spark.pipelines.compaction import Compacted
    from rmq.spark.pipelines.progress import Watch

FOLDER = click.argument("folder", type=click.Path(file_okay=False, path_type=pathlib.Path), metavar="FOLDER")


@click.command("archive")
@click.argument("topics", metavar="TOPIC[,TOPIC...]")
@FOLDER
@click.option(
    "--from",
    "begin",
    callback=as_place,
    default="earliest",
    show_default=True,
    metavar="WHEN",
    help="Where the first run begins: earliest, latest, -2h, or a time.",
)
@click.option("--pattern", is_flag=True, help="TOPIC is a regular expression for names of topics.")
@click.option("--every", callback=as_duration, metavar="TIME", help="Go on, with a batch so often (10s).")
@click.option(
    "--batch-rows", type=click.IntRange(1), default=500_000, show_default=True, help="Messages of a batch."
)
@click.option(
    "--compact-files",
    type=click.IntRange(0),
    default=32,
    show_default=True,
    help="Merge small files when a partition has so many of about one size; 0: never.",
)
@output_option
@spark_options
@target_options
def archive_command(
    target: Target,
    topics: str,
    folder: pathlib.Path,
    begin: Place,
    pattern: bool,
    every: int | None,
    batch_rows: int,
    compact_files: int,
    output: Format,
    master: str,
    memory: str,
) -> None:
    """Append topics to Parquet files in FOLDER, by date (UTC) and topic.

    Ends when all is there; run it again for what has come since. Killed at any moment it neither loses nor
    doubles a message. With --every it goes on until Ctrl-C.
    """
    options = source_options(target) | {"topicPattern" if pattern else "topic": topics}
    options["maxOffsetsPerTrigger"] = str(batch_rows)
    if isinstance(begin, int):
        options["startingTimestamp"] = str(begin)
    else:
        options["startingOffsets"] = {"first": "earliest", "last": "latest"}[begin]

    def work(spark: SparkSession, watch: Watch) -> Archived:
        from rmq.spark import archive

        seconds = None if every is None else every / 1000
        return archive(
            spark, options, folder, every_seconds=seconds, compact_files=compact_files, watch=watch
        )

    tell(run_pipeline(work, master=master, memory=memory), output)


@click.command("compact")
@FOLDER
@click.option(
    "--target-mib", type=click.IntRange(1), default=128, show_default=True, help="Size of a file to aim at."
)
@output_option
@spark_options
def compact_command(folder: pathlib.Path, target_mib: int, output: Format, master: str, memory: str) -> None:
    """Merge the small files of the archive in FOLDER. Not while it is written to."""

    def work(spark: SparkSession, watch: Watch) -> Compacted:
        from rmq.spark import compact

        return compact(spark, folder, target_bytes=target_mib << 20, watch=watch)

    tell(run_pipeline(work, master=master, memory=memory), output)
