"""The broker's settings: RocketMQ's keys and defaults, as far as this broker honours them."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import Attribute, Factory, frozen

from rmq.config import again, at_least, between, each_of, is_loopback, java_key, parse_addresses, setting
from rmq.errors import ConfigError
from rmq.protocol.codes import MASTER_ID, LanguageCode
from rmq.server.settings import ServerSettings
from rmq.shares import Gateways, by_account_and_address

if TYPE_CHECKING:
    from rmq.store.config import StoreConfig

LOOPBACK = "127.0.0.1"
VIP_PORT_DISTANCE = 2


def host_name() -> str:
    """This machine's name, which RocketMQ gives to a broker without one."""
    try:
        return socket.gethostname() or "DEFAULT_BROKER"
    except OSError:
        return "DEFAULT_BROKER"


def _word(instance: object, field: Attribute[str], value: str) -> None:
    if not re.fullmatch(r"[\w.:-]*", value):
        raise ConfigError(java_key(field), value, "letters, digits and _ . : -")


def _name_servers(instance: object, field: Attribute[str], value: str) -> None:
    parse_addresses(value, java_key(field))


@frozen
class BrokerConfig(ServerSettings):
    """The broker's settings in broker.conf. `rmq.store.config.StoreConfig` has the settings of its store."""

    namesrv_addr: str = setting(
        "",
        help="Name servers to register at, `host:port;host:port`; none when empty",
        validator=_name_servers,
        important=True,
        runtime=True,
    )
    broker_cluster_name: str = setting(
        "DefaultCluster", help="Cluster that the broker belongs to", important=True
    )
    broker_name: str = setting(
        Factory(host_name), help="Name that a master shares with its slaves", important=True
    )
    broker_id: int = setting(
        MASTER_ID, help="0: the master; any other number: a slave", validator=at_least(0), important=True
    )
    broker_ip1: str = setting(
        LOOPBACK, help="Address registered for clients; not loopback: listen on all addresses", important=True
    )
    broker_ip2: str = setting("", help="Address registered for slaves; broker_ip1 when empty")
    listen_port: int = again(ServerSettings, "listen_port", 10911)
    bind_address: str = again(
        ServerSettings, "bind_address", "", help="Address to listen on; when empty broker_ip1 decides"
    )
    vip_channel_enabled: bool = setting(True, help="Listen also on listen_port - 2, as some clients expect")

    config_store_path: str = again(
        ServerSettings,
        "config_store_path",
        "",
        help="Properties file for settings changed at run time; empty: the file given with -c, "
        "else config/broker.properties in the store",
    )
    enable_d_leger_commit_log: bool = setting(
        False,
        java="enableDLegerCommitLog",
        help="RocketMQ's DLedger; must be false: set controllerAddr for automatic failover",
    )
    controller_addr: str = setting(
        "",
        help="Controllers that elect the master of this broker name, host:port;host:port;host:port; empty:"
        " brokerRole decides. With controllers, brokerRole only decides which broker may begin the set",
        important=True,
    )
    min_in_sync_replicas: int = setting(
        1,
        help="With controllerAddr: sends are refused while fewer replicas, with the master, are in sync",
        validator=at_least(1),
    )
    replica_lag_ms: int = setting(
        3000,
        help="With controllerAddr: a replica that lags behind for this long leaves the in-sync set",
        unit="ms",
        validator=at_least(100),
    )
    relay_sends: bool = setting(
        True,
        help="With controllerAddr: a slave forwards requests of clients with old routes to its master",
    )
    read_at_slaves: tuple[str, ...] = setting(
        ("GO",),
        help="With controllerAddr: languages of clients, as GO,JAVA, that pull from a slave in sync, so that"
        " a dead master does not stall their long polls. If the slave dies, the master answers; empty: none",
        validator=each_of(*LanguageCode.__members__),
        runtime=True,
    )
    auto_create_topic_enable: bool = setting(
        True, help="Make unknown topics on their first message", important=True
    )
    default_topic_queue_nums: int = setting(
        8, help="Queues of a topic made on its first message, at most", validator=between(1, 65536)
    )
    auto_create_subscription_group: bool = setting(
        True, help="Make unknown consumer groups on first use", important=True
    )
    max_auto_created_topics: int = setting(
        20_000,
        help="Topics past which a first message creates no topic; a first heartbeat: half of this number,"
        " retries and dead letters: one and a half times. Administrators may create more",
        validator=at_least(0),
        runtime=True,
    )
    max_auto_created_topics_of_account: int = setting(
        2_000,
        help="Topics that an account may create by first messages and heartbeats since the start",
        validator=at_least(0),
        runtime=True,
    )
    max_auto_created_groups: int = setting(
        20_000,
        help="Groups past which a first use creates no group. Administrators may create more",
        validator=at_least(0),
        runtime=True,
    )
    max_auto_created_groups_of_account: int = setting(
        2_000,
        help="Groups that an account may create by first uses since the start",
        validator=at_least(0),
        runtime=True,
    )
    max_group_members: int = setting(
        100_000,
        help="Members of all groups that may be connected; a client counts once in each of its groups",
        validator=at_least(1),
        runtime=True,
    )
    max_groups_of_heartbeat: int = setting(
        256,
        help="Groups that a client may name in its heartbeat, as producer and consumer",
        validator=at_least(1),
        runtime=True,
        most=4_096,
    )
    unused_group_time_mills: int = setting(
        86_400_000,
        help="Time after which a group created on first use is removed that has no members, offsets or "
        "messages to retry; 0: never",
        unit="ms",
        validator=at_least(0),
        runtime=True,
    )
    max_consumer_offsets: int = setting(
        300_000,
        help="Limit on the pairs of a topic and a group with offsets; past it a new pair is refused",
        validator=at_least(1),
        runtime=True,
    )
    cluster_topic_enable: bool = setting(True, help="The topic named like the cluster can be used")
    broker_topic_enable: bool = setting(True, help="The topic named like the broker can be used")
    broker_permission: int = setting(
        6, help="4 read + 2 write, for all topics", validator=between(0, 7), runtime=True
    )
    trace_topic_enable: bool = setting(False, help="Make the topic for message traces", important=True)
    msg_trace_topic_name: str = setting(
        "RMQ_SYS_TRACE_TOPIC", help="Name of the topic for message traces", important=True
    )
    store_reply_message_enable: bool = setting(
        True, help="Store the answers of request-reply calls", runtime=True
    )
    idempotent_send_keep_time: int = setting(
        0,
        help="Time within which a repeated batch of an idempotent producer, as the Spark sink, is not stored "
        "twice; 0: idempotent sends are not supported. Must be shorter than the log's retention",
        unit="ms",
        validator=at_least(0),
        runtime=True,
        most=604_800_000,
        important=True,
    )
    idempotent_sends_max: int = setting(
        100_000,
        help="Limit on the batches of idempotent producers within that time; past it batches are refused",
        validator=at_least(1),
        runtime=True,
        most=10_000_000,
    )
    region_id: str = setting("DefaultRegion", help="Region, sent to producers in each reply", validator=_word)
    trace_on: bool = setting(True, help="Whether producers should send traces; sent in each reply")
    region_in_messages: bool = setting(
        False,
        help="Write regionId and traceOn into each message (about 40 bytes), as RocketMQ 5.x brokers do: "
        "consumers of RocketMQ's 5.x remoting client send no traces of other messages",
        runtime=True,
    )

    register_name_server_period: int = setting(
        30_000, help="Time between registrations, 10000 to 60000", unit="ms"
    )
    register_broker_timeout_mills: int = setting(
        6_000, help="Time-out of a registration at a name server", unit="ms", validator=at_least(1)
    )
    force_register: bool = setting(
        True, help="Register at each period even if the name server has this data version"
    )
    compressed_register: bool = setting(False, help="Compress registrations")

    long_polling_enable: bool = setting(
        True, help="Answer waiting pulls when a message arrives", runtime=True
    )
    short_polling_time_mills: int = setting(
        1_000, help="How long a pull waits without long polling", unit="ms", runtime=True, most=60_000
    )
    ha_enable: bool = setting(True, help="Hand out the log to slaves on the port after listenPort")
    slave_read_enable: bool = setting(False, help="Point readers of old messages to slaves", runtime=True)
    enable_property_filter: bool = setting(
        False, help="Allow SQL92 filters over message properties", runtime=True
    )
    filter_support_retry: bool = setting(
        False, help="Apply a group's SQL92 filter to its retried messages too", runtime=True
    )
    expect_consumer_num_use_filter: int = setting(
        32,
        help="Groups with SQL92 filters that the Bloom data in consumerFilter.json is made for",
        validator=at_least(1),
    )
    max_error_rate_of_bloom_filter: int = setting(
        20, help="Error rate of that Bloom data", unit="%", validator=between(1, 99)
    )
    filter_data_clean_time_span: int = setting(
        86_400_000,
        help="How long the filter of a group without members is kept",
        unit="ms",
        validator=at_least(0),
    )
    notify_consumer_ids_changed_enable: bool = setting(
        True, help="Tell the members of a group when it changes", runtime=True
    )
    reject_subscription_conflicts: bool = setting(
        False,
        help="Refuse a consumer whose subscriptions differ from its group's, or whose client id is in use",
        runtime=True,
    )
    flush_consumer_offset_interval: int = setting(
        5_000, help="Time between saves of consumer offsets", unit="ms", validator=at_least(100)
    )

    broker_fast_failure_enable: bool = setting(
        True, help="Refuse sends at once while the disk or the broker cannot keep up", runtime=True
    )
    wait_time_mills_in_send_queue: int = setting(
        200,
        help="Longest wait of a send for its turn: while the broker needs longer to serve each connection "
        "once, sends are refused before they are stored",
        unit="ms",
        validator=at_least(1),
        runtime=True,
    )
    send_thread_pool_queue_capacity: int = setting(
        10_000, help="Sends that may wait for the disk before more are refused", validator=at_least(1)
    )
    pull_thread_pool_queue_capacity: int = setting(
        100_000, help="Pulls that may wait for messages before more are refused", validator=at_least(1)
    )
    max_held_pulls_of_connection: int = setting(
        10_000,
        help="Pulls of a connection that may wait for messages before more are refused",
        validator=at_least(1),
        runtime=True,
        most=1_000_000,
    )
    max_taken_messages: int = setting(
        2_000_000,
        help="Messages of all groups that may be taken and not acknowledged (per-message delivery); no"
        " more are handed out",
        validator=at_least(1),
        runtime=True,
    )
    max_taken_messages_of_group: int = setting(
        1_000_000,
        help="The same, for a topic of a group",
        validator=at_least(1),
        runtime=True,
    )
    max_held_pulls_of_account: int = setting(
        50_000,
        help="Pulls of an account that may wait for messages before more are refused",
        validator=at_least(1),
        runtime=True,
        most=1_000_000,
    )
    max_suspend_time_mills: int = setting(
        30_000,
        help="Longest wait of a pull for messages, whatever its client requests",
        unit="ms",
        validator=between(1, 600_000),
        runtime=True,
    )
    start_accept_send_request_time_stamp: int = setting(
        0, help="Refuse sends before this time", unit="ms since 1970"
    )
    ha_max_connections: int = setting(
        64,
        help="Connections at a time to the port for slaves; an unproved connection makes room for a new one",
        validator=at_least(2),
    )

    reject_transaction_message: bool = setting(
        False, help="Refuse half messages of transactions", runtime=True, important=True
    )
    transaction_time_out: int = setting(
        6_000,
        help="Age at which a half message is checked",
        unit="ms",
        runtime=True,
        most=604_800_000,
        important=True,
        validator=at_least(0),
    )
    transaction_check_max: int = setting(
        15,
        help="Checks after which a half message is given up",
        runtime=True,
        most=1_000_000,
        important=True,
        validator=at_least(1),
    )
    transaction_check_interval: int = setting(
        60_000,
        help="Time between checks of half messages",
        unit="ms",
        runtime=True,
        most=86_400_000,
        important=True,
        validator=at_least(1),
    )
    ha_secret_file: str = setting("", help="File with a secret for the HA port; empty: clusterSecretFile")
    metrics_port: int = again(ServerSettings, "metrics_port", 5557)

    @property
    def bind_host(self) -> str:
        """The address to listen on: `bind_address`, or loopback until broker_ip1 admits other machines."""
        if self.bind_address:
            return self.bind_address
        return self.broker_ip1 if is_loopback(self.broker_ip1) else "0.0.0.0"

    @property
    def ha_host(self) -> str:
        """The address that slaves get."""
        return self.broker_ip2 or self.broker_ip1

    @property
    def register_period(self) -> float:
        """Seconds between registrations, held to the limits that RocketMQ sets."""
        return max(10_000, min(self.register_name_server_period, 60_000)) / 1000

    def address(self, port: int) -> str:
        """The address that clients get, for a server that listens on `port`."""
        host = f"[{self.broker_ip1}]" if ":" in self.broker_ip1 else self.broker_ip1
        return f"{host}:{port}"


class Settings:
    """The present settings of the broker and of its store. They change as a whole, by `replace`, and every
    part reads them on each use.

    A part that computes something costly from the settings gives a callback to `derive`; a part that only
    wants to know of changes gives it to `watch`.
    """

    def __init__(self, broker: BrokerConfig, store: StoreConfig) -> None:
        self.broker = broker
        self.store = store
        self.holders_of = by_account_and_address(Gateways(broker.trusted_gateways))
        """Under which names a connection's entries in bounded tables are counted."""
        self._watchers: list[Callable[[], None]] = []

    def derive(self, work: Callable[[], None]) -> None:
        """Call this now, and after each change."""
        self.watch(work)
        work()

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call this after each change."""
        self._watchers.append(on_change)

    def replace(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Replace the settings, and call every part that derives from them or watches."""
        self.broker, self.store = broker, store
        for on_change in self._watchers:
            on_change()
