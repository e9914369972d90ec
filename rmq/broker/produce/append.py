"""The append: every message that a broker stores goes through this module.

`Append` holds the rules of a send: whether messages are taken now, names and permissions, sizes, delays,
halves of transactions. The handlers of sends use it, and so does a plug-in, by `Append.message`. The compiled
engine takes runs of plain sends past `Append` (`rmq.broker.send_batches`), to topics that `Append` has
admitted, and with its limit on bodies.

`OwnWrites` is for records that the broker writes by itself: retries and dead letters, due delayed messages
and timers, committed transactions, the records of its system topics. These were accepted before, so that the
rules of a send do not apply again; but the topic may have lost queues since. A record for a queue that its
topic lacks goes to another queue of the topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from attrs import define

from rmq.broker.delay.timer_records import PROPERTY_RECALLED, TIMER_PROPERTIES, deliver_time
from rmq.broker.produce.acks import Call
from rmq.broker.produce.send_answers import Records, RecordsWithHeader
from rmq.broker.tables.topic_attributes import MESSAGE_TYPE, MIXED, check_type
from rmq.broker.tables.topics import check_name, unknown_topic
from rmq.errors import InvalidMessage, RemoteProtocolError, ResponseError, for_code
from rmq.message import (
    AUTO_CREATE_TOPIC,
    NOT_SENDABLE_TOPICS,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_MSG_REGION,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRACE_SWITCH,
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
    tags_code,
    with_properties,
)
from rmq.plugin import StoredEvent
from rmq.protocol.codes import PERM_READ, PERM_WRITE, SYS_MULTI_TAGS, ResponseCode
from rmq.protocol.headers import RECALL_HANDLE, RecallHandle
from rmq.protocol.properties import (
    INTERNAL_PROPERTIES,
    PROPERTY_ACCOUNT,
    PROPERTY_DELAY_MS,
    PROPERTY_DELIVER_MS,
    dead_letter_properties,
    decode_properties,
    encode_properties,
    join_properties,
    record_keys,
)
from rmq.protocol.record import NUL_IN_PROPERTIES, PROPERTIES_MAX, Record, decode_batch
from rmq.shares import NOBODY, Holders
from rmq.store.config import delay_table

if TYPE_CHECKING:
    from random import Random

    from rmq.broker.config import BrokerConfig, Settings
    from rmq.broker.delay.timers import Timers
    from rmq.broker.error_responses import Refusal
    from rmq.broker.produce.acks import Acknowledgement
    from rmq.broker.state import Tables
    from rmq.broker.tables.topics import Topics
    from rmq.message import Message
    from rmq.plugin import OnAppended, Peer
    from rmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
    from rmq.store.store import Store
    from rmq.store.writer import Batch

_PROPERTIES_SURE: Final = PROPERTIES_MAX // 4
"""So many characters fit in any encoding."""
_RECORD_ROOM: Final = 512
"""No record has more beside its body and properties, a BLANK after it included."""
_TOPICS_SAID: Final = 100
"""Topics whose moved records have a line of their own in the log; the others share one."""
_SAID_SECONDS: Final = 60.0
"""Between two lines about the same topic."""

log = logging.getLogger("rmq.broker")


# ---- the broker's own writes ----


@define
class _Moved:
    """Records of a topic that were moved to another queue and are not in the log yet, and the time of the
    next log line (`clock`)."""

    count: int = 0
    next_at: float = 0.0


class OwnWrites:
    """Stores records that the broker writes by itself. `clock` is in seconds."""

    def __init__(self, store: Store, topics: Topics, clock: Callable[[], float]) -> None:
        self._store = store
        self._topics = topics
        self._clock = clock
        self._moved: dict[str, _Moved] = {}
        self.moved = 0
        """Records that went to another queue than the one they were for."""

    def put(self, record: Record) -> None:
        """Take a record into the pending batch, in a queue that its topic has. Raises StoreError."""
        record.queue_id = self.queue_of(record.topic, record.queue_id)
        self._store.put(record)

    def queue_of(self, topic: str, queue_id: int) -> int:
        """The queue for a record of ours: `queue_id`, or a queue that consumers read when the topic lacks
        `queue_id`.

        All records for the same missing queue go to the same queue, so that they keep their order. A record
        for a deleted topic goes to queue 0, which the topic has if it is created again.
        """
        config = self._topics.get(topic)
        count = 1 if config is None else queue_count(config)
        if 0 <= queue_id < count and config is not None:
            return queue_id
        if self._topics.is_system(topic):  # its queues are the broker's, for any row of the table
            return queue_id
        self._log_moved(topic, queue_id, queue_id % count, config)
        return queue_id % count

    def _log_moved(self, topic: str, queue_id: int, chosen: int, config: TopicConfig | None) -> None:
        self.moved += chosen != queue_id
        now, is_known = self._clock(), topic in self._moved
        key = topic if is_known or len(self._moved) < _TOPICS_SAID else ""
        moved = self._moved.setdefault(key, _Moved())
        moved.count += 1
        if now < moved.next_at:
            return
        if config is None:
            why = "the topic does not exist; create it to have its messages read"
        else:
            why = f"the topic has {config.write_queue_nums} write and {config.read_queue_nums} read queues"
        text = "topic %s: a message for queue %d goes to queue %d: %s (moved since the last line: %d)"
        log.warning(text, topic, queue_id, chosen, why, moved.count)
        moved.count, moved.next_at = 0, now + _SAID_SECONDS


def queue_count(config: TopicConfig) -> int:
    """The queues of a topic that senders write and consumers read; at least 1."""
    both = min(config.write_queue_nums, config.read_queue_nums)
    return both if both > 0 else max(config.write_queue_nums, config.read_queue_nums, 1)


# ---- messages of others ----


@define
class TopicView:
    """Facts about a topic that a send needs, looked up once, until topics change."""

    topic: str
    queues: int
    write_queues: int
    sys_flag: int
    group: str
    message_type: str = ""
    """The type of messages that the topic takes; empty: any."""
    is_special: bool = False
    """True if each message is looked at: a retry topic, or one with a type."""


@define
class TopicCount:
    """Messages and bytes of one topic in the pending batch."""

    count: int = 0
    size: int = 0


TopicCounts = dict[str, TopicCount]


class Append:
    """The rules of a send, and the way into the store.

    `gate(now)` gives the reason for which no message is taken now, as (code, remark), or None; `refusal` is
    its last answer. `prepare(record, properties)` makes a record that of a half message. `keeps_records()`:
    whether a plug-in wants to see each record that is stored. `body_max` is the limit on bodies in bytes, for
    the engine's runs as well.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        tables: Tables,
        *,
        own: OwnWrites,
        acknowledgement: Acknowledgement,
        timers: Timers,
        prepare: Callable[[Record, dict[str, str]], None],
        gate: Callable[[int], Refusal | None],
        chance: Random,
        keeps_records: Callable[[], bool],
    ) -> None:
        self._store = store
        self._topics = tables.topics
        self._groups = tables.groups
        self._stats = tables.stats
        self._own = own
        self._acknowledgement = acknowledgement
        self._timers = timers
        self._prepare = prepare
        self._gate = gate
        self._chance = chance
        self._keeps_records = keeps_records
        self.turn = 0
        """The number of messages whose queues took turns."""
        self.targets: dict[str, TopicView] = {}
        self.refusal: Refusal | None = None
        self.counts: TopicCounts = {}
        self.plugin_counts: TopicCounts = {}
        self._settings = settings
        settings.derive(self._settings_changed)

    def _settings_changed(self) -> None:
        store_config = self._settings.store
        self.targets.clear()
        self.body_max = store_config.max_message_size
        self.is_indexed = store_config.message_index_enable
        self.levels = len(delay_table(store_config.message_delay_level))
        self._batch_room = store_config.mapped_file_size_commit_log - _RECORD_ROOM
        self.body_sure = min(self.body_max, self._batch_room - PROPERTIES_MAX)
        self._broker_properties = broker_properties(self._settings.broker)

    def topics_changed(self) -> None:
        """Drop the cached data of topics after a topic was made, changed or deleted."""
        self.targets.clear()

    # ---- the gate ----

    def look(self, now: int) -> None:
        """Find out whether messages are taken now (ms of wall time)."""
        self.refusal = self._gate(now)

    def check_open(self) -> None:
        """Raises ResponseError while no message is taken."""
        if self.refusal is not None:
            raise for_code(*self.refusal)

    # ---- the topic and its queue ----

    def admit(self, topic: str, make: Callable[[], TopicConfig | None]) -> TopicView:
        """The facts about a topic, after all checks that hold until topics change. `make()` makes the topic
        where that is allowed. Raises ResponseError.
        """
        check_name(topic)
        if topic in NOT_SENDABLE_TOPICS or topic == TIMER_TOPIC:
            raise forbidden(f"Sending message to topic[{topic}] is forbidden.")
        config = self._topics.get(topic) or make()
        if config is None:
            raise unknown_topic(topic)
        if config.order:
            self.check_broker()
        group = topic.removeprefix(RETRY_PREFIX) if topic.startswith(RETRY_PREFIX) else ""
        kind = (config.attributes or {}).get(MESSAGE_TYPE, "")
        target = self.targets[topic] = TopicView(
            topic,
            max(config.write_queue_nums, config.read_queue_nums),
            config.write_queue_nums,
            SYS_MULTI_TAGS if config.topic_filter_type == "MULTI_TAG" else 0,
            group,
            "" if kind == MIXED else kind,
            bool(group or kind not in ("", MIXED)),
        )
        return target

    def check_broker(self) -> None:
        """Raises ResponseError when brokerPermission forbids to write."""
        broker = self._settings.broker
        if not broker.broker_permission & PERM_WRITE:
            raise forbidden(f"the broker[{broker.broker_ip1}] sending message is forbidden")

    def choose_queue(self, queue_id: int, target: TopicView, sender: str) -> int:
        """A random queue for a producer that names none. Raises ResponseError for one that does not exist."""
        if queue_id < 0 and target.write_queues > 0:
            return self._chance.randrange(target.write_queues)
        raise for_code(
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[{queue_id}] is illegal, topic {target.topic} has {target.queues} queues. "
            f"Producer: {sender}",
        )

    def known_group(self, name: str) -> SubscriptionGroupConfig:
        """The configuration of a group. Raises ResponseError when there is none."""
        group = self._groups.get(name)
        if group is None:
            raise self._groups.unknown(name)
        return group

    # ---- sizes ----

    def check_sizes(self, record: Record) -> None:
        """Raises ResponseError for a message that is too long for the settings, the formats or the files."""
        size, body = len(record.properties.encode()), len(record.body)
        if body > self.body_max:
            raise self.illegal(f"the body has {body} bytes")
        if size > PROPERTIES_MAX:
            raise self.illegal(f"the properties have {size} bytes")
        if size + body + _RECORD_ROOM > self._settings.store.mapped_file_size_commit_log:
            raise self.illegal("it does not fit a file of the commit log (mappedFileSizeCommitLog)")

    def illegal(self, reason: str) -> ResponseError:
        """The refusal of a message that breaks a rule."""
        return for_code(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: {reason}. msg body length limit {self.body_max}B (maxMessageSize), "
            f"msg properties length limit {PROPERTIES_MAX}B.",
        )

    # ---- into the store ----

    def put(self, record: Record) -> None:
        """Take a message of a client into the pending batch and count it. Raises ResponseError,
        StoreError."""
        self._put(record)
        counted = self.counts.get(record.topic) or self._count_of(record.topic)
        counted.count += 1
        counted.size += record.size

    def _put(self, record: Record) -> None:
        properties = record.properties
        if "\0" in properties:
            raise self.illegal(NUL_IN_PROPERTIES)
        if len(record.body) > self.body_sure or len(properties) > _PROPERTIES_SURE:
            self.check_sizes(record)
        self._store.put(record)

    def put_own(self, record: Record) -> None:
        """Take a message that the broker writes for a consumer into the pending batch, and count it. Raises
        StoreError.
        """
        self._own.put(record)
        self.count(record.topic, 1, record.size)

    def put_batch(self, body: bytes, common: Record, suffix: str) -> Batch | list[Record]:
        """Put all messages of a batch, or none; in a single step, unless the record of each message is
        needed. `common` is their common part, `suffix` follows the properties of each message. Raises
        ResponseError, StoreError."""
        if len(body) > self.body_max:
            raise self.illegal(f"the batch has {len(body)} bytes")
        if not self._keeps_records() and len(body) < self._batch_room:
            try:
                batch = self._store.put_batch(common, body, suffix.encode())
            except RemoteProtocolError as error:
                raise self.illegal(str(error)) from None
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
            raise self.illegal(str(error)) from None
        if not messages:
            raise self.illegal("the batch has no message")
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
                record_keys(properties) if self.is_indexed else (),
            )
            if len(one) > room or len(record.properties) > _PROPERTIES_SURE:
                self.check_sizes(record)
            records.append(record)
        return records

    def count(self, topic: str, count: int, size: int) -> None:
        """Count messages that were put into the pending batch."""
        counted = self._count_of(topic)
        counted.count += count
        counted.size += size

    def _count_of(self, topic: str) -> TopicCount:
        return self.counts.setdefault(topic, TopicCount())

    def take_counts(self) -> tuple[TopicCounts, TopicCounts]:
        """The counts of the pending batch, of requests and of plug-ins; the counters are reset."""
        taken = self.counts, self.plugin_counts
        self.counts = {}
        if self.plugin_counts:
            self.plugin_counts = {}
        return taken

    def count_stored(self, counts: TopicCounts) -> int:
        """Add messages that are stored to the broker's counters; returns how many."""
        total = 0
        for topic, counted in counts.items():
            self._stats.put(topic, counted.count, counted.size)
            total += counted.count
        return total

    def count_failed(self) -> None:
        """Add the pending batch, which could not be written, to the broker's counters."""
        for counts in self.take_counts():
            self._stats.failed_puts += sum(counted.count for counted in counts.values())

    # ---- messages that do not go straight to their topic ----

    def detour(
        self,
        record: Record,
        group: str,
        properties: dict[str, str],
        now: int,
        limit: int | None,
        account: str = "",
        maker: Holders = NOBODY,
    ) -> Records:
        """Turn the record of a retried, delayed or half message into the record that is stored.

        `group` is that of a retry topic, else empty; `limit` is the number of retries, None for the group's
        own number. `properties` are the message's, after `check_properties`; `account` is that of the sender,
        which owns a half message or a timed message; a timed one counts for `maker`. Raises ResponseError.
        """
        if group:
            config = self.known_group(group)
            most = config.retry_max_times if limit is None else limit
            if record.reconsume_times >= most:
                self.give_up(record, group, properties)
        # A transactional message that comes back to be consumed again has had its end.
        if not group and self._is_half(properties):
            for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC):
                self._topics.create_retry(topic, PERM_WRITE | PERM_READ, 1)
            if account:
                properties[PROPERTY_ACCOUNT] = account
            self._prepare(record, properties)
            return (record,)
        level = self._delay_level(properties)
        if level:
            self.delay(record, level, properties)
        elif (due_ms := deliver_time(properties, now)) is not None and due_ms > now:
            return self.time(record, properties, due_ms, account, maker)
        record.properties = encode_properties(properties)
        return (record,)

    def check_properties(self, properties: dict[str, str]) -> None:
        """Keep the properties that a sender may give, and add `broker_properties`. Raises ResponseError for a
        recall, which has a request of its own: a plain send may be taken for a recall."""
        if PROPERTY_RECALLED in properties:
            raise self.illegal(
                f"{PROPERTY_RECALLED} may not be set by a sender; recall a message by its handle"
            )
        for name in INTERNAL_PROPERTIES.intersection(properties):
            del properties[name]
        properties.pop(PROPERTY_WAIT_STORE, None)
        properties |= self._broker_properties

    def _is_half(self, properties: dict[str, str]) -> bool:
        """True if the message is one half of a transaction, its end to follow. Raises if such are refused."""
        if properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() != "true":
            return False
        if self._settings.broker.reject_transaction_message:
            raise forbidden(
                f"the broker[{self._settings.broker.broker_ip1}] sending transaction message is forbidden "
                "(rejectTransactionMessage=true)"
            )
        return True

    def give_up(self, record: Record, group: str, properties: dict[str, str], reason: str = "") -> None:
        """Turn a record into a dead letter of the group, which lies in its topic at once."""
        topic = dlq_topic(group)
        self._topics.create_retry(topic, PERM_WRITE | PERM_READ, 1)
        record.topic, record.queue_id = topic, self._own.queue_of(topic, 0)
        properties.pop(PROPERTY_DELAY_LEVEL, None)
        properties |= dead_letter_properties(properties, record.reconsume_times, reason)

    def _delay_level(self, properties: dict[str, str]) -> int:
        """The delay level asked for, at most the highest; 0 for none."""
        text = properties.get(PROPERTY_DELAY_LEVEL)
        if text is None:
            return 0
        try:
            return max(0, min(int(text), self.levels))
        except ValueError:
            raise self.illegal(f"{PROPERTY_DELAY_LEVEL}={text[:20]!r} is not a delay level") from None

    def delay(self, record: Record, level: int, properties: dict[str, str]) -> None:
        """Send a message through the schedule topic; `properties` get its real topic and queue."""
        properties[PROPERTY_DELAY_LEVEL] = str(level)
        properties[PROPERTY_REAL_TOPIC] = record.topic
        properties[PROPERTY_REAL_QUEUE_ID] = str(record.queue_id)
        for name in TIMER_PROPERTIES:  # a level goes before a time
            properties.pop(name, None)
        record.topic, record.queue_id = SCHEDULE_TOPIC, level - 1

    def time(
        self, record: Record, properties: dict[str, str], due_ms: int, account: str, maker: Holders
    ) -> Records:
        """Keep a message of `maker` until its time; its producer gets the handle for a recall."""
        self._topics.create_retry(TIMER_TOPIC, PERM_WRITE | PERM_READ, 1)
        unique_key = properties.get(PROPERTY_UNIQUE_KEY)
        handle = RecallHandle(record.topic, self._settings.broker.broker_name, due_ms, unique_key or "")
        self._timers.take(record, properties, due_ms, account, maker)
        return RecordsWithHeader((record,), {RECALL_HANDLE: str(handle)}) if unique_key else (record,)

    # ---- messages of plug-ins ----

    def message(
        self,
        message: Message,
        now: int,
        on_done: OnAppended | None,
        maker: Holders = NOBODY,
        *,
        queue_id: int | None = None,
        account: str = "",
    ) -> None:
        """Take a plug-in's message into the pending batch, by all the rules of a send; without `queue_id` the
        queues of its topic take turns. `on_done` is called with the outcome when the message is as safe as
        the settings ask. A half message or a timed one belongs to `account`.

        Raises ResponseError for a refusal and StoreError for a failed write, without a call of `on_done`. A
        topic created by the message counts for `maker`, and so does a timed message.
        """
        self.check_open()
        topic = message.topic
        target = self.targets.get(topic) or self.admit(topic, lambda: self._made_for_plugin(topic, maker))
        config = self._topics.get(topic)
        if config is None or not config.perm & PERM_WRITE or not target.write_queues:
            raise forbidden(f"the topic[{topic}] sending message is forbidden")
        if queue_id is None:
            queue_id = self.turn % target.write_queues
        elif not 0 <= queue_id < target.write_queues:
            queue_id = self.choose_queue(queue_id, target, "a plug-in")
        properties = _properties_of(message)
        self.check_properties(properties)
        if target.message_type:
            check_type(topic, target.message_type, properties)
        record = Record(
            topic,
            queue_id,
            message.body,
            "",  # `detour` writes the properties
            message.flag,
            target.sys_flag,
            born_timestamp=now,
            born_host=self._store.store_host,
            tags_code=tags_code(message.tags),
            keys=record_keys(properties) if self.is_indexed else (),
        )
        self.detour(record, target.group, properties, now, None, account, maker)
        self._put(record)
        self.turn += 1
        counted = self.plugin_counts.setdefault(record.topic, TopicCount())
        counted.count += 1
        counted.size += record.size
        if on_done is not None:
            self._acknowledgement.calls.append(Call(on_done, topic, queue_id, record))

    def took(self, count: int) -> None:
        """Let the turns of the queues go on behind messages of a run, which is stored."""
        self.turn += count

    def make_topic(self, topic: str, maker: Holders) -> None:
        """Make a topic as a plug-in's first message would. Raises ResponseError."""
        self.check_open()
        self.admit(topic, lambda: self._made_for_plugin(topic, maker))

    def _made_for_plugin(self, topic: str, maker: Holders) -> TopicConfig | None:
        queues = self._settings.broker.default_topic_queue_nums
        return self._topics.create_for_send(topic, AUTO_CREATE_TOPIC, queues, "a plugin", maker=maker)


def stored_events(
    counts: TopicCounts, records: Sequence[Record], peer: Peer | None, store_host: bytes
) -> Iterator[StoredEvent]:
    """The events of requests' messages that are stored, one for each topic."""
    for topic, counted in counts.items():
        mine = [record for record in records if record.topic == topic]
        yield StoredEvent(topic, counted.count, counted.size, peer, mine, store_host)


def _properties_of(message: Message) -> dict[str, str]:
    """The properties of a message as a client sends them. Raises InvalidMessage for two times of delivery."""
    times = [message.delay_level or None, message.deliver_at_ms, message.delay_ms]
    if len(times) - times.count(None) > 1:
        raise InvalidMessage(remark="only one of delay_level, deliver_at_ms and delay_ms is possible")
    extra = {PROPERTY_DELIVER_MS: message.deliver_at_ms, PROPERTY_DELAY_MS: message.delay_ms}
    return with_properties(message, {name: str(ms) for name, ms in extra.items() if ms is not None})


def broker_properties(config: BrokerConfig) -> dict[str, str]:
    """The properties that the broker writes into each message: the cluster's name, and with
    `region_in_messages` the region and whether the message is traced."""
    properties = {PROPERTY_CLUSTER: config.broker_cluster_name}
    if config.region_in_messages:
        properties[PROPERTY_MSG_REGION] = config.region_id
        properties[PROPERTY_TRACE_SWITCH] = "true" if config.trace_on else "false"
    return properties


def forbidden(remark: str) -> ResponseError:
    """The refusal for lack of a permission."""
    return for_code(ResponseCode.NO_PERMISSION, remark)
