"""ControllerConfig: the settings of a controller, a process of its own or a part of a name server."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from rmq.config import at_least, between, is_loopback, one_of, parse_addresses, setting
from rmq.errors import ConfigError
from rmq.server.log_limit import LogConfig

COUNTS = (1, 3, 5)
ALONE = "127.0.0.1"


@frozen
class ControllerSettings(LogConfig):
    """What both have."""

    controllers: str = setting(
        "",
        help="All controllers of the cluster, one, three or five of them, host:port;host:port;host:port, this"
        " one among them. In a name server: it is a controller too, at its own port; empty: it is none. They"
        " are read at the first start; later ones go by the journal.",
    )
    controller_self: str = setting(
        "", help="Which of `controllers` this one is, where its port and its addresses do not tell."
    )
    controller_joins: bool = setting(
        False,
        help="At its first start this controller joins others that run, in place of founding a cluster with"
        " those of `controllers`, which needs no other address than its own then. It does nothing before"
        " `rmq controller add` has made it a member.",
    )
    controller_path: str = setting(
        "~/controller", help="Folder of a controller's journal: term, vote and the table of broker sets."
    )
    controller_lease_ms: int = setting(
        3000,
        help="A master that was not heard for so long may be followed by another. Of several controllers"
        " that of who leads counts, from when no longer lease lasts any more.",
        unit="ms",
        validator=at_least(500),
    )
    controller_election_ms: int = setting(
        1000,
        help="A leader of the controllers that was silent for so long is followed by another. The same at"
        " all of them.",
        unit="ms",
        validator=at_least(200),
    )
    controller_gather_ms: int = setting(
        10_000,
        help="After a restart of all replicas of a set those in sync are waited for so long, and the one with"
        " the longest log is the master: the folder of one may be an old copy.",
        unit="ms",
        validator=at_least(0),
    )
    controller_open: bool = setting(
        False,
        help="Let other machines reach controllers without clusterSecretFile: whoever does can elect masters,"
        " drop controllers and end all elections.",
    )
    unclean_election: bool = setting(
        False,
        help="Elect a replica that is not in sync when no other lives: messages that were acknowledged are"
        " lost then.",
    )


@frozen
class ControllerConfig(ControllerSettings):
    """Settings of a controller that is a process of its own."""

    listen_port: int = setting(
        9878, help="Port to listen on; 0 takes a free one.", validator=between(0, 65535), important=True
    )
    bind_address: str = setting(
        ALONE,
        help="Address to listen on. 0.0.0.0 or :: lets other machines in; nothing checks who they are.",
        important=True,
    )
    config_store_path: str = setting(
        "", help="The settings file, beside which accounts are looked for; empty: the one given with -c."
    )
    profile: str = setting(
        "compat",
        help="secure: TLS only, and brokers and controllers must sign with the cluster secret; compat: plain",
        validator=one_of("compat", "secure"),
        important=True,
    )
    cluster_secret_file: str = setting(
        "", help="File with the secret that brokers and controllers must sign with; empty: anybody may ask"
    )
    acl_enable: bool = setting(False, help="Check signatures and permissions (plugin `acl`).", important=True)
    acl_file: str = setting(
        "",
        help="File of accounts; empty: plain_acl.yml beside the settings file, else ROCKETMQ_HOME/conf.",
    )
    acl_audit_file: str = setting(
        "", help="File for the audit log; empty: only the log that the rest goes to (logger rmq.audit)."
    )
    metrics_address: str = setting("127.0.0.1", help="Address that plugin `metrics` listens on.")
    metrics_port: int = setting(
        5560, help="Port of plugin `metrics`; 0 takes a free one.", validator=between(0, 65535)
    )
    metrics_token_file: str = setting(
        "", help="File with the token that scrapes must bring (`Authorization: Bearer`); empty: none."
    )
    plugins: tuple[str, ...] = setting((), help="Plugins to load, in this order.")
    max_connections: int = setting(
        10_000, help="Connections at a time; more are closed at once.", validator=at_least(1)
    )
    web_socket_hosts: tuple[str, ...] = setting(
        (),
        help="Names of this server in WebSocket upgrades, besides addresses and its own.",
    )
    trusted_gateways: tuple[str, ...] = setting(
        (),
        help="Addresses or networks (10.1.0.0/16) of balancers and gateways, behind which many clients are: "
        "no limit for one address holds for them.",
    )
    health_details_need_token: bool = setting(
        False,
        help="Say what the server lacks (/ready) only to those who bring the token of metricsTokenFile.",
    )
    tcp_keepalive_seconds: int = setting(
        60,
        help="After so long without traffic the system asks whether a peer is still there; 0: never.",
        unit="s",
        validator=at_least(0),
    )
    tcp_user_timeout_seconds: int = setting(
        30,
        help="A connection ends when the peer's system acknowledges nothing for so long (Linux); 0: as the"
        " system has it.",
        unit="s",
        validator=at_least(0),
    )


def check_reach(config: Any, tls: Any) -> None:
    """Raises ConfigError for controllers that other machines reach, and that ask nobody for a secret."""
    is_mutual = tls.tls_mode == "enforcing" and tls.tls_client_auth == "require"
    is_guarded = config.cluster_secret_file or is_mutual or config.controller_open
    if not is_guarded and not is_loopback(config.bind_address):
        wanted = (
            "127.0.0.1, or a clusterSecretFile (`rmq certs secret FILE` makes one): without it whoever"
            " reaches it can elect masters and end all elections, which controllerOpen=true allows"
        )
        raise ConfigError("bindAddress", config.bind_address, wanted)


def own_address(config: ControllerSettings, bind_address: str, port: int) -> tuple[str, list[str]]:
    """Which of the controllers this one is, and all of them. Without `controllers` it is the only one.

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
            raise ConfigError("controllerSelf", config.controller_self, "one of controllers")
        return config.controller_self, known
    mine = _mine(known, bind_address, port)
    if len(mine) != 1:
        found = " and ".join(mine) or "none of them"
        wanted = f"one address of this machine with its port {port} (it could be {found}), or controllerSelf"
        raise ConfigError("controllers", config.controllers, wanted)
    return mine[0], known


def _mine(known: Sequence[str], bind_address: str, port: int) -> list[str]:
    here = [address for address in known if address.rpartition(":")[2] == str(port)]
    hosts = {address: address.rpartition("://")[2].rpartition(":")[0].strip("[]") for address in here}
    exact = [address for address in here if hosts[address] == bind_address]
    return exact or [address for address in here if _is_own(hosts[address])]


def _is_own(host: str) -> bool:
    """Whether an address, or a name that needs no look-up, is this machine's."""
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
