"""Sends: the requests that bring messages, and their records.

No handler answers with success. A handler puts records into the store's pending batch, by the rules of
`rmq.broker.produce.append`, and adds its request to the batch's acknowledgements; `rmq.broker.produce.acks`
answers when the batch is as safe as the settings ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from rmq.broker.delay.timer_records import PROPERTY_RECALLED, TIMER_PROPERTIES, deliver_time
from rmq.broker.produce.append import broker_properties, forbidden, queue_count
from rmq.broker.produce.send_answers import Records, RecordsWithHeader
from rmq.broker.tables.topic_attributes import check_type
from rmq.broker.tables.topics import check_name
from rmq.errors import LocalProtocolError, for_code
from rmq.message import (
    PROPERTY_CLUSTER,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_MSG_REGION,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRACE_SWITCH,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_WAIT_STORE,
    RETRY_PREFIX,
    retry_topic,
)
from rmq.plugin import account_of
from rmq.protocol.codes import (
    FLAG_ONEWAY,
    PERM_READ,
    PERM_WRITE,
    SYS_OF_SENDERS,
    SYS_ROLLBACK,
    TOPIC_UNIT,
    TOPIC_UNIT_SUB,
    RequestCode,
    ResponseCode,
)
from rmq.protocol.headers import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeader
from rmq.protocol.properties import (
    INTERNAL_PROPERTIES,
    PROPERTY_DELAY_MS,
    REASON,
    RETRY_DELAY_MS,
    SentProperties,
    decode_properties,
    encode_properties,
    send_back_properties,
)
from rmq.protocol.record import (
    NUL_IN_PROPERTIES,
    Record,
    decode_batch,
    decode_record,
    host_bytes,
    record_of,
)

if TYPE_CHECKING:
    from random import Random

    from rmq.broker.config import Settings
    from rmq.broker.delay.timers import Timers
    from rmq.broker.produce.acks import Acknowledgement
    from rmq.broker.produce.append import Append, TopicView
    from rmq.broker.state import Tables
    from rmq.message import StoredMessage
    from rmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection
    from rmq.store.store import Store

SYSTEM_ERROR: Final = ResponseCode.SYSTEM_ERROR
VERSION_WITH_OWN_LIMIT: Final = 121
"""From RocketMQ 3.4.9 on the number of retries that a client names counts (MQVersion.V3_4_9)."""

SLOW_PATH_PROPERTIES: Final = frozenset(
    (
        PROPERTY_DELAY_LEVEL,
        PROPERTY_TRANSACTION_PREPARED,
        PROPERTY_CLUSTER,
        PROPERTY_MSG_REGION,
        PROPERTY_TRACE_SWITCH,
        PROPERTY_RECALLED,
        *TIMER_PROPERTIES,
        *INTERNAL_PROPERTIES,
    )
)
_BATCH_TEXTS_MAX: Final = 64
_BATCH_TEXT_MAX: Final = 256
"""Texts of batches' own properties that are remembered, and their characters."""


class Send:
    """Handles SEND_MESSAGE (10, 310), SEND_BATCH_MESSAGE and CONSUMER_SEND_MSG_BACK."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        tables: Tables,
        *,
        append: Append,
        acknowledgement: Acknowledgement,
        timers: Timers,
        chance: Random,
    ) -> None:
        self._store = store
        self._topics = tables.topics
        self._stats = tables.stats
        self._append = append
        self._acknowledgement = acknowledgement
        self._timers = timers
        self._chance = chance
        self._of_batches: dict[str, tuple[bool, str]] = {}
        self._settings = settings
        settings.derive(self._settings_changed)

    def _settings_changed(self) -> None:
        self._of_batches.clear()
        suffix = encode_properties(broker_properties(self._settings.broker))
        self._read_properties = SentProperties(suffix, SLOW_PATH_PROPERTIES)

    def handlers(self) -> dict[int, Callable[[Command, Connection, int], Command | None]]:
        """Request codes and their handlers."""
        send = self.send  # one object, by which the broker knows sends
        return {
            RequestCode.SEND_MESSAGE: send,
            RequestCode.SEND_MESSAGE_V2: send,
            RequestCode.SEND_BATCH_MESSAGE: send,
            RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back,
        }

    # ---- sends ----

    def send(self, request: Command, connection: Connection, now: int) -> None:
        """Put a message, or a batch of them, into the pending batch. Raises ResponseError for a refusal."""
        append = self._append
        if append.refusal is not None:
            raise for_code(*append.refusal)
        header: SendMessageRequestHeader = request.header or request.read(SendMessageRequestHeader)
        target = append.targets.get(header.topic) or self._admit(header, connection)
        queue_id = header.queue_id
        if not 0 <= queue_id < target.queues:
            queue_id = append.choose_queue(queue_id, target, connection.peer_address)
        if header.batch:
            self._send_batch(request, header, connection, target, queue_id)
            return
        stored, waits, code, index_keys, rare = self._read_properties(header.properties or "")
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
            index_keys if append.is_indexed else (),
        )
        records: Records = (record,)
        if rare or target.is_special:
            records = self._detour(request, header, target, record, now, connection)
        append.put(record)
        if not request.flag & FLAG_ONEWAY:
            senders = self._acknowledgement.pending
            (senders.waiting if waits else senders.ack_on_write).append((request, queue_id, records))

    def put(self, request: Command, record: Record, header: Mapping[str, str]) -> None:
        """Put a record that a request stands for; its acknowledgement has these header fields too."""
        self._append.check_open()
        self._topics.create_retry(record.topic, PERM_WRITE | PERM_READ, 1)
        self._append.put(record)
        self._acknowledgement.pending.waiting.append(
            (request, record.queue_id, RecordsWithHeader((record,), header))
        )

    def _admit(self, header: SendMessageRequestHeader, connection: Connection) -> TopicView:
        return self._append.admit(header.topic, partial(self._make_topic, header, connection))

    def _detour(
        self,
        request: Command,
        header: SendMessageRequestHeader,
        target: TopicView,
        record: Record,
        now: int,
        connection: Connection,
    ) -> Records:
        properties = decode_properties(header.properties or "")
        self._append.check_properties(properties)
        if target.message_type:
            check_type(target.topic, target.message_type, properties)
        limit = header.max_reconsume_times if request.version >= VERSION_WITH_OWN_LIMIT else None
        account, maker = account_of(connection), self._settings.holders_of(connection)
        return self._append.detour(record, target.group, properties, now, limit, account, maker)

    def _send_batch(
        self,
        request: Command,
        header: SendMessageRequestHeader,
        connection: Connection,
        target: TopicView,
        queue_id: int,
    ) -> None:
        append, text = self._append, header.properties or ""
        if "\0" in text:
            raise append.illegal(NUL_IN_PROPERTIES)
        if header.sys_flag & SYS_ROLLBACK:
            raise append.illegal("a batch cannot be part of a transaction")
        waits, suffix = self._of_batches.get(text) or self._read_batch_properties(text)
        if target.message_type:
            for _, _, own in decode_batch(request.body):
                check_type(target.topic, target.message_type, decode_properties(own))
        common = Record(
            header.topic,
            queue_id,
            b"",
            sys_flag=header.sys_flag & SYS_OF_SENDERS | target.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=connection.state.get("host") or host_of(connection),
            reconsume_times=header.reconsume_times or 0,
        )
        records = append.put_batch(request.body, common, suffix)
        if not request.flag & FLAG_ONEWAY:
            senders = self._acknowledgement.pending
            (senders.waiting if waits else senders.ack_on_write).append((request, queue_id, records))

    def _read_batch_properties(self, text: str) -> tuple[bool, str]:
        """True if the sender of a batch waits, and the properties that follow each message's own. Cached,
        since a client's batches share their text; bounded in number and length, since senders choose the
        text."""
        shared = decode_properties(text)
        waits = shared.pop(PROPERTY_WAIT_STORE, "true").lower() == "true"
        shared |= broker_properties(self._settings.broker)
        read = waits, encode_properties(shared)
        if len(text) <= _BATCH_TEXT_MAX:
            if len(self._of_batches) >= _BATCH_TEXTS_MAX:
                self._of_batches.clear()
            self._of_batches[text] = read
        return read

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
            maker=self._settings.holders_of(connection),
        )
        if made is None and is_retry:
            made = self._topics.create_retry(topic, PERM_WRITE | PERM_READ, 1, sys_flag)
        return made

    # ---- messages that a consumer sends back ----

    def send_back(self, request: Command, connection: Connection, now: int) -> Command | None:
        """Store a message again that a group could not consume: later, or as a dead letter."""
        append = self._append
        append.check_open()
        header = request.read(ConsumerSendMsgBackRequestHeader)
        group = append.known_group(header.group)
        append.check_broker()
        if group.retry_queue_nums <= 0:
            return request.reply()
        topic = self._retry_topic(header, group)
        message = self._message(header.offset)
        limit = group.retry_max_times
        if request.version >= VERSION_WITH_OWN_LIMIT and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        properties = send_back_properties(message)
        queue_id = self._chance.randrange(min(group.retry_queue_nums, queue_count(topic)))
        record = record_of(message, topic.topic_name, queue_id, properties)
        record.reconsume_times += 1
        if message.reconsume_times >= limit or header.delay_level < 0:
            append.give_up(record, header.group, properties, request.ext.get(REASON, ""))
        elif not self._retry_after(record, properties, request.ext.get(RETRY_DELAY_MS), now, connection):
            level = header.delay_level or 3 + message.reconsume_times
            append.delay(record, min(level, append.levels), properties)
        record.properties = encode_properties(properties)
        append.put_own(record)
        origin = properties[PROPERTY_RETRY_TOPIC]  # a sender to the retry topic may have made it up
        self._stats.send_back(header.group, origin if origin in self._topics.table else message.topic)
        if not request.flag & FLAG_ONEWAY:
            self._acknowledgement.pending.send_backs.append(request)
        return None

    def _retry_after(
        self,
        record: Record,
        properties: dict[str, str],
        delay_ms: str | None,
        now: int,
        connection: Connection,
    ) -> bool:
        """Delay a message for the ms that its consumer names. False without them, and while no more timed
        messages of the consumer may wait: a level then delays the message. Raises ResponseError for an
        invalid time."""
        if delay_ms is None:
            return False
        due_ms = deliver_time({PROPERTY_DELAY_MS: delay_ms}, now)
        if due_ms is not None and due_ms > now:
            maker = self._settings.holders_of(connection)
            if self._timers.full(maker):
                return False
            properties.pop(PROPERTY_DELAY_LEVEL, None)
            self._append.time(record, properties, due_ms, "", maker)
        return True

    def _retry_topic(
        self, header: ConsumerSendMsgBackRequestHeader, group: SubscriptionGroupConfig
    ) -> TopicConfig:
        name = check_name(retry_topic(header.group))
        sys_flag = TOPIC_UNIT_SUB if header.unit_mode else 0
        topic = self._topics.create_retry(name, PERM_WRITE | PERM_READ, group.retry_queue_nums, sys_flag)
        if not topic.perm & PERM_WRITE:
            raise forbidden(f"the topic[{name}] sending message is forbidden")
        return topic

    def _message(self, physical_offset: int) -> StoredMessage:
        view = self._store.confirmed(physical_offset)
        if view is None:
            raise for_code(SYSTEM_ERROR, f"look message by offset failed, {physical_offset}")
        return decode_record(view, decompressed=False)


def host_of(connection: Connection) -> bytes:
    """The peer's address as records hold it; kept with the connection."""
    try:
        host = host_bytes(connection.peer_address)
    except LocalProtocolError:  # a simulated network has names of its own
        host = bytes(8)
    connection.state["host"] = host
    return host
