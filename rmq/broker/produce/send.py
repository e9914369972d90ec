"""Sending: what a producer may store, and how a message becomes a record.

A handler here never answers with success. It puts records into the store's pending batch and notes who is to
be answered; `rmq.broker.produce.acks` does that when the batch is as safe as the settings ask.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from attrs import define

from rmq.broker.delay.timers import PROPERTY_RECALLED, TIMER_PROPERTIES, deliver_time
from rmq.broker.produce.acks import Acknowledgement, Records, RecordsWithHeader
from rmq.broker.tables.topics import check_name, unknown_topic
from rmq.errors import LocalProtocolError, RemoteProtocolError, ResponseError, for_code
from rmq.message import (
    NOT_SENDABLE_TOPICS,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT_STORE,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    dlq_topic,
    retry_topic,
    tags_code,
)
from rmq.plugin import account_of
from rmq.protocol.codes import (
    FLAG_ONEWAY,
    PERM_READ,
    PERM_WRITE,
    SYS_MULTI_TAGS,
    SYS_OF_SENDERS,
    SYS_ROLLBACK,
    TOPIC_UNIT,
    TOPIC_UNIT_SUB,
    RequestCode,
    ResponseCode,
)
from rmq.protocol.headers import (
    RECALL_HANDLE,
    ConsumerSendMsgBackRequestHeader,
    RecallHandle,
    SendMessageRequestHeader,
)
from rmq.protocol.properties import (
    INTERNAL_PROPERTIES,
    PROPERTY_DELAY_MS,
    REASON,
    RETRY_DELAY_MS,
    SentProperties,
    dead_letter_properties,
    decode_properties,
    encode_properties,
    join_properties,
    record_keys,
    send_back_properties,
)
from rmq.protocol.record import (
    NUL_IN_PROPERTIES,
    PROPERTIES_MAX,
    Record,
    decode_batch,
    decode_record,
    host_bytes,
    record_of,
)
from rmq.store.config import delay_table
from rmq.store.store import Batch

if TYPE_CHECKING:
    from random import Random

    from rmq.broker.config import Settings
    from rmq.broker.delay.timers import Timers
    from rmq.broker.tables.versioned import Tables
    from rmq.broker.transactions import Transactions
    from rmq.message import StoredMessage
    from rmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection
    from rmq.store.store import Store

SYSTEM_ERROR: Final = ResponseCode.SYSTEM_ERROR
VERSION_WITH_OWN_LIMIT: Final = 121
"""From RocketMQ 3.4.9 on the number of retries that a client names counts (MQVersion.V3_4_9)."""

RARE: Final = frozenset(
    (
        PROPERTY_DELAY_LEVEL,
        PROPERTY_TRANSACTION_PREPARED,
        PROPERTY_CLUSTER,
        PROPERTY_RECALLED,
        *TIMER_PROPERTIES,
        *INTERNAL_PROPERTIES,
    )
)
_PROPERTIES_SURE: Final = PROPERTIES_MAX // 4
"""So many characters fit in any encoding."""
_RECORD_ROOM: Final = 512
"""No record has more beside its body and properties, a BLANK after it included."""
_BATCH_TEXTS_MAX: Final = 64
_BATCH_TEXT_MAX: Final = 256
"""Texts of batches' own properties that are remembered, and their characters."""

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
class TopicCount:
    """Messages and bytes of one topic in the pending batch."""

    count: int = 0
    size: int = 0


class Send:
    """Handles SEND_MESSAGE (10, 310), SEND_BATCH_MESSAGE and CONSUMER_SEND_MSG_BACK.

    `refusal` is why no message is taken now, as (code, remark), or None; the broker keeps it up to date.
    `keeps_records()`: whether somebody wants to see each record that is stored.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        tables: Tables,
        *,
        acknowledgement: Acknowledgement,
        transactions: Transactions,
        timers: Timers,
        chance: Random,
        keeps_records: Callable[[], bool],
    ) -> None:
        self._store = store
        self._topics = tables.topics
        self._groups = tables.groups
        self._stats = tables.stats
        self._acknowledgement = acknowledgement
        self._transactions = transactions
        self._timers = timers
        self._chance = chance
        self._keeps_records = keeps_records
        self.targets: dict[str, Target] = {}
        self._of_batches: dict[str, tuple[bool, str]] = {}
        self.refusal: tuple[int, str] | None = None
        self.topic_counts: dict[str, TopicCount] = {}
        self._settings = settings
        settings.derive(self._settings_changed)

    def _settings_changed(self) -> None:
        config, store_config = self._settings.broker, self._settings.store
        self.targets.clear()
        self._of_batches.clear()
        self.body_max = store_config.max_message_size
        self._indexed = store_config.message_index_enable
        self._levels = len(delay_table(store_config.message_delay_level))
        self._batch_room = store_config.mapped_file_size_commit_log - _RECORD_ROOM
        self._read_properties = SentProperties(f"{PROPERTY_CLUSTER}\x01{config.broker_cluster_name}", RARE)

    def handlers(self) -> dict[int, Callable[[Command, Connection, int], Command | None]]:
        """What this part answers."""
        send = self.send  # one object, by which the broker knows sends
        return {
            RequestCode.SEND_MESSAGE: send,
            RequestCode.SEND_MESSAGE_V2: send,
            RequestCode.SEND_BATCH_MESSAGE: send,
            RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back,
        }

    def topics_changed(self) -> None:
        """Topics were made, changed or deleted: look them up again."""
        self.targets.clear()

    # ---- sends ----

    def send(self, request: Command, connection: Connection, now: int) -> None:
        """Put a message, or a batch of them, into the pending batch. Raises ResponseError for a refusal."""
        if self.refusal is not None:
            raise for_code(*self.refusal)
        header: SendMessageRequestHeader = request.header or request.read(SendMessageRequestHeader)
        target = self.targets.get(header.topic) or self._admit(header, connection)
        queue_id = header.queue_id
        if not 0 <= queue_id < target.queues:
            queue_id = self._choose_queue(queue_id, target, connection)
        properties = header.properties or ""
        if "\0" in properties:
            raise self._illegal(NUL_IN_PROPERTIES)
        if header.batch:
            self._send_batch(request, header, connection, queue_id)
            return
        stored, waits, code, index_keys, rare = self._read_properties(properties)
        record = Record(
            target.topic,
            queue_id,
            request.body,
            stored,
            header.flag,
            header.sys_flag & SYS_OF_SENDERS | target.sys_flag,
            header.born_timestamp,
            connection.state.get("host") or host_of(connection),
            header.reconsume_times or 0,
            0,
            code,
            index_keys if self._indexed else (),
        )
        records: Records = (record,)
        if rare or target.group:
            records = self._detour(request, header, target, record, now)
        if len(record.body) > self.body_max or len(record.properties) > _PROPERTIES_SURE:
            self._check_sizes(record)
        self._store.put(record)
        counted = self.topic_counts.get(record.topic) or self._topic_count(record.topic)
        counted.count += 1
        counted.size += record.size
        if not request.flag & FLAG_ONEWAY:
            senders = self._acknowledgement.pending
            (senders.waiting if waits else senders.at_once).append((request, queue_id, records))

    def put(self, request: Command, record: Record, header: Mapping[str, str]) -> None:
        """Put a record that a request stands for; its acknowledgement has these header fields too."""
        if self.refusal is not None:
            raise for_code(*self.refusal)
        if "\0" in record.properties:
            raise self._illegal(NUL_IN_PROPERTIES)
        self._topics.create_retry(record.topic, PERM_WRITE | PERM_READ, 1)
        self._store.put(record)
        self.count(record.topic, 1, record.size)
        self._acknowledgement.pending.waiting.append(
            (request, record.queue_id, RecordsWithHeader((record,), header))
        )

    def _send_batch(
        self, request: Command, header: SendMessageRequestHeader, connection: Connection, queue_id: int
    ) -> None:
        if header.sys_flag & SYS_ROLLBACK:
            raise self._illegal("a batch cannot be part of a transaction")
        if len(request.body) > self.body_max:
            raise self._illegal(f"the batch has {len(request.body)} bytes")
        text = header.properties or ""
        waits, suffix = self._of_batches.get(text) or self._read_batch_properties(text)
        common = Record(
            header.topic,
            queue_id,
            b"",
            sys_flag=header.sys_flag & SYS_OF_SENDERS | self.targets[header.topic].sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=connection.state.get("host") or host_of(connection),
            reconsume_times=header.reconsume_times or 0,
        )
        records = self._put_batch(request.body, common, suffix)
        if not request.flag & FLAG_ONEWAY:
            senders = self._acknowledgement.pending
            (senders.waiting if waits else senders.at_once).append((request, queue_id, records))

    def _read_batch_properties(self, text: str) -> tuple[bool, str]:
        """Whether the sender of a batch waits, and what comes after each message's properties. Remembered, as
        a client's batches have one text; senders choose it, so only so many, and short ones."""
        shared = decode_properties(text)
        waits = shared.pop(PROPERTY_WAIT_STORE, "true").lower() == "true"
        shared[PROPERTY_CLUSTER] = self._settings.broker.broker_cluster_name
        read = waits, encode_properties(shared)
        if len(text) <= _BATCH_TEXT_MAX:
            if len(self._of_batches) >= _BATCH_TEXTS_MAX:
                self._of_batches.clear()
            self._of_batches[text] = read
        return read

    def _put_batch(self, body: bytes, common: Record, suffix: str) -> Batch | list[Record]:
        """Put all messages of a batch, or none; at once, unless each one's record is wanted. `common` is what
        they share, `suffix` what comes after each one's properties.
        """
        if not self._keeps_records() and len(body) < self._batch_room:
            try:
                batch = self._store.put_batch(common, body, suffix.encode())
            except RemoteProtocolError as error:
                raise self._illegal(str(error)) from None
            if batch is not None:
                self.count(common.topic, len(batch.physical_offsets), batch.size)
                return batch
        records = self._batch_records(body, common, suffix)
        for record in records:
            self._store.put(record)
        self.count(common.topic, len(records), sum(record.size for record in records))
        return records

    def _batch_records(self, body: bytes, common: Record, suffix: str) -> list[Record]:
        """All records of a batch, checked, so that all of them or none are put."""
        try:
            messages = decode_batch(body)
        except RemoteProtocolError as error:
            raise self._illegal(str(error)) from None
        if not messages:
            raise self._illegal("the batch has no message")
        room = min(self.body_max, self._batch_room)
        records = []
        for flag, one, text in messages:
            stored = join_properties(text, suffix)
            properties = decode_properties(stored)
            record = Record(
                common.topic,
                common.queue_id,
                one,
                stored,
                flag,
                common.sys_flag,
                common.born_timestamp,
                common.born_host,
                common.reconsume_times,
                0,
                tags_code(properties.get(PROPERTY_TAGS)),
                record_keys(properties) if self._indexed else (),
            )
            if len(one) > room or len(record.properties) > _PROPERTIES_SURE:
                self._check_sizes(record)
            records.append(record)
        return records

    # ---- checks ----

    def _admit(self, header: SendMessageRequestHeader, connection: Connection) -> Target:
        """The topic's row, after all checks that hold until topics change; made when that is allowed."""
        topic = check_name(header.topic)
        if topic in NOT_SENDABLE_TOPICS or topic == TIMER_TOPIC:
            raise _forbidden(f"Sending message to topic[{topic}] is forbidden.")
        config = self._topics.get(topic) or self._make_topic(header, connection)
        if config is None:
            raise unknown_topic(topic)
        if config.order and not self._settings.broker.broker_permission & PERM_WRITE:
            raise self._broker_forbids()
        target = self.targets[topic] = Target(
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
            account=account_of(connection),
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

    def _check_sizes(self, record: Record) -> None:
        """Raises ResponseError for a message that is too long for the settings, the formats or the files."""
        size, body = len(record.properties.encode()), len(record.body)
        if body > self.body_max:
            raise self._illegal(f"the body has {body} bytes")
        if size > PROPERTIES_MAX:
            raise self._illegal(f"the properties have {size} bytes")
        if size + body + _RECORD_ROOM > self._settings.store.mapped_file_size_commit_log:
            raise self._illegal("it does not fit a file of the commit log (mappedFileSizeCommitLog)")

    def _illegal(self, what: str) -> ResponseError:
        return for_code(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: {what}. msg body length limit {self.body_max}B (maxMessageSize), "
            f"msg properties length limit {PROPERTIES_MAX}B.",
        )

    def _broker_forbids(self) -> ResponseError:
        return _forbidden(f"the broker[{self._settings.broker.broker_ip1}] sending message is forbidden")

    # ---- messages that do not go straight to their topic ----

    def _detour(
        self,
        request: Command,
        header: SendMessageRequestHeader,
        target: Target,
        record: Record,
        now: int,
    ) -> Records:
        """Turn the record of a retried, delayed, forwarded or half message into what is stored for it."""
        properties = self._own_properties(header)
        if target.group and self._is_spent(request, header, target.group):
            self._give_up(record, target.group, properties)
        # A transactional message that comes back to be consumed again has had its end.
        if not target.group and self._is_half(properties):
            for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC):
                self._topics.create_retry(topic, PERM_WRITE | PERM_READ, 1)
            self._transactions.prepare(record, properties)
            return (record,)
        level = self._delay_level(properties)
        if level:
            self._delay(record, level, properties)
        elif (due_ms := deliver_time(properties, now)) is not None and due_ms > now:
            return self._time(record, properties, due_ms)
        record.properties = encode_properties(properties)
        return (record,)

    def _own_properties(self, header: SendMessageRequestHeader) -> dict[str, str]:
        """What a sender may say of its message, and the cluster's name. Raises ResponseError for a recall:
        those have a request of their own, which may be told from a send."""
        properties = decode_properties(header.properties or "")
        if PROPERTY_RECALLED in properties:
            raise self._illegal(f"{PROPERTY_RECALLED} is not a sender's; recall a message by its handle")
        for name in INTERNAL_PROPERTIES.intersection(properties):
            del properties[name]
        properties.pop(PROPERTY_WAIT_STORE, None)
        properties[PROPERTY_CLUSTER] = self._settings.broker.broker_cluster_name
        return properties

    def _is_half(self, properties: dict[str, str]) -> bool:
        """Whether the message is one half of a transaction, its end to follow. Raises if such are refused."""
        if properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() != "true":
            return False
        if self._settings.broker.reject_transaction_message:
            raise _forbidden(
                f"the broker[{self._settings.broker.broker_ip1}] sending transaction message is forbidden "
                "(rejectTransactionMessage=true)"
            )
        return True

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
            raise self._groups.unknown(name)
        return group

    def _give_up(self, record: Record, group: str, properties: dict[str, str], reason: str = "") -> None:
        """Turn a record into a dead letter of the group, which lies in its topic at once."""
        topic = dlq_topic(group)
        self._topics.create_retry(topic, PERM_WRITE | PERM_READ, 1)
        record.topic, record.queue_id = topic, 0
        properties.pop(PROPERTY_DELAY_LEVEL, None)
        properties |= dead_letter_properties(properties, record.reconsume_times, reason)

    def _delay_level(self, properties: dict[str, str]) -> int:
        """The delay level asked for, at most the highest; 0 for none."""
        text = properties.get(PROPERTY_DELAY_LEVEL)
        if text is None:
            return 0
        try:
            return max(0, min(int(text), self._levels))
        except ValueError:
            raise self._illegal(f"{PROPERTY_DELAY_LEVEL}={text[:20]!r} is not a delay level") from None

    def _delay(self, record: Record, level: int, properties: dict[str, str]) -> None:
        """Send a message round by the schedule topic; `properties` get where it shall go when it is due."""
        properties[PROPERTY_DELAY_LEVEL] = str(level)
        properties[PROPERTY_REAL_TOPIC] = record.topic
        properties[PROPERTY_REAL_QUEUE_ID] = str(record.queue_id)
        for name in TIMER_PROPERTIES:  # a level goes before a time
            properties.pop(name, None)
        record.topic, record.queue_id = SCHEDULE_TOPIC, level - 1

    def _time(self, record: Record, properties: dict[str, str], due_ms: int) -> Records:
        """Keep a message until its time; its producer is given the handle to recall it."""
        self._topics.create_retry(TIMER_TOPIC, PERM_WRITE | PERM_READ, 1)
        unique_key = properties.get(PROPERTY_UNIQUE_KEY)
        handle = RecallHandle(record.topic, self._settings.broker.broker_name, due_ms, unique_key or "")
        self._timers.take(record, properties, due_ms)
        return RecordsWithHeader((record,), {RECALL_HANDLE: str(handle)}) if unique_key else (record,)

    # ---- messages that a consumer sends back ----

    def send_back(self, request: Command, connection: Connection, now: int) -> Command | None:
        """Store a message again that a group could not consume: later, or as a dead letter."""
        if self.refusal is not None:
            raise for_code(*self.refusal)
        header = request.read(ConsumerSendMsgBackRequestHeader)
        group = self._known_group(header.group)
        if not self._settings.broker.broker_permission & PERM_WRITE:
            raise self._broker_forbids()
        if group.retry_queue_nums <= 0:
            return request.reply()
        topic = self._retry_topic(header, group)
        message = self._message(header.offset)
        limit = group.retry_max_times
        if request.version >= VERSION_WITH_OWN_LIMIT and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        properties = send_back_properties(message)
        record = record_of(message, topic, self._chance.randrange(group.retry_queue_nums), properties)
        record.reconsume_times += 1
        if message.reconsume_times >= limit or header.delay_level < 0:
            self._give_up(record, header.group, properties, request.ext.get(REASON, ""))
        elif not self._retry_after(record, properties, request.ext.get(RETRY_DELAY_MS), now):
            level = header.delay_level or 3 + message.reconsume_times
            self._delay(record, min(level, self._levels), properties)
        record.properties = encode_properties(properties)
        self._store.put(record)
        self.count(record.topic, 1, record.size)
        origin = properties[PROPERTY_RETRY_TOPIC]  # a sender to the retry topic may have made it up
        self._stats.send_back(header.group, origin if origin in self._topics.table else message.topic)
        if not request.flag & FLAG_ONEWAY:
            self._acknowledgement.pending.returned.append(request)
        return None

    def _retry_after(
        self, record: Record, properties: dict[str, str], delay_ms: str | None, now: int
    ) -> bool:
        """Put a message off for the ms that its consumer names. False without them, and while as many as may
        wait for times of their own: then a level delays it. Raises ResponseError for what is no such time.
        """
        if delay_ms is None:
            return False
        due_ms = deliver_time({PROPERTY_DELAY_MS: delay_ms}, now)
        if due_ms is not None and due_ms > now:
            if len(self._timers) >= self._timers.limit:
                return False
            properties.pop(PROPERTY_DELAY_LEVEL, None)
            self._time(record, properties, due_ms)
        return True

    def _retry_topic(self, header: ConsumerSendMsgBackRequestHeader, group: SubscriptionGroupConfig) -> str:
        name = check_name(retry_topic(header.group))
        sys_flag = TOPIC_UNIT_SUB if header.unit_mode else 0
        topic = self._topics.create_retry(name, PERM_WRITE | PERM_READ, group.retry_queue_nums, sys_flag)
        if not topic.perm & PERM_WRITE:
            raise _forbidden(f"the topic[{name}] sending message is forbidden")
        return name

    def _message(self, physical_offset: int) -> StoredMessage:
        view = self._store.confirmed(physical_offset)
        if view is None:
            raise for_code(SYSTEM_ERROR, f"look message by offset failed, {physical_offset}")
        return decode_record(view, decompressed=False)

    def count(self, topic: str, count: int, size: int) -> None:
        """Note what was put into the pending batch."""
        counted = self._topic_count(topic)
        counted.count += count
        counted.size += size

    def _topic_count(self, topic: str) -> TopicCount:
        return self.topic_counts.setdefault(topic, TopicCount())


def host_of(connection: Connection) -> bytes:
    """The peer's address as records hold it; kept with the connection."""
    try:
        host = host_bytes(connection.peer_address)
    except LocalProtocolError:  # a simulated network has names of its own
        host = bytes(8)
    connection.state["host"] = host
    return host


def _forbidden(remark: str) -> ResponseError:
    return for_code(ResponseCode.NO_PERMISSION, remark)
