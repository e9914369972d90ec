"""Pulling: what a consumer may read, the reading itself, and the pulls that wait for a message to arrive.

A pull that finds nothing and may wait becomes a row of HeldPulls. When its queue grows it is tried again from
the top, so that a group disabled meanwhile is refused; messages that its filter refuses only move its offset
on. A pull whose offset is out of range is told the right one, and an OffsetMovedEvent is stored for
RocketMQ's monitoring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from rmq.protocol.codes import MASTER_ID

if TYPE_CHECKING:
    pass

import logging
from typing import TYPE_CHECKING

from rmq.broker.consume.long_polling import HeldPull, HeldPulls
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
from rmq.protocol.codes import (
    PERM_READ,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    RequestCode,
    ResponseCode,
)
from rmq.protocol.frames import encode_pull_reply_head
from rmq.protocol.headers import PullMessageRequestHeader
from rmq.protocol.properties import encode_properties
from rmq.protocol.record import Record
from rmq.shares import Holders, Shares, is_account
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.broker.config import BrokerConfig, Settings
    from rmq.broker.filtering.filters import Filter
    from rmq.broker.state import Tables
    from rmq.protocol.bodies import SubscriptionData, SubscriptionGroupConfig, TopicConfig
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection
    from rmq.store.reader import GetResult
    from rmq.store.store import Store
else:
    from rmq.late_attrs import frozen


ELSEWHERE_MS: Final = 1_000
"""So long a pull waits that came to another place than it should."""

_CODES: Final = {
    "FOUND": int(ResponseCode.SUCCESS),
    "MESSAGE_WAS_REMOVING": int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    "NO_MATCHED_MESSAGE": int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    "OFFSET_FOUND_NULL": int(ResponseCode.PULL_NOT_FOUND),
    "OFFSET_OVERFLOW_ONE": int(ResponseCode.PULL_NOT_FOUND),
    "OFFSET_OVERFLOW_BADLY": int(ResponseCode.PULL_OFFSET_MOVED),
    "OFFSET_TOO_SMALL": int(ResponseCode.PULL_OFFSET_MOVED),
}
_SUCCESS: Final = int(ResponseCode.SUCCESS)
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)
_RETRY: Final = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
LOOKS: Final = 800
_ROWS_MAX: Final = 20_000
_SHORT_EXPRESSION: Final = 512
_PLANS_SIZE_MAX: Final = 16 << 20
_PLAN_SIZE, _PLAN_FACTOR = 2_000, 50
"""What plans may take, and about what one takes: so many bytes, and so many for each character that is
compiled or split."""

log = logging.getLogger("rmq.broker")


@frozen
class Plan:
    """How to read for one subscription: a test of a unit's tags code, a test of a record; None passes all."""

    subscription: SubscriptionData
    matches: Callable[[int], bool] | None
    matches_record: Callable[[memoryview], bool] | None
    filter: Filter | None = None
    looks: int = LOOKS
    """Messages that one pull asks the expression about: the longer it is, the more each of them costs."""


@frozen
class Row:
    """What a pull found that reads as its group's heartbeats said: rows of group and topic, which are others
    once they are changed, whether the group broadcasts, and how to read."""

    group: SubscriptionGroupConfig
    topic: TopicConfig
    model: str | None
    plan: Plan


class ReadPreference(Protocol):
    """At which replica of a set clients pull; see `replication.failover.read_preference`."""

    def guides(self, language: str) -> bool:
        """Whether clients of this language are told where to pull."""

    def is_here(self) -> bool:
        """Whether their long polls may wait at this replica."""

    def has_left(self) -> bool:
        """Whether this replica was preferred at the last call, and is not now."""

    def suggested(self, queue_id: int) -> int:
        """The number of the broker to pull this queue from."""


class Pull:
    """Handles PULL_MESSAGE.

    Pulls that wait are in `held_pulls`: `on_deadline(at)` is called with each new deadline, so that
    its `step` is called by then. `on_pulled` is told of what was handed out. `put(record)` stores a record of
    the broker's own and raises StoreError.
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
        on_pulled: Callable[[PullMessageRequestHeader, GetResult, Connection], None],
        put: Callable[[Record], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._topics = tables.topics
        self._groups = tables.groups
        self._clients = tables.clients
        self._filters = tables.filters
        self._offsets = tables.offsets
        self._stats = tables.stats
        self.held_pulls = HeldPulls(clock, self._resume, on_deadline)
        self._on_pulled = on_pulled
        self._put = put
        self._now_ms = now_ms
        self.confirmed: Callable[[], int | None] | None = None
        """Up to which physical offset consumers may read, in a set with controllers; nothing as long as that
        is not known. None: all."""
        self.may_correct: Callable[[], bool] = lambda: True
        """Whether consumers may be told another offset than they ask for: not by who was master of a set."""
        self.place: ReadPreference | None = None
        """Where consumers are to read, in a set with controllers."""
        self.on_waiting: Callable[[HeldPull], None] | None = None
        """Is told of pulls that wait here as they are to."""
        self._unconfirmed: set[tuple[str, int]] = set()
        """Queues of which somebody wanted more than that."""
        self._plans: dict[tuple[str, str, str | None], Plan] = {}
        self._plans_size = 0
        self._rows: dict[tuple[str, str, int], Row] = {}
        settings.derive(self._settings_changed)

    def handlers(self) -> dict[int, Callable[[Command, Connection, int], Command | None]]:
        """What this part answers."""
        return {RequestCode.PULL_MESSAGE: self.pull}

    def _settings_changed(self) -> None:
        self._room = _room(self._settings.broker)
        self._plans.clear()
        self._plans_size = 0
        self._rows.clear()

    def read_on(self) -> None:
        """Consumers may read further than before: try the pulls that wait for that."""
        if self._unconfirmed:
            queues, self._unconfirmed = self._unconfirmed, set()
            self.held_pulls.turn()
            for topic, queue_id in queues:
                self.held_pulls.arrived(topic, queue_id, self._store.max_offset(topic, queue_id))

    def suggested(self, queue_id: int) -> int:
        """The broker from which a client that is guided shall pull this queue."""
        return MASTER_ID if self.place is None else self.place.suggested(queue_id)

    def waiting(self) -> list[HeldPull]:
        """Pulls of clients that are guided, if they are to wait here."""
        place = self.place
        if place is None or not place.is_here():
            return []
        return [pull for pull in self.held_pulls.all_pulls() if place.guides(pull.request.language)]

    def look_at_place(self) -> None:
        """Send those to another broker that wait here, and should no more."""
        place = self.place
        if place is not None and place.has_left():
            self.held_pulls.finish_where(lambda pull: place.guides(pull.request.language))

    def pull(self, request: Command, connection: Connection, now: int) -> Command | None:
        """Read messages for a consumer, now or when they arrive. Raises ResponseError for a refusal."""
        header = request.read(PullMessageRequestHeader)
        row = self._row(header)
        if row is None:
            group = self._group(header, connection)
            plan = self._plan(header, group, connection)
            self._keep(header, group, plan)
        else:
            group, plan = row.group, row.plan
        result = self._get(header, header.queue_offset, plan, connection)
        code = _CODES.get(result.status, -1)
        if code < 0:
            code = _code(result.status, header.queue_offset)
        if code == _MOVED:
            self._check_place()
        waits = code == _NOT_FOUND or self.held_pulls.is_silent
        if waits and header.sys_flag & PULL_SUSPEND:
            self._hold(request, header, connection)
        else:
            self._answer(request, header, connection, group, result, code)
        if header.sys_flag & PULL_COMMIT_OFFSET and self._settings.store.broker_role is not BrokerRole.SLAVE:
            self._offsets.commit(
                header.consumer_group,
                header.topic,
                header.queue_id,
                header.commit_offset,
                connection.peer_address,
                connection,
            )
        return None

    # ---- who may read what ----

    def _row(self, header: PullMessageRequestHeader) -> Row | None:
        """What the last pull of the group from the queue found, if all of it is as it was."""
        row = self._rows.get((header.consumer_group, header.topic, header.queue_id))
        if row is None or header.sys_flag & PULL_SUBSCRIPTION:
            return None
        members = self._clients.consumer_group(header.consumer_group)
        holds = (
            members is not None
            and members.subscriptions.get(header.topic) is row.plan.subscription
            and members.message_model == row.model
            and header.sub_version <= row.plan.subscription.sub_version
            and self._groups.table.get(header.consumer_group) is row.group
            and self._topics.table.get(header.topic) is row.topic
        )
        return row if holds else None

    def _keep(self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig, plan: Plan) -> None:
        """Keep what was found for the next pull, where it can be told that nothing of it has changed."""
        members = self._clients.consumer_group(header.consumer_group)
        topic = self._topics.get(header.topic)
        if header.sys_flag & PULL_SUBSCRIPTION or plan.filter is not None or members is None or topic is None:
            return
        if len(self._rows) >= _ROWS_MAX:
            self._rows.clear()
        row = Row(group, topic, members.message_model, plan)
        self._rows[header.consumer_group, header.topic, header.queue_id] = row

    def _group(self, header: PullMessageRequestHeader, connection: Connection) -> SubscriptionGroupConfig:
        """The consumer group, if the broker, the group and the topic allow it to read this queue."""
        if not self._settings.broker.broker_permission & PERM_READ:
            raise _forbidden(f"the broker[{self._settings.broker.broker_ip1}] pulling message is forbidden")
        name = header.consumer_group
        group = self._groups.table.get(name) or self._groups.get(name, self._settings.holders_of(connection))
        if group is None:
            raise self._groups.unknown(name, self._settings.holders_of(connection))
        if not group.consume_enable:
            raise _forbidden(f"subscription group no permission, {name}")
        return group

    def _check_queue(self, header: PullMessageRequestHeader, connection: Connection) -> None:
        topic = self._topics.get(header.topic)
        if topic is None:
            raise unknown_topic(header.topic)
        if not topic.perm & PERM_READ:
            raise _forbidden(f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise for_code(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{connection.peer_address}]",
            )

    def _plan(
        self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig, connection: Connection
    ) -> Plan:
        self._check_queue(header, connection)
        if header.sys_flag & PULL_SUBSCRIPTION:
            return self._plan_of_request(header, connection)
        subscription = self._registered(header, group)
        key = (header.topic, header.consumer_group, None)
        plan = self._plans.get(key)
        if is_tag_type(subscription.expression_type):
            if plan is None or plan.subscription is not subscription:
                plan = self._remember(key, self._plan_of_tags(subscription))
            return plan
        self._check_switch(subscription)
        known = self._filter(header, subscription, connection)
        if plan is None or plan.filter is not known:
            plan = self._remember(key, self._plan_of_filter(subscription, known.matches, known))
        return plan

    def _plan_of_request(self, header: PullMessageRequestHeader, connection: Connection) -> Plan:
        expression = header.subscription or ""
        key = (header.topic, expression, header.expression_type or "TAG")
        plan = self._plans.get(key)
        if plan is None:
            wanted = parse_subscription(header.topic, expression, header.expression_type)
            if is_tag_type(wanted.expression_type):
                plan = self._plan_of_tags(wanted)
            else:
                self._check_switch(wanted)
                plan = self._plan_of_filter(wanted, self._filters.compiled(wanted, connection.peer_address))
            self._remember(key, plan)
        return plan

    def _registered(
        self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig
    ) -> SubscriptionData:
        """The subscription that the group's members announced by heartbeat."""
        members = self._clients.announcements.of(header.consumer_group)
        if members is None:
            raise for_code(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: no member of {header.consumer_group} is here",
            )
        if not group.consume_broadcast_enable and members.message_model == "BROADCASTING":
            raise _forbidden(f"the consumer group[{header.consumer_group}] can not consume by broadcast way")
        subscription = members.subscriptions.get(header.topic)
        if subscription is None:
            raise for_code(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {header.consumer_group} does not subscribe to "
                f"{header.topic}; all members of a group must have the same subscriptions",
            )
        if subscription.sub_version < header.sub_version and self._filters.is_possible(header.sub_version):
            raise for_code(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return subscription

    def _filter(
        self, header: PullMessageRequestHeader, subscription: SubscriptionData, connection: Connection
    ) -> Filter:
        """The filter that the group's heartbeats brought, as new as the puller's."""
        topic, group = header.topic, header.consumer_group
        had = self._filters.get(topic, group)
        is_newer = had is None or had.client_version < subscription.sub_version
        if is_newer and self._clients.consumer_group(group) is None:
            self._filters.take(group, subscription)  # its heartbeats came to the master
        known = self._filters.usable(topic, group, connection.peer_address)
        if known is None:
            raise for_code(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if known.client_version < header.sub_version and self._filters.is_possible(header.sub_version):
            raise for_code(
                ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest"
            )
        return known

    def _plan_of_tags(self, subscription: SubscriptionData) -> Plan:
        topic, accepts = subscription.topic, None
        if self._settings.broker.filter_support_retry and topic.startswith(RETRY_PREFIX):
            accepts = self._filters.of_retries(topic.removeprefix(RETRY_PREFIX))
        return Plan(subscription, tag_matcher(subscription), _of_record(accepts))

    def _plan_of_filter(
        self, subscription: SubscriptionData, accepts: MessageFilter | None, known: Filter | None = None
    ) -> Plan:
        looks = min(LOOKS, LOOKS * _SHORT_EXPRESSION // max(1, len(subscription.sub_string)))
        return Plan(subscription, None, _of_record(accepts), known, looks)

    def _check_switch(self, wanted: SubscriptionData) -> None:
        """Raise ResponseError where filters other than tags are not allowed: before anything is compiled."""
        if not self._settings.broker.enable_property_filter:
            raise for_code(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {wanted.expression_type}; "
                "set enablePropertyFilter=true on the broker",
            )

    def _remember(self, key: tuple[str, str, str | None], plan: Plan) -> Plan:
        """Keep a plan for the next pull, as long as all of them together are small."""
        size = _size_of(plan)
        before = self._plans.pop(key, None)
        self._plans_size += size if before is None else size - _size_of(before)
        if self._plans_size > _PLANS_SIZE_MAX:
            self._plans.clear()
            self._plans_size = size
        self._plans[key] = plan
        return plan

    # ---- reading and answering ----

    def _get(
        self, header: PullMessageRequestHeader, offset: int, plan: Plan, connection: Connection
    ) -> GetResult:
        limits, clock = self._settings.store, self.held_pulls.clock
        # Somebody who pulls many queues over one connection may ask for more than it takes at a time.
        most = 1 if connection.is_busy else limits.max_transfer_count_on_message_in_memory
        reach = None if self.confirmed is None else self.confirmed() or 0
        began = clock()
        result = self._store.get(
            header.topic,
            header.queue_id,
            offset,
            min(header.max_msg_nums, most),
            limits.max_transfer_bytes_on_message_in_memory,
            plan.matches,
            plan.matches_record,
            plan.looks,
            reach,
        )
        if reach is not None and result.is_cut:
            self._unconfirmed.add((header.topic, header.queue_id))
        self._stats.read((clock() - began) * 1000)
        return result

    def _hold(self, request: Command, header: PullMessageRequestHeader, connection: Connection) -> None:
        config, held_pulls = self._settings.broker, self.held_pulls
        holders = self._settings.holders_of(connection)
        if held_pulls.count >= self._room:
            self._check_room(connection, holders)
        self._stats.miss()
        wait_ms, most = header.suspend_timeout_millis, config.max_suspend_time_mills
        if not config.long_polling_enable:
            wait_ms = config.short_polling_time_mills
        if not 0 <= wait_ms <= most:
            wait_ms = most if wait_ms > most else 0
        place, is_told = self.place, False
        if place is not None and place.guides(request.language):
            is_told = place.is_here()
            wait_ms = wait_ms if is_told else min(wait_ms, ELSEWHERE_MS)
        deadline = held_pulls.clock() + wait_ms / 1000
        request.shrink()  # senders choose how large the rest of it is
        held = HeldPull(connection, request, header, header.queue_offset, deadline, holders)
        held_pulls.hold_pull(held)
        if is_told and self.on_waiting is not None:
            self.on_waiting(held)

    def _check_room(self, connection: Connection, holders: Holders) -> None:
        """Raise ResponseError when as many pulls wait as may: in all, of a connection, of an account, or of
        an account's or address's share."""
        config, held_pulls, busy = self._settings.broker, self.held_pulls, ""
        shares = held_pulls.shares
        shares.most = config.pull_thread_pool_queue_capacity
        places = (
            (held_pulls.held_by(connection), config.max_held_pulls_of_connection, "maxHeldPullsOfConnection"),
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

    def _resume(self, held: HeldPull, last: bool) -> bool:
        """Try a held pull again; whether it is answered. A refusal is an answer."""
        request, header, connection = held.request, held.header, held.connection
        try:
            group = self._group(header, connection)
            result = self._get(header, held.offset, self._plan(header, group, connection), connection)
            code = _code(result.status, held.offset)
            if code == _MOVED:
                self._check_place()
        except ResponseError as error:
            connection.reply(request.reply(error.code, error.remark))
            return True
        if not last:
            if result.status == "NO_MATCHED_MESSAGE":
                held.offset = result.next_queue_offset
                return False
            if code == _NOT_FOUND or not self._settings.broker.long_polling_enable:
                return False
        self._answer(request, header, connection, group, result, code)
        return True

    def _answer(
        self,
        request: Command,
        header: PullMessageRequestHeader,
        connection: Connection,
        group: SubscriptionGroupConfig,
        result: GetResult,
        code: int,
    ) -> None:
        suggested = MASTER_ID
        if self._settings.broker.slave_read_enable:
            suggested = group.which_broker_when_consume_slowly if result.suggests_slave else group.broker_id
        place = self.place
        if place is not None and place.guides(request.language):
            suggested = place.suggested(header.queue_id)
        if code == _MOVED:
            code = self._out_of_range(header, result)
        offsets = (suggested, result.next_queue_offset, result.min_offset, result.max_offset)
        size = result.size if code == _SUCCESS else 0
        head = encode_pull_reply_head(request, code, result.status, offsets, size)
        if not size:
            self._stats.miss()
            connection.write(head)
            return
        connection.write([head, *result.buffers])
        self._stats.get(header.consumer_group, header.topic, result.count, size)
        self._on_pulled(header, result, connection)

    def _check_place(self) -> None:
        """Raise ResponseError where consumers must not be told another offset."""
        if not self.may_correct():
            raise for_code(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "this master has no lease of the controllers, another may have what you ask for",
            )

    def _out_of_range(self, header: PullMessageRequestHeader, result: GetResult) -> int:
        """The code for an offset out of range: a slave that must not correct lets the consumer ask again."""
        limits = self._settings.store
        is_slave = limits.broker_role is BrokerRole.SLAVE
        if is_slave and not limits.offset_check_in_slave:
            return _RETRY
        if not is_slave and result.status == "OFFSET_OVERFLOW_BADLY":
            place = header.topic, header.queue_id, header.queue_offset
            result.next_queue_offset = self._offsets.resume_at(*place)
        log.warning(
            "group %s asked for offset %d of %s queue %d, which holds %d to %d (%s)",
            header.consumer_group,
            header.queue_offset,
            header.topic,
            header.queue_id,
            result.min_offset,
            result.max_offset,
            result.status,
        )
        if not is_slave:
            self._put_event(header, result.next_queue_offset)
        return _MOVED

    def _put_event(self, header: PullMessageRequestHeader, next_offset: int) -> None:
        """Leave a message that a consumer asked out of range, as RocketMQ's monitoring expects."""
        name, host = self._settings.broker.broker_name, self._store.store_host
        record = offset_moved_event(header, next_offset, name, now_ms=self._now_ms(), host=host)
        try:
            self._put(record)
        except StoreError as error:
            log.warning("the event of a moved offset is lost: %s", error)


def _of_record(accepts: MessageFilter | None) -> Callable[[memoryview], bool] | None:
    """A test of a record's properties as a test of its bytes."""
    return None if accepts is None else lambda record: accepts(record_properties(record))


def _room(config: BrokerConfig) -> int:
    """So many waiting pulls cannot be over any limit, whosever they are."""
    return min(
        config.pull_thread_pool_queue_capacity // 2,  # less is no holder's share
        config.max_held_pulls_of_connection,
        config.max_held_pulls_of_account,
    )


def _of_account(shares: Shares, holders: Holders) -> int:
    return shares.held(holders[0]) if holders and is_account(holders[0]) else 0


def _size_of(plan: Plan) -> int:
    return _PLAN_SIZE + _PLAN_FACTOR * len(plan.subscription.sub_string)


def _code(status: str, offset: int) -> int:
    code = _CODES.get(status)
    if code is not None:
        return code
    return _MOVED if offset else _NOT_FOUND  # the queue holds nothing at all


def _forbidden(remark: str) -> ResponseError:
    return for_code(ResponseCode.NO_PERMISSION, remark)


def offset_moved_event(
    header: PullMessageRequestHeader, next_offset: int, broker_name: str, *, now_ms: int, host: bytes
) -> Record:
    """The record for a pull that is sent on to `next_offset`; `host` is the broker's address in records."""
    group = header.consumer_group
    event = {
        "consumerGroup": group,
        "messageQueue": {"brokerName": broker_name, "queueId": header.queue_id, "topic": header.topic},
        "offsetNew": next_offset,
        "offsetRequest": header.queue_offset,
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
