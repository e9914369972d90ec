"""ClientConfig: the settings of a client, with RocketMQ's keys and defaults where it has them."""

from __future__ import annotations

import os
from typing import Any, Final, TypedDict, Unpack

from attrs import Factory, fields, frozen

from rmq.config import at_least, between, from_environment, one_of, setting
from rmq.errors import ConfigError, check_type

KIB = 1024
MIB = 1024 * KIB
KINDS: Final = {"int": (int, "an int"), "str": (str, "text"), "bool": (bool, "True or False")}


class ClientSettings(TypedDict, total=False):
    """The fields of `ClientConfig`, as keywords of `rmq.connect` and `rmq.App`."""

    request_timeout_ms: int
    poll_name_server_interval_ms: int
    heartbeat_interval_ms: int
    shutdown_timeout_ms: int
    tcp_keepalive_ms: int
    tcp_user_timeout_ms: int
    namespace: str
    send_timeout_ms: int
    send_queue_ms: int
    send_window: int
    retry_times: int
    max_message_size: int
    max_delay_level: int
    compress_over: int
    compress_level: int
    avoid_slow_brokers: bool
    default_topic_queue_nums: int
    rebalance_interval_ms: int
    commit_interval_ms: int
    pull_batch_size: int
    pull_suspend_ms: int
    pull_timeout_ms: int
    pull_retry_delay_ms: int
    max_body_size: int
    offset_reset: str
    queue_max_messages: int
    queue_max_bytes: int
    queue_max_span: int
    total_max_messages: int
    total_max_bytes: int
    consume_timeout_ms: int
    stall_warning_ms: int
    drain_timeout_ms: int
    offsets_dir: str
    max_reconsume_times: int
    suspend_queue_ms: int
    lock_interval_ms: int
    redelivery_delay_ms: int


@frozen(kw_only=True)
class ClientConfig:
    """Settings of a client: `rmq.connect(..., send_timeout_ms=5_000)`, or `config=ClientConfig(...)`. Times
    are in ms, sizes in bytes.

    Without a `config`, `rmq.connect` takes `from_environment()`.
    """

    # --- the client ---
    request_timeout_ms: int = setting(
        3_000, help="For a request that has no time of its own", unit="ms", java="mqClientApiTimeout"
    )
    poll_name_server_interval_ms: int = setting(
        30_000,
        help="Routes are asked for again at a name server",
        unit="ms",
        java="pollNameServerInterval",
        validator=at_least(10),
    )
    heartbeat_interval_ms: int = setting(
        30_000,
        help="A heartbeat goes to every broker",
        unit="ms",
        java="heartbeatBrokerInterval",
        validator=at_least(10),
    )
    shutdown_timeout_ms: int = setting(
        5_000,
        help="Closing may take so long: running sends and deliveries end, offsets are committed",
        unit="ms",
    )

    tcp_keepalive_ms: int = setting(
        15_000,
        help="After so long without traffic the system asks whether the server is still there; 0 never",
        unit="ms",
        validator=at_least(0),
    )
    tcp_user_timeout_ms: int = setting(
        30_000,
        help="A connection ends when the server's system acknowledges nothing for so long (Linux); 0 as the"
        " system has it",
        unit="ms",
        validator=at_least(0),
    )
    namespace: str = setting(
        "", help="Topics and groups are in this namespace of the cluster; empty for none"
    )

    # --- producers ---
    send_timeout_ms: int = setting(
        3_000,
        help="One send, with all its retries, from when it is written: the time before does not count",
        unit="ms",
        java="sendMsgTimeout",
        validator=at_least(1),
    )
    send_queue_ms: int = setting(
        60_000,
        help="A send that nothing was stored of may wait so long: for room in the window, for a broker that"
        " cannot be reached, for a route",
        unit="ms",
        validator=at_least(0),
    )
    send_window: int = setting(
        1_000,
        help="Sends that may be on their way to one broker; more of them wait, first come first served",
        validator=at_least(1),
    )
    retry_times: int = setting(
        2,
        help="Further attempts of a send after one that a broker refused, or that may have been stored; on"
        " other brokers where there are any",
        java="retryTimesWhenSendFailed",
        validator=between(0, 100),
    )
    max_message_size: int = setting(
        4 * MIB, help="A longer body, or batch, is refused before it is sent", unit="bytes"
    )
    max_delay_level: int = setting(
        18,
        help="Levels in the brokers' messageDelayLevel; a message with a higher one is refused",
        validator=at_least(1),
    )
    compress_over: int = setting(
        4 * KIB,
        help="A body of this length or more is compressed; 0 never",
        unit="bytes",
        java="compressMsgBodyOverHowmuch",
        validator=at_least(0),
    )
    compress_level: int = setting(
        5, help="zlib's level, 1 fast to 9 small", java="compressLevel", validator=between(0, 9)
    )
    avoid_slow_brokers: bool = setting(
        True,
        help="Brokers that failed or answered slowly are avoided for a while",
        java="sendLatencyFaultEnable",
    )
    default_topic_queue_nums: int = setting(
        4, help="Queues of a topic that the broker makes on the first send", validator=at_least(1)
    )

    # --- consumers ---
    rebalance_interval_ms: int = setting(
        20_000, help="Queues are shared out again, also without a notice", unit="ms", validator=at_least(10)
    )
    commit_interval_ms: int = setting(
        5_000,
        help="Consumed offsets are told to the brokers",
        unit="ms",
        java="persistConsumerOffsetInterval",
        validator=at_least(10),
    )
    pull_batch_size: int = setting(
        256, help="Messages asked for in one pull; the broker may give fewer", validator=between(1, 1024)
    )
    pull_suspend_ms: int = setting(
        15_000, help="A broker may hold a pull that finds nothing for so long", unit="ms"
    )
    pull_timeout_ms: int = setting(30_000, help="A pull that is not answered by then has failed", unit="ms")
    pull_retry_delay_ms: int = setting(
        3_000,
        help="Wait after a failed pull",
        unit="ms",
        java="pullTimeDelayMillsWhenException",
        validator=at_least(1),
    )
    max_body_size: int = setting(
        Factory(lambda self: 4 * self.max_message_size, takes_self=True),
        help="A compressed body that grows over this is refused, with an error; 4 times max_message_size when"
        " not given",
        unit="bytes",
        validator=at_least(1),
    )
    offset_reset: str = setting(
        "nearest",
        help="Where a group goes on whose messages were removed before it read them: at the one that is"
        " nearest, or at the `first` or the `last` of the queue",
        validator=one_of("nearest", "first", "last"),
    )
    queue_max_messages: int = setting(
        1_000,
        help="Messages of one queue that are not consumed yet; then it is not pulled",
        java="pullThresholdForQueue",
        validator=at_least(1),
    )
    queue_max_bytes: int = setting(
        100 * MIB,
        help="The same in bytes",
        unit="bytes",
        java="pullThresholdSizeForQueue",
        validator=at_least(1),
    )
    queue_max_span: int = setting(
        2_000,
        help="Distance of the newest pulled message of a queue to the oldest that is not consumed",
        java="consumeConcurrentlyMaxSpan",
        validator=at_least(1),
    )
    total_max_messages: int = setting(
        64_000, help="Messages of all queues of a consumer that are not consumed yet", validator=at_least(1)
    )
    total_max_bytes: int = setting(
        64 * MIB,
        help="The same in bytes; each queue may hold its share, or one message that is larger",
        unit="bytes",
        validator=at_least(1),
    )
    consume_timeout_ms: int = setting(
        900_000,
        help="A message that is being consumed for so long is logged and sent back",
        unit="ms",
        validator=at_least(1),
    )
    stall_warning_ms: int = setting(
        30_000,
        help="A warning names a message that has been with its handler for so long, or was taken and not"
        " finished, or that nobody takes from a full queue; 0 never",
        unit="ms",
        validator=at_least(0),
    )
    drain_timeout_ms: int = setting(
        20_000,
        help="Consumer.drain waits so long for handlers that run, unless it is told otherwise",
        unit="ms",
        validator=at_least(0),
    )
    offsets_dir: str = setting(
        "", help="Broadcasting: the offsets are kept below this folder; empty for ~/.rocketmq_offsets"
    )
    max_reconsume_times: int = setting(
        16, help="Deliveries of a failing message before it goes to the dead letters", validator=at_least(0)
    )
    suspend_queue_ms: int = setting(
        1_000,
        help="Ordered: wait before a message that failed is tried again",
        unit="ms",
        java="suspendCurrentQueueTimeMillis",
        validator=between(10, 30_000),
    )
    lock_interval_ms: int = setting(
        20_000, help="Ordered: queue locks are renewed", unit="ms", validator=at_least(10)
    )
    redelivery_delay_ms: int = setting(
        5_000,
        help="Wait before a message is delivered again that could not be sent back or was cancelled",
        unit="ms",
        validator=at_least(1),
    )

    @classmethod
    def from_environment(cls, **settings: Unpack[ClientSettings]) -> ClientConfig:
        """The given settings, and for all others the values of environment variables: that of
        `send_timeout_ms` is RMQ_SEND_TIMEOUT_MS. Raises ConfigError with the variable and its value,
        TypeError for an unknown setting."""
        given: dict[str, Any] = {**settings}
        return from_environment(cls, os.environ, given)

    def __attrs_post_init__(self) -> None:
        for field in fields(type(self)):
            kind, expected = KINDS[str(field.type)]
            check_type(field.name, getattr(self, field.name), kind, expected)
        if self.pull_timeout_ms <= self.pull_suspend_ms:
            raise ConfigError(
                "pull_timeout_ms", self.pull_timeout_ms, f"more than pull_suspend_ms ({self.pull_suspend_ms})"
            )
