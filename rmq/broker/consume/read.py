"""Reader: permissions and filters of a read, the read itself, and long polls.

`Reader` knows neither requests nor answers: `Pull` is its shell for the wire, and doors use it by
`rmq.broker.doors`. A consumer asks by a `long_polling.ReadRequest`; the header of a pull is one.

A read that finds nothing and may wait becomes a row of `ParkedPulls`. When the queue grows, the read is tried
again from the top, so that a group that was disabled is refused. Messages that the filter refuses only
move the offset on. An offset out of range is corrected, and an OffsetMovedEvent is stored for RocketMQ's
monitoring.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmq.broker.consume.long_polling import ParkedPulls
from rmq.broker.filtering.filters import MessageFilter, record_properties, tag_matcher
from rmq.broker.filtering.subscription import is_tag_type, parse_subscription
from rmq.broker.tables.topics import unknown_topic
from rmq.errors import ResponseError, StoreError, for_code
from rmq.message import (
    OFFSET_MOVED_EVENT,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    RETRY_PREFIX,
    tags_code,
)
from rmq.protocol import json
from rmq.protocol.codes import PERM_READ, PULL_SUBSCRIPTION, ResponseCode
from rmq.protocol.properties import encode_properties
from rmq.protocol.record import Record
from rmq.shares import Holders, Shares, is_account
from rmq.store.config import BrokerRole
from rmq.store.reader import GetResult

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.broker.config import BrokerConfig, Settings
    from rmq.broker.consume.long_polling import Found, ParkedRead, Reading, ReadRequest
    from rmq.broker.filtering.filters import Filter
    from rmq.broker.role import Role
    from rmq.broker.state import Tables
    from rmq.protocol.bodies import SubscriptionData, SubscriptionGroupConfig, TopicConfig
    from rmq.store.store import Store
else:
    from rmq.lazy_attrs import frozen


_CODES: Final = {
    "FOUND": int(ResponseCode.SUCCESS),
    "MESSAGE_WAS_REMOVING": int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    "NO_MATCHED_MESSAGE": int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    "OFFSET_FOUND_NULL": int(ResponseCode.PULL_NOT_FOUND),
    "OFFSET_OVERFLOW_ONE": int(ResponseCode.PULL_NOT_FOUND),
    "OFFSET_OVERFLOW_BADLY": int(ResponseCode.PULL_OFFSET_MOVED),
    "OFFSET_TOO_SMALL": int(ResponseCode.PULL_OFFSET_MOVED),
}
SUCCESS: Final = int(ResponseCode.SUCCESS)
NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)
RETRY: Final = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
SCANS: Final = 800
_ROWS_MAX: Final = 20_000
_SHORT_EXPRESSION: Final = 512
_PLANS_SIZE_MAX: Final = 16 << 20
_PLAN_SIZE, _PLAN_FACTOR = 2_000, 50
"""The bound of all plans in bytes, and the approximate size of one: bytes of a plan, and bytes for each
character that is compiled or split."""

log = logging.getLogger("rmq.broker")


@frozen
class SubscriptionPlan:
    """Tests for the reads of one subscription: of a unit's tags code, and of a record; None passes all."""

    subscription: SubscriptionData
    matches: Callable[[int], bool] | None
    matches_record: Callable[[memoryview], bool] | None
    filter: Filter | None = None
    looks: int = SCANS
    """Messages that one pull tests by an expression: the longer the expression, the more each test costs."""


@frozen
class Row:
    """Result of a pull that reads by its group's heartbeats: rows of group and topic, which are replaced when
    they change, whether the group broadcasts, and the plan."""

    group: SubscriptionGroupConfig
    topic: TopicConfig
    model: str | None
    plan: SubscriptionPlan


class Reader:
    """Reads queues for consumers.

    Reads that wait are in `parked_pulls`: `on_deadline(at)` is called with each new deadline, so that its
    `step` is called by then. `on_pulled` is called with the number and the bytes of messages that were handed
    out. `put(record)` stores a record of the broker's own and raises StoreError.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        tables: Tables,
        *,
        now_ms: Callable[[], int],
        clock: Callable[[], float],
        on_deadline: Callable[[float], None],
        on_pulled: Callable[[ReadRequest, int, int, Reading], None],
        put: Callable[[Record], None],
        role: Role,
    ) -> None:
        self._settings = settings
        self._store = store
        self._topics = tables.topics
        self._groups = tables.groups
        self._clients = tables.clients
        self._filters = tables.filters
        self._offsets = tables.offsets
        self._stats = tables.stats
        self._shared_reads = SharedReads(self.get)
        self.parked_pulls = ParkedPulls(clock, self._resume, on_deadline, self._shared_reads.forget)
        self._on_pulled = on_pulled
        self._put = put
        self._now_ms = now_ms
        self._role = role
        self._unconfirmed: dict[tuple[str, int], None] = {}
        """Queues whose readers wanted messages beyond the limit of reads."""
        self._plans: dict[tuple[str, str, str | None], SubscriptionPlan] = {}
        self._plans_size = 0
        self._rows: dict[tuple[str, str, int], Row] = {}
        self._refused: set[tuple[str, str]] = set()
        """Groups and topics of per-message delivery."""
        self.refusals = 0
        """Number of changes that refuse the pulls of a group from a topic."""
        settings.derive(self._settings_changed)

    def _settings_changed(self) -> None:
        self._room = _room(self._settings.broker)
        self._plans.clear()
        self._plans_size = 0
        self._rows.clear()

    def read_on(self) -> None:
        """Try the pulls that wait for a higher limit of reads: consumers may read further than before."""
        if self._unconfirmed:
            queues, self._unconfirmed = self._unconfirmed, {}
            self.parked_pulls.turn()
            for topic, queue_id in queues:
                self.parked_pulls.arrived(topic, queue_id, self._store.max_offset(topic, queue_id))

    @property
    def unconfirmed(self) -> dict[tuple[str, int], None]:
        """Queues, by topic and queue id, whose readers wanted more than they may read: `read_on` wakes these
        readers."""
        return self._unconfirmed

    # ---- permissions ----

    def admit(
        self, request: ReadRequest, reading: Reading
    ) -> tuple[SubscriptionGroupConfig, SubscriptionPlan]:
        """The group of a consumer, and the plan of its reads. Raises ResponseError for a refusal.

        The result of the group's last read from the queue holds as long as the group, topic and subscription
        are unchanged.
        """
        name, topic = request.consumer_group, request.topic
        row = self._rows.get((name, topic, request.queue_id))
        if row is not None and not request.sys_flag & PULL_SUBSCRIPTION:
            members, plan = self._clients.consumer_group(name), row.plan
            if (
                members is not None
                and members.subscriptions.get(topic) is plan.subscription
                and members.message_model == row.model
                and request.sub_version <= plan.subscription.sub_version
                and self._groups.table.get(name) is row.group
                and self._topics.table.get(topic) is row.topic
            ):
                return row.group, plan
        group = self._group(request, reading)
        plan = self._plan(request, group, reading)
        self._keep(request, group, plan)
        return group, plan

    def _keep(self, request: ReadRequest, group: SubscriptionGroupConfig, plan: SubscriptionPlan) -> None:
        """Keep the plan for the next read, if a change of its inputs would be noticed."""
        members = self._clients.consumer_group(request.consumer_group)
        topic = self._topics.get(request.topic)
        if (
            request.sys_flag & PULL_SUBSCRIPTION
            or plan.filter is not None
            or members is None
            or topic is None
        ):
            return
        if len(self._rows) >= _ROWS_MAX:
            self._rows.clear()
        row = Row(group, topic, members.message_model, plan)
        self._rows[request.consumer_group, request.topic, request.queue_id] = row

    def _group(self, request: ReadRequest, reading: Reading) -> SubscriptionGroupConfig:
        """The consumer group, if the broker, the group and the topic allow it to read this queue."""
        if not self._settings.broker.broker_permission & PERM_READ:
            raise _forbidden(f"the broker[{self._settings.broker.broker_ip1}] pulling message is forbidden")
        name = request.consumer_group
        group = self._groups.table.get(name) or self._groups.get(name, self._settings.holders_of(reading))
        if group is None:
            raise self._groups.unknown(name, self._settings.holders_of(reading))
        if not group.consume_enable:
            raise _forbidden(f"subscription group no permission, {name}")
        return group

    def admit_take(self, request: ReadRequest, reading: Reading) -> SubscriptionPlan:
        """The plan for a consumer that takes single messages, of a queue or, with a negative queue id, of any
        queue. Raises ResponseError for a refusal."""
        self._group(request, reading)
        if request.queue_id < 0:
            self._check_topic(request)
        else:
            self._check_queue(request, reading)
        return self._plan_of_request(request, reading)

    def refuse_pulls(self, group: str, topic: str) -> None:
        """Refuse pulls of a group from a topic. Raises ResponseError while one waits."""
        config = self._topics.get(topic)
        for queue_id in range(0 if config is None else config.read_queue_nums):
            if self.parked_pulls.has_of(topic, queue_id, group):
                raise _forbidden(
                    f"group {group} pulls topic {topic}: its messages cannot be taken one by one as well. "
                    "Stop the consumers that pull, or take by another group"
                )
        self._refused.add((group, topic))
        self.refusals += 1
        self._rows = {key: row for key, row in self._rows.items() if key[:2] != (group, topic)}

    def allow_pulls(self, group: str, topic: str) -> None:
        """Allow pulls of a group from a topic again."""
        self._refused.discard((group, topic))

    def _check_topic(self, request: ReadRequest) -> TopicConfig:
        topic = self._topics.get(request.topic)
        if topic is None:
            raise unknown_topic(request.topic)
        if not topic.perm & PERM_READ:
            raise _forbidden(f"the topic[{request.topic}] pulling message is forbidden")
        return topic

    def _check_queue(self, request: ReadRequest, reading: Reading) -> None:
        topic = self._check_topic(request)
        if not 0 <= request.queue_id < topic.read_queue_nums:
            raise for_code(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{request.queue_id}] is illegal, topic:[{request.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{reading.peer_address}]",
            )

    def _plan(
        self, request: ReadRequest, group: SubscriptionGroupConfig, reading: Reading
    ) -> SubscriptionPlan:
        self._check_queue(request, reading)
        if self._refused and (request.consumer_group, request.topic) in self._refused:
            raise _forbidden(
                f"group {request.consumer_group} takes messages of topic {request.topic} one by one: they "
                "cannot be pulled as well. Pull by another group, or stop the consumers that take"
            )
        if request.sys_flag & PULL_SUBSCRIPTION:
            return self._plan_of_request(request, reading)
        subscription = self._registered(request, group)
        key = (request.topic, request.consumer_group, None)
        plan = self._plans.get(key)
        if is_tag_type(subscription.expression_type):
            if plan is None or plan.subscription is not subscription:
                plan = self._remember(key, self._plan_of_tags(subscription))
            return plan
        self._check_switch(subscription)
        known = self._filter(request, subscription, reading)
        if plan is None or plan.filter is not known:
            plan = self._remember(key, self._plan_of_filter(subscription, known.matches, known))
        return plan

    def _plan_of_request(self, request: ReadRequest, reading: Reading) -> SubscriptionPlan:
        expression = request.subscription or ""
        key = (request.topic, expression, request.expression_type or "TAG")
        plan = self._plans.get(key)
        if plan is None:
            own = parse_subscription(request.topic, expression, request.expression_type)
            if is_tag_type(own.expression_type):
                plan = self._plan_of_tags(own)
            else:
                self._check_switch(own)
                plan = self._plan_of_filter(own, self._filters.compiled(own, reading.peer_address))
            self._remember(key, plan)
        return plan

    def _registered(self, request: ReadRequest, group: SubscriptionGroupConfig) -> SubscriptionData:
        """The subscription that the group's members announced by heartbeat."""
        members = self._clients.known_subscriptions.of(request.consumer_group)
        if members is None:
            raise for_code(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: no member of {request.consumer_group} is here",
            )
        if not group.consume_broadcast_enable and members.message_model == "BROADCASTING":
            raise _forbidden(f"the consumer group[{request.consumer_group}] can not consume by broadcast way")
        subscription = members.subscriptions.get(request.topic)
        if subscription is None:
            raise for_code(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {request.consumer_group} does not subscribe "
                f"to {request.topic}; all members of a group must have the same subscriptions",
            )
        if subscription.sub_version < request.sub_version and self._filters.is_possible(request.sub_version):
            raise for_code(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return subscription

    def _filter(self, request: ReadRequest, subscription: SubscriptionData, reading: Reading) -> Filter:
        """The filter from the group's heartbeats, as new as the puller's."""
        topic, group = request.topic, request.consumer_group
        had = self._filters.get(topic, group)
        is_newer = had is None or had.client_version < subscription.sub_version
        if is_newer and self._clients.consumer_group(group) is None:
            self._filters.take(group, subscription)  # its heartbeats came to the master
        known = self._filters.usable(topic, group, reading.peer_address)
        if known is None:
            raise for_code(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if known.client_version < request.sub_version and self._filters.is_possible(request.sub_version):
            raise for_code(
                ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest"
            )
        return known

    def _plan_of_tags(self, subscription: SubscriptionData) -> SubscriptionPlan:
        topic, accepts = subscription.topic, None
        if self._settings.broker.filter_support_retry and topic.startswith(RETRY_PREFIX):
            accepts = self._filters.of_retries(topic.removeprefix(RETRY_PREFIX))
        return SubscriptionPlan(subscription, tag_matcher(subscription), _of_record(accepts))

    def _plan_of_filter(
        self, subscription: SubscriptionData, accepts: MessageFilter | None, known: Filter | None = None
    ) -> SubscriptionPlan:
        looks = min(SCANS, SCANS * _SHORT_EXPRESSION // max(1, len(subscription.sub_string)))
        return SubscriptionPlan(subscription, None, _of_record(accepts), known, looks)

    def _check_switch(self, request: SubscriptionData) -> None:
        """Raise ResponseError if only filters by tags are allowed; called before a filter is compiled."""
        if not self._settings.broker.enable_property_filter:
            raise for_code(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {request.expression_type}; "
                "set enablePropertyFilter=true on the broker",
            )

    def _remember(self, key: tuple[str, str, str | None], plan: SubscriptionPlan) -> SubscriptionPlan:
        """Keep a plan for the next pull, as long as all plans together are small."""
        size = _size_of(plan)
        before = self._plans.pop(key, None)
        self._plans_size += size if before is None else size - _size_of(before)
        if self._plans_size > _PLANS_SIZE_MAX:
            self._plans.clear()
            self._plans_size = size
        self._plans[key] = plan
        return plan

    # ---- reading ----

    def get(
        self, request: ReadRequest, offset: int, plan: SubscriptionPlan, reading: Reading
    ) -> tuple[GetResult, int]:
        """The messages from an offset on, and the response code. Raises ResponseError if the consumer must
        not get another offset."""
        limits, clock = self._settings.store, self.parked_pulls.clock
        # A client that pulls many queues over one connection may ask for more than the connection takes at a
        # time.
        most = 1 if reading.is_busy else limits.max_transfer_count_on_message_in_memory
        reach = self._role.high_watermark()
        began = clock()
        result = self._store.get(
            request.topic,
            request.queue_id,
            offset,
            min(request.max_msg_nums, most),
            limits.max_transfer_bytes_on_message_in_memory,
            plan.matches,
            plan.matches_record,
            plan.looks,
            reach,
        )
        if reach is not None and result.is_cut:
            self._unconfirmed[request.topic, request.queue_id] = None
        self._stats.read((clock() - began) * 1000)
        code = _CODES.get(result.status, -1)
        if code < 0:
            code = MOVED if offset else NOT_FOUND  # the queue holds nothing at all
        if code == MOVED:
            self._check_lease()
        return result, code

    def _check_lease(self) -> None:
        """Raise ResponseError at a master that must not send consumers to another offset."""
        if not self._role.has_lease():
            raise for_code(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "this master has no lease of the controllers, its successor may have the message",
            )

    def read(self, request: ReadRequest, reading: Reading) -> Found:
        """Read now, and do not wait for messages. Raises ResponseError for a refusal."""
        group, plan = self.admit(request, reading)
        result, code = self.get(request, request.queue_offset, plan, reading)
        return group, result, code

    def hold(self, held: ParkedRead) -> None:
        """Keep a read until its queue grows past its offset, its time is over, or its connection closes.
        Raises ResponseError when too many wait.
        """
        if self.parked_pulls.count >= self._room:
            self._check_room(held.connection, held.holders)
        self._stats.miss()
        self.parked_pulls.park_pull(held)

    def handed_out(self, request: ReadRequest, count: int, size: int, reading: Reading) -> None:
        """Count messages, of so many bytes, that were given to a consumer."""
        self._stats.get(request.consumer_group, request.topic, count, size)
        self._on_pulled(request, count, size, reading)

    def _check_room(self, reading: Reading, holders: Holders) -> None:
        """Raise ResponseError if the limit of waiting pulls is reached: in all, of a connection, of an
        account, or of the share of an account or address."""
        config, parked_pulls, busy = self._settings.broker, self.parked_pulls, ""
        shares = parked_pulls.shares
        shares.most = config.pull_thread_pool_queue_capacity
        places = (
            (parked_pulls.held_by(reading), config.max_held_pulls_of_connection, "maxHeldPullsOfConnection"),
            (_of_account(shares, holders), config.max_held_pulls_of_account, "maxHeldPullsOfAccount"),
        )
        for held, most, setting in places:
            if held >= most:
                busy = f"{held} pulls wait for messages, {setting} is {most}"
        if full := shares.full(holders):
            busy = f"pulls wait for messages: {full} (pullThreadPoolQueueCapacity)"
        if busy:
            text = f"[OVERLOAD]system busy, start flow control for a while: {busy}"
            raise for_code(ResponseCode.SYSTEM_BUSY, text)

    def _resume(self, held: ParkedRead, last: bool) -> bool:
        """Try a held read again; return whether it was answered. A refusal is an answer."""
        request, reading = held.header, held.connection
        try:
            if self.is_of_another_topic(request):
                raise unknown_topic(request.topic)
            group = self._group(request, reading)
            plan = self._plan(request, group, reading)
            read = self.get if last else self._shared_reads.get
            result, code = read(request, held.offset, plan, reading)
        except ResponseError as error:
            held.on_result(held, error)
            return True
        if not last:
            if result.status == "NO_MATCHED_MESSAGE":
                held.offset = result.next_queue_offset
                return False
            if code == NOT_FOUND or not self._settings.broker.long_polling_enable:
                return False
        held.on_result(held, (group, result, code))
        return True

    def is_of_another_topic(self, request: ReadRequest) -> bool:
        """True if the offset belongs to another topic of the same name, which was deleted since."""
        created_ms = request.topic_created_ms
        if created_ms is None:
            return False
        topic = self._topics.table.get(request.topic)
        return topic is not None and topic.created_ms != created_ms

    def position_in_present_topic(self, request: ReadRequest) -> GetResult:
        """The position of a group whose offset belongs to another topic: the group's offset in the present
        topic, else the first offset. A slave may be behind, and returns the requested offset.

        Raises ResponseError without a lease.
        """
        self._check_lease()
        topic, queue_id = request.topic, request.queue_id
        start, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        at = request.queue_offset
        if self._settings.store.broker_role is not BrokerRole.SLAVE:
            committed = self._offsets.get(request.consumer_group, topic, queue_id)
            at = committed if start <= committed <= end else start
            log.info(
                "group %s asked for offset %d of an earlier topic %s: in queue %d of the present one it goes "
                "on at %d",
                request.consumer_group,
                request.queue_offset,
                topic,
                queue_id,
                at,
            )
        return GetResult("TOPIC_MADE_AGAIN", at, start, end)

    def correct(self, request: ReadRequest, result: GetResult) -> int:
        """The code for an offset out of range, with the correction put into the result. A slave that must not
        correct lets the consumer ask again."""
        limits = self._settings.store
        is_slave = limits.broker_role is BrokerRole.SLAVE
        if is_slave and not limits.offset_check_in_slave:
            return RETRY
        if not is_slave and result.status == "OFFSET_OVERFLOW_BADLY":
            place = request.topic, request.queue_id, request.queue_offset
            result.next_queue_offset = self._offsets.resume_at(*place)
        log.warning(
            "group %s asked for offset %d of %s queue %d, which holds %d to %d (%s)",
            request.consumer_group,
            request.queue_offset,
            request.topic,
            request.queue_id,
            result.min_offset,
            result.max_offset,
            result.status,
        )
        if not is_slave:
            self._put_event(request, result.next_queue_offset)
        return MOVED

    def _put_event(self, request: ReadRequest, next_offset: int) -> None:
        """Leave a message that a consumer asked out of range, as RocketMQ's monitoring expects."""
        name, host = self._settings.broker.broker_name, self._store.store_host
        record = offset_moved_event(request, next_offset, name, now_ms=self._now_ms(), host=host)
        try:
            self._put(record)
        except StoreError as error:
            log.warning("the event of a moved offset is lost: %s", error)


class SharedReads:
    """Reads that are tried in a row: reads of a queue from the same offset without a filter share one result
    of `get`."""

    def __init__(
        self, get: Callable[[ReadRequest, int, SubscriptionPlan, Reading], tuple[GetResult, int]]
    ) -> None:
        self._get = get
        self._last: tuple[tuple[str, int, int, int], tuple[GetResult, int]] | None = None

    def get(
        self, request: ReadRequest, offset: int, plan: SubscriptionPlan, reading: Reading
    ) -> tuple[GetResult, int]:
        """Same as `Reader.get`, from the shared result if possible."""
        if plan.matches is not None or plan.matches_record is not None or reading.is_busy:
            return self._get(request, offset, plan, reading)
        place = request.topic, request.queue_id, offset, request.max_msg_nums
        if self._last is not None and self._last[0] == place:
            return self._last[1]
        found = self._get(request, offset, plan, reading)
        if found[1] != MOVED:  # MOVED is corrected for each read
            self._last = place, found
        return found

    def forget(self) -> None:
        """Drop the shared results after a row of tries: the queue may grow, and the results hold parts of the
        log."""
        self._last = None


def _of_record(accepts: MessageFilter | None) -> Callable[[memoryview], bool] | None:
    """A test of a record's properties as a test of its bytes."""
    return None if accepts is None else lambda record: accepts(record_properties(record))


def _room(config: BrokerConfig) -> int:
    """The number of waiting pulls that is within every limit, for every holder."""
    return min(
        config.pull_thread_pool_queue_capacity // 2,  # no holder's share is less
        config.max_held_pulls_of_connection,
        config.max_held_pulls_of_account,
    )


def _of_account(shares: Shares, holders: Holders) -> int:
    return shares.held(holders[0]) if holders and is_account(holders[0]) else 0


def _size_of(plan: SubscriptionPlan) -> int:
    return _PLAN_SIZE + _PLAN_FACTOR * len(plan.subscription.sub_string)


def _forbidden(remark: str) -> ResponseError:
    return for_code(ResponseCode.NO_PERMISSION, remark)


def offset_moved_event(
    request: ReadRequest, next_offset: int, broker_name: str, *, now_ms: int, host: bytes
) -> Record:
    """The record for a pull that is sent on to `next_offset`; `host` is the broker's address in records."""
    group = request.consumer_group
    event = {
        "consumerGroup": group,
        "messageQueue": {"brokerName": broker_name, "queueId": request.queue_id, "topic": request.topic},
        "offsetNew": next_offset,
        "offsetRequest": request.queue_offset,
    }
    properties = {PROPERTY_TAGS: group, PROPERTY_KEYS: group, PROPERTY_DELAY_LEVEL: "0"}
    return Record(
        OFFSET_MOVED_EVENT,
        0,
        json.dumps(event),
        encode_properties(properties),
        born_timestamp=now_ms,
        born_host=host,
        tags_code=tags_code(group),
        keys=(group,),
    )
