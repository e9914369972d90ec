"""`rmq spark NAME`: the pipelines of rmq.spark. A command's module is imported when it is called, and PySpark
by its work only: `rmq spark --help` needs neither.
"""

from __future__ import annotations

import importlib
from typing import Final

import click

# Name -> the module here that has the command `<name>_command`, and its line in the help.
PIPELINES: Final = {
    "archive": ("archive", "Append topics to Parquet files by date and topic."),
    "compact": ("archive", "Merge the small files of an archive."),
    "replay": ("replay", "Send messages of an archive or a topic to a topic again."),
    "dlq": ("deadletters", "Count dead letters by group, topic, tag, reason, times and hour."),
    "resend": ("deadletters", "Send chosen dead letters to their topics again."),
    "audit": ("analyses", "Compare log and queues of a store's folder, message by message."),
    "trace": ("analyses", "Latencies by topic and group, from message traces, with charts."),
    "lag": ("analyses", "Sample the lag of groups, and show it over time."),
    "profile": ("analyses", "Sizes, rates, keys, tags, queues and bodies of topics, with charts."),
}


class Pipelines(click.Group):
    """Imports a command's module to run it or to show its own help."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(PIPELINES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in PIPELINES:
            return None
        module = importlib.import_module(f"rmq.cli.spark.{PIPELINES[name][0]}")
        found: click.Command = getattr(module, f"{name}_command")
        return found

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in PIPELINES.items()])


@click.group(cls=Pipelines)
def spark() -> None:
    """Big jobs on messages, by Apache Spark in this process. Needs the extra: pip install 'rmq[spark]'.

    Spark takes some 10 s to start, and about 1 GiB. For Spark's clusters use the functions of rmq.spark.
    """
