"""python -m rmq.proxy: a proxy for clients of gRPC before a cluster, as a program of its own."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from rmq.config import is_loopback
from rmq.errors import PortInUse
from rmq.proxy.config import ProxyConfig, account_of_proxy
from rmq.proxy.service import run
from rmq.remoting.transports.tls import TlsConfig
from rmq.server.health import Health
from rmq.server.main import Program, Start, given_settings, run_until_signalled, server_settings
from rmq.server.profile import exposure

log = logging.getLogger("rmq.proxy")


def settings(options: argparse.Namespace) -> tuple[ProxyConfig, TlsConfig]:
    """The settings that the options ask for. Raises ConfigError."""
    given = given_settings(options, "namesrvAddr")
    if options.port:
        given["listenPort"] = options.port
    config, tls = server_settings(ProxyConfig, options.file, given)
    account_of_proxy(config)
    return config, tls


def banner(
    config: ProxyConfig,
    tls: TlsConfig,
    addresses: Sequence[str],
    also: Mapping[str, str] | None = None,
    health: Health | None = None,
) -> str:
    """The text for a start. `also`: further listeners and their addresses."""
    lines = [f"rmq proxy listens on {', '.join(addresses)} (gRPC)", f"  name servers  {config.namesrv_addr}"]
    lines += [f"  {what:<13} {where}" for what, where in (also or {}).items()]
    if not is_loopback(config.bind_address):
        lines += exposure(config, tls, secret="", unguarded="")
    return "\n".join(lines)


async def serve(start: Start) -> None:
    """Run a proxy until SIGTERM or SIGINT. Raises as `service.run`."""
    config, tls = start.settings
    server = partial(run, config, tls=tls, plugin_settings=start.texts)
    health = Health(port="it does not listen yet")
    await run_until_signalled(server, config, partial(banner, config, tls), health=health, log=log)


PROGRAM: Final = Program(
    module="rmq.proxy",
    title="proxy",
    description="Serves RocketMQ's 5.x clients (gRPC) before a cluster",
    example="proxyMaxCalls=50000",
    settings=settings,
    serve=serve,
    taken=(PortInUse, OSError),
    name_servers="name servers of the cluster (host:port;host:port)",
    port="port for gRPC; 0: a free port",
)
parse, main = PROGRAM.parse, PROGRAM.main

if __name__ == "__main__":
    sys.exit(main())
