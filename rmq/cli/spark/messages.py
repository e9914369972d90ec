"""`rmq spark archive`, `compact`, `replay` and `resend`: the pipelines that move messages."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq.cli.output import Format, output_option
from rmq.cli.spark.job import brokers_option, print_summary, run_pipeline, source_options, spark_options
from rmq.cli.target import Target, target_options
from rmq.cli.values import as_duration, as_position, time_of
from rmq.operate.values import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from rmq.spark.pipelines.archive import Archived, Compacted
    from rmq.spark.pipelines.progress import Watch
    from rmq.spark.pipelines.replay import Run, SentAgain

T = TypeVar("T")

FOLDER = click.argument("folder", type=click.Path(file_okay=False, path_type=pathlib.Path), metavar="FOLDER")


@click.command("archive")
@click.argument("topics", metavar="TOPIC[,TOPIC...]")
@FOLDER
@click.option(
    "--from",
    "begin",
    callback=as_position,
    default="earliest",
    show_default=True,
    metavar="WHEN",
    help="Where the first run begins: earliest, latest, -2h, or a time.",
)
@click.option("--pattern", is_flag=True, help="TOPIC is a regular expression for names of topics.")
@click.option(
    "--every", callback=as_duration, metavar="TIME", help="Keep running, with a batch at this interval (10s)."
)
@click.option(
    "--batch-rows", type=click.IntRange(1), default=500_000, show_default=True, help="Messages of a batch."
)
@click.option(
    "--compact-files",
    type=click.IntRange(0),
    default=32,
    show_default=True,
    help="Merge small files when a partition has this many of similar size; 0: never.",
)
@output_option
@brokers_option
@spark_options
@target_options
def archive_command(
    target: Target,
    topics: str,
    folder: pathlib.Path,
    begin: Position,
    pattern: bool,
    every: int | None,
    batch_rows: int,
    compact_files: int,
    output: Format,
    master: str,
    memory: str,
) -> None:
    """Append topics to Parquet files in FOLDER, by date (UTC) and topic.

    Ends when all present messages are archived; another run adds later messages. A kill at any moment neither
    loses nor doubles a message. With --every the command continues until Ctrl-C.
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

    print_summary(run_pipeline(work, master=master, memory=memory), output)


@click.command("compact")
@FOLDER
@click.option(
    "--target-mib", type=click.IntRange(1), default=128, show_default=True, help="Size of a file to aim at."
)
@output_option
@spark_options
def compact_command(folder: pathlib.Path, target_mib: int, output: Format, master: str, memory: str) -> None:
    """Merge the small files of the archive in FOLDER. Do not run it while a job writes to the archive."""

    def work(spark: SparkSession, watch: Watch) -> Compacted:
        from rmq.spark import compact

        return compact(spark, folder, target_bytes=target_mib << 20, watch=watch)

    print_summary(run_pipeline(work, master=master, memory=memory), output)


# --- sending again ---


def run_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options of a replay run: `run_id`, `state`, `rate`."""
    for option in (
        click.option("--rate", type=click.IntRange(0), default=0, help="Largest number a second."),
        click.option(
            "--state",
            type=click.Path(file_okay=False, path_type=pathlib.Path),
            metavar="DIR",
            help="Folder for the start of a run. Without it a run with an id reads the whole target.",
        ),
        click.option("--run", "run_id", default="", metavar="ID", help="Name of the run, to continue it."),
    ):
        command = option(command)
    return command


def as_run(run_id: str, state: pathlib.Path | None, rate: int) -> Run:
    """The run of these options. Raises ConfigError."""
    from rmq.spark import Run

    return Run(run_id, state, rate)


@click.command("replay")
@click.option("--to", required=True, metavar="TOPIC", help="Where to send.")
@click.option(
    "--archive",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path),
    metavar="DIR",
    help="Take messages of the archive in DIR (of --topic only, when that is given too).",
)
@click.option("--topic", metavar="TOPIC", help="Take messages of this topic.")
@click.option("--since", callback=as_position, metavar="WHEN", help="Only messages stored from this time on.")
@click.option("--until", callback=as_position, metavar="WHEN", help="Only messages stored before this time.")
@click.option("--from-offsets", metavar="JSON", help='First offsets: {"Orders":{"broker-a":{"0":12}}}.')
@click.option("--to-offsets", metavar="JSON", help="Where to end, likewise.")
@click.option("--where", metavar="SQL", help="Only rows for which this is true: \"tags = 'paid'\".")
@click.option(
    "--keep",
    default="tags,keys,properties",
    show_default=True,
    metavar="NAMES",
    help="Fields to keep beside the body.",
)
@run_options
@output_option
@brokers_option
@spark_options
@target_options
def replay_command(
    target: Target,
    to: str,
    keep: str,
    run_id: str,
    state: pathlib.Path | None,
    rate: int,
    output: Format,
    master: str,
    memory: str,
    **choice: Any,
) -> None:
    """Send messages of an archive, or of a topic, to a topic again.

    Each sent message names its origin in its property rmqSparkKey. With --run an interrupted run can be
    repeated: stored messages are not sent twice.
    """
    if not (choice["folder"] or choice["topic"]):
        raise click.UsageError("choose the source: --archive or --topic")
    if choice["folder"] and (choice["from_offsets"] or choice["to_offsets"]):
        raise click.UsageError("offsets are for topics; use --where with an archive")
    options = source_options(target)

    def work(spark: SparkSession, watch: Watch) -> SentAgain:
        from rmq.spark import replay

        rows = _archived(spark, **choice) if choice["folder"] else _of_topic(spark, options, **choice)
        if choice["where"]:
            rows = rows.where(choice["where"])
        kept = [name.strip() for name in keep.split(",") if name.strip()]
        return replay(rows, options | {"topic": to}, as_run(run_id, state, rate), kept=kept, watch=watch)

    print_summary(run_pipeline(work, master=master, memory=memory), output)


def _archived(
    spark: SparkSession,
    folder: pathlib.Path,
    topic: str | None,
    since: Position | None,
    until: Position | None,
    **rest: object,
) -> DataFrame:
    from pyspark.sql import functions as F

    from rmq.spark import read_archive

    rows = read_archive(spark, folder)
    if topic:
        rows = rows.where(F.col("topic") == topic)
    if since is not None:
        rows = rows.where(F.unix_millis("storeTimestamp") >= time_of(since, "--since"))
    if until is not None:
        rows = rows.where(F.unix_millis("storeTimestamp") < time_of(until, "--until"))
    return rows


def _of_topic(
    spark: SparkSession,
    options: dict[str, str],
    topic: str,
    since: Position | None,
    until: Position | None,
    from_offsets: str | None,
    to_offsets: str | None,
    **rest: object,
) -> DataFrame:
    chosen = {"topic": topic, "startingOffsets": from_offsets, "endingOffsets": to_offsets}
    if since is not None:
        chosen["startingTimestamp"] = str(time_of(since, "--since"))
    if until is not None:
        chosen["endingTimestamp"] = str(time_of(until, "--until"))
    given = {name: text for name, text in chosen.items() if text}
    return spark.read.format("rmq").options(**options, **given).load()


def letter_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the selection of dead letters: the arguments `groups`, and `where`."""
    where = click.option(
        "--where",
        metavar="SQL",
        help="Only letters for which this is true, over group, originTopic, originId, tags, keys, "
        "reason, times, diedAt and the columns of messages.",
    )
    return click.argument("groups", nargs=-1, metavar="[GROUP...]")(where(command))


@click.command("resend")
@letter_options
@click.option("--all", "every", is_flag=True, help="All letters; needed without another choice.")
@click.option(
    "--to", default="", metavar="TOPIC", help="Send them to this topic instead of their original topic."
)
@run_options
@output_option
@brokers_option
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
    """Send dead letters to their topics again, once for each run; the letters stay in place."""
    if not (every or where or groups):
        raise click.UsageError("choose letters: GROUP, --where or --all")
    options = source_options(target)

    def work(spark: SparkSession, watch: Watch) -> SentAgain:
        from rmq.spark import dead_letters, resend

        letters = dead_letters(spark, options, groups)
        chosen = letters.where(where) if where else letters
        return resend(chosen, options, as_run(run_id, state, rate), to=to, watch=watch)

    print_summary(run_pipeline(work, master=master, memory=memory), output)
