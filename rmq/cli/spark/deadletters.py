"""`rmq spark dlq` and `rmq spark resend`."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Literal

import click
from attrs import frozen

from rmq.cli.output import Format, output_option
from rmq.cli.spark.replay import as_run, run_options
from rmq.cli.spark.running import run_pipeline, source_options, spark_options, tell
from rmq.cli.target import Target, target_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmq.spark.pipelines.progress import Watch
    from rmq.spark.pipelines.sending import SentAgain

GROUPS = click.argument("groups", nargs=-1, metavar="[GROUP...]")
WHERE_HELP = (
    "Those for which this is true, over group, originTopic, originId, tags, keys, reason, times, diedAt and"
    " the columns of messages."
)
WHERE = click.option("--where", metavar="SQL", help=WHERE_HELP)


@frozen
class Counts:
    """The rows of `count_letters`, the largest first, and the sums over all."""

    letters: int
    kinds: int
    parts: tuple[dict[str, object], ...]


@click.command("dlq")
@GROUPS
@WHERE
@click.option("--bucket", type=click.Choice(["minute", "hour", "day"]), default="hour", show_default=True)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Rows to show.")
@output_option
@spark_options
@target_options
def dlq_command(
    target: Target,
    groups: tuple[str, ...],
    where: str | None,
    bucket: Literal["minute", "hour", "day"],
    limit: int,
    output: Format,
    master: str,
    memory: str,
) -> None:
    """Count dead letters, of all groups or of these: by group, topic, tag, reason, number of times and the
    hour (UTC) in which they died."""

    def work(spark: SparkSession, watch: Watch) -> Counts:
        from pyspark.sql import functions as F

        from rmq.spark import count_letters, dead_letters
        from rmq.spark.pipelines.progress import watched

        letters = dead_letters(spark, source_options(target), groups)
        counted = count_letters(letters.where(where) if where else letters, bucket).cache()
        with watched(spark, watch):
            total = counted.agg(F.sum("letters"), F.count("*")).collect()[0]
            rows = counted.limit(limit).collect()
        return Counts(total[0] or 0, total[1], tuple(row.asDict() for row in rows))

    tell(run_pipeline(work, master=master, memory=memory), output)


@click.command("resend")
@GROUPS
@WHERE
@click.option("--all", "every", is_flag=True, help="All letters; to be said when nothing else chooses.")
@click.option("--to", default="", metavar="TOPIC", help="Send them to this topic instead of their own.")
@run_options
@output_option
@spark_options
@target_options
def resend_command(
    target: Target,
    groups: tuple[str, ...],
    where: str | None,
    every: bool,
    to: str,
    run_id: str,
    state: pathlib.Path | None,
    rate: int,
    output: Format,
    master: str,
    memory: str,
) -> None:
    """Send dead letters to their topics again, once for each run; they stay where they are."""
    if not (every or where or groups):
        raise click.UsageError("say which: GROUP, --where or --all")
    options = source_options(target)

    def work(spark: SparkSession, watch: Watch) -> SentAgain:
        from rmq.spark import dead_letters, resend

        letters = dead_letters(spark, options, groups)
        chosen = letters.where(where) if where else letters
        return resend(chosen, options, as_run(run_id, state, rate), to=to, watch=watch)

    tell(run_pipeline(work, master=master, memory=memory), output)
