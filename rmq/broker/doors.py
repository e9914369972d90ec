"""The broker as a peer of a door may use it: `rmq.doors.DoorHost`, one `DoorPeer` for each client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import evolve

from rmq.broker.consume.long_polling import ParkedRead
from rmq.broker.consume.per_message.handles import handle_head, parse_handle
from rmq.broker.consume.per_message.polls import HeldTake
from rmq.broker.consume.read import MOVED, SUCCESS
from rmq.broker.filtering.subscription import parse_subscription
from rmq.broker.produce.acks import Call
from rmq.broker.tables.topic_attributes import MESSAGE_TYPE
from rmq.doors import (
    JOIN,
    PUBLISH,
    SUBSCRIBE,
    Appended,
    DeliverySettings,
    ReadRequest,
    ReadResult,
    TakenMessage,
    TakeRequest,
    TopicView,
)
from rmq.errors import (
    AccessDenied,
    InvalidName,
    LocalProtocolError,
    ResponseError,
    RmqError,
    StoreError,
    for_code,
)
from rmq.gateway import PLAIN_BYTES, plain_records, readable
from rmq.message import (
    average_share,
    parse_offset_message_id,
    validate_group,
)
from rmq.plugin import StoredEvent, account_of
from rmq.protocol.bodies import ConsumerData
from rmq.protocol.codes import (
    PERM_READ,
    PERM_WRITE,
    SYS_COMMIT,
    SYS_ROLLBACK,
    RequestCode,
    ResponseCode,
)
from rmq.protocol.headers import (
    DeleteSubscriptionGroupRequestHeader,
    EndTransactionRequestHeader,
    RecallMessageRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

if TYPE_CHECKING:
    from rmq.broker.consume.long_polling import Found
    from rmq.broker.consume.per_message.deliveries import Deliveries
    from rmq.broker.consume.per_message.taking import Handed
    from rmq.doors import OnAppended, OnCheck, OnCommitted, OnHandled, OnQuestion, OnRead, OnTaken
    from rmq.gateway import Gateway
    from rmq.message import Message, StoredMessage

from rmq.broker.door_client import DoorClient, Membership
from rmq.broker.door_gateway import LocalGateway

BROWSE_BYTES: Final = 256 << 10
NOTE: Final = "door.note"
"""The attribute of a group's configuration with a door's note."""

log = logging.getLogger("rmq.broker")

T = TypeVar("T")


class DoorPeer(DoorClient):
    """The `rmq.doors.DoorHost` of one client of a connection."""

    def gateway(self) -> Gateway:
        """Same as `rmq.gateway.GatewayHost.gateway`."""
        return LocalGateway(self, self._broker.door_peers.plain_sends(self, self._check))

    def make_topic(self, name: str) -> TopicView:
        """Same as `rmq.doors.DoorHost.make_topic`."""
        view = self.topic(name)
        if view is None:
            if not (self.may(PUBLISH, name) or self.may(SUBSCRIBE, name)):
                raise AccessDenied(remark=f"no permission to publish to {name} or to read it")
            self._broker.append.make_topic(name, self._broker.settings.holders_of(self))
            view = self.topic(name)
            if view is None:
                raise for_code(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
            self._broker.commit_soon()
        return view

    def append(
        self,
        message: Message,
        on_done: OnAppended | None = None,
        *,
        queue_id: int | None = None,
        holds: bool = False,
    ) -> None:
        """Same as `rmq.doors.DoorHost.append`."""
        self._check(PUBLISH, message.topic)
        shares = self._broker.door_peers.sends
        shares.most = self.config.send_thread_pool_queue_capacity
        if full := shares.full(self._broker.settings.holders_of(self)):
            raise for_code(
                ResponseCode.SYSTEM_BUSY, f"of the sends that wait (sendThreadPoolQueueCapacity) {full}"
            )
        if self._broker.hooks.quotas:
            size = len(message.body)
            if not holds:
                self._broker.quotas.produce(self, 1, size)
            elif self._broker.metered.holds_send(
                self, size, partial(self._append_late, message, on_done, queue_id)
            ):
                return
        self._append(message, on_done, queue_id)

    def _append(self, message: Message, on_done: OnAppended | None, queue_id: int | None) -> None:
        shares, holders = self._broker.door_peers.sends, self._broker.settings.holders_of(self)

        def done(outcome: Appended) -> None:
            shares.give(holders)
            hooks = self._broker.hooks
            if outcome.error is None and hooks.stored:
                event = StoredEvent(outcome.topic, 1, len(message.body), self)
                hooks.observe(hooks.stored, event)
            if on_done is not None and not self.is_closed:
                self._call(on_done, outcome)

        account = account_of(self)
        self._broker.plugin_appends.soon(message, done, holders, queue_id=queue_id, account=account)
        shares.add(holders)

    def _append_late(self, message: Message, on_done: OnAppended | None, queue_id: int | None) -> None:
        """Store a message that was held for its account's quota; a refusal is its outcome."""
        try:
            self._append(message, on_done, queue_id)
        except (RmqError, StoreError) as error:
            refusal = error
            if not isinstance(refusal, ResponseError):
                refusal = for_code(ResponseCode.SYSTEM_ERROR, str(error))
            if on_done is not None:
                self._call(on_done, Appended(message.topic, -1, -1, "", refusal))

    def _quota_wait(self) -> float:
        """For how many seconds the account is given no messages."""
        return self._broker.quotas.consume_wait(self) if self._broker.hooks.quotas else 0.0

    def recall(self, topic: str, handle: str, on_done: OnAppended) -> str:
        """Same as `rmq.doors.DoorHost.recall`."""
        self._check(PUBLISH, topic)
        broker, now = self._broker, self.now_ms()
        broker.append.look(now)
        broker.append.check_open()
        record, unique_key = broker.recall.record_of(RecallMessageRequestHeader(topic, handle), self, now)
        broker.topics.create_retry(record.topic, PERM_WRITE | PERM_READ, 1)
        broker.append.put(record)

        def done(outcome: Appended) -> None:
            if not self.is_closed:
                self._call(on_done, outcome)

        broker.acknowledgement.calls.append(Call(done, topic, record.queue_id, record))
        broker.commit_soon()
        return unique_key

    def produce(self, group: str, client_id: str, on_check: OnCheck = lambda transaction: None) -> None:
        """Same as `rmq.doors.DoorHost.produce`."""
        self._be_client(client_id)
        before = self._producing.get(group)
        self._producing[group] = on_check
        try:
            self._heartbeat(client_id, [], [group])
        except BaseException:
            if before is None:
                del self._producing[group]
            else:
                self._producing[group] = before
            raise

    def stop_producing(self, group: str) -> None:
        """Same as `rmq.doors.DoorHost.stop_producing`."""
        if self._producing.pop(group, None) is not None:
            self._broker.clients.unregister(self, producer_group=group)

    def end_transaction(
        self,
        group: str,
        transaction_id: str,
        message_id: str,
        commits: bool | None,
        on_done: OnCommitted | None = None,
    ) -> None:
        """Same as `rmq.doors.DoorHost.end_transaction`."""
        decision = {None: 0, True: SYS_COMMIT, False: SYS_ROLLBACK}[commits]
        header = _end_of(group, transaction_id, message_id, decision)
        self._ask(RequestCode.END_TRANSACTION, header, on_done)

    def commit_transactions(
        self,
        group: str,
        halves: Sequence[tuple[str, str]],
        acknowledgements: Sequence[tuple[str, str, Sequence[str]]],
        on_done: OnCommitted,
    ) -> None:
        """Same as `rmq.doors.DoorHost.commit_transactions`."""
        for one, _, _ in acknowledgements:
            self._check(JOIN, one)
        ends = (_end_of(group, name, key, SYS_COMMIT) for name, key in halves)

        def done(error: ResponseError | None) -> None:
            if not self.is_closed:
                self._call(on_done, error)

        self._broker.decisions.commit(ends, len(halves), acknowledgements, self, done)

    def read(self, request: ReadRequest) -> ReadResult:
        """Same as `rmq.doors.DoorHost.read`."""
        self._check(SUBSCRIBE, request.topic)
        self._check(JOIN, request.consumer_group)
        if self._quota_wait():
            return self._nothing(request)
        return self._result(request, self._broker.reader.read(request, self))

    def _result(self, request: ReadRequest, found: Found) -> ReadResult:
        _, result, code = found
        reader = self._broker.reader
        if code == MOVED:
            code = reader.correct(request, result)
            self._broker.commit_soon()  # the event of it
        messages, left = readable(b"".join(result.buffers), log, PLAIN_BYTES) if code == SUCCESS else ([], [])
        if messages:
            reader.handed_out(request, result.count - len(left), result.size, self)
        next_offset = left[0].queue_offset if left else result.next_queue_offset
        return ReadResult(messages, next_offset, result.min_offset, result.max_offset)

    def hold(self, request: ReadRequest, on_result: OnRead, seconds: float) -> None:
        """Same as `rmq.doors.DoorHost.hold`."""
        self._check(SUBSCRIBE, request.topic)
        self._check(JOIN, request.consumer_group)
        broker = self._broker
        if wait := self._quota_wait():
            if seconds <= 0:
                nothing = self._nothing(request)
                self.defer(0.0, lambda: self._call(on_result, nothing))
            else:
                again = partial(self.hold, request, on_result, seconds - wait)
                self.defer(min(wait, seconds), partial(self._hold_later, again, on_result))
            return
        if not broker.parked_pulls.is_silent:
            result = self._result(request, broker.reader.read(request, self))
            if result.messages or result.next_offset != request.queue_offset:
                self.defer(0.0, lambda: self._call(on_result, result))
                return
        seconds = max(0.0, min(seconds, self.config.max_suspend_time_mills / 1000))

        def resumed(held: ParkedRead, found: Found | ResponseError) -> None:
            if isinstance(found, ResponseError):
                self._call(on_result, found)
            else:
                self._call(on_result, self._result(request, found))

        held = ParkedRead(
            connection=self,
            header=request,
            offset=request.queue_offset,
            deadline=broker.clock() + seconds,
            on_result=resumed,
            holders=broker.settings.holders_of(self),
        )
        broker.reader.hold(held)

    def _hold_later(self, hold: Callable[[], T], on_result: Callable[[ResponseError], None]) -> T | None:
        """Hold a read or take of an account over its quota; the result may be a refusal."""
        try:
            return hold()
        except ResponseError as error:
            self._call(on_result, error)
        except StoreError as error:
            self._call(on_result, for_code(ResponseCode.SYSTEM_ERROR, str(error)))
        return None

    def _nothing(self, request: ReadRequest) -> ReadResult:
        return ReadResult([], request.queue_offset, *self.bounds(request.topic, request.queue_id))

    def take(self, request: TakeRequest) -> list[TakenMessage]:
        """Same as `rmq.doors.DoorHost.take`."""
        self._check(SUBSCRIBE, request.topic)
        self._check(JOIN, request.consumer_group)
        if self._quota_wait():
            return []
        return opened(self._broker.deliveries, request, self._broker.deliveries.take(request, self))

    def hold_take(self, request: TakeRequest, on_taken: OnTaken, seconds: float) -> Callable[[], None]:
        """Same as `rmq.doors.DoorHost.hold_take`."""
        self._check(SUBSCRIBE, request.topic)
        self._check(JOIN, request.consumer_group)
        broker = self._broker
        if seconds > 0 and (wait := self._quota_wait()):
            return self._take_later(request, on_taken, seconds, wait)
        if not broker.deliveries.polls.is_silent and (messages := self.take(request)):
            back = partial(give_back, broker.deliveries, request, [one.handle for one in messages])
            return given_soon(self.defer, partial(self._call, on_taken, messages), back)

        def taken(found: Sequence[Handed] | ResponseError) -> None:
            given = found if isinstance(found, ResponseError) else opened(broker.deliveries, request, found)
            self._call(on_taken, given)

        seconds = max(0.0, min(seconds, self.config.max_suspend_time_mills / 1000))
        holders = broker.settings.holders_of(self)
        held = HeldTake(self, request, broker.clock() + seconds, taken, holders)
        broker.deliveries.hold(held)
        return lambda: broker.deliveries.polls.drop(held)

    def _take_later(
        self, request: TakeRequest, on_taken: OnTaken, seconds: float, wait: float
    ) -> Callable[[], None]:
        """Hold a take until its account is within its quota; return a function that ends it."""
        ends: list[Callable[[], None]] = []

        def later() -> None:
            again = partial(self.hold_take, request, on_taken, seconds - wait)
            if (end := self._hold_later(again, on_taken)) is not None:
                ends.append(end)

        ends.append(self.defer(min(wait, seconds), later))
        return lambda: ends[-1]()

    def acknowledge(self, group: str, topic: str, handles: Sequence[str], on_done: OnHandled) -> None:
        """Same as `rmq.doors.DoorHost.acknowledge`."""
        self._check(JOIN, group)
        self._broker.deliveries.acknowledge(group, topic, handles, partial(self._handled, on_done))

    def dead_letter(self, group: str, topic: str, handles: Sequence[str], on_done: OnHandled) -> None:
        """Same as `rmq.doors.DoorHost.dead_letter`."""
        self._check(JOIN, group)
        self._broker.deliveries.dead_letter(group, topic, handles, partial(self._handled, on_done))

    def _handled(self, on_done: OnHandled, outcomes: Sequence[ResponseError | None]) -> None:
        if not self.is_closed:
            self._call(on_done, outcomes)

    def extend(self, group: str, topic: str, handle: str, invisible_ms: int) -> str:
        """Same as `rmq.doors.DoorHost.extend`."""
        self._check(JOIN, group)
        return self._broker.deliveries.extend(group, topic, handle, invisible_ms, self)

    def nack(
        self,
        group: str,
        topic: str,
        handles: Sequence[str],
        after_ms: int | None = None,
        *,
        counts: bool = True,
    ) -> list[ResponseError | None]:
        """Same as `rmq.doors.DoorHost.nack`."""
        self._check(JOIN, group)
        return self._broker.deliveries.nack(group, topic, handles, after_ms, counts=counts)

    def browse(
        self, group: str, topic: str, queue_id: int, offset: int, most: int = 32
    ) -> tuple[list[StoredMessage], int]:
        """Same as `rmq.doors.DoorHost.browse`."""
        self._check(SUBSCRIBE, topic)
        self._check(JOIN, group)
        broker = self._broker
        offset = max(offset, broker.offsets.get(group, topic, queue_id))
        reach = broker.role.high_watermark()
        result = broker.store.get(topic, queue_id, offset, most, BROWSE_BYTES, reach=reach)
        messages, left = readable(b"".join(result.buffers), log, PLAIN_BYTES)
        queue = broker.deliveries.queue_of(group, topic, queue_id)
        if queue is not None:
            messages = [one for one in messages if one.queue_offset not in queue.finished]
        return messages, left[0].queue_offset if left else result.next_queue_offset

    def topics_of_group(self, group: str) -> list[str]:
        """Same as `rmq.doors.DoorHost.topics_of_group`."""
        self._check(JOIN, group)
        return sorted(self._broker.offsets.topics_of(group))

    def end_group(self, group: str, on_done: OnCommitted | None = None) -> None:
        """Same as `rmq.doors.DoorHost.end_group`."""
        self._check(JOIN, group)
        self._broker.offsets.delete_group(group)  # now: the group may begin again while the table is saved
        header = DeleteSubscriptionGroupRequestHeader(group, False)
        self._ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header, on_done)

    def note(self, group: str) -> str:
        """Same as `rmq.doors.DoorHost.note`."""
        self._check(JOIN, group)
        config = self._broker.groups.table.get(group)
        return ((config and config.attributes) or {}).get(NOTE, "")

    def set_note(self, group: str, text: str) -> None:
        """Same as `rmq.doors.DoorHost.set_note`."""
        self._check(JOIN, group)
        groups = self._broker.groups
        config = groups.table.get(group)
        if config is None:
            raise groups.unknown(group)
        if self.note(group) != text:
            attributes = {**(config.attributes or {}), NOTE: text}
            groups.change(group, evolve(config, attributes=attributes), self.now_ms())

    def delivery_settings(self, group: str) -> DeliverySettings:
        """Same as `rmq.doors.DoorHost.delivery_settings`."""
        self._check(JOIN, group)
        deliveries = self._broker.deliveries
        attempts, policy = deliveries.policy(group)
        in_order = deliveries.is_ordered(group)
        if policy.is_exponential:
            growth = policy.initial_ms, policy.max_ms, policy.multiplier
            return DeliverySettings(attempts, in_order, (), *growth)
        return DeliverySettings(attempts, in_order, policy.delays_ms)

    def topic(self, name: str) -> TopicView | None:
        """Same as `rmq.doors.DoorHost.topic`."""
        config = self._broker.topics.get(name)
        if config is None:
            return None
        perm = config.perm & self.config.broker_permission
        return TopicView(
            config.read_queue_nums,
            config.write_queue_nums,
            bool(perm & PERM_READ),
            bool(perm & PERM_WRITE),
            (config.attributes or {}).get(MESSAGE_TYPE, ""),
        )

    def queues(self, topic: str) -> int:
        """Same as `rmq.doors.DoorHost.queues`."""
        config = self._broker.topics.get(topic)
        return 0 if config is None else config.read_queue_nums

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Same as `rmq.doors.DoorHost.bounds`."""
        store = self._broker.store
        return store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)

    def position(self, group: str, topic: str, queue_id: int) -> int:
        """Same as `rmq.doors.DoorHost.position`."""
        self._check(JOIN, group)
        return self._broker.offsets.get(group, topic, queue_id)

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, on_done: OnCommitted | None = None
    ) -> None:
        """Same as `rmq.doors.DoorHost.commit`."""
        self._check(SUBSCRIBE, topic)
        self._check(JOIN, group)

        def done(error: ResponseError | None) -> None:
            if on_done is not None and not self.is_closed:
                self._call(on_done, error)

        header = UpdateConsumerOffsetRequestHeader(group, topic, queue_id, offset)
        try:
            is_later = self._broker.offsets.commit_for(self, header, done)
        except ResponseError as error:
            done(error)
        except StoreError as error:
            done(for_code(ResponseCode.SYSTEM_ERROR, str(error)))
        else:
            if not is_later:
                done(None)

    def join(
        self,
        group: str,
        client_id: str,
        subscriptions: Mapping[str, str],
        on_change: Callable[[str], None] = lambda group: None,
        on_question: OnQuestion | None = None,
    ) -> None:
        """Same as `rmq.doors.DoorHost.join`."""
        self._check(JOIN, group)
        for topic in subscriptions:
            self._check(SUBSCRIBE, topic)
        try:
            validate_group(group)
        except InvalidName as error:
            raise for_code(ResponseCode.SYSTEM_ERROR, str(error)) from None
        holders = self._broker.settings.holders_of(self)
        if not self._broker.groups.exists(group, holders):
            raise self._broker.groups.unknown(group, holders)
        version = self.now_ms()
        data = ConsumerData(group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")
        data.subscription_data_set = [
            parse_subscription(topic, text, sub_version=version) for topic, text in subscriptions.items()
        ]
        self._be_client(client_id)
        before = self._joined.get(group)
        self._joined[group] = Membership(data, on_change, on_question, version)
        try:
            self._heartbeat(client_id, [data])
        except BaseException:
            if before is None:
                del self._joined[group]
            else:
                self._joined[group] = before
            raise

    def members(self, group: str) -> list[str]:
        """Same as `rmq.doors.DoorHost.members`."""
        return self._broker.clients.consumer_ids(group)

    def share(self, group: str, topic: str) -> list[int]:
        """Same as `rmq.doors.DoorHost.share`."""
        ids = sorted(self.members(group))
        if group not in self._joined or self._client_id not in ids:
            return []
        return list(average_share(self.queues(topic), len(ids), ids.index(self._client_id)))

    def leave(self, group: str) -> None:
        """Same as `rmq.doors.DoorHost.leave`."""
        if self._joined.pop(group, None) is not None:
            self._broker.clients.unregister(self, consumer_group=group)


def _end_of(group: str, transaction_id: str, message_id: str, decision: int) -> EndTransactionRequestHeader:
    """The end of a half message. Raises ResponseError for a text that is no transaction id."""
    place, _, queue_offset = transaction_id.rpartition(".")
    try:
        physical_offset = parse_offset_message_id(place)[1]
        return EndTransactionRequestHeader(
            group, int(queue_offset), physical_offset, decision, msg_id=message_id
        )
    except (ValueError, LocalProtocolError):
        remark = f"{transaction_id!r:.100} is not the id of a transaction of this broker"
        raise for_code(ResponseCode.MESSAGE_ILLEGAL, remark) from None


def taken_messages(
    found: Sequence[Handed], broker_name: str
) -> tuple[list[TakenMessage], list[str], list[str]]:
    """The messages that were taken, each with its handle; the handles of those that are too many at once; and
    the handles of those that cannot be read."""
    messages: list[TakenMessage] = []
    left: list[str] = []
    damaged: list[str] = []
    room = PLAIN_BYTES
    for one in found:
        head = handle_head(one.start, one.taken_ms, one.invisible_ms, broker_name, one.queue_id)
        attempt, given, over = one.attempt, len(messages), len(left)
        for buffer in one.buffers:
            records = bytes(buffer)
            plain, end = plain_records(records, room)
            for at, offset, position, size in plain:
                room -= size
                messages.append(TakenMessage(None, f"{head}{offset} {position}", attempt, records, at))
            if end == len(records):
                continue
            fit, others = readable(memoryview(records)[end:], log, room)
            for message in fit:
                room -= len(message.body)
                handle = f"{head}{message.queue_offset} {message.physical_offset}"
                messages.append(TakenMessage(message, handle, attempt))
            left += [f"{head}{other.queue_offset} {other.physical_offset}" for other in others]
        if len(messages) - given + len(left) - over != one.count:
            handles = [*(message.handle for message in messages[given:]), *left[over:]]
            whole = {parse_handle(handle).offset for handle in handles}
            damaged += [f"{head}{offset} 0" for offset in one.offsets() if offset not in whole]
    return messages, left, damaged


def opened(deliveries: Deliveries, request: TakeRequest, found: Sequence[Handed]) -> list[TakenMessage]:
    """The messages that were taken. Messages that are too many once they are decompressed are given back. The
    attempts of messages that cannot be read have failed: they are retried, and dead letters in the end."""
    messages, left, damaged = taken_messages(found, deliveries.broker_name)
    if left:
        give_back(deliveries, request, left)
    if damaged:
        give_back(deliveries, request, damaged, after_ms=None, counts=True)
    return messages


def give_back(
    deliveries: Deliveries,
    request: TakeRequest,
    handles: Sequence[str],
    *,
    after_ms: int | None = 0,
    counts: bool = False,
) -> None:
    """Give back messages of a take, without a counted attempt if not `counts`."""
    with suppress(ResponseError):  # they come again when their leases end
        deliveries.nack(request.consumer_group, request.topic, handles, after_ms, counts=counts)


def given_soon(
    defer: Callable[[float, Callable[[], None]], Callable[[], None]],
    give: Callable[[], None],
    back: Callable[[], None],
) -> Callable[[], None]:
    """Have `give()` called in the next round; return a function that has `back()` called in its place, if it
    is called earlier. Raises ResponseError, after `back()`, when too many calls wait."""
    is_waiting = True

    def given() -> None:
        nonlocal is_waiting
        is_waiting = False
        give()

    try:
        prevent = defer(0.0, given)
    except ResponseError:
        back()
        raise

    def end() -> None:
        nonlocal is_waiting
        if is_waiting:
            is_waiting = False
            prevent()
            back()

    return end
