"""The JSON bodies of requests and answers, and the shapes of the files in `config/`.

Each class has RocketMQ's name and its fields in snake_case; `Body` reads and writes them. The forms are
pinned by tests/golden/json_quirks.json. A field of a Java enum holds the name of its member.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Annotated, Final, Self

from attrs import field

from rmq.errors import RemoteProtocolError
from rmq.message import MessageQueue
from rmq.protocol import codes, json
from rmq.protocol.fields import Body, Int32, Int64, read_int32
from rmq.protocol.json import JAVA

if TYPE_CHECKING:
    from attrs import define, frozen
else:
    from rmq.lazy_attrs import define, frozen

ConsumeType = Annotated[str, codes.ConsumeType]
MessageModel = Annotated[str, codes.MessageModel]
ConsumeFromWhere = Annotated[str, codes.ConsumeFromWhere]
TopicFilterType = Annotated[str, codes.TopicFilterType]
LanguageCode = Annotated[str, codes.LanguageCode]
CMResult = Annotated[str, codes.CMResult]

MAX_INFLATED = 64 * 1024 * 1024
"""Bytes past which the inflated form of a compressed registration is refused."""


# Routes and topics.


@frozen
class DataVersion(Body):
    """Version of a table: changes with each change of the table. `timestamp` in ms."""

    timestamp: Int64 = 0
    counter: Int64 = 0

    def following(self, now_ms: int) -> DataVersion:
        """The version after this one."""
        return DataVersion(now_ms, self.counter + 1)


@frozen
class QueueData(Body):
    """The queues that one broker has of a topic."""

    broker_name: str = ""
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0


@define
class BrokerData(Body):
    """The addresses of a broker name: broker id (0 is the master) -> `host:port`."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[Int64, str] = field(factory=dict)


@define
class TopicRouteData(Body):
    """The brokers and queues of a topic: the answer of GET_ROUTEINFO_BY_TOPIC."""

    queue_datas: list[QueueData] = field(factory=list)
    broker_datas: list[BrokerData] = field(factory=list)
    filter_server_table: dict[str, list[str]] = field(factory=dict)
    order_topic_conf: str | None = None


@define
class ClusterInfo(Body):
    """All brokers: name -> addresses, and cluster -> broker names."""

    broker_addr_table: dict[str, BrokerData] = field(factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(factory=dict)


@frozen
class MissingBroker(Body):
    """A broker that left the name server without a drain, `left_ms` ago. `is_stopped`: it unregistered, as a
    broker does in a graceful shutdown. `topics` are topics that took messages at it, `topic_count` is their
    number. An addition of rmq."""

    cluster: str = ""
    broker_name: str = ""
    broker_id: Int64 = 0
    broker_addr: str = ""
    left_ms: Int64 = 0
    why: str = ""
    is_stopped: bool = False
    topics: list[str] = field(factory=list)
    topic_count: Int32 = 0


@frozen
class RefusedBroker(Body):
    """A broker whose registration the name server refused `at_ms` ago. An addition of rmq."""

    cluster: str = ""
    broker_name: str = ""
    broker_id: Int64 = 0
    broker_addr: str = ""
    at_ms: Int64 = 0
    reason: str = ""


@define
class ClusterReport(ClusterInfo):
    """All brokers, and the missing and refused brokers: the answer of rmq's name server to a request with
    `headers.WITH_MISSING`, and the end of its certificate's validity, in ISO 8601. From RocketMQ's name
    server all three are empty."""

    missing_brokers: list[MissingBroker] = field(factory=list)
    refused_brokers: list[RefusedBroker] = field(factory=list)
    certificate_end: str = ""


@frozen
class TopicCreation(Body):
    """The identity of a topic beyond its name: it differs from that of an earlier topic of the same name.

    `time_ms` is the time of its creation; no two topics of a master have the same. `log_offset` is the log's
    end at that time: each record of the topic lies at or behind this physical offset, each record of that
    name before it belongs to an earlier topic. `earlier_end` is the highest known queue offset of the earlier
    topic, 0 for none.
    """

    time_ms: Int64 = 0
    log_offset: Int64 = 0
    earlier_end: Int64 = 0


@frozen
class TopicDeletion(Body):
    """The trace of a deleted topic: each record of its name before the physical offset `log_offset` belongs
    to this topic, or to an earlier topic. `time_ms` is the creation's, 0 for a topic without a creation."""

    log_offset: Int64 = 0
    time_ms: Int64 = 0


@frozen
class TopicConfig(Body):
    """A topic of a broker. `perm` is a sum of `PERM_…`, `topic_sys_flag` of `TOPIC_…`.

    `creation` is an addition of rmq: RocketMQ ignores the field in topics.json and in the bodies for slaves
    and name servers, and its topics have none. Topics with the same settings are equal, whatever their
    creation.
    """

    topic_name: str = ""
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = codes.PERM_READ | codes.PERM_WRITE
    topic_filter_type: TopicFilterType = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    creation: TopicCreation | None = field(default=None, eq=False)
    attributes: dict[str, str] | None = field(default=None, kw_only=True)
    """Attributes of RocketMQ 5.x, such as `message.type`; 4.9 ignores them."""

    @property
    def created_ms(self) -> int:
        """The creation's time (ms since 1970), which differs between topics of one name; 0 without a
        creation."""
        return 0 if self.creation is None else self.creation.time_ms

    def is_made_after(self, other: TopicConfig) -> bool:
        """True if this is another topic of the same name, created after `other` was deleted.

        A topic gets its creation when it is made, and never later. So a topic with a creation differs from an
        earlier topic without; a topic without a creation, as RocketMQ's, may be any.
        """
        before = other.creation
        return self.creation is not None and (before is None or self.creation.time_ms != before.time_ms)

    def to_text(self) -> str:
        """The five words of a topic in a compressed registration."""
        return (
            f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm}"
            f" {self.topic_filter_type}"
        )

    @classmethod
    def from_text(cls, text: str) -> TopicConfig:
        """Read the form of `to_text`; raises RemoteProtocolError."""
        words = text.split(" ")
        try:
            name, read, write, perm, kind = words
            return cls(name, read_int32(read), read_int32(write), read_int32(perm), kind)
        except ValueError:
            raise RemoteProtocolError(f"TopicConfig: five words expected, not {text[:80]!r}") from None


@define
class TopicConfigSerializeWrapper(Body):
    """All topics of a broker; also the form of config/topics.json. `deleted_topics` is an addition of rmq:
    deleted topics whose records may still be in the log. RocketMQ ignores the field."""

    topic_config_table: dict[str, TopicConfig] = field(factory=dict)
    data_version: DataVersion = field(factory=DataVersion)
    deleted_topics: dict[str, TopicDeletion] | None = None


REGISTRATION_VALUES: Final = 1_000_000
"""JSON values of a registration: the 100,000 topics of one broker at most, with nine each."""


@define
class RegisterBrokerBody(Body):
    """A broker's report about itself to a name server."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = field(factory=TopicConfigSerializeWrapper)
    filter_server_list: list[str] = field(factory=list)

    def encode(self, *, compressed: bool = False) -> bytes:
        """The body of REGISTER_BROKER: plain JSON, or the deflated form, which lacks flags and order."""
        if not compressed:
            return self.to_json()
        wrapper = self.topic_config_serialize_wrapper
        topics = [topic.to_text().encode() for topic in wrapper.topic_config_table.values()]
        parts = [_sized(wrapper.data_version.to_json()), len(topics).to_bytes(4, "big")]
        parts += [_sized(topic) for topic in topics]
        parts.append(_sized(json.dumps(self.filter_server_list)))
        return zlib.compress(b"".join(parts), 9)

    @classmethod
    def decode(cls, data: bytes, *, compressed: bool = False) -> Self:
        """Read either form; raises RemoteProtocolError, also past `MAX_INFLATED` bytes."""
        if not compressed:
            return cls.from_request(data, most=REGISTRATION_VALUES)
        reader = _SizedReader(_inflate(data))
        version = DataVersion.from_json(reader.chunk())
        topics = [TopicConfig.from_text(reader.text()) for _ in range(reader.number())]
        body = cls.from_value({"filterServerList": json.loads(reader.chunk())})
        table = {topic.topic_name: topic for topic in topics}
        body.topic_config_serialize_wrapper = TopicConfigSerializeWrapper(table, version)
        return body


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, MAX_INFLATED)
    except zlib.error as error:
        raise RemoteProtocolError(f"RegisterBrokerBody: cannot be unpacked ({error})") from None
    if inflater.unconsumed_tail:
        raise RemoteProtocolError(f"RegisterBrokerBody: unpacks to more than {MAX_INFLATED} bytes")
    if not inflater.eof:
        raise RemoteProtocolError("RegisterBrokerBody: the compressed data is cut short")
    return plain


class _SizedReader:
    """Reads 4-byte numbers and the chunks that follow their own length."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        return int.from_bytes(self._take(4), "big")

    def chunk(self) -> bytes:
        return self._take(self.number())

    def text(self) -> str:
        return self.chunk().decode("utf-8", JAVA)

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise RemoteProtocolError("RegisterBrokerBody: a length points past the end")
        taken, self._at = self._data[self._at : end], end
        return taken


@define
class TopicList(Body):
    """Names of topics."""

    topic_list: list[str] = field(factory=list)
    broker_addr: str | None = None


@define
class GroupList(Body):
    """Names of consumer groups."""

    group_list: list[str] = field(factory=list)


@define
class KVTable(Body):
    """A map of texts."""

    table: dict[str, str] = field(factory=dict)


@define
class KVConfigSerializeWrapper(Body):
    """The name server's kvConfig.json: namespace -> key -> value."""

    config_table: dict[str, dict[str, str]] = field(factory=dict)


# Subscription groups, clients and their subscriptions.


@frozen
class ExponentialRetryPolicy(Body):
    """Delays between retries that grow by a factor. Times are in ms."""

    initial: Int64 = 5_000
    max: Int64 = 7_200_000
    multiplier: Int64 = 2


@frozen
class CustomizedRetryPolicy(Body):
    """Delays between retries, one after the other, in ms."""

    next: list[Int64] = field(factory=list)


@frozen
class GroupRetryPolicy(Body):
    """Retry policy of a group; `type` names the one of the two that is used."""

    type: str = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


@frozen
class SubscriptionGroupConfig(Body):
    """A consumer group as a broker knows it."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    broker_id: Int64 = codes.MASTER_ID
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    consume_message_orderly: bool | None = None
    """This and the following fields are RocketMQ 5.x's and kept as they come; 4.9 ignores them."""
    group_retry_policy: GroupRetryPolicy | None = None
    group_sys_flag: Int32 | None = None
    consume_timeout_minute: Int32 | None = None
    attributes: dict[str, str] | None = None


@define
class SubscriptionGroupWrapper(Body):
    """All consumer groups of a broker; also the shape of config/subscriptionGroup.json."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(factory=dict)
    data_version: DataVersion = field(factory=DataVersion)


@frozen
class SubscriptionData(Body):
    """A consumer group's filter for a topic. `code_set` are the hashes of `tags_set`."""

    topic: str = ""
    sub_string: str = ""
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[Int32] = frozenset()
    sub_version: Int64 = 0
    expression_type: str | None = "TAG"
    class_filter_mode: bool = False


@frozen
class ProducerData(Body):
    """A producer group of a client."""

    group_name: str = ""


@define
class ConsumerData(Body):
    """A consumer group of a client."""

    group_name: str = ""
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    subscription_data_set: list[SubscriptionData] = field(factory=list)
    unit_mode: bool = False


HEARTBEAT_VALUES: Final = 131_072
"""JSON values of a heartbeat, whatever a broker's maxGroupsOfHeartbeat is."""


@define
class HeartbeatData(Body):
    """A client's report about itself to each broker, every 30 s."""

    client_id: str = field(default="", metadata={"java": "clientID"})
    producer_data_set: list[ProducerData] = field(factory=list)
    consumer_data_set: list[ConsumerData] = field(factory=list)


@define
class CheckClientRequestBody(Body):
    """A subscription that a client asks the broker to check."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData | None = None
    namespace: str | None = None


@frozen
class Connection(Body):
    """A client that is connected to a broker."""

    client_id: str = ""
    client_addr: str = ""
    language: LanguageCode = "JAVA"
    version: Int32 = 0


@define
class ConsumerConnection(Body):
    """The members of a consumer group and their subscriptions."""

    connection_set: list[Connection] = field(factory=list)
    subscription_table: dict[str, SubscriptionData] = field(factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None


@define
class ProducerConnection(Body):
    """The members of a producer group."""

    connection_set: list[Connection] = field(factory=list)


@define
class ProducerInfo(Body):
    """A member of a producer group, with its age."""

    client_id: str = ""
    remote_ip: str = field(default="", metadata={"java": "remoteIP"})
    language: LanguageCode = "JAVA"
    version: Int32 = 0
    last_update_timestamp: Int64 = 0


@define
class ProducerTableInfo(Body):
    """All producer groups of a broker."""

    data: dict[str, list[ProducerInfo]] = field(factory=dict)


@define
class GetConsumerListByGroupResponseBody(Body):
    """The client ids of a consumer group."""

    consumer_id_list: list[str] = field(factory=list)


# Queues: locks, offsets, progress.


@define
class LockBatchRequestBody(Body):
    """Queues that a client wants to lock for its group."""

    consumer_group: str = ""
    client_id: str = ""
    mq_set: frozenset[MessageQueue] = frozenset()


@define
class UnlockBatchRequestBody(Body):
    """Queues whose lock a client gives back."""

    consumer_group: str = ""
    client_id: str = ""
    mq_set: frozenset[MessageQueue] = frozenset()


@define
class LockBatchResponseBody(Body):
    """The queues that are locked for the client now."""

    lock_ok_mq_set: frozenset[MessageQueue] = field(default=frozenset(), metadata={"java": "lockOKMQSet"})


@frozen
class TopicOffset(Body):
    """The ends of a queue; the timestamp is that of its last message."""

    min_offset: Int64 = 0
    max_offset: Int64 = 0
    last_update_timestamp: Int64 = 0


@define
class TopicStatsTable(Body):
    """The ends of a topic's queues."""

    offset_table: dict[MessageQueue, TopicOffset] = field(factory=dict)


@frozen
class OffsetWrapper(Body):
    """The ends of a queue and a group's offset in it."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    last_timestamp: Int64 = 0


@define
class ConsumeStats(Body):
    """A group's progress in all its queues."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(factory=dict)
    consume_tps: float = 0.0


@define
class ConsumeStatsList(Body):
    """The progress of all groups of a broker."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(factory=list)
    broker_addr: str | None = None
    total_diff: Int64 = 0


@define
class ResetOffsetBody(Body):
    """The new offsets of a group."""

    offset_table: dict[MessageQueue, Int64] = field(factory=dict)


@define
class LocalOffsetsBody(Body):
    """The file of a broadcasting member: its offsets, as RocketMQ writes them. `topic_creations` is an
    addition of rmq, which RocketMQ ignores: `topic@broker@queue` -> creation (ms) of the offset's topic."""

    offset_table: dict[MessageQueue, Int64] = field(factory=dict)
    topic_creations: dict[str, Int64] | None = None


@define
class GetConsumerStatusBody(Body):
    """The offsets that clients of a group have."""

    consumer_table: dict[str, dict[MessageQueue, Int64]] = field(factory=dict)
    message_queue_table: dict[MessageQueue, Int64] = field(factory=dict)


@frozen
class QueueTimeSpan(Body):
    """The times between which a group is in a queue, in ms."""

    message_queue: MessageQueue | None = None
    min_time_stamp: Int64 = 0
    max_time_stamp: Int64 = 0
    consume_time_stamp: Int64 = 0
    delay_time: Int64 = 0


@define
class QueryConsumeTimeSpanBody(Body):
    """The times between which a group is in its queues."""

    consume_time_span_set: list[QueueTimeSpan] = field(factory=list)


@define
class QueryCorrectionOffsetBody(Body):
    """Offsets of a group: queue id -> offset."""

    correction_offsets: dict[Int32, Int64] = field(factory=dict)


@define
class ConsumeQueueData(Body):
    """One unit of a consume queue. `rmq_store_timestamp` (ms since 1970) is from rmq's brokers only."""

    physic_offset: Int64 = 0
    physic_size: Int32 = 0
    tags_code: Int64 = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None
    rmq_store_timestamp: Int64 | None = None


@define
class QueryConsumeQueueResponseBody(Body):
    """A piece of a consume queue."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] = field(factory=list)
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0


# Statistics.


@frozen
class BrokerStatsItem(Body):
    """A counter over one window."""

    sum: Int64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


@define
class BrokerStatsData(Body):
    """A counter over a minute, an hour and a day."""

    stats_minute: BrokerStatsItem = field(factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = field(factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = field(factory=BrokerStatsItem)


# A running consumer, as it reports to an administrator.


@define
class ProcessQueueInfo(Body):
    """The window of a queue in a consumer."""

    commit_offset: Int64 = 0
    cached_msg_min_offset: Int64 = 0
    cached_msg_max_offset: Int64 = 0
    cached_msg_count: Int32 = 0
    cached_msg_size_in_mib: Int32 = field(default=0, metadata={"java": "cachedMsgSizeInMiB"})
    transaction_msg_min_offset: Int64 = 0
    transaction_msg_max_offset: Int64 = 0
    transaction_msg_count: Int32 = 0
    locked: bool = False
    try_unlock_times: Int64 = 0
    last_lock_timestamp: Int64 = 0
    droped: bool = False
    last_pull_timestamp: Int64 = 0
    last_consume_timestamp: Int64 = 0


@define
class ConsumeStatus(Body):
    """Rates of a consumer for one topic; times in ms."""

    pull_rt: float = field(default=0.0, metadata={"java": "pullRT"})
    pull_tps: float = field(default=0.0, metadata={"java": "pullTPS"})
    consume_rt: float = field(default=0.0, metadata={"java": "consumeRT"})
    consume_ok_tps: float = field(default=0.0, metadata={"java": "consumeOKTPS"})
    consume_failed_tps: float = field(default=0.0, metadata={"java": "consumeFailedTPS"})
    consume_failed_msgs: Int64 = 0


@define
class ConsumerRunningInfo(Body):
    """A consumer's report about itself to an administrator."""

    properties: dict[str, str] = field(factory=dict)
    subscription_set: list[SubscriptionData] = field(factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(factory=dict)
    status_table: dict[str, ConsumeStatus] = field(factory=dict)
    jstack: str | None = None


@define
class ConsumeMessageDirectlyResult(Body):
    """Result of a message that an administrator gave to a consumer."""

    order: bool = False
    auto_commit: bool = True
    consume_result: CMResult | None = None
    remark: str | None = None
    spent_time_mills: Int64 = 0


# Files of config/ that are not bodies of requests.


@define
class ConsumerOffsetSerializeWrapper(Body):
    """config/consumerOffset.json, answer of GET_ALL_CONSUMER_OFFSET: `topic@group` -> queue id -> offset."""

    offset_table: dict[str, dict[Int32, Int64]] = field(factory=dict)
    data_version: DataVersion | None = None


@define
class DelayOffsetSerializeWrapper(Body):
    """config/delayOffset.json and the answer of GET_ALL_DELAY_OFFSET: delay level -> queue offset."""

    offset_table: dict[Int32, Int64] = field(factory=dict)
    data_version: DataVersion | None = None
