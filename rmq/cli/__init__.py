"""The `rmq` command. Each sub-command is in a module of its own that is imported when it is called.

Exit status of every sub-command: 0 success, 1 failure, 2 wrong usage, settings or input, 3 it cannot listen
or its data folder is in use, 130 interrupted.
"""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import click

from rmq.cli.output import EXIT_INTERRUPTED, EXIT_USAGE, echo, end_quietly
from rmq.errors import ConfigError
from rmq.server.process import check_installation

SUBCOMMANDS: Final = {
    "dashboard": (
        "rmq.cli.local.dashboard",
        "Serve the dashboard: pages and an HTTP API to see and change a cluster.",
    ),
    "demo": (
        "rmq.cli.demo",
        "Send a data set through name server, broker and two consumers; show the metrics.",
    ),
    "run": ("rmq.cli.local.app", "Run your rmq.App as one process or several."),
    "dev": ("rmq.cli.local.services", "Run a name server and a broker in one process, for development."),
    "certs": ("rmq.cli.local.certs", "Make an authority, certificates and the secret of a cluster."),
    "namesrv": ("rmq.cli.local.services", "Run a name server (the same as python -m rmq.namesrv)."),
    "broker": (
        "rmq.cli.local.services",
        "Run a broker, or administer running brokers: broker status, broker config ...",
    ),
    "controller": (
        "rmq.cli.local.services",
        "Run a controller, which elects masters, or administer controllers: controller status ...",
    ),
    "proxy": ("rmq.cli.local.services", "Run a proxy for RocketMQ's 5.x clients (gRPC) before a cluster."),
    "store": ("rmq.cli.local.store", "Check, repair or dump the folder of a store, ours or RocketMQ's."),
    "backup": (
        "rmq.cli.local.backup",
        "Copy the store of a running broker; later runs copy only new data.",
    ),
    "pub": ("rmq.cli.messages.pub", "Send messages from the command line, a file or standard input."),
    "sub": ("rmq.cli.messages.sub", "Consume a topic as a member of a group."),
    "request": ("rmq.cli.messages.pub", "Send a message and print the consumer's reply."),
    "reply": ("rmq.cli.messages.sub", "Consume requests as a member of a group, and reply to them."),
    "tail": ("rmq.cli.messages.tail", "Look at a topic, live, without a group."),
    "bench": ("rmq.cli.messages.bench", "Load a cluster: rates and latencies of sending and consuming."),
    "msg": ("rmq.cli.messages.msg", "Find messages, show their traces, redeliver them."),
    "cluster": (
        "rmq.cli.clusters.cluster",
        "Show clusters and brokers, how fast they answer; plan moves of topics.",
    ),
    "topic": ("rmq.cli.clusters.topic", "List, look at, make, change, move and delete topics."),
    "group": ("rmq.cli.clusters.group", "List, look at, make, move and delete consumer groups; their lag."),
    "dlq": ("rmq.cli.messages.dlq", "List a group's dead letters, and resend them to their topics."),
    "transactions": (
        "rmq.cli.messages.transactions",
        "List transactions without a decision, and check them back.",
    ),
    "spark": ("rmq.cli.spark", "Big jobs by Apache Spark: archive topics, replay them, audit dead letters."),
    "admin": ("rmq.cli.admin", "RocketMQ's mqadmin: the same 57 names, the same options."),
    "acl": ("rmq.cli.clusters.acl", "Administer the accounts and permissions of a cluster or of a file."),
    "doctor": ("rmq.cli.clusters.doctor", "Find the faults of a cluster, and say what to do."),
    "migrate": (
        "rmq.cli.clusters.migrate",
        "Prepare the move of an Apache RocketMQ cluster: differences, and what to do.",
    ),
    "export": (
        "rmq.cli.clusters.export_import",
        "Write topics, groups, offsets and accounts to one YAML file.",
    ),
    "import": ("rmq.cli.clusters.export_import", "Change a cluster to match such a file."),
    "context": ("rmq.cli.context", "Name clusters, so that -n need not be typed."),
    "errors": ("rmq.cli.errors", "Explain a response code or an error, and say what to do."),
    "completion": ("rmq.cli.completion", "Print the completion script of bash, zsh or fish."),
}
"""Name -> module, and the line that `rmq --help` shows: kept here so that help imports nothing."""

SECTIONS: Final = {
    "Run": ("dev", "namesrv", "broker", "controller", "proxy", "dashboard", "demo", "run"),
    "Messages": ("pub", "sub", "tail", "request", "reply", "bench", "msg", "dlq", "transactions", "spark"),
    "A running cluster": (
        "cluster",
        "topic",
        "group",
        "acl",
        "doctor",
        "migrate",
        "export",
        "import",
        "admin",
    ),
    "More": ("certs", "store", "backup", "context", "errors", "completion"),
}
"""Headings of `rmq --help`, and the commands under each."""


OTHER_WORDS: Final[Mapping[str, Sequence[str]]] = {
    "publish": ["pub"],
    "produce": ["pub"],
    "producer": ["pub"],
    "send": ["pub"],
    "put": ["pub", "create"],
    "subscribe": ["sub"],
    "consume": ["sub", "tail"],
    "consumer": ["sub", "group"],
    "listen": ["sub", "tail"],
    "watch": ["tail"],
    "topics": ["topic"],
    "groups": ["group"],
    "consumers": ["group"],
    "brokers": ["cluster"],
    "message": ["msg"],
    "messages": ["msg"],
    "nameserver": ["namesrv"],
    "mqadmin": ["admin"],
    "migration": ["migrate"],
    "check": ["doctor"],
    "status": ["doctor", "cluster"],
    "add": ["create"],
    "new": ["create"],
    "make": ["create"],
    "remove": ["delete"],
    "rm": ["delete"],
    "ls": ["list"],
    "describe": ["show"],
    "get": ["show"],
}
"""Word of other tools -> commands of rmq with that meaning."""


class LazyGroup(click.Group):
    """A group that imports a command's module only to run it or to show its own help.

    `commands_of`: name -> the module that has the command, and its line of help. In its module a command is
    `<name>_command`, or stands under its own name, or in a table `COMMANDS`. `sections`: heading -> names.
    """

    def __init__(
        self,
        *arguments: Any,
        commands_of: Mapping[str, tuple[str, str]],
        sections: Mapping[str, Sequence[str]],
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self._commands_of, self._sections = commands_of, sections

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self._commands_of)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self._commands_of:
            return None
        module = importlib.import_module(self._commands_of[name][0])
        commands = getattr(module, "COMMANDS", {})
        found: click.Command = (
            commands.get(name) or getattr(module, f"{name}_command", None) or getattr(module, name)
        )
        return found

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in self._sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self._commands_of[name][1]) for name in names])


class RootGroup(LazyGroup):
    """The command `rmq`, which reports a fault of a command line in one line."""

    def main(self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **extra)
        try:
            # The status with which --help and --version end.
            sys.exit(super().main(args, standalone_mode=False, **extra) or 0)
        except click.Abort:
            echo("interrupted", err=True)
            sys.exit(EXIT_INTERRUPTED)
        except click.ClickException as error:
            echo(_one_line(error), err=True)
            sys.exit(error.exit_code)
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            end_quietly()


def _one_line(error: click.ClickException) -> str:
    """The fault, the command, and the place of its usage, in one line."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "rmq"
    text = " ".join(error.format_message().split())
    if context and isinstance(context.command, click.Group) and text.startswith("No such command "):
        text = text.rstrip(".") + _suggestion(text.split("'")[1], context.command.list_commands(context))
    return f"{path}: {text}" + (f"; see {path} --help" if error.exit_code == EXIT_USAGE else "")


def _suggestion(name: str, known: Sequence[str]) -> str:
    """The commands that may be meant."""
    other = [one for one in OTHER_WORDS.get(name.lower(), ()) if one in known]
    near = list(dict.fromkeys([*other, *get_close_matches(name, known, 2)]))
    return f": did you mean {' or '.join(near)}?" if near else ""


@click.command(
    "rmq",
    cls=RootGroup,
    commands_of=SUBCOMMANDS,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 done, 1 failed or something is wrong, 2 wrong usage, settings or input, 3 cannot"
    " listen or data folder taken, 130 interrupted.",
)
@click.version_option(package_name="rmq", prog_name="rmq")
def command() -> None:
    """Apache RocketMQ 4.9 in Python: name server, broker and client."""
    try:
        check_installation()
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
