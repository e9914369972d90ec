"""ControllerConfig: the settings of a controller, a process of its own or a part of a name server."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from rmq.config import FOLDER, again, at_least, is_loopback, parse_addresses, setting
from rmq.errors import ConfigError
from rmq.server.settings import ServerSettings

COUNTS = (1, 3, 5)
ALONE = "127.0.0.1"


@frozen
class ControllerSettings(ServerSettings):
    """Settings of a controller, as a process of its own or as a part of a name server."""

    controllers: str = setting(
        "",
        help="All controllers of the cluster (1, 3 or 5), including this controller:"
        " host:port;host:port;host:port. In a name server: it is also a controller, at its own port; empty:"
        " no controller. Read at the first start only; later starts use the journal.",
    )
    controller_self: str = setting(
        "",
        help="Address of this controller in `controllers`, if port and machine do not identify it.",
    )
    controller_joins: bool = setting(
        False,
        help="At its first start this controller joins running controllers instead of founding a cluster."
        " `controllers` then needs only its own address. It takes no part before `rmq controller add` has"
        " made it a member.",
    )
    controller_path: str = setting(
        "~/controller",
        help="Folder of a controller's journal: term, vote and the table of broker sets.",
        writes=FOLDER,
    )
    controller_lease_ms: int = setting(
        3000,
        help="Time without a heartbeat of a master after which another may be elected. If controllers differ,"
        " the leader's setting counts, once no longer lease is valid.",
        unit="ms",
        validator=at_least(500),
    )
    controller_election_ms: int = setting(
        1000,
        help="Time without a message of the leading controller after which another is elected. Must be equal"
        " at all controllers.",
        unit="ms",
        validator=at_least(200),
    )
    controller_gather_ms: int = setting(
        10_000,
        help="After a restart of all replicas of a set the controllers wait this long for replicas in sync,"
        " and elect the replica with the longest log: a folder may be an old copy.",
        unit="ms",
        validator=at_least(0),
    )
    controller_open: bool = setting(
        False,
        help="Let other machines reach controllers without clusterSecretFile: each can elect masters,"
        " remove controllers and end all elections.",
    )
    unclean_election: bool = setting(
        False,
        help="Elect a replica that is not in sync when no replica in sync lives. This loses acknowledged"
        " messages.",
    )


@frozen
class ControllerConfig(ControllerSettings):
    """Settings of a controller that is a process of its own."""

    listen_port: int = again(ServerSettings, "listen_port", 9878)
    metrics_port: int = again(ServerSettings, "metrics_port", 5560)
    max_connections: int = again(ServerSettings, "max_connections", 10_000)


def check_reach(config: Any, tls: Any) -> None:
    """Raises ConfigError for controllers that other machines reach and that need no secret."""
    is_mutual = tls.tls_mode == "enforcing" and tls.tls_client_auth == "require"
    is_guarded = config.cluster_secret_file or is_mutual or config.controller_open
    if not is_guarded and not is_loopback(config.bind_address):
        expected = (
            "127.0.0.1, or a clusterSecretFile (`rmq certs secret FILE` makes one): without a secret, "
            "every machine on the network could elect masters; controllerOpen=true allows that"
        )
        raise ConfigError("bindAddress", config.bind_address, expected)


def own_address(config: ControllerSettings, bind_address: str, port: int) -> tuple[str, list[str]]:
    """The address of this controller, and the addresses of all controllers. Without `controllers` this one is
    the only controller.

    Raises ConfigError.
    """
    known = parse_addresses(config.controllers, "controllers")
    if not known:
        host = ALONE if bind_address in ("", "0.0.0.0", "::") else bind_address
        own = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return own, [own]
    if len(known) not in COUNTS and not config.controller_joins:
        raise ConfigError("controllers", config.controllers, "one, three or five different addresses")
    if config.controller_self:
        if config.controller_self not in known:
            raise ConfigError("controllerSelf", config.controller_self, "an address in controllers")
        return config.controller_self, known
    mine = _mine(known, bind_address, port)
    if len(mine) != 1:
        found = " and ".join(mine) or "none of them"
        expected = (
            f"one address of this machine with its port {port} (it could be {found}), or controllerSelf"
        )
        raise ConfigError("controllers", config.controllers, expected)
    return mine[0], known


def _mine(known: Sequence[str], bind_address: str, port: int) -> list[str]:
    here = [address for address in known if address.rpartition(":")[2] == str(port)]
    hosts = {address: address.rpartition("://")[2].rpartition(":")[0].strip("[]") for address in here}
    exact = [address for address in here if hosts[address] == bind_address]
    return exact or [address for address in here if _is_own(hosts[address])]


def _is_own(host: str) -> bool:
    """True if an address, or a name that needs no look-up, is this machine's."""
    if host in ("localhost", socket.gethostname(), socket.getfqdn()):
        return True
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))  # only an own address can be bound
    except OSError:
        return False
    return True
