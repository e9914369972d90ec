"""SimpleConsumer: single messages, each acknowledged by itself (per-message delivery).

Any number of consumers of a group share the topics, whatever the number of queues. A message that is received
is this consumer's for a time; then, or when the connection ends, the message is redelivered to any of these
consumers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import anyio

from rmq.client.consume.message_view import FoundMessage, found_messages
from rmq.client.consume.subscription import Sql, subscription
from rmq.client.reading.taking_member import TakingMember
from rmq.client.session.session import Session
from rmq.errors import NETWORK_ERRORS, LocalProtocolError, NoRoute, ResponseError, check_number, for_code
from rmq.message import validate_group
from rmq.protocol import codes
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import encode
from rmq.protocol.pop import (
    BY_POLICY,
    GIVES_BACK,
    AckMessageRequestHeader,
    BatchAck,
    BatchAckMessageRequestBody,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    bits_of,
    parse_start_offsets,
)
from rmq.remoting.loop import AsyncResource, TaskGroupScope

if TYPE_CHECKING:
    from attrs import frozen
else:
    from rmq.lazy_attrs import frozen

HANDLE: Final = "POP_CK"
"""The property by which RocketMQ's brokers name a message that comes again."""
PAUSE_SECONDS: Final = 1.0
"""After a broker could not be asked."""
RECEIVE_MAX: Final = 1_000
FIRST_RETRY_MS: Final = 10_000
"""What RocketMQ's brokers are told when a message is given back by the policy of its group, which they do not
apply here."""

log = logging.getLogger("rmq.client.consumer")


@frozen
class _Place:
    """A topic at a broker."""

    topic: str
    broker: str


class ReceivedMessage(FoundMessage):
    """A message that a SimpleConsumer has received. `attempt` is 1 on its first delivery; `expires_at`, in
    seconds of the event loop's clock, is when it is redelivered.
    """

    __slots__ = ("_consumer", "attempt", "expires_at", "handle", "start", "taken_topic")

    _consumer: SimpleConsumer
    handle: str
    attempt: int
    expires_at: float
    start: int
    taken_topic: str

    async def ack(self) -> None:
        """Acknowledge: the message is never redelivered. Raises as `SimpleConsumer.ack`. Cancelled: the
        message may or may not be acknowledged.
        """
        await self._consumer.ack(self)

    async def nack(self, *, after: float | None = None) -> None:
        """Give the message back: the attempt has failed, and the message is redelivered after so many
        seconds; None: by the retry policy of its group. Raises as `SimpleConsumer.ack`. Cancelled: it comes
        again at the latest when its time ends.
        """
        await self._consumer.nack(self, after=after)

    async def extend(self, seconds: float) -> None:
        """Keep the message for so many seconds from now on. Raises as `SimpleConsumer.ack`. Cancelled: the
        lease may or may not be longer.
        """
        await self._consumer.extend(self, seconds)


class SimpleConsumer(AsyncResource):
    """Receives single messages: `async with client.simple_consumer("billing", {"Orders": "*"}) as
    consumer`.

        for message in await consumer.receive(32, wait=10, invisible=60):
            await bill(message)
            await message.ack()

    A message that is not acknowledged within `invisible` seconds is redelivered, to any consumer of the
    group, with its attempt counted; after the group's last attempt the message becomes a dead letter. With
    `in_order`, a message waits while another one of its message group (`__SHARDINGKEY`) is out.

    The brokers must be ours, or RocketMQ's from 5.0 on; older brokers refuse (ResponseError).
    """

    def __init__(
        self,
        session: Session,
        group: str,
        topics: Mapping[str, str | Sql],
        *,
        in_order: bool = False,
        from_first: bool = False,
    ) -> None:
        self.group = validate_group(group)
        self._session = session
        self._subscriptions = {
            topic: subscription(topic, wanted, session.now_ms()) for topic, wanted in topics.items()
        }
        self._in_order = in_order
        self._init_mode = 0 if from_first else 1
        self._scope = TaskGroupScope()
        self._is_open = False
        self._member: TakingMember | None = None
        self._ready: list[ReceivedMessage] = []
        self._arrived = anyio.Event()
        self._polling: set[_Place] = set()
        self._paused: dict[_Place, float] = {}
        self._known: set[_Place] = set()
        """Places whose brokers have heard of this member, or soon will."""
        self._error: Exception | None = None

    async def __aenter__(self) -> SimpleConsumer:
        """Begin. Cancelled: the consumer is not open."""
        await self._scope.__aenter__()
        self._session.arrive()
        self._member = TakingMember.join(self._session, self.group, self._subscriptions)
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give back what was not handed to the application; messages that the application has are redelivered
        when their leases end.
        """
        self._is_open = False
        try:
            with anyio.CancelScope(shield=True), anyio.move_on_after(self._session.brokers.timeout):
                left, self._ready = self._ready, []
                for message in left:
                    try:
                        await self.nack(message, after=0)
                    except (*NETWORK_ERRORS, NoRoute, ResponseError):
                        break
                if self._member is not None:
                    await self._member.leave(self._subscriptions)
        finally:
            self._session.depart()
            await self._scope.__aexit__(kind, error, trace)

    # ---- receive ----

    async def receive(
        self, max_messages: int = 32, *, wait: float = 10.0, invisible: float = 60.0
    ) -> list[ReceivedMessage]:
        """The next messages, at most so many; none when no message comes for `wait` seconds. Each is this
        consumer's for `invisible` seconds.

        Raises NoRoute, a network error or the ResponseError of a broker when no broker could be asked, and
        ConfigError. Cancelled: no message is lost; messages that arrive later are kept for the next call.
        """
        check_number("max_messages", max_messages, 1)
        check_number("wait", wait, 0, whole=False)
        check_number("invisible", invisible, 1, whole=False)
        if not self._is_open:
            raise LocalProtocolError(f"the consumer of {self.group} is not open: use it in its block")
        now, deadline = self._session.now, self._session.now() + wait
        while True:
            found = self._take(max_messages)
            if found:
                return found
            left = deadline - now()
            places = await self._places()
            self._poll(places, min(max_messages, RECEIVE_MAX), max(0.0, left), invisible)
            with anyio.move_on_after(max(0.0, left) if left > 0 else self._session.brokers.timeout):
                await self._arrived.wait()
            found = self._take(max_messages)
            if found:
                return found
            if now() >= deadline and (left > 0 or not self._polling.intersection(places)):
                if self._error is not None and all(place in self._paused for place in places):
                    error, self._error = self._error, None
                    raise error
                return []

    def _take(self, most: int) -> list[ReceivedMessage]:
        """Messages that have arrived and are still leased."""
        now = self._session.now()
        kept = [message for message in self._ready if message.expires_at > now]
        taken, self._ready = kept[:most], kept[most:]
        return taken

    async def _places(self) -> list[_Place]:
        """The brokers of each topic. Raises NoRoute."""
        places: dict[_Place, None] = {}
        for topic in self._subscriptions:
            rotation = await self._session.rotation(topic, self._session.brokers.timeout)
            for queue in rotation.route.subscribe_queues:
                places[_Place(topic, queue.broker_name)] = None
        if not self._known.issuperset(places):
            self._known.update(places)
            self._scope.tasks.start_soon(self._session.join, self.group)
        return list(places)

    def _poll(self, places: Iterable[_Place], most: int, wait: float, invisible: float) -> None:
        """Ask each broker that is not being asked."""
        now = self._session.now()
        for place in places:
            if place not in self._polling and self._paused.get(place, 0.0) <= now:
                self._polling.add(place)
                self._scope.tasks.start_soon(self._ask, place, most, wait, invisible)

    async def _ask(self, place: _Place, most: int, wait: float, invisible: float) -> None:
        """Poll a broker once, and keep its messages."""
        try:
            self._ready += await self._pop(place, most, wait, invisible)
            self._paused.pop(place, None)
        except (*NETWORK_ERRORS, NoRoute, ResponseError) as error:
            log.warning("%s: %s of %s: %s", self.group, place.topic, place.broker, error)
            self._error, self._paused[place] = error, self._session.now() + PAUSE_SECONDS
            await anyio.sleep(PAUSE_SECONDS)
            try:
                await self._session.refresh(place.topic)
            except (*NETWORK_ERRORS, NoRoute, ResponseError):
                pass
        finally:
            self._polling.discard(place)
            self._arrived.set()
            self._arrived = anyio.Event()

    async def _pop(self, place: _Place, most: int, wait: float, invisible: float) -> list[ReceivedMessage]:
        session, wanted = self._session, self._subscriptions[place.topic]
        invisible_ms, asked_at = round(invisible * 1000), session.now()
        header = PopMessageRequestHeader(
            self.group,
            place.topic,
            -1,
            most,
            invisible_ms,
            round(wait * 1000),
            session.now_ms(),
            self._init_mode,
            wanted.expression_type,
            wanted.sub_string,
            self._in_order or None,
        )
        address = self._address(place.broker, place.topic)
        request = Command.request(codes.POP_MESSAGE, header)
        response = await session.pool.call(address, request, wait + session.brokers.timeout)
        if response.code in (codes.POLLING_TIMEOUT, codes.POLLING_FULL, ResponseCode.PULL_NOT_FOUND):
            return []
        if response.code != ResponseCode.SUCCESS:
            raise for_code(response.code, response.remark, address)
        told = response.read(PopMessageResponseHeader)
        starts = parse_start_offsets(told.start_offset_info)
        arrived = max(asked_at, session.now() - wait)
        messages = found_messages(response.body, place.broker, ReceivedMessage)
        for message in messages:
            start = starts.get(message.queue_id, message.queue_offset)
            times = f"{told.pop_time} {told.invisible_time} {told.revive_qid}"
            message.handle = message.properties.get(HANDLE) or (
                f"{start} {times} 0 {place.broker} {message.queue_id} {message.queue_offset}"
            )
            message._consumer, message.start, message.taken_topic = self, start, place.topic
            message.attempt = message.reconsume_times + 1
            message.expires_at = arrived + invisible if wait == 0 else session.now() + invisible
        return messages

    def _address(self, broker: str, topic: str) -> str:
        address = self._session.routes.master(broker)
        if address is None:
            detail = f"no address is known for broker {broker}"
            raise NoRoute(topic, self._session.name_servers.addresses, detail)
        return address

    # ---- acknowledge, give back, extend ----

    async def ack(self, *messages: ReceivedMessage) -> None:
        """Acknowledge messages: acknowledged messages are never redelivered. One broker gets one request.

        Raises ResponseError (NO_MESSAGE) when the time of one has ended or another consumer has it; the
        others are acknowledged. Raises NoRoute and network errors. Cancelled: they may or may not be
        acknowledged.
        """
        by_place: dict[_Place, list[ReceivedMessage]] = {}
        for message in messages:
            by_place.setdefault(_Place(message.taken_topic, message.broker_name), []).append(message)
        for place, some in by_place.items():
            if len(some) == 1:
                await self._call(some[0], codes.ACK_MESSAGE, self._ack_header(some[0]))
            else:
                await self._ack_batch(place, some)

    def _ack_header(self, message: ReceivedMessage) -> AckMessageRequestHeader:
        return AckMessageRequestHeader(
            self.group, message.taken_topic, message.queue_id, message.handle, message.queue_offset
        )

    async def _ack_batch(self, place: _Place, messages: Sequence[ReceivedMessage]) -> None:
        batches: dict[tuple[str, ...], list[int]] = {}
        for message in messages:
            start, taken, invisible, revive, kind, _, queue_id = message.handle.split(" ")[:7]
            key = start, taken, invisible, revive, kind, queue_id
            batches.setdefault(key, []).append(message.queue_offset)
        acks = []
        for (start, taken, invisible, revive, kind, queue_id), offsets in batches.items():
            first = min(int(start), min(offsets))
            bits = bits_of(first, offsets)
            acks.append(
                BatchAck(
                    self.group,
                    place.topic,
                    kind,
                    first,
                    int(queue_id),
                    int(revive),
                    int(taken),
                    int(invisible),
                    bits,
                )
            )
        body = BatchAckMessageRequestBody(place.broker, acks).to_json()
        address = self._address(place.broker, place.topic)
        request = Command.request(codes.BATCH_ACK_MESSAGE, None, body)
        response = await self._session.pool.call(address, request, self._session.brokers.timeout)
        if response.code != ResponseCode.SUCCESS:
            raise for_code(response.code, response.remark, address)

    async def nack(self, message: ReceivedMessage, *, after: float | None = None) -> None:
        """Give a message back: see `ReceivedMessage.nack`. Cancelled: it may or may not be given back."""
        if after is not None:
            check_number("after", after, 0, whole=False)
        ms = FIRST_RETRY_MS if after is None else round(after * 1000)
        header = self._change_header(message, ms)
        more = {GIVES_BACK: BY_POLICY if after is None else "true"}
        await self._call(message, codes.CHANGE_MESSAGE_INVISIBLETIME, encode(header) | more)
        message.expires_at = 0.0

    async def extend(self, message: ReceivedMessage, seconds: float) -> None:
        """Keep a message for longer: see `ReceivedMessage.extend`. Cancelled: it may or may not be."""
        check_number("seconds", seconds, 0.001, whole=False)
        header = self._change_header(message, max(1, round(seconds * 1000)))
        response = await self._call(message, codes.CHANGE_MESSAGE_INVISIBLETIME, header)
        told = response.read(ChangeInvisibleTimeResponseHeader)
        words = message.handle.split(" ")
        words[1:4] = str(told.pop_time), str(told.invisible_time), str(told.revive_qid)
        message.handle = " ".join(words)
        message.expires_at = self._session.now() + seconds

    def _change_header(self, message: ReceivedMessage, ms: int) -> ChangeInvisibleTimeRequestHeader:
        return ChangeInvisibleTimeRequestHeader(
            self.group, message.taken_topic, message.queue_id, message.handle, message.queue_offset, ms
        )

    async def _call(self, message: ReceivedMessage, code: int, header: Any) -> Command:
        """Ask the broker of a message. Raises as `ack`."""
        address = self._address(message.broker_name, message.taken_topic)
        request = Command.request(code, header)
        response = await self._session.pool.call(address, request, self._session.brokers.timeout)
        if response.code != ResponseCode.SUCCESS:
            raise for_code(response.code, response.remark, address)
        return response
