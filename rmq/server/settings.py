"""The settings that name servers, brokers and controllers share."""

from __future__ import annotations

from attrs import frozen

from rmq.config import at_least, between, one_of, setting
from rmq.server.log_limit import LogConfig


@frozen
class ServerSettings(LogConfig):
    """Base of the settings of every server. `rmq.config.again` changes a default in a subclass."""

    listen_port: int = setting(
        0, help="Port for clients; 0: a free port", validator=between(0, 65535), important=True
    )
    bind_address: str = setting(
        "127.0.0.1",
        help="Address to listen on. 0.0.0.0 or :: opens the port to other machines, without a check of "
        "their identity",
        important=True,
    )
    config_store_path: str = setting(
        "",
        help="Properties file for settings changed at run time; the file of accounts is beside it. "
        "Empty: the file of -c",
    )
    profile: str = setting(
        "compat",
        help="secure: access control, TLS on every port, and the cluster secret between servers, or no start;"
        " compat: as RocketMQ",
        validator=one_of("compat", "secure"),
        important=True,
    )
    cluster_secret_file: str = setting(
        "",
        help="File with the secret of the cluster's servers. It signs their requests to each other and "
        "protects the HA port; empty: any peer may register, ask for a master, or copy the log",
    )
    acl_enable: bool = setting(False, help="Check signatures and permissions (plugin `acl`)", important=True)
    acl_file: str = setting(
        "", help="File of accounts; empty: plain_acl.yml beside the settings file, else ROCKETMQ_HOME/conf"
    )
    acl_audit_file: str = setting(
        "", help="File for the audit log; empty: only the log of the server (logger rmq.audit)"
    )
    metrics_address: str = setting("127.0.0.1", help="Address that plugin `metrics` listens on")
    metrics_port: int = setting(
        0, help="Port of plugin `metrics`; 0: a free port", validator=between(0, 65535)
    )
    metrics_token_file: str = setting(
        "", help="File with the token that scrapes must bring (`Authorization: Bearer`); empty: none"
    )
    health_details_need_token: bool = setting(
        False,
        help="Show the reasons of a server that is not ready (/ready) only to requests with the "
        "token of metricsTokenFile",
    )
    plugins: tuple[str, ...] = setting((), help="Plugins to load, in this order")
    max_connections: int = setting(
        20_000, help="Connections at a time; more are closed at once", validator=at_least(1)
    )
    max_connections_per_address: int = setting(
        0,
        help="Connections of one address, or one IPv6 network of 64 bits; 0: no limit for an address",
        validator=at_least(0),
    )
    max_new_connections_per_address: int = setting(
        -1,
        help="Failed handshakes a second of one address, with bursts of four times as many; beyond that "
        "its connections wait. 0: no limit; -1: 0 with profile=compat, 50 with profile=secure",
        validator=at_least(-1),
    )
    trusted_gateways: tuple[str, ...] = setting(
        (),
        help="Addresses or networks (10.1.0.0/16) of load balancers and gateways with many clients "
        "behind them: limits for one address do not apply to them",
    )
    connection_buffer_bytes: int = setting(
        256 << 20,
        help="Bytes that unsent answers and unfinished requests of all peers may hold",
        unit="bytes",
        validator=at_least(32 << 20),
    )
    web_socket_origins: tuple[str, ...] = setting(
        (), help="Web pages that may open a WebSocket: https://console.example.com, or * for all"
    )
    web_socket_hosts: tuple[str, ...] = setting(
        (), help="Names of this server in WebSocket upgrades, besides addresses and its own"
    )
    server_channel_max_idle_time_seconds: int = setting(
        120, help="A connection that is silent for so long is closed", unit="s", validator=at_least(1)
    )
    tcp_keepalive_seconds: int = setting(
        60,
        help="After so long without traffic the system asks whether the peer is still there; 0: never",
        unit="s",
        validator=at_least(0),
    )
    tcp_user_timeout_seconds: int = setting(
        30,
        help="A connection ends after this time without a TCP acknowledgement of the peer (Linux); 0: "
        "the system's default",
        unit="s",
        validator=at_least(0),
    )

    @property
    def bind_host(self) -> str:
        """The address to listen on."""
        return self.bind_address
