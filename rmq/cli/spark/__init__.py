"""`rmq spark NAME`: the pipelines of rmq.spark. A command's module is imported when the command is called,
and PySpark when its work starts: `rmq spark --help` needs neither."""

from __future__ import annotations

from typing import Final

import click

from rmq.cli import LazyGroup

PIPELINES: Final = {
    "archive": ("rmq.cli.spark.messages", "Append topics to Parquet files by date and topic."),
    "compact": ("rmq.cli.spark.messages", "Merge the small files of an archive."),
    "replay": ("rmq.cli.spark.messages", "Send messages of an archive or a topic to a topic again."),
    "dlq": (
        "rmq.cli.spark.analyses",
        "Count dead letters by group, topic, tag, reason, times and hour.",
    ),
    "resend": ("rmq.cli.spark.messages", "Send chosen dead letters to their topics again."),
    "run": ("rmq.cli.spark.streams", "Run the streams of a file, and restart them when they fail."),
    "audit": (
        "rmq.cli.spark.analyses",
        "Compare log and queues of a store's folder, message by message.",
    ),
    "trace": (
        "rmq.cli.spark.analyses",
        "Latencies by topic and group, from message traces, with charts.",
    ),
    "lag": ("rmq.cli.spark.analyses", "Sample the lag of groups, and chart the lag over time."),
    "profile": (
        "rmq.cli.spark.analyses",
        "Sizes, rates, keys, tags, queues and bodies of topics, with charts.",
    ),
}
"""Name -> the module that has the command `<name>_command`, and its line in the help."""


@click.command(cls=LazyGroup, commands_of=PIPELINES, sections={"Commands": tuple(PIPELINES)})
def spark() -> None:
    """Big jobs on messages, by Apache Spark in this process. Needs the extra: pip install 'rmq[spark]'.

    Spark takes some 10 s to start, and about 1 GiB. For Spark's clusters use the functions of rmq.spark.
    """
