"""The broker as a peer of a door may use it: `rmq.doors.DoorHost`, one `DoorPeer` for each connection.

A DoorPeer stands in the broker's tables where the connection of a client does: as the connection of a held
read and of a group's member, as the holder of shares. RocketMQ's own requests to a client end here: that the
members of a group have changed becomes a call of the door, and the others are answered that a door cannot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from rmq.broker.consume.long_polling import ParkedRead
from rmq.broker.consume.per_message.handles import handle_text
from rmq.broker.consume.per_message.polls import HeldTake
from rmq.broker.consume.read import MOVED, SUCCESS
from rmq.broker.filtering.subscription import parse_subscription
from rmq.broker.tables.topic_attributes import MESSAGE_TYPE
from rmq.doors import (
    JOIN,
    PUBLISH,
    SUBSCRIBE,
    DeliverySettings,
    ReadRequest,
    ReadResult,
    TakenMessage,
    TakeRequest,
)
from rmq.errors import AccessDenied, InvalidName, ResponseError, StoreError, for_code
from rmq.message import average_share, validate_group
from rmq.plugin import StoredEvent
from rmq.protocol.bodies import ConsumerData, HeartbeatData
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import NotifyConsumerIdsChangedRequestHeader, UpdateConsumerOffsetRequestHeader
from rmq.protocol.record import decode_records

if TYPE_CHECKING:
    from rmq.broker.broker import Broker
    from rmq.broker.config import BrokerConfig
    from rmq.broker.consume.long_polling import Found
    from rmq.broker.consume.per_message.taking import Handed
    from rmq.doors import Appended, OnAppended, OnCommitted, OnHandled, OnRead, OnTaken
    from rmq.message import Message

HEARTBEAT_SECONDS: Final = 30.0
"""How often the broker renews the memberships of a connection that stands."""

log = logging.getLogger("rmq.broker")


class Stream(Protocol):
    """The connection of a door, as its DoorPeer uses it."""

    peer_address: str
    local_address: str
    state: dict[str, Any]
    has_proved: bool

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""

    @property
    def is_busy(self) -> bool:
        """Whether much waits to be sent."""

    def close(self, reason: str = ...) -> None:
        """End the connection behind the bytes that were written."""

    def finish(self, reason: str) -> None:
        """As `close`, after the door's goodbye."""


class DoorPeer:
    """The `rmq.doors.DoorHost` of one connection."""

    def __init__(self, broker: Broker, door: str, stream: Stream) -> None:
        self._broker = broker
        self._door = door
        self._stream = stream
        self.peer_address, self.local_address = stream.peer_address, stream.local_address
        self.state = stream.state
        self._client_id = ""
        self._joined: dict[str, tuple[ConsumerData, Callable[[str], None]]] = {}
        self._asked: dict[int, OnCommitted] = {}
        broker.on_door_open(door)

    def closed(self) -> None:
        """The connection has ended: forget all that is kept for it."""
        self._asked.clear()
        self._joined.clear()
        self._broker.on_door_close(self._door, self)

    # ---- as a connection in the broker's tables ----

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self._stream.is_closed

    @property
    def is_busy(self) -> bool:
        """Whether so much waits to be sent that a read is to take one message only."""
        return self._stream.is_busy

    def reset_on_close(self) -> None:
        """Nothing: a door's peer sees the end in order."""

    def finish(self, reason: str) -> None:
        """End the connection, after the door's goodbye."""
        self._stream.finish(reason)

    def close(self, reason: str = "closed by this side") -> None:
        """End the connection."""
        self._stream.close(reason)

    def write(self, frame: object) -> None:
        """Drop a frame of RocketMQ's: the peer speaks another protocol."""

    def notify(self, command: Command) -> None:
        """Take a request of the broker to a client."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            group = command.read(NotifyConsumerIdsChangedRequestHeader).consumer_group
            if group in self._joined:
                self._soon(partial(self._changed, group))
        elif not command.is_oneway:
            remark = f"the client is a peer of door {self._door}, which cannot be asked this"
            refusal = command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            self._soon(lambda: self._broker.pending_requests.on_response(refusal, self))

    def reply(self, response: Command) -> None:
        """Take the answer to a request that was made for the peer."""
        on_done = self._asked.pop(response.opaque, None)
        if on_done is not None:
            error = for_code(response.code, response.remark or "") if response.code else None
            self._call(on_done, error)

    def _changed(self, group: str) -> None:
        joined = self._joined.get(group)
        if joined is not None:
            self._call(joined[1], group)

    def _soon(self, call: Callable[[], None]) -> None:
        try:
            self.defer(0.0, call)
        except ResponseError as error:
            log.warning("%s of door %s is not told: %s", self.peer_address, self._door, error)

    def _call(self, call: Callable[..., None], *given: object) -> None:
        """Call a function of the door; a failure ends the connection."""
        try:
            call(*given)
        except Exception as error:
            log.error("door %s failed with an answer: %s", self._door, error, exc_info=error)
            self.close(f"door {self._door} failed")

    # ---- accounts ----

    @property
    def config(self) -> BrokerConfig:
        """The broker's configuration."""
        return self._broker.config

    def now_ms(self) -> int:
        """Wall time in ms."""
        return self._broker.now_ms()

    def authenticate(self, user: str, secret: str, *, signed: bytes | None = None) -> None:
        """As `rmq.doors.DoorHost.authenticate`."""
        self._broker.hooks.authenticate(self, user, secret, signed)
        self._stream.has_proved = True

    def may(self, action: str, name: str) -> bool:
        """As `rmq.doors.DoorHost.may`."""
        return self._broker.hooks.may(self, action, name)

    def _check(self, action: str, name: str) -> None:
        if not self.may(action, name):
            raise AccessDenied(remark=f"no permission to {action}: {name}")
        self._stream.has_proved = True

    # ---- messages ----

    def append(self, message: Message, on_done: OnAppended | None = None) -> None:
        """As `rmq.doors.DoorHost.append`."""
        self._check(PUBLISH, message.topic)
        holders = self._broker.settings.holders_of(self)
        shares = self._broker.door_sends
        shares.most = self.config.send_thread_pool_queue_capacity
        if full := shares.full(holders):
            raise for_code(
                ResponseCode.SYSTEM_BUSY, f"of the sends that wait (sendThreadPoolQueueCapacity) {full}"
            )

        def done(outcome: Appended) -> None:
            shares.give(holders)
            hooks = self._broker.hooks
            if outcome.error is None and hooks.stored:
                event = StoredEvent(outcome.topic, 1, len(message.body), self)
                hooks.observe(hooks.stored, event)
            if on_done is not None and not self.is_closed:
                self._call(on_done, outcome)

        self._broker.append_soon(message, done, holders)
        shares.add(holders)

    def read(self, request: ReadRequest) -> ReadResult:
        """As `rmq.doors.DoorHost.read`."""
        self._check(SUBSCRIBE, request.topic)
        self._check(JOIN, request.consumer_group)
        return self._result(request, self._broker.reader.read(request, self))

    def _result(self, request: ReadRequest, found: Found) -> ReadResult:
        _, result, code = found
        reader = self._broker.reader
        if code == MOVED:
            code = reader.correct(request, result)
            self._broker.commit_soon()  # the event of it
        messages = decode_records(b"".join(result.buffers)) if code == SUCCESS else []
        if messages:
            reader.handed_out(request, result, self)
        return ReadResult(messages, result.next_queue_offset, result.min_offset, result.max_offset)

    def hold(self, request: ReadRequest, on_result: OnRead, seconds: float) -> None:
        """As `rmq.doors.DoorHost.hold`."""
        self._check(SUBSCRIBE, request.topic)
        self._check(JOIN, request.consumer_group)
        broker = self._broker
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

    # ---- messages one by one ----

    def take(self, request: TakeRequest) -> list[TakenMessage]:
        """As `rmq.doors.DoorHost.take`."""
        self._check(SUBSCRIBE, request.topic)
        self._check(JOIN, request.consumer_group)
        return taken_messages(self._broker.deliveries.take(request, self), self.config.broker_name)

    def hold_take(self, request: TakeRequest, on_taken: OnTaken, seconds: float) -> Callable[[], None]:
        """As `rmq.doors.DoorHost.hold_take`."""
        self._check(SUBSCRIBE, request.topic)
        self._check(JOIN, request.consumer_group)
        broker = self._broker
        if not broker.deliveries.polls.is_silent and (messages := self.take(request)):
            return self.defer(0.0, lambda: self._call(on_taken, messages))

        def taken(found: Sequence[Handed] | ResponseError) -> None:
            if not isinstance(found, ResponseError):
                self._call(on_taken, taken_messages(found, self.config.broker_name))
            else:
                self._call(on_taken, found)

        seconds = max(0.0, min(seconds, self.config.max_suspend_time_mills / 1000))
        holders = broker.settings.holders_of(self)
        held = HeldTake(self, request, broker.clock() + seconds, taken, holders)
        broker.deliveries.hold(held)
        return lambda: broker.deliveries.polls.drop(held)

    def acknowledge(self, group: str, topic: str, handles: Sequence[str], on_done: OnHandled) -> None:
        """As `rmq.doors.DoorHost.acknowledge`."""
        self._check(JOIN, group)
        self._broker.deliveries.acknowledge(group, topic, handles, partial(self._handled, on_done))

    def dead_letter(self, group: str, topic: str, handles: Sequence[str], on_done: OnHandled) -> None:
        """As `rmq.doors.DoorHost.dead_letter`."""
        self._check(JOIN, group)
        self._broker.deliveries.dead_letter(group, topic, handles, partial(self._handled, on_done))

    def _handled(self, on_done: OnHandled, outcomes: Sequence[ResponseError | None]) -> None:
        if not self.is_closed:
            self._call(on_done, outcomes)

    def extend(self, group: str, topic: str, handle: str, invisible_ms: int) -> str:
        """As `rmq.doors.DoorHost.extend`."""
        self._check(JOIN, group)
        return self._broker.deliveries.extend(group, topic, handle, invisible_ms, self)

    def give_back(
        self, group: str, topic: str, handles: Sequence[str], after_ms: int | None = None
    ) -> list[ResponseError | None]:
        """As `rmq.doors.DoorHost.give_back`."""
        self._check(JOIN, group)
        return self._broker.deliveries.give_back(group, topic, handles, after_ms)

    def delivery_settings(self, group: str) -> DeliverySettings:
        """As `rmq.doors.DoorHost.delivery_settings`."""
        self._check(JOIN, group)
        deliveries = self._broker.deliveries
        attempts, policy = deliveries.policy(group)
        in_order = deliveries.is_ordered(group)
        if policy.is_exponential:
            growth = policy.initial_ms, policy.max_ms, policy.multiplier
            return DeliverySettings(attempts, in_order, (), *growth)
        return DeliverySettings(attempts, in_order, policy.delays_ms)

    # ---- queues ----

    def message_type(self, topic: str) -> str:
        """As `rmq.doors.DoorHost.message_type`."""
        config = self._broker.topics.get(topic)
        return "" if config is None else (config.attributes or {}).get(MESSAGE_TYPE, "")

    def queues(self, topic: str) -> int:
        """As `rmq.doors.DoorHost.queues`."""
        config = self._broker.topics.get(topic)
        return 0 if config is None else config.read_queue_nums

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """As `rmq.doors.DoorHost.bounds`."""
        store = self._broker.store
        return store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)

    # ---- groups ----

    def position(self, group: str, topic: str, queue_id: int) -> int:
        """As `rmq.doors.DoorHost.position`."""
        self._check(JOIN, group)
        return self._broker.offsets.get(group, topic, queue_id)

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, on_done: OnCommitted | None = None
    ) -> None:
        """As `rmq.doors.DoorHost.commit`."""
        self._check(SUBSCRIBE, topic)
        self._check(JOIN, group)
        header = UpdateConsumerOffsetRequestHeader(group, topic, queue_id, offset)
        request = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        self._asked[request.opaque] = on_done or _nothing
        handler: Callable[..., Command | None] = self._broker.handlers[RequestCode.UPDATE_CONSUMER_OFFSET]
        try:
            response = handler(request, self, self.now_ms())
        except ResponseError as error:
            response = request.reply(error.code, error.remark)
        except StoreError as error:
            response = request.reply(ResponseCode.SYSTEM_ERROR, str(error))
        if response is not None:
            self.reply(response)

    def join(
        self,
        group: str,
        client_id: str,
        subscriptions: Mapping[str, str],
        on_change: Callable[[str], None] = lambda group: None,
    ) -> None:
        """As `rmq.doors.DoorHost.join`."""
        self._check(JOIN, group)
        for topic in subscriptions:
            self._check(SUBSCRIBE, topic)
        try:
            validate_group(group)
        except InvalidName as error:
            raise for_code(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if self._joined and client_id != self._client_id:
            raise for_code(
                ResponseCode.SYSTEM_ERROR,
                f"the connection is client {self._client_id} already, and cannot be {client_id} too",
            )
        holders = self._broker.settings.holders_of(self)
        if not self._broker.groups.exists(group, holders):
            raise self._broker.groups.unknown(group, holders)
        version = self.now_ms()
        data = ConsumerData(group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")
        data.subscription_data_set = [
            parse_subscription(topic, text, sub_version=version) for topic, text in subscriptions.items()
        ]
        if not self._client_id:
            self.defer(HEARTBEAT_SECONDS, self._renew)
            self._client_id = client_id
        before = self._joined.get(group)
        self._joined[group] = data, on_change
        try:
            self._heartbeat(client_id, [data])
        except BaseException:
            if before is None:
                del self._joined[group]
            else:
                self._joined[group] = before
            raise
        self._client_id = client_id

    def _heartbeat(self, client_id: str, groups: Sequence[ConsumerData]) -> None:
        data = HeartbeatData(client_id, [], list(groups))
        self._broker.clients.heartbeat(data, self, "OTHER", 0, self.now_ms())

    def _renew(self) -> None:
        """Say that the member is here: its connection stands."""
        try:
            if self._joined:
                self._heartbeat(self._client_id, [data for data, _ in self._joined.values()])
        except (ResponseError, StoreError) as error:
            log.warning("%s of door %s: its membership ends: %s", self.peer_address, self._door, error)
            self.close(str(error))
        else:
            self.defer(HEARTBEAT_SECONDS, self._renew)

    def members(self, group: str) -> list[str]:
        """As `rmq.doors.DoorHost.members`."""
        return self._broker.clients.consumer_ids(group)

    def share(self, group: str, topic: str) -> list[int]:
        """As `rmq.doors.DoorHost.share`."""
        ids = sorted(self.members(group))
        if group not in self._joined or self._client_id not in ids:
            return []
        return list(average_share(self.queues(topic), len(ids), ids.index(self._client_id)))

    def leave(self, group: str) -> None:
        """As `rmq.doors.DoorHost.leave`."""
        if self._joined.pop(group, None) is not None:
            self._broker.clients.unregister(self, consumer_group=group)

    def defer(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """As `rmq.doors.DoorHost.defer`."""
        holders = self._broker.settings.holders_of(self)
        return self._broker.deferrals.add(self, holders, seconds, call)


def taken_messages(found: Sequence[Handed], broker_name: str) -> list[TakenMessage]:
    """The messages that were taken, each with its handle."""
    messages = []
    for one in found:
        attempt = one.attempt
        for buffer in one.buffers:
            for message in decode_records(memoryview(buffer)):
                handle = handle_text(
                    one.start,
                    one.taken_ms,
                    one.invisible_ms,
                    broker_name,
                    one.queue_id,
                    message.queue_offset,
                    message.physical_offset,
                )
                messages.append(TakenMessage(message, handle, attempt))
    return messages


def _nothing(error: ResponseError | None) -> None:
    pass
