"""`rmq namesrv`, `broker`, `controller`, `proxy` and `dev`: the services, imported when they run."""

from __future__ import annotations

import importlib
import logging
import pathlib
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from rmq.cli.output import echo, status_of
from rmq.cli.values import pairs
from rmq.errors import RmqError
from rmq.server.process import ignore_unused

if TYPE_CHECKING:
    from rmq import embedded

PROCESSES, PROCESSES_MAX = "--processes", 256
WITH_NAMESRV = "--with-namesrv"
PASS_THROUGH = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _run_service(service: str, arguments: tuple[str, ...]) -> None:
    """Give the arguments to the service's main() and end with its status."""
    sys.exit(importlib.import_module(f"rmq.{service}.__main__").main(list(arguments)))


@click.command(context_settings=PASS_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def namesrv(arguments: tuple[str, ...]) -> None:
    """Run a name server; `rmq namesrv --help` lists the options."""
    _run_service("namesrv", arguments)


@click.command(context_settings=PASS_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def proxy(arguments: tuple[str, ...]) -> None:
    """Run a proxy for RocketMQ's 5.x clients; `rmq proxy --help` lists the options."""
    _run_service("proxy", arguments)


def _run_several(arguments: list[str]) -> None:
    """Run the number of brokers that the arguments name, and a name server if they name a port for it, and
    end with their status."""
    count = _taken(arguments, PROCESSES, PROCESSES_MAX)
    port = _taken(arguments, WITH_NAMESRV, 65535)
    from rmq.cli.local import processes

    sys.exit(processes.main(count or 1, arguments, port))


def _taken(arguments: list[str], option: str, most: int) -> int:
    """Remove an option and its number from the arguments; 0 without the option."""
    if option not in arguments:
        return 0
    place = arguments.index(option)
    text = arguments[place + 1] if place + 1 < len(arguments) else ""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
        raise click.UsageError(f"{option} is followed by a number from 1 to {most}")
    del arguments[place : place + 2]
    return int(text)


@click.command(context_settings=PASS_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def broker(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Run a broker; `rmq broker --help` lists the options.

    With the name of an operation (`rmq broker status`), administer running brokers.
    """
    if arguments and not arguments[0].startswith("-"):
        from rmq.cli.clusters.broker import operations

        with operations.make_context("broker", list(arguments), parent=context.parent) as own:
            operations.invoke(own)
        return
    if arguments == ("--help",):
        from rmq.cli.clusters.broker import operations

        echo(operations.get_help(click.Context(operations, parent=context.parent, info_name="broker")))
        echo(
            "\nWithout a command it runs a broker, with --processes N several as one service, with\n"
            "--with-namesrv PORT a name server beside them:\n"
        )
    if PROCESSES in arguments or WITH_NAMESRV in arguments:
        _run_several(list(arguments))
    _run_service("broker", arguments)


@click.command(context_settings=PASS_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def controller(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Run a controller; `rmq controller --help` lists the options.

    With the name of an operation (`rmq controller status`), administer running controllers.
    """
    if arguments and not arguments[0].startswith("-"):
        from rmq.cli.clusters.controller import operations

        with operations.make_context("controller", list(arguments), parent=context.parent) as own:
            operations.invoke(own)
        return
    if arguments == ("--help",):
        from rmq.cli.clusters.controller import operations

        echo(operations.get_help(click.Context(operations, parent=context.parent, info_name="controller")))
        echo("\nWithout a command it runs a controller:\n")
    _run_service("controller", arguments)


# --- for development ---


@click.command()
@click.option("--namesrv-port", type=click.IntRange(0, 65535), default=9876, show_default=True)
@click.option("--broker-port", type=click.IntRange(0, 65535), default=10911, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on and to register.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    default="rmq-data",
    show_default=True,
    help="Folder of the store; created if it does not exist.",
)
@click.option("--set", "given", multiple=True, metavar="KEY=VALUE", help="A broker.conf setting; repeatable.")
@click.option(
    "--dashboard-port",
    type=click.IntRange(0, 65535),
    default=8088,
    show_default=True,
    help="Port of the dashboard, where the extra `dashboard` is installed.",
)
@click.option("--no-dashboard", is_flag=True, help="Do not serve the dashboard.")
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    default=8081,
    show_default=True,
    help="Port for RocketMQ's 5.x clients, where the extra `grpc` is installed; 0: the broker's port only.",
)
def dev(
    namesrv_port: int,
    broker_port: int,
    host: str,
    data_dir: pathlib.Path,
    given: tuple[str, ...],
    dashboard_port: int,
    no_dashboard: bool,
    grpc_port: int,
) -> None:
    """Run a name server, a broker and the dashboard in one process, for development. Ctrl-C ends it cleanly.

    Port 0 takes a free port, which the banner shows. Topics are created on their first message. With the
    extra `grpc` RocketMQ's 5.x clients are served too, plain or with TLS.
    """
    import trio

    from rmq.cli.local.dashboard import is_installed

    ignore_unused()
    ports = {"namesrv_port": namesrv_port, "broker_port": broker_port}
    settings = {key.strip(): value for key, value in pairs(given, option="--set").items()}
    pages = None if no_dashboard or not is_installed() else dashboard_port
    try:
        trio.run(_run_both, data_dir, host, ports, settings, pages, grpc_port)
    except (RmqError, OSError, BaseExceptionGroup) as raised:
        error = first_of(raised)
        if not isinstance(error, (RmqError, OSError)):
            raise
        echo(f"rmq dev: {error}", err=True)
        sys.exit(status_of(error))


async def _run_both(
    data_dir: pathlib.Path,
    host: str,
    ports: dict[str, int],
    settings: dict[str, str],
    pages: int | None,
    grpc_port: int,
) -> None:
    import trio

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with (
            _opened(data_dir, host, ports, settings, grpc_port) as (system, grpc),
            trio.open_nursery() as nursery,
        ):
            dashboard = ""
            if pages is not None:
                from rmq.cli.local.dashboard import serve_beside

                dashboard = await serve_beside(nursery, system.namesrv_address, pages, data_dir)
            echo(banner(system, dashboard, grpc))
            async for _ in signals:
                break
            echo("stopping ...")
            nursery.cancel_scope.cancel()
    echo(f"stopped; the messages stay in {system.store_dir}")


@asynccontextmanager
async def _opened(
    data_dir: pathlib.Path, host: str, ports: dict[str, int], settings: dict[str, str], grpc_port: int
) -> AsyncIterator[tuple[embedded.System, str]]:
    """Run the pair; yields it, and the address for RocketMQ's 5.x clients (empty without the extra)."""
    from rmq.cli.local import grpc

    logging.getLogger("rmq.remoting.transports.tls").setLevel(logging.ERROR)  # of its own certificate
    if grpc.is_installed():
        async with grpc.opened(data_dir, host=host, settings=settings, port=grpc_port, **ports) as found:
            yield found
        return
    from rmq import embedded

    names, broker = ports["namesrv_port"], ports["broker_port"]
    async with embedded.open(
        data_dir, host=host, namesrv_port=names, broker_port=broker, settings=settings
    ) as system:
        yield system, ""


def first_of(error: BaseException) -> BaseException:
    """The first error of a group and of groups within it; an error that is no group is returned unchanged."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def banner(system: embedded.System, dashboard: str = "", grpc: str = "") -> str:
    """The text that is printed once all listen. `dashboard` is its link, or the reason why it does not run;
    `grpc` is the address for RocketMQ's 5.x clients."""
    pages = f"\n  dashboard    {dashboard}" if dashboard else ""
    door = f"\n  5.x clients  {grpc}" if grpc else ""
    return f"""rmq is running (Ctrl-C ends it)
  name server  {system.namesrv_address}
  broker       {system.broker_address}{door}
  files        {system.store_dir}{pages}

  from Python  async with rmq.connect("{system.namesrv_address}") as client: ...
  from Java    producer.setNamesrvAddr("{system.namesrv_address}");"""
