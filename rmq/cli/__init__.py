"""The `rmq` command. Each sub-command lives in a module of its own that is imported when it is called.

Exit status of every sub-command: 0 it did what was asked, 1 it failed, 2 wrong usage, settings or input,
3 it cannot listen or its data folder is taken, 130 interrupted.
"""

from __future__ import annotations

import importlib

import click

# Name -> module, and the line that `rmq --help` shows: kept here so that help imports nothing.
SUBCOMMANDS = {
    "demo": (
        "rmq.cli.demo",
        "Send a data set through name server, broker and two consumers; show the figures.",
    ),
    "dev": ("rmq.cli.dev", "Run a name server and a broker in one process, for development."),
    "admin": ("rmq.cli.admin", "RocketMQ's mqadmin: the same 57 names, the same options."),
    "acl": ("rmq.cli.acl", "Accounts of a cluster or of a file: who may do what, and why."),
    "store": ("rmq.cli.store", "Check, repair or dump the folder of a store, ours or RocketMQ's."),
    "namesrv": ("rmq.cli.services", "Run a name server (the same as python -m rmq.namesrv)."),
    "broker": ("rmq.cli.services", "Run a broker (the same as python -m rmq.broker)."),
}


class LazyGroup(click.Group):
    """A group that imports a sub-command's module only to run it or to show its own help."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in SUBCOMMANDS:
            return None
        module = importlib.import_module(SUBCOMMANDS[name][0])
        found: click.Command = getattr(module, name)
        return found

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in SUBCOMMANDS.items()])


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 done, 1 failed, 2 wrong usage, settings or input, 3 cannot listen or data folder"
    " taken, 130 interrupted.",
)
@click.version_option(package_name="rmq", prog_name="rmq")
def command() -> None:
    """Apache RocketMQ 4.9 in Python: name server, broker and client."""
