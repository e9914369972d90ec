"""`rmq dev`: name server and broker in one process until Ctrl-C."""

from __future__ import annotations

import pathlib
import signal
import sys

import click
import trio

from rmq import embedded
from rmq.cli.output import echo
from rmq.cli.status import status_of
from rmq.errors import RmqError


def parse_settings(given: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE texts -> a dict. Raises click's usage error."""
    pairs = [text.partition("=") for text in given]
    for key, mark, _ in pairs:
        if not mark or not key.strip():
            raise click.BadParameter(f"{key!r} is not KEY=VALUE", param_hint="--set")
    return {key.strip(): value for key, _, value in pairs}


@click.command()
@click.option("--namesrv-port", type=click.IntRange(0, 65535), default=9876, show_default=True)
@click.option("--broker-port", type=click.IntRange(0, 65535), default=10911, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on and to register.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    default="rmq-data",
    show_default=True,
    help="Folder of the store; made when it is not there, used again when it is.",
)
@click.option("--set", "given", multiple=True, metavar="KEY=VALUE", help="A broker.conf setting; repeatable.")
def dev(
    namesrv_port: int, broker_port: int, host: str, data_dir: pathlib.Path, given: tuple[str, ...]
) -> None:
    """Run a name server and a broker in one process, for development. Ctrl-C ends it cleanly.

    Port 0 takes a free one; the banner says which. Topics are made on their first message.
    """
    ports = {"namesrv_port": namesrv_port, "broker_port": broker_port}
    try:
        trio.run(_run, data_dir, host, ports, parse_settings(given))
    except (RmqError, OSError) as error:
        echo(f"rmq dev: {error}", err=True)
        sys.exit(status_of(error))


async def _run(data_dir: pathlib.Path, host: str, ports: dict[str, int], settings: dict[str, str]) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with embedded.open(data_dir, host=host, settings=settings, **ports) as system:
            echo(banner(system))
            async for _ in signals:
                break
            echo("stopping ...")
    echo(f"stopped; the messages stay in {system.store_dir}")


def banner(system: embedded.System) -> str:
    """What is said once both answer."""
    return f"""rmq is running (Ctrl-C ends it)
  name server  {system.namesrv_address}
  broker       {system.broker_address}
  files        {system.store_dir}

  from Python  async with rmq.connect("{system.namesrv_address}") as client: ...
  from Java    producer.setNamesrvAddr("{system.namesrv_address}");"""
