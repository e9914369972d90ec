"""NamesrvConfig: the settings of a name server, under RocketMQ's keys."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from rmq.config import FILE, again, at_least, setting
from rmq.controller.config import ControllerSettings
from rmq.server.settings import ServerSettings


@frozen
class NamesrvConfig(ControllerSettings):
    """Settings of a name server."""

    listen_port: int = again(ServerSettings, "listen_port", 9876)
    kv_config_path: str = setting(
        "~/namesrv/kvConfig.json",
        help="File that keeps the key-value configs.",
        important=True,
        writes=FILE,
    )
    masters_path: str = setting(
        "",
        help="File that keeps which broker was master of each name: for a minute after a start of this name"
        " server no other takes its place. Empty: none.",
        writes=FILE,
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
        100_000, help="Largest number of topics of one broker.", validator=at_least(1)
    )
    max_kv_config_bytes: int = setting(
        4 << 20,
        help="Largest size of all key-value configs, in characters: the answer to each registration "
        "contains the configs of ordered topics.",
        unit="bytes",
        validator=at_least(1),
    )
    metrics_port: int = again(ServerSettings, "metrics_port", 5558)


def kv_config_file(config: NamesrvConfig) -> Path:
    """The file of the key-value configs."""
    return Path(config.kv_config_path).expanduser()
