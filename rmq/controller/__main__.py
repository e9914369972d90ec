"""python -m rmq.controller: a controller as a program of its own."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from rmq.config import from_options, is_loopback
from rmq.controller.config import ControllerConfig, check_reach
from rmq.controller.service import run
from rmq.errors import PortInUse, StoreLocked
from rmq.remoting.transports.tls import TlsConfig
from rmq.server.health import Health
from rmq.server.main import Program, serve, server_settings
from rmq.server.profile import exposure

log = logging.getLogger("rmq.controller")


def settings(options: argparse.Namespace) -> tuple[ControllerConfig, TlsConfig]:
    """The settings that the options ask for. Raises ConfigError."""
    config, tls = server_settings(ControllerConfig, options.file, from_options(options.set))
    check_reach(config, tls)
    return config, tls


def banner(
    config: ControllerConfig,
    tls: TlsConfig,
    addresses: Sequence[str],
    also: Mapping[str, str] | None = None,
    health: Health | None = None,
) -> str:
    """The text for a start. `also`: further listeners and their addresses."""
    lines = [f"rmq controller listens on {', '.join(addresses)}"]
    lines += [f"  {what:<13} {where}" for what, where in (also or {}).items()]
    if not is_loopback(config.bind_address):
        unguarded = "register brokers and elect masters"
        lines += exposure(config, tls, secret=config.cluster_secret_file, unguarded=unguarded)
    return "\n".join(lines)


PROGRAM: Final = Program(
    module="rmq.controller",
    title="controller",
    description="Elects the masters of broker sets",
    example="listenPort=9879",
    settings=settings,
    serve=partial(serve, run, banner, log),
    folder=lambda settings: str(settings[0].controller_path),
    taken=(PortInUse, StoreLocked, OSError),
    taken_when="when it cannot listen or its folder is taken",
)
parse, main = PROGRAM.parse, PROGRAM.main

if __name__ == "__main__":
    sys.exit(main())
