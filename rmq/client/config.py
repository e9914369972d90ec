"""ClientConfig: the settings of a client, with RocketMQ's keys and defaults where RocketMQ has the
setting."""

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
        3_000, help="Time-out of a request without its own time-out", unit="ms", java="mqClientApiTimeout"
    )
    poll_name_server_interval_ms: int = setting(
        30_000,
        help="Period after which the client reads routes from a name server again",
        unit="ms",
        java="pollNameServerInterval",
        validator=at_least(10),
    )
    heartbeat_interval_ms: int = setting(
        30_000,
        help="Period of the heartbeats to every broker",
        unit="ms",
        java="heartbeatBrokerInterval",
        validator=at_least(10),
    )
    shutdown_timeout_ms: int = setting(
        5_000,
        help="Longest time for closing: running sends and deliveries end, offsets are committed",
        unit="ms",
    )

    tcp_keepalive_ms: int = setting(
        15_000,
        help="Idle time after which the system probes the server (TCP keepalive); 0: never",
        unit="ms",
        validator=at_least(0),
    )
    tcp_user_timeout_ms: int = setting(
        30_000,
        help="A connection ends after this time without a TCP acknowledgement of the server (Linux); 0: "
        "the system's default",
        unit="ms",
        validator=at_least(0),
    )
    namespace: str = setting("", help="Namespace of topics and groups; empty: none")

    # --- producers ---
    send_timeout_ms: int = setting(
        3_000,
        help="Time-out of a send with all its retries, from the moment that it is written to a connection",
        unit="ms",
        java="sendMsgTimeout",
        validator=at_least(1),
    )
    send_queue_ms: int = setting(
        60_000,
        help="Longest wait of a send before it is written: for room in the window, for a broker that "
        "cannot be reached, for a route",
        unit="ms",
        validator=at_least(0),
    )
    send_window: int = setting(
        1_000,
        help="Sends in flight to one broker; further sends wait in order",
        validator=at_least(1),
    )
    retry_times: int = setting(
        2,
        help="Retries of a send that a broker refused or may have stored; on other brokers if there are any",
        java="retryTimesWhenSendFailed",
        validator=between(0, 100),
    )
    max_message_size: int = setting(
        4 * MIB, help="Largest body or batch; the client refuses a larger one", unit="bytes"
    )
    max_delay_level: int = setting(
        18,
        help="Number of levels in the brokers' messageDelayLevel; the client refuses a message with a "
        "higher level",
        validator=at_least(1),
    )
    compress_over: int = setting(
        4 * KIB,
        help="Length from which a body is compressed; 0: never",
        unit="bytes",
        java="compressMsgBodyOverHowmuch",
        validator=at_least(0),
    )
    compress_level: int = setting(
        5, help="zlib's level, 1 fast to 9 small", java="compressLevel", validator=between(0, 9)
    )
    avoid_slow_brokers: bool = setting(
        True,
        help="Avoid brokers that failed or answered slowly, for a while",
        java="sendLatencyFaultEnable",
    )
    default_topic_queue_nums: int = setting(
        4, help="Queues of a topic that the broker creates on the first send", validator=at_least(1)
    )

    # --- consumers ---
    rebalance_interval_ms: int = setting(
        20_000, help="Period of the rebalance, also without a notice", unit="ms", validator=at_least(10)
    )
    commit_interval_ms: int = setting(
        5_000,
        help="Period of the offset commits to the brokers",
        unit="ms",
        java="persistConsumerOffsetInterval",
        validator=at_least(10),
    )
    pull_batch_size: int = setting(
        256, help="Messages requested in one pull; the broker may return fewer", validator=between(1, 1024)
    )
    pull_suspend_ms: int = setting(
        15_000, help="Longest time that a broker holds a long poll without messages", unit="ms"
    )
    pull_timeout_ms: int = setting(30_000, help="Time-out of a pull", unit="ms")
    pull_retry_delay_ms: int = setting(
        3_000,
        help="Wait after a failed pull",
        unit="ms",
        java="pullTimeDelayMillsWhenException",
        validator=at_least(1),
    )
    max_body_size: int = setting(
        Factory(lambda self: 4 * self.max_message_size, takes_self=True),
        help="Largest body after decompression; a larger one is an error. Default: 4 times max_message_size",
        unit="bytes",
        validator=at_least(1),
    )
    offset_reset: str = setting(
        "nearest",
        help="Where a group continues if its next messages were removed: at the `nearest` message, or at "
        "the `first` or `last` of the queue",
        validator=one_of("nearest", "first", "last"),
    )
    queue_max_messages: int = setting(
        1_000,
        help="Unacknowledged messages of one queue from which the client stops pulling that queue",
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
        help="Distance between the newest pulled message of a queue and its oldest unacknowledged one",
        java="consumeConcurrentlyMaxSpan",
        validator=at_least(1),
    )
    total_max_messages: int = setting(
        64_000, help="Unacknowledged messages of all queues of a consumer", validator=at_least(1)
    )
    total_max_bytes: int = setting(
        64 * MIB,
        help="The same in bytes; each queue may hold its share, or one larger message",
        unit="bytes",
        validator=at_least(1),
    )
    consume_timeout_ms: int = setting(
        900_000,
        help="A message that is not acknowledged within this time is logged and redelivered",
        unit="ms",
        validator=at_least(1),
    )
    stall_warning_ms: int = setting(
        30_000,
        help="Time after which a warning names a message that its handler has not finished, that was "
        "taken and not acknowledged, or that no handler takes from a full queue; 0: never",
        unit="ms",
        validator=at_least(0),
    )
    drain_timeout_ms: int = setting(
        20_000,
        help="Default time that Consumer.drain waits for running handlers",
        unit="ms",
        validator=at_least(0),
    )
    offsets_dir: str = setting("", help="Broadcasting: folder of the offsets; empty: ~/.rocketmq_offsets")
    max_reconsume_times: int = setting(
        16, help="Deliveries of a failing message before it goes to the dead letters", validator=at_least(0)
    )
    suspend_queue_ms: int = setting(
        1_000,
        help="Ordered: wait before the retry of a failed message",
        unit="ms",
        java="suspendCurrentQueueTimeMillis",
        validator=between(10, 30_000),
    )
    lock_interval_ms: int = setting(
        20_000, help="Ordered: period of the renewal of queue locks", unit="ms", validator=at_least(10)
    )
    redelivery_delay_ms: int = setting(
        5_000,
        help="Wait before the redelivery of a message that was cancelled or could not be sent back",
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
