"""NamesrvConfig: the settings of a name server, under RocketMQ's keys."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from rmq.config import at_least, between, one_of, setting
from rmq.controller.config import ControllerSettings


@frozen
class NamesrvConfig(ControllerSettings):
    """Settings of a name server."""

    listen_port: int = setting(
        9876, help="Port to listen on; 0 takes a free one.", validator=between(0, 65535), important=True
    )
    bind_address: str = setting(
        "127.0.0.1",
        help="Address to listen on. 0.0.0.0 or :: lets other machines in; nothing checks who they are.",
        important=True,
    )
    kv_config_path: str = setting(
        "~/namesrv/kvConfig.json", help="File that keeps the key-value configs.", important=True
    )
    masters_path: str = setting(
        "",
        help="File that keeps which broker was master of each name: for a minute after a start of this name"
        " server no other takes its place. Empty: none.",
    )
    config_store_path: str = setting(
        "",
        help="Properties file that takes settings changed at run time; empty: the one given with -c.",
    )
    order_message_enable: bool = setting(
        False, help="Give the order config of a topic with its route.", runtime=True
    )
    cluster_test: bool = setting(
        False, help="Ask the production name servers for topics that are not known here."
    )
    product_env_name: str = setting("center", help="Name of the production environment, for the log.")
    product_namesrv_addr: str = setting(
        "", help="Name servers that cluster test mode asks, host:port;host:port."
    )
    max_brokers: int = setting(10_000, help="More broker addresses are refused.", validator=at_least(1))
    max_queue_entries: int = setting(
        1_000_000, help="More pairs of a topic and a broker are refused.", validator=at_least(1)
    )
    max_topics_of_broker: int = setting(
        100_000, help="More topics of one broker are refused.", validator=at_least(1)
    )
    max_kv_config_bytes: int = setting(
        4 << 20,
        help="Characters of all key-value configs, with which no more are kept: each registration is answered"
        " with those of ordered topics.",
        unit="bytes",
        validator=at_least(1),
    )
    profile: str = setting(
        "compat",
        help="secure: TLS only, and brokers must sign with the cluster secret; compat: as RocketMQ",
        validator=one_of("compat", "secure"),
        important=True,
    )
    cluster_secret_file: str = setting(
        "", help="File with the secret that brokers must sign registrations with; empty: anybody registers"
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
        5558, help="Port of plugin `metrics`; 0 takes a free one.", validator=between(0, 65535)
    )
    metrics_token_file: str = setting(
        "", help="File with the token that scrapes must bring (`Authorization: Bearer`); empty: none."
    )
    plugins: tuple[str, ...] = setting((), help="Plugins to load, in this order.")
    max_connections: int = setting(
        20_000, help="Connections at a time; more are closed at once.", validator=at_least(1)
    )
    connection_buffer_bytes: int = setting(
        256 << 20,
        help="What unsent answers and unfinished requests of all peers may hold.",
        unit="bytes",
        validator=at_least(32 << 20),
    )
    web_socket_origins: tuple[str, ...] = setting(
        (),
        help="Web pages that may open a WebSocket: https://console.example.com, or * for all.",
    )
    web_socket_hosts: tuple[str, ...] = setting(
        (),
        help="Names of this server in WebSocket upgrades, besides addresses and its own.",
    )
    max_connections_per_address: int = setting(
        0,
        help="Connections of one address, or one IPv6 network of 64 bits; 0: as many as are free.",
        validator=at_least(0),
    )
    max_new_connections_per_address: int = setting(
        -1,
        help="Handshakes of one address that may fail in a second, four times as many at once; while more "
        "may, its connections wait. 0: any number; -1: 0 with profile=compat, 50 with profile=secure.",
        validator=at_least(-1),
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
    server_channel_max_idle_time_seconds: int = setting(
        120, help="Connections on which nothing moves are closed.", unit="s", validator=at_least(1)
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


def kv_config_file(config: NamesrvConfig) -> Path:
    """Where the key-value configs are kept."""
    return Path(config.kv_config_path).expanduser()
