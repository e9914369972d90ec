"""Sending: what a producer may store, how a message becomes a record, and when it is acknowledged.

A handler here never answers with success. It puts records into the store's pending batch and leaves an
acknowledgement in `acks`; `acknowledge` writes the answers once the batch is committed (and, for SYNC_FLUSH,
once it is on the medium). That is the only place where an acknowledgement is made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from attrs import define

from rmq.broker.topics import check_name, unknown_topic
from rmq.broker.waits import ParkedSend, Waits
from rmq.errors import LocalProtocolError, RemoteProtocolError, ResponseError, for_code
from rmq.message import (
    NOT_SENDABLE_TOPICS,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_WAIT_STORE,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    dlq_topic,
    retry_topic,
    tags_code,
)
from rmq.protocol import engine
from rmq.protocol.codes import (
    FLAG_ONEWAY,
    PERM_READ,
    PERM_WRITE,
    SYS_MULTI_TAGS,
    SYS_ROLLBACK,
    TOPIC_UNIT,
    TOPIC_UNIT_SUB,
    RequestCode,
    ResponseCode,
)
from rmq.protocol.headers import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeader
from rmq.protocol.record import (
    PROPERTIES_MAX,
    Record,
    decode_record,
    encode_properties,
    host_bytes,
    record_keys,
    record_of,
)
from rmq.store.config import FlushDiskType, delay_table

if TYPE_CHECKING:
    from random import Random

    from rmq.broker.config import BrokerConfig
    from rmq.broker.groups import Groups
    from rmq.broker.stats import Stats
    from rmq.broker.topics import Topics
    from rmq.broker.transaction import Transactions
    from rmq.message import StoredMessage
    from rmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection
    from rmq.store.config import StoreConfig
    from rmq.store.store import Store

SYSTEM_ERROR: Final = ResponseCode.SYSTEM_ERROR
VERSION_WITH_OWN_LIMIT: Final = 121
"""From RocketMQ 3.4.9 on the number of retries that a client names counts (MQVersion.V3_4_9)."""

_WAIT_TRUE: Final = f"\x02{PROPERTY_WAIT_STORE}\x01true"
_RARE: Final = frozenset((PROPERTY_DELAY_LEVEL, PROPERTY_TRANSACTION_PREPARED, PROPERTY_CLUSTER))
_PROPERTIES_SURE: Final = PROPERTIES_MAX // 4
"""So many characters fit in any encoding."""
_RECORD_ROOM: Final = 512
"""No record has more beside its body and properties, a BLANK after it included."""

Records = tuple[Record, ...] | list[Record]
Ack = tuple["Command", int, Records]
"""A request to acknowledge, the queue id that it is told, and its records."""

log = logging.getLogger("rmq.broker")


@define
class Target:
    """What a send needs to know of its topic: looked up once, until topics change."""

    topic: str
    queues: int
    write_queues: int
    sys_flag: int
    group: str


@define
class Tally:
    """Messages and bytes of one topic in the pending batch."""

    count: int = 0
    size: int = 0


class Send:
    """Handles SEND_MESSAGE (10, 310), SEND_BATCH_MESSAGE and CONSUMER_SEND_MSG_BACK.

    `refusal` is why no message is taken now, as (code, remark), or None; the broker keeps it up to date.
    `store_host` is the address in records, of 8 or 20 bytes.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        store: Store,
        *,
        store_host: bytes,
        topics: Topics,
        groups: Groups,
        stats: Stats,
        waits: Waits,
        transactions: Transactions,
        chance: Random,
    ) -> None:
        self._store = store
        self._id_prefix = store_host.hex().upper()
        self._topics = topics
        self._groups = groups
        self._stats = stats
        self._waits = waits
        self._transactions = transactions
        self._chance = chance
        self._targets: dict[str, Target] = {}
        self.refusal: tuple[int, str] | None = None
        self.acks: list[Ack] = []
        self.acks_at_once: list[Ack] = []
        self.returned: list[Command] = []
        self.tallies: dict[str, Tally] = {}
        self.configure(config, store_config)
        waits.release = self._release

    def configure(self, config: BrokerConfig, store_config: StoreConfig) -> None:
        """Take new values of the settings that may change at run time."""
        self.config = config
        self.store_config = store_config
        self._targets.clear()
        self._body_max = store_config.max_message_size
        self._indexed = store_config.message_index_enable
        self._levels = len(delay_table(store_config.message_delay_level))
        self._suffix = f"\x02{PROPERTY_CLUSTER}\x01{config.broker_cluster_name}"
        self._region = config.region_id
        self._trace_on = "true" if config.trace_on else "false"
        self._sync = store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH

    def handlers(self) -> dict[int, Callable[[Command, Connection, int], Command | None]]:
        """What this part answers."""
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
            RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back,
        }

    def topics_changed(self) -> None:
        """Topics were made, changed or deleted: look them up again."""
        self._targets.clear()

    # ---- sends ----

    def send(self, request: Command, connection: Connection, now: int) -> None:
        """Put a message, or a batch of them, into the pending batch. Raises ResponseError for a refusal."""
        if self.refusal is not None:
            raise for_code(*self.refusal)
        header = request.read(SendMessageRequestHeader)
        target = self._targets.get(header.topic)
        if target is None:
            target = self._admit(header, connection)
        queue_id = header.queue_id
        if not 0 <= queue_id < target.queues:
            queue_id = self._choose_queue(queue_id, target, connection)
        if header.batch:
            self._send_batch(request, header, connection, queue_id)
            return
        body = request.body
        if len(body) > self._body_max:
            raise self._illegal(f"the body has {len(body)} bytes")
        text = header.properties or ""
        properties = _parse(text)
        waits = True
        if PROPERTY_WAIT_STORE in properties:
            text, waits = _without_wait(text, properties)
        topic, put_queue_id = target.topic, queue_id
        is_half = False
        if target.group or not _RARE.isdisjoint(properties):
            is_half = self._is_half(properties)
            topic, put_queue_id, text = self._detour(request, header, target, queue_id, properties)
        text = text + self._suffix if text else self._suffix[1:]
        if len(text) > _PROPERTIES_SURE:
            self._check_properties(text)
        record = Record(
            topic,
            put_queue_id,
            body,
            text,
            header.flag,
            header.sys_flag | target.sys_flag,
            header.born_timestamp,
            connection.state.get("host") or _host_of(connection),
            header.reconsume_times or 0,
            0,
            tags_code(properties.get(PROPERTY_TAGS)),
            record_keys(properties) if self._indexed else (),
        )
        if is_half:
            self._prepare(record, properties)
        self._store.put(record)
        self._count(topic, 1, record.size)
        if not request.flag & FLAG_ONEWAY:
            (self.acks if waits else self.acks_at_once).append((request, queue_id, (record,)))

    def _send_batch(
        self, request: Command, header: SendMessageRequestHeader, connection: Connection, queue_id: int
    ) -> None:
        if header.sys_flag & SYS_ROLLBACK:
            raise self._illegal("a batch cannot be part of a transaction")
        if len(request.body) > self._body_max:
            raise self._illegal(f"the batch has {len(request.body)} bytes")
        shared = _parse(header.properties or "")
        waits = shared.pop(PROPERTY_WAIT_STORE, "true").lower() == "true"
        shared[PROPERTY_CLUSTER] = self.config.broker_cluster_name
        suffix = encode_properties(shared)
        records = self._batch_records(request.body, header, connection, queue_id, suffix)
        put = self._store.put
        size = 0
        for record in records:
            put(record)
            size += record.size
        self._count(header.topic, len(records), size)
        if not request.flag & FLAG_ONEWAY:
            (self.acks if waits else self.acks_at_once).append((request, queue_id, records))

    def _batch_records(
        self,
        body: bytes,
        header: SendMessageRequestHeader,
        connection: Connection,
        queue_id: int,
        suffix: str,
    ) -> list[Record]:
        """All records of a batch, checked, so that all of them or none are put."""
        try:
            messages = engine.split_batch(body)
        except RemoteProtocolError as error:
            raise self._illegal(str(error)) from None
        if not messages:
            raise self._illegal("the batch has no message")
        sys_flag = header.sys_flag | self._targets[header.topic].sys_flag
        host = connection.state.get("host") or _host_of(connection)
        born_timestamp, reconsume_times = header.born_timestamp, header.reconsume_times or 0
        topic = header.topic
        room = self.store_config.mapped_file_size_commit_log - _RECORD_ROOM
        records = []
        for flag, one, text in messages:
            properties = _parse(text)
            text = _joined(text, suffix)
            if len(text) > _PROPERTIES_SURE:
                self._check_properties(text)
            if len(one) + 4 * len(text) > room:
                raise self._illegal("a message of the batch does not fit a commit log file")
            code = tags_code(properties.get(PROPERTY_TAGS))
            keys = record_keys(properties) if self._indexed else ()
            records.append(
                Record(
                    topic,
                    queue_id,
                    one,
                    text,
                    flag,
                    sys_flag,
                    born_timestamp,
                    host,
                    reconsume_times,
                    0,
                    code,
                    keys,
                )
            )
        return records

    # ---- checks ----

    def _admit(self, header: SendMessageRequestHeader, connection: Connection) -> Target:
        """The topic's row, after all checks that hold until topics change; made when that is allowed."""
        topic = check_name(header.topic)
        if topic in NOT_SENDABLE_TOPICS:
            raise _forbidden(f"Sending message to topic[{topic}] is forbidden.")
        config = self._topics.get(topic) or self._make_topic(header, connection)
        if config is None:
            raise unknown_topic(topic)
        if config.order and not self.config.broker_permission & PERM_WRITE:
            raise self._broker_forbids()
        target = self._targets[topic] = Target(
            topic,
            max(config.write_queue_nums, config.read_queue_nums),
            config.write_queue_nums,
            SYS_MULTI_TAGS if config.topic_filter_type == "MULTI_TAG" else 0,
            topic.removeprefix(RETRY_PREFIX) if topic.startswith(RETRY_PREFIX) else "",
        )
        return target

    def _make_topic(self, header: SendMessageRequestHeader, connection: Connection) -> TopicConfig | None:
        topic, sys_flag = header.topic, 0
        is_retry = topic.startswith(RETRY_PREFIX)
        if header.unit_mode:
            sys_flag = TOPIC_UNIT_SUB if is_retry else TOPIC_UNIT
        made = self._topics.create_for_send(
            topic,
            header.default_topic,
            header.default_topic_queue_nums,
            connection.peer_address,
            sys_flag=sys_flag,
        )
        if made is None and is_retry:
            made = self._topics.create_retry(topic, PERM_WRITE | PERM_READ, 1, sys_flag)
        return made

    def _choose_queue(self, queue_id: int, target: Target, connection: Connection) -> int:
        """A random queue for a producer that names none. Raises ResponseError for one that does not exist."""
        if queue_id < 0 and target.write_queues > 0:
            return self._chance.randrange(target.write_queues)
        raise for_code(
            SYSTEM_ERROR,
            f"request queueId[{queue_id}] is illegal, topic {target.topic} has {target.queues} queues. "
            f"Producer: {connection.peer_address}",
        )

    def _check_properties(self, text: str) -> None:
        size = len(text.encode())
        if size > PROPERTIES_MAX:
            raise self._illegal(f"the properties have {size} bytes")

    def _illegal(self, what: str) -> ResponseError:
        return for_code(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: {what}. msg body length limit {self._body_max}B (maxMessageSize), "
            f"msg properties length limit {PROPERTIES_MAX}B.",
        )

    def _broker_forbids(self) -> ResponseError:
        return _forbidden(f"the broker[{self.config.broker_ip1}] sending message is forbidden")

    # ---- messages that do not go straight to their topic ----

    def _detour(
        self,
        request: Command,
        header: SendMessageRequestHeader,
        target: Target,
        queue_id: int,
        properties: dict[str, str],
    ) -> tuple[str, int, str]:
        """Topic, queue and properties text of a retried, delayed or forwarded message."""
        topic = target.topic
        properties.pop(PROPERTY_CLUSTER, None)
        properties.pop(PROPERTY_WAIT_STORE, None)
        if target.group and self._is_spent(request, header, target.group):
            properties.pop(PROPERTY_DELAY_LEVEL, None)
            topic, queue_id = self._dead_letters(target.group), 0
        level = 0 if self._is_half(properties) else self._delay_level(properties)
        if level:
            topic, queue_id = self._delay(topic, queue_id, level, properties)
        return topic, queue_id, encode_properties(properties)

    def _is_half(self, properties: dict[str, str]) -> bool:
        """Whether the message is one half of a transaction, its end to follow. Raises if such are refused."""
        if properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() != "true":
            return False
        if self.config.reject_transaction_message:
            raise _forbidden(
                f"the broker[{self.config.broker_ip1}] sending transaction message is forbidden "
                "(rejectTransactionMessage=true)"
            )
        return True

    def _prepare(self, record: Record, properties: dict[str, str]) -> None:
        for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC):
            self._topics.create_retry(topic, PERM_WRITE | PERM_READ, 1)
        properties[PROPERTY_CLUSTER] = self.config.broker_cluster_name
        self._transactions.prepare(record, properties)

    def _is_spent(self, request: Command, header: SendMessageRequestHeader, name: str) -> bool:
        """Whether a retried message was consumed in vain so often that it is a dead letter."""
        group = self._known_group(name)
        limit = group.retry_max_times
        if request.version >= VERSION_WITH_OWN_LIMIT and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        return (header.reconsume_times or 0) >= limit

    def _known_group(self, name: str) -> SubscriptionGroupConfig:
        group = self._groups.get(name)
        if group is None:
            raise for_code(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name}; create it with `mqadmin updateSubGroup -g {name}` "
                "or set autoCreateSubscriptionGroup=true on the broker",
            )
        return group

    def _dead_letters(self, group: str) -> str:
        topic = dlq_topic(group)
        self._topics.create_retry(topic, PERM_WRITE | PERM_READ, 1)
        return topic

    def _delay_level(self, properties: dict[str, str]) -> int:
        """The delay level asked for, at most the highest; 0 for none."""
        text = properties.get(PROPERTY_DELAY_LEVEL)
        if text is None:
            return 0
        try:
            return max(0, min(int(text), self._levels))
        except ValueError:
            raise self._illegal(f"{PROPERTY_DELAY_LEVEL}={text[:20]!r} is not a delay level") from None

    def _delay(self, topic: str, queue_id: int, level: int, properties: dict[str, str]) -> tuple[str, int]:
        """Send a message round by the schedule topic; `properties` get where it shall go when it is due."""
        properties[PROPERTY_DELAY_LEVEL] = str(level)
        properties[PROPERTY_REAL_TOPIC] = topic
        properties[PROPERTY_REAL_QUEUE_ID] = str(queue_id)
        return SCHEDULE_TOPIC, level - 1

    # ---- messages that a consumer sends back ----

    def send_back(self, request: Command, connection: Connection, now: int) -> Command | None:
        """Store a message again that a group could not consume: later, or as a dead letter."""
        if self.refusal is not None:
            raise for_code(*self.refusal)
        header = request.read(ConsumerSendMsgBackRequestHeader)
        group = self._known_group(header.group)
        if not self.config.broker_permission & PERM_WRITE:
            raise self._broker_forbids()
        if group.retry_queue_nums <= 0:
            return request.reply()
        topic = self._retry_topic(header, group)
        message = self._message(header.offset)
        queue_id = self._chance.randrange(group.retry_queue_nums)
        limit = group.retry_max_times
        if request.version >= VERSION_WITH_OWN_LIMIT and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        properties = _returned_properties(message)
        if message.reconsume_times >= limit or header.delay_level < 0:
            topic, queue_id = self._dead_letters(header.group), 0
            properties.pop(PROPERTY_DELAY_LEVEL, None)
        else:
            level = header.delay_level or 3 + message.reconsume_times
            topic, queue_id = self._delay(topic, queue_id, min(level, self._levels), properties)
        record = record_of(message, topic, queue_id, properties)
        record.reconsume_times += 1
        self._store.put(record)
        self._count(topic, 1, record.size)
        self._stats.send_back(header.group, properties[PROPERTY_RETRY_TOPIC])
        if not request.flag & FLAG_ONEWAY:
            self.returned.append(request)
        return None

    def _retry_topic(self, header: ConsumerSendMsgBackRequestHeader, group: SubscriptionGroupConfig) -> str:
        name = check_name(retry_topic(header.group))
        sys_flag = TOPIC_UNIT_SUB if header.unit_mode else 0
        topic = self._topics.create_retry(name, PERM_WRITE | PERM_READ, group.retry_queue_nums, sys_flag)
        if not topic.perm & PERM_WRITE:
            raise _forbidden(f"the topic[{name}] sending message is forbidden")
        return name

    def _message(self, physical_offset: int) -> StoredMessage:
        view = self._store.read(physical_offset)
        if view is None:
            raise for_code(SYSTEM_ERROR, f"look message by offset failed, {physical_offset}")
        return decode_record(view, decompressed=False)

    # ---- acknowledgements ----

    def _count(self, topic: str, count: int, size: int) -> None:
        tally = self.tallies.get(topic)
        if tally is None:
            tally = self.tallies[topic] = Tally()
        tally.count += count
        tally.size += size

    def acknowledge(self, connection: Connection) -> None:
        """The pending batch is committed: answer its senders, or park the answers until it is flushed."""
        waiting, at_once = self.acks, self.acks_at_once
        if self._sync and waiting:
            deadline = self._waits.clock() + self.store_config.sync_flush_timeout / 1000
            self._waits.park(ParkedSend(connection, self._store.max_physical_offset, deadline, waiting))
        else:
            at_once = waiting + at_once if at_once else waiting
        if at_once:
            connection.write(b"".join(map(self._success, at_once)))
        for request in self.returned:
            connection.reply(request.reply())
        self._clear()

    def refuse(self, connection: Connection, code: int, remark: str) -> None:
        """The pending batch could not be committed: nobody of it is acknowledged."""
        senders = [request for request, _, _ in self.acks + self.acks_at_once]
        for request in senders + self.returned:
            connection.reply(request.reply(code, remark))
        self._clear()

    def _clear(self) -> None:
        self.acks, self.acks_at_once, self.returned, self.tallies = [], [], [], {}

    def _success(self, ack: Ack) -> bytes:
        request, queue_id, records = ack
        first = records[0]
        msg_id = f"{self._id_prefix}{first.physical_offset:016X}" if len(records) == 1 else self._ids(records)
        return engine.encode_send_reply(
            request, msg_id, queue_id, first.queue_offset, self._region, self._trace_on
        )

    def _ids(self, records: Records) -> str:
        return ",".join(f"{self._id_prefix}{record.physical_offset:016X}" for record in records)

    def _release(self, parked: ParkedSend, in_time: bool) -> None:
        """Answer parked senders: stored and on disk, or (10) stored but not known to be on disk in time."""
        if in_time:
            parked.connection.write(b"".join(map(self._success, parked.acks)))
            return
        for request, queue_id, records in parked.acks:
            parked.connection.reply(
                request.reply(
                    ResponseCode.FLUSH_DISK_TIMEOUT,
                    None,
                    {
                        "msgId": self._ids(records),
                        "queueId": str(queue_id),
                        "queueOffset": str(records[0].queue_offset),
                        "MSG_REGION": self._region,
                        "TRACE_ON": self._trace_on,
                    },
                )
            )


def _parse(text: str) -> dict[str, str]:
    try:
        return dict([piece.split("\x01", 1) for piece in text.split("\x02")])
    except ValueError:  # a piece without a value, such as after a separator at the end
        return engine.parse_properties(text)


def _joined(text: str, suffix: str) -> str:
    """Two properties texts as one; some producers end theirs with a separator."""
    if not text:
        return suffix
    return text + suffix if text[-1] == "\x02" else f"{text}\x02{suffix}"


def _without_wait(text: str, properties: dict[str, str]) -> tuple[str, bool]:
    """The text without the property that only tells whether to wait for the disk, and what it told."""
    waits = properties[PROPERTY_WAIT_STORE].lower() == "true"
    shorter = text.replace(_WAIT_TRUE, "", 1)
    if len(shorter) == len(text):
        rest = {name: value for name, value in properties.items() if name != PROPERTY_WAIT_STORE}
        shorter = encode_properties(rest)
    return shorter, waits


def _host_of(connection: Connection) -> bytes:
    """The peer's address as records hold it; kept with the connection."""
    try:
        host = host_bytes(connection.peer_address)
    except LocalProtocolError:  # a simulated network has names of its own
        host = bytes(8)
    connection.state["host"] = host
    return host


def _returned_properties(message: StoredMessage) -> dict[str, str]:
    """A message's properties when it comes back: where it came from first, and as which message."""
    properties = dict(message.properties)
    properties.setdefault(PROPERTY_RETRY_TOPIC, message.topic)
    properties[PROPERTY_WAIT_STORE] = "false"
    if not properties.get(PROPERTY_ORIGIN_MESSAGE_ID):
        properties[PROPERTY_ORIGIN_MESSAGE_ID] = message.offset_message_id
    return properties


def _forbidden(remark: str) -> ResponseError:
    return for_code(ResponseCode.NO_PERMISSION, remark)
