"""SimpleConsumer: single messages, each acknowledged by itself (per-message delivery).

Any number of consumers of a group share the topics, whatever the number of queues. A received message belongs
to its consumer for a time; after that, or when the connection ends, the message is redelivered to any of
these consumers.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import ceil
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import evolve

from rmq.client.consume.assignments import UNANSWERED_SECONDS
from rmq.client.consume.message_view import PulledMessage, delivery_of, found_messages, quickest
from rmq.client.consume.retry import check_after
from rmq.client.consume.subscription import Sql, subscription
from rmq.client.consume.workers import Workers
from rmq.client.reading.pops import Pops
from rmq.client.reading.taking_member import Taker, TakingMember
from rmq.client.session.requests import FAILURES as REQUEST_FAILURES
from rmq.client.session.routes import keep_rows
from rmq.client.session.session import Session
from rmq.errors import (
    NETWORK_ERRORS,
    ConfigError,
    CorruptRecord,
    NoRoute,
    NotReady,
    ResponseError,
    check_number,
    not_open,
)
from rmq.message import validate_group
from rmq.protocol import codes
from rmq.protocol.command import Command
from rmq.protocol.headers import encode
from rmq.protocol.pop import (
    BY_POLICY,
    HANDLE,
    INVISIBLE_MAX_MS,
    NACK_KIND,
    UNSEEN,
    AckMessageRequestHeader,
    BatchAck,
    BatchAckMessageRequestBody,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    bits_of,
    parse_start_offsets,
    real_topic,
)
from rmq.remoting.loop import AsyncResource, TaskGroupScope, Waiter, current_loop

if TYPE_CHECKING:
    from attrs import frozen
else:
    from rmq.lazy_attrs import frozen

FAILURES: Final = (*REQUEST_FAILURES, CorruptRecord)
"""Failures of a broker, also damage in its answer; other brokers may work, and this broker later."""
PAUSE_SECONDS: Final = 1.0
"""Pause after such a failure, in seconds."""
RECEIVE_MAX: Final = 1_000
ACKS_OF_A_REQUEST: Final = 400
"""Acknowledgements of takes in one request, whose body is at most 256 KiB."""
MESSAGES_OF_A_REQUEST: Final = 8_000
"""Messages after which a request takes no further take; a broker takes 10,000."""
FIRST_RETRY_MS: Final = 10_000
"""The redelivery time in ms for RocketMQ's brokers when a message is given back by the policy of its group:
they do not apply the policy in this case."""

log = logging.getLogger("rmq.client.consumer")


@frozen
class Place:
    """A topic at a broker."""

    topic: str
    broker: str


@frozen(eq=False)
class _Take:
    """Messages of a queue in one answer: the parts of their handles without the offset."""

    place: Place
    start: int
    taken: int
    invisible: int
    revive: int
    kind: str
    queue_id: int


class ReceivedMessage(PulledMessage):
    """A message that a SimpleConsumer has received. `attempt` is 1 on its first delivery; `expires_at`, in
    seconds of the event loop's clock, is the time of its redelivery."""

    __slots__ = ("_consumer", "_take", "attempt", "expires_at")

    _consumer: SimpleConsumer
    _take: _Take
    attempt: int
    expires_at: float

    def _become(self, kind: Any, consumer: Any) -> None:
        """Be of another class with the same attributes, and another consumer's: of a twin without async."""
        self.__class__ = kind
        self._consumer = consumer

    @property
    def handle(self) -> str:
        """The receipt handle of this delivery."""
        take = self._take
        words = take.start, take.taken, take.invisible, take.revive, take.kind, take.place.broker
        return " ".join(map(str, (*words, take.queue_id, self.queue_offset)))

    async def ack(self) -> None:
        """Acknowledge the message: it is never redelivered. Raises as `SimpleConsumer.ack`. Cancelled: the
        message may or may not be acknowledged."""
        await self._consumer.ack(self)

    async def nack(self, *, after: float | None = None) -> None:
        """Nack the message: the attempt has failed, and the message is redelivered after so many seconds, at
        most 40 days; None: by the retry policy of its group. Raises as `SimpleConsumer.ack`. Cancelled: the
        message is redelivered at the latest when its lease ends."""
        await self._consumer.nack(self, after=after)

    async def extend(self, seconds: float) -> None:
        """Keep the message for so many seconds from now on, at most 12 hours. Raises as `SimpleConsumer.ack`.
        Cancelled: the lease may or may not be longer.
        """
        await self._consumer.extend(self, seconds)


def place_of(message: ReceivedMessage) -> Place:
    """The topic and the broker that a message was received from."""
    return message._take.place


_RECEIVED: Final = quickest(ReceivedMessage)


class SimpleConsumer(AsyncResource):
    """Receives single messages: `async with client.simple_consumer("billing", {"Orders": "*"}) as consumer`.

        for message in await consumer.receive(32, wait=10, invisible=60):
            await bill(message)
            await message.ack()

    A message that is not acknowledged within `invisible` seconds is redelivered, to any consumer of the
    group, with its attempt counted; after the group's last attempt the message becomes a dead letter. With
    `in_order`, a message waits while another message of its message group (`__SHARDINGKEY`) is in flight.

    The brokers must be rmq's, or RocketMQ's from 5.0 on; older brokers refuse (ResponseError).
    """

    def __init__(
        self,
        session: Session,
        group: str,
        topics: Mapping[str, str | Sql],
        *,
        in_order: bool = False,
        from_first: bool = False,
        workers: Workers | None = None,
        problem: Callable[[], str] = str,
    ) -> None:
        """`workers` are the tasks that consume the messages, if known; `problem` returns the reason why they
        do not consume, "" while all is well."""
        self.group = validate_group(group)
        self._session = session
        self._subscriptions = {
            topic: subscription(topic, subscribed, session.now_ms()) for topic, subscribed in topics.items()
        }
        self._in_order = in_order
        self._init_mode = 0 if from_first else 1
        self._scope = TaskGroupScope()
        self._is_open = False
        self._is_taking = True
        self._member: TakingMember | None = None
        self._problem = problem
        self._taker = Taker(self._subscriptions, workers or Workers(), self._stopped)
        self._unanswered: dict[Place, tuple[float, float, str]] = {}
        """The time since when a broker has answered nothing, its time-out, and the last failure."""
        self._ready: list[ReceivedMessage] = []
        self._arrived = anyio.Event()
        self._polling: set[Place] = set()
        self._paused: dict[Place, float] = {}
        self._pops = Pops(session)
        self._known: set[Place] = set()
        """Places whose brokers have this member's heartbeat, or soon will."""
        self._error: Exception | None = None

    async def __aenter__(self) -> SimpleConsumer:
        """Begin to receive. Cancelled: the consumer is not open."""
        await self._scope.__aenter__()
        self._session.arrive()
        self._member = TakingMember.join(self._session, self.group, self._taker)
        self._is_open = self._is_taking = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give back messages that the application has not got; messages that the application has are
        redelivered when their leases end."""
        self._is_open = False
        try:
            brokers = self._session.brokers
            with anyio.move_on_after(brokers.timeout, shield=True), brokers.leaving.going_on():
                await self._stop_taking()
                if self._member is not None:
                    await self._member.leave(self._taker)
        finally:
            self._session.depart()
            await self._scope.__aexit__(kind, error, trace)

    async def _stop_taking(self) -> None:
        """Give back the messages that `receive` has not returned, and those that come from now on: brokers
        hold requests, and would lease messages to a consumer that nobody asks any more."""
        self._is_taking = False
        left, self._ready = self._ready, []
        await self._release_all(left, Counter(), self._note_refused)

    async def _release_all(
        self,
        messages: Iterable[ReceivedMessage],
        silent: Counter[str],
        refused: Callable[[ReceivedMessage, Exception], None],
    ) -> None:
        """Give back messages; without it their leases end by themselves. In `silent` are the brokers that did
        not answer, with the number of their messages: they are asked once, not for each message. `refused` is
        called with a message that its broker does not take back, and the error."""
        for message in messages:
            if message.broker_name in silent:
                silent[message.broker_name] += 1
                continue
            try:
                await self.release(message)
            except (*NETWORK_ERRORS, NoRoute):
                silent[message.broker_name] += 1
            except FAILURES as error:
                refused(message, error)

    def _note_refused(self, message: ReceivedMessage, error: Exception) -> None:
        log.debug("%s: a message is not given back: %s", self.group, error)

    def check_ready(self) -> None:
        """Raises NotReady while no broker answers this consumer's requests, or when its background tasks have
        ended."""
        if stopped := self._stopped():
            raise NotReady(self.group, reason=stopped)

    def _stopped(self) -> str:
        """The reason why this consumer receives nothing; "" while all is well."""
        if ended := self._scope.ended():
            return f"consumes nothing: its background tasks have ended ({ended})"
        if problem := self._problem():
            return problem
        now = self._session.now()
        for place in self._polling & self._unanswered.keys():
            since, longest, trouble = self._unanswered[place]
            if now - since >= longest:
                trouble = trouble or "the last request is still on its way"
                return (
                    f"has had no answer to its requests at broker {place.broker} for {now - since:.0f} s:"
                    f" {trouble}"
                )
        return ""

    # ---- receive ----

    async def receive(
        self, max_messages: int = 32, *, wait: float = 10.0, invisible: float = 60.0
    ) -> list[ReceivedMessage]:
        """The next messages, at most so many; none when no message comes for `wait` seconds. Each is this
        consumer's for `invisible` seconds, up to 12 hours.

        Raises NoRoute, a network error, the ResponseError of a broker, or RemoteProtocolError or
        CorruptRecord for a damaged answer, when no broker could be asked; and ConfigError. Cancelled: no
        message is lost; messages that arrive later are kept for the next call.
        """
        check_number("max_messages", max_messages, 1)
        check_number("wait", wait, 0, whole=False)
        check_lease("invisible", invisible, 1)
        if not self._is_open:
            raise not_open(f"consumer of {self.group}")
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

    async def _places(self) -> list[Place]:
        """The brokers of each topic. Raises NoRoute."""
        places: dict[Place, None] = {}
        for topic in self._subscriptions:
            rotation = await self._session.rotation(topic, self._session.brokers.timeout)
            for queue in rotation.route.subscribe_queues:
                places[Place(topic, queue.broker_name)] = None
        if self._known != places.keys():
            if not self._known.issuperset(places):
                self._scope.tasks.start_soon(self._session.join, self.group)
            self._known = set(places)
            keep_rows(self._paused, places)
            keep_rows(self._unanswered, places.keys() | self._polling)
        return list(places)

    def _poll(self, places: Iterable[Place], most: int, wait: float, invisible: float) -> None:
        """Ask each broker that is not being asked."""
        now = self._session.now()
        for place in places:
            if place not in self._polling and self._paused.get(place, 0.0) <= now:
                self._polling.add(place)
                self._scope.tasks.start_soon(self._ask, place, most, wait, invisible)

    async def _ask(self, place: Place, most: int, wait: float, invisible: float) -> None:
        """Poll a broker once, and keep its messages."""
        since, _, trouble = self._unanswered.get(place, (self._session.now(), 0.0, ""))
        self._unanswered[place] = since, max(UNANSWERED_SECONDS, 2 * wait), trouble
        try:
            answered = current_loop().waiter()
            tasks = self._session.tasks
            if tasks is None:
                raise not_open("client")
            tasks.start_soon(self._take_answer, answered, place, most, wait, invisible)
            await answered.wait()
            self._paused.pop(place, None)
            del self._unanswered[place]
        except FAILURES as error:
            if isinstance(error, (*NETWORK_ERRORS, NoRoute)):
                self._unanswered[place] = since, self._unanswered[place][1], str(error)
            else:
                del self._unanswered[place]
            log.warning("%s: %s of %s: %s", self.group, place.topic, place.broker, error)
            self._error, self._paused[place] = error, self._session.now() + PAUSE_SECONDS
            await anyio.sleep(PAUSE_SECONDS)
            with suppress(*FAILURES):
                await self._session.refresh(place.topic)
        finally:
            self._polling.discard(place)
            self._arrived.set()
            self._arrived = anyio.Event()

    async def _take_answer(
        self, answered: Waiter, place: Place, most: int, wait: float, invisible: float
    ) -> None:
        """Poll a broker once, in a task of the client: a broker holds the request of a consumer that is left,
        and the messages of its answer are given back."""
        try:
            found = await self._pop(place, most, wait, invisible)
            if self._is_taking:
                self._ready += found  # after the wait: other tasks take from the list during it
            else:
                await self._release_all(found, Counter(), self._note_refused)
        except Exception as error:
            answered.fail(error)
        except BaseException:
            answered.fail(not_open("client"))
            raise
        else:
            answered.resolve(None)

    async def _pop(self, place: Place, most: int, wait: float, invisible: float) -> list[ReceivedMessage]:
        session, subscribed = self._session, self._subscriptions[place.topic]
        invisible_ms, asked_at = round(invisible * 1000), session.now()
        header = PopMessageRequestHeader(
            self.group,
            place.topic,
            -1,
            most,
            invisible_ms,
            ceil(wait * 1000),  # less would leave a rest of the wait, for requests that wait for nothing
            session.now_ms(),
            self._init_mode,
            subscribed.expression_type,
            subscribed.sub_string,
            self._in_order or None,
        )
        address = self._address(place.broker, place.topic)
        response = await self._pops.pop(place.broker, address, header, wait)
        if response is None:
            return []
        arrived = max(asked_at, session.now() - wait)
        return self._read(response, place, arrived + invisible if wait == 0 else session.now() + invisible)

    def _read(self, response: Command, place: Place, expires_at: float) -> list[ReceivedMessage]:
        """The messages of a pop's answer. Raises CorruptRecord."""
        fields = response.read(PopMessageResponseHeader)
        starts = parse_start_offsets(fields.start_offset_info)
        times = fields.pop_time, fields.invisible_time, fields.revive_qid
        takes = {queue: _Take(place, start, *times, "0", queue) for queue, start in starts.items()}
        messages = found_messages(response.body, place.broker, _RECEIVED)
        has_handles = HANDLE.encode() in response.body
        for message in messages:
            queue, message.attempt = delivery_of(message)
            take = takes.get(queue)
            if has_handles and (handle := message.properties.get(HANDLE)):
                take = _take_of(place, message, handle) or take
            message._take = take or _Take(place, message.queue_offset, *times, "0", queue)
            message._consumer, message.expires_at = self, expires_at
        return messages

    def _address(self, broker: str, topic: str) -> str:
        address = self._session.routes.master(broker)
        if address is None:
            detail = f"no address is known for broker {broker}"
            raise NoRoute(topic, self._session.name_servers.addresses, detail)
        return address

    # ---- acknowledge, give back, extend ----

    async def ack(self, *messages: ReceivedMessage) -> None:
        """Acknowledge messages: they are never redelivered. Each broker gets one request.

        Raises ResponseError (NO_MESSAGE) when the lease of a message has ended or another consumer has the
        message; the other messages are acknowledged. Raises NoRoute and network errors; the messages of other
        brokers are acknowledged. Cancelled: the messages may or may not be acknowledged.
        """
        if len(messages) == 1:
            await self._call(messages[0], codes.ACK_MESSAGE, self._ack_header(messages[0]))
            return
        by_place: dict[Place, dict[_Take, list[int]]] = {}
        takes: dict[_Take, list[int]] = {}
        for message in messages:
            take = message._take
            if take not in takes:
                takes[take] = by_place.setdefault(take.place, {})[take] = []
            takes[take].append(message.queue_offset)
        failure: Exception | None = None
        for place, some in by_place.items():
            try:
                await self._ack_batch(place, some)
            except FAILURES as error:  # the brokers of the other messages may work
                failure = failure or error
        if failure is not None:
            raise failure

    def _ack_header(self, message: ReceivedMessage) -> AckMessageRequestHeader:
        return AckMessageRequestHeader(*self._names(message), message.handle, message.queue_offset)

    def _names(self, message: ReceivedMessage) -> tuple[str, str, int]:
        """The group, the topic and the queue of a message, for headers."""
        take = message._take
        return self.group, real_topic(take.place.topic, self.group, take.kind), take.queue_id

    async def _ack_batch(self, place: Place, takes: Mapping[_Take, Sequence[int]]) -> None:
        acks, count, refused = [], 0, None
        left = len(takes)
        for take, offsets in takes.items():
            first = min(take.start, min(offsets))
            bits, times = bits_of(first, offsets), (take.taken, take.invisible)
            acks.append(
                BatchAck(self.group, place.topic, take.kind, first, take.queue_id, take.revive, *times, bits)
            )
            left, count = left - 1, count + len(offsets)
            if left and len(acks) < ACKS_OF_A_REQUEST and count < MESSAGES_OF_A_REQUEST:
                continue
            body = BatchAckMessageRequestBody(place.broker, acks).to_json()
            acks, count = [], 0
            try:
                address = self._address(place.broker, place.topic)
                await self._session.brokers.call(address, codes.BATCH_ACK_MESSAGE, None, body)
            except ResponseError as error:  # of some messages; the others are acknowledged
                refused = refused or error
        if refused is not None:
            raise refused

    async def nack(self, message: ReceivedMessage, *, after: float | None = None) -> None:
        """Nack a message: see `ReceivedMessage.nack`. Cancelled: the broker may or may not have the nack."""
        check_after(after)
        ms = FIRST_RETRY_MS if after is None else round(after * 1000)
        await self._nack(message, ms, BY_POLICY if after is None else "true")

    async def release(self, message: ReceivedMessage) -> None:
        """Return a message that the application has not seen, for redelivery at once. The attempt is not
        counted (at RocketMQ's brokers it is). Raises as `ack`. Cancelled: the broker may or may not have the
        request."""
        await self._nack(message, 0, UNSEEN)

    async def _nack(self, message: ReceivedMessage, ms: int, how: str) -> None:
        header = self._change_header(message, ms)
        more = {NACK_KIND: how}
        await self._call(message, codes.CHANGE_MESSAGE_INVISIBLETIME, encode(header) | more)
        message.expires_at = 0.0

    async def extend(self, message: ReceivedMessage, seconds: float) -> None:
        """Keep a message for longer: see `ReceivedMessage.extend`. Cancelled: the lease may or may not be
        longer."""
        check_lease("seconds", seconds, 0.001)
        header = self._change_header(message, max(1, round(seconds * 1000)))
        response = await self._call(message, codes.CHANGE_MESSAGE_INVISIBLETIME, header)
        fields = response.read(ChangeInvisibleTimeResponseHeader)
        message._take = evolve(
            message._take,
            start=message.queue_offset,
            taken=fields.pop_time,
            invisible=fields.invisible_time,
            revive=fields.revive_qid,
        )
        message.expires_at = self._session.now() + seconds

    def _change_header(self, message: ReceivedMessage, ms: int) -> ChangeInvisibleTimeRequestHeader:
        return ChangeInvisibleTimeRequestHeader(
            *self._names(message), message.handle, message.queue_offset, ms
        )

    async def _call(self, message: ReceivedMessage, code: int, header: Any) -> Command:
        """Send a request to the broker of a message. Raises as `ack`."""
        address = self._address(message.broker_name, message._take.place.topic)
        return await self._session.brokers.call(address, code, header)


def check_lease(argument: str, seconds: float, least: float) -> None:
    """Raises InvalidType, ConfigError unless a lease may be so long."""
    check_number(argument, seconds, least, whole=False)
    if seconds * 1000 > INVISIBLE_MAX_MS:
        raise ConfigError(argument, seconds, f"seconds, at most {INVISIBLE_MAX_MS // 1000} (12 hours)")


def _take_of(place: Place, message: ReceivedMessage, handle: str) -> _Take | None:
    """The take in a handle of RocketMQ's form; None when the property is not this delivery's handle: the
    message may have been copied with it."""
    words = handle.split(" ")
    try:
        start, taken, invisible, revive = map(int, words[:4])
        queue_id, offset = map(int, words[6:8])
    except ValueError:
        return None
    if offset != message.queue_offset:
        return None
    return _Take(place, start, taken, invisible, revive, words[4], queue_id)
