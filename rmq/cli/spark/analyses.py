"""`rmq spark audit`, `trace`, `lag`, `profile` and `dlq`: the pipelines that count and compare."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import click
from attrs import frozen

from rmq.cli.local.store import DELAYS, LOG
from rmq.cli.output import EXIT_FAILED, Format, output_option
from rmq.cli.spark.job import (
    brokers_option,
    one_line_errors,
    print_summary,
    run_pipeline,
    show_progress,
    source_options,
    spark_options,
)
from rmq.cli.spark.messages import letter_options
from rmq.cli.target import Target, target_options
from rmq.cli.values import as_duration
from rmq.message import TRACE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from rmq.spark.pipelines.lag import LagSummary
    from rmq.spark.pipelines.profile import ProfileSummary
    from rmq.spark.pipelines.progress import Watch
    from rmq.spark.pipelines.trace import TraceSummary

FOLDER = click.argument("folder", type=click.Path(file_okay=False), metavar="FOLDER")
STORE = click.option(
    "--store",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="Read the folder of a store instead of a running cluster.",
)
WINDOW = click.option(
    "--window", callback=as_duration, metavar="TIME", help="Length of a window (1m); chosen when not given."
)


@frozen
class AuditSummary:
    """Output of `rmq spark audit`: the first findings, and the sums."""

    store: str
    records: int
    units: int
    bytes: int
    faults: dict[str, int]
    notes: tuple[str, ...]
    seconds: float
    parts: tuple[dict[str, object], ...]


@click.command("audit")
@click.argument("store", type=click.Path(exists=True, file_okay=False), metavar="DIR")
@LOG
@DELAYS
@click.option("--findings", default="", metavar="FOLDER", help="Write all findings there as Parquet.")
@click.option("--limit", type=click.IntRange(0), default=50, show_default=True, help="Findings to show.")
@output_option
@spark_options
def audit_command(
    store: str,
    commit_log: str | None,
    delay_levels: str,
    findings: str,
    limit: int,
    output: Format,
    master: str,
    memory: str,
) -> None:
    """Compare log and queues of the store in DIR, rmq's or RocketMQ's, message by message.

    The command changes nothing. Exit status 1 when it finds damage. `rmq store check` looks at index,
    checkpoint and configuration too, and needs no Spark.
    """

    def work(spark: SparkSession, watch: Watch) -> AuditSummary:
        from rmq.spark import audit_store

        done = audit_store(
            spark,
            store,
            commit_log=commit_log or "",
            delay_levels=delay_levels,
            output=findings,
            watch=watch,
        )
        rows = done.findings.orderBy("kind", "physicalOffset").limit(limit).collect()
        faults = {one.kind: one.count for one in done.faults}
        shown = tuple(row.asDict() for row in rows)
        return AuditSummary(
            store, done.records, done.units, done.bytes, faults, done.notes, done.seconds, shown
        )

    audited = run_pipeline(work, master=master, memory=memory)
    print_summary(audited, output)
    sys.exit(EXIT_FAILED if audited.faults else 0)


@click.command("trace")
@FOLDER
@STORE
@click.option("--topic", default=TRACE_TOPIC, show_default=True, help="The topic that has the traces.")
@WINDOW
@output_option
@brokers_option
@spark_options
@target_options
def trace_command(
    target: Target,
    folder: str,
    store: str | None,
    topic: str,
    window: int | None,
    output: Format,
    master: str,
    memory: str,
) -> None:
    """Latencies of sending, delivering and consuming, from message traces: percentiles by topic and group.

    Writes FOLDER/report.html, and Parquet beside it.
    """

    def work(spark: SparkSession, watch: Watch) -> TraceSummary:
        from rmq.spark import analyse_traces

        messages = _messages(spark, target, store, topic, ["body"])
        return analyse_traces(spark, messages, folder, window_ms=window or 0, watch=watch)

    print_summary(run_pipeline(work, master=master, memory=memory), output)


@click.command("profile")
@click.argument("topics", metavar="TOPIC[,TOPIC...]")
@FOLDER
@STORE
@WINDOW
@output_option
@brokers_option
@spark_options
@target_options
def profile_command(
    target: Target,
    topics: str,
    folder: str,
    store: str | None,
    window: int | None,
    output: Format,
    master: str,
    memory: str,
) -> None:
    """Profile topics: sizes, rates, keys, tags, queues, properties, forms of bodies.

    Writes FOLDER/report.html, and Parquet beside it.
    """

    def work(spark: SparkSession, watch: Watch) -> ProfileSummary:
        from rmq.spark import profile_topics
        from rmq.spark.pipelines.profile import COLUMNS

        messages = _messages(spark, target, store, topics, COLUMNS)
        return profile_topics(spark, messages, folder, window_ms=window or 0, watch=watch)

    print_summary(run_pipeline(work, master=master, memory=memory), output)


@click.command("lag")
@FOLDER
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="Only this group; may be repeated.")
@click.option("--times", type=click.IntRange(0), default=1, show_default=True, help="Samples to take.")
@click.option("--every", callback=as_duration, default="10s", show_default=True, help="Time between samples.")
@output_option
@brokers_option
@spark_options
@target_options
def lag_command(
    target: Target,
    folder: str,
    groups: tuple[str, ...],
    times: int,
    every: int,
    output: Format,
    master: str,
    memory: str,
) -> None:
    """Add samples of the lag of groups to FOLDER, and show all samples over time.

    Run it repeatedly, for instance by cron, or with --times. Ctrl-C keeps the samples that were taken;
    --times 0 only writes the report again: FOLDER/report.html. Only the report starts Spark.
    """

    def work(spark: SparkSession, watch: Watch) -> LagSummary:
        from rmq.spark import report_lag

        return report_lag(spark, folder, watch=watch)

    if times:
        with one_line_errors(), show_progress() as shown:
            from rmq.spark import record_lag

            shown.step("sampling")
            record_lag(source_options(target), folder, groups, times=times, every_seconds=every / 1000)
    print_summary(run_pipeline(work, master=master, memory=memory), output)


@frozen
class LetterCounts:
    """The rows of `count_letters`, the largest first, and the sums over all."""

    letters: int
    kinds: int
    parts: tuple[dict[str, object], ...]


@click.command("dlq")
@letter_options
@click.option("--bucket", type=click.Choice(["minute", "hour", "day"]), default="hour", show_default=True)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Rows to show.")
@output_option
@brokers_option
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
    """Count dead letters, of all groups or of the given ones: by group, topic, tag, reason, number of
    deliveries and the hour (UTC) of their death."""

    def work(spark: SparkSession, watch: Watch) -> LetterCounts:
        from pyspark.sql import functions as F

        from rmq.spark import count_letters, dead_letters
        from rmq.spark.pipelines.progress import watched

        letters = dead_letters(spark, source_options(target), groups)
        counted = count_letters(letters.where(where) if where else letters, bucket).cache()
        with watched(spark, watch):
            total = counted.agg(F.sum("letters"), F.count("*")).collect()[0]
            rows = counted.limit(limit).collect()
        return LetterCounts(total[0] or 0, total[1], tuple(row.asDict() for row in rows))

    print_summary(run_pipeline(work, master=master, memory=memory), output)


def _messages(spark: SparkSession, target: Target, store: str | None, topic: str, columns: Any) -> DataFrame:
    """The messages of topics in a cluster, or in a store's folder."""
    from rmq.spark.formats.schema import spark_schema

    if store:
        reader = spark.read.format("rmqstore").options(path=store, topic=topic)
    else:
        reader = spark.read.format("rmq").options(**source_options(target), topic=topic)
    return reader.schema(spark_schema(columns)).load()
