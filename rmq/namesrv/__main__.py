"""python -m rmq.namesrv: a name server as a program of its own."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from rmq.config import is_loopback
from rmq.controller.config import check_reach
from rmq.errors import PortInUse
from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.service import run
from rmq.remoting.transports.tls import TlsConfig
from rmq.server.health import Health
from rmq.server.main import Program, given_settings, serve, server_settings
from rmq.server.profile import exposure

log = logging.getLogger("rmq.namesrv")


def settings(options: argparse.Namespace) -> tuple[NamesrvConfig, TlsConfig]:
    """The settings that the options ask for. Raises ConfigError."""
    given = given_settings(options, "product_namesrv_addr")
    config, tls = server_settings(NamesrvConfig, options.file, given)
    if config.controllers:
        check_reach(config, tls)
    return config, tls


def banner(
    config: NamesrvConfig,
    tls: TlsConfig,
    addresses: Sequence[str],
    also: Mapping[str, str] | None = None,
    health: Health | None = None,
) -> str:
    """The text for a start. `also`: further listeners and their addresses."""
    lines = [f"rmq name server listens on {', '.join(addresses)}"]
    lines += [f"  {what:<13} {where}" for what, where in (also or {}).items()]
    if not is_loopback(config.bind_address):
        register = "register brokers and change routes"
        lines += exposure(config, tls, secret=config.cluster_secret_file, unguarded=register)
    return "\n".join(lines)


PROGRAM: Final = Program(
    module="rmq.namesrv",
    title="name server",
    description="RocketMQ name server",
    example="listenPort=9877",
    settings=settings,
    serve=partial(serve, run, banner, log),
    folder=lambda settings: str(settings[0].controller_path) if settings[0].controllers else "",
    taken=(PortInUse, OSError),
    name_servers="production name servers that cluster test mode asks",
)
parse, main = PROGRAM.parse, PROGRAM.main

if __name__ == "__main__":
    sys.exit(main())
