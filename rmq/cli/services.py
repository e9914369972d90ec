"""`rmq namesrv` and `rmq broker`: the services' own command lines under the `rmq` command."""

from __future__ import annotations

import importlib
import sys

import click

from rmq.cli.output import echo

PASS_THROUGH = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _run(service: str, arguments: tuple[str, ...]) -> None:
    """Hands the arguments to the service's main() and ends with its status."""
    sys.exit(importlib.import_module(f"rmq.{service}.__main__").main(list(arguments)))


@click.command(context_settings=PASS_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def namesrv(arguments: tuple[str, ...]) -> None:
    """Run a name server; `rmq namesrv --help` lists the options."""
    _run("namesrv", arguments)


@click.command(context_settings=PASS_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def broker(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Run a broker; `rmq broker --help` lists the options.

    With the name of an operation (`rmq broker status`), look after brokers that run.
    """
    if arguments and not arguments[0].startswith("-"):
        from rmq.cli.broker import operations

        with operations.make_context("broker", list(arguments), parent=context.parent) as own:
            operations.invoke(own)
        return
    if arguments == ("--help",):
        from rmq.cli.broker import operations

        echo(operations.get_help(click.Context(operations, parent=context.parent, info_name="broker")))
        echo("\nWithout a command it runs a broker:\n")
    _run("broker", arguments)
