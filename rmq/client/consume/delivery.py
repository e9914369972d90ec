"""Delivery: the messages being consumed, and their outcomes.

A message is finished; or it has failed, and is sent back to its broker, which redelivers it by the group's
retry topic, or, ordered, stays in front of its queue and is redelivered locally. A message that takes too
long counts as failed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final

import anyio
from attrs import define, field, frozen

from rmq.client.consume.dispatch import Dispatch
from rmq.client.consume.isolation import Snapshot
from rmq.client.consume.message_view import PulledMessage
from rmq.client.consume.process_queue import ProcessQueue
from rmq.client.consume.retry import Delay, Retry, delay_of, named, reason_told
from rmq.client.consume.stalls import SCANS as STALL_SCANS
from rmq.client.consume.stalls import Stalls
from rmq.client.consume.subscription import ConsumerOptions
from rmq.client.produce.outgoing import Outgoing, asker_waits_until, checked_properties
from rmq.client.produce.sender import Sender
from rmq.client.session.observer import Observer
from rmq.client.session.session import Session
from rmq.errors import (
    NETWORK_ERRORS,
    AskerGone,
    InvalidBody,
    LocalProtocolError,
    ResponseError,
    RmqError,
    check_number,
)
from rmq.message import (
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRANSACTION_PREPARED,
    MessageQueue,
    StoredMessage,
    dlq_topic,
    retry_topic,
    with_namespace,
)
from rmq.protocol.bodies import ConsumeStatus
from rmq.protocol.properties import DLQ_REASON
from rmq.remoting.cancellation import as_failure, cancel_requests, raise_failure
from rmq.remoting.loop import Wakeup

log = logging.getLogger("rmq.client.delivery")

# Metrics: rates of consumption, for an administrator. Counted once a pull, not once a message.

SAMPLES = 3
"""One is taken with each heartbeat, so that rates are those of the last one to one and a half minutes."""


@frozen
class Count:
    """Of one topic, since the start: messages pulled, done with, and failed."""

    pulled: int = 0
    finished: int = 0
    failed: int = 0


@define
class ConsumeMetrics:
    """Counts of each topic, and samples of them, of which rates are made. `now` is in seconds."""

    pulled: dict[str, int] = field(factory=dict)
    failed: dict[str, int] = field(factory=dict)
    _samples: deque[tuple[float, dict[str, Count]]] = field(factory=lambda: deque(maxlen=SAMPLES))

    def pull(self, topic: str, count: int) -> None:
        """A pull has brought messages."""
        self.pulled[topic] = self.pulled.get(topic, 0) + count

    def failure(self, topic: str) -> None:
        """The handler of a message has failed."""
        self.failed[topic] = self.failed.get(topic, 0) + 1

    def sample(self, now: float, pending: Mapping[str, int]) -> None:
        """Remember this moment. `pending`: topic -> messages pulled and not done with."""
        self._samples.append((now, self._counts(self.pulled, pending)))

    def of(self, topics: Iterable[str], now: float, pending: Mapping[str, int]) -> dict[str, ConsumeStatus]:
        """Messages a second of each topic since the oldest sample; failures since the start."""
        since, before = self._samples[0] if self._samples else (now, {})
        counts = self._counts(topics, pending)
        return {
            topic: _status(before.get(topic, Count()), count, now - since) for topic, count in counts.items()
        }

    def _counts(self, topics: Iterable[str], pending: Mapping[str, int]) -> dict[str, Count]:
        table = {}
        for topic in topics:
            pulled = self.pulled.get(topic, 0)
            table[topic] = Count(pulled, pulled - pending.get(topic, 0), self.failed.get(topic, 0))
        return table


def _status(before: Count, now: Count, seconds: float) -> ConsumeStatus:
    def rate(count: int) -> float:
        return max(0, count) / seconds if seconds > 0 else 0.0

    failed = now.failed - before.failed
    return ConsumeStatus(
        pull_tps=rate(now.pulled - before.pulled),
        consume_ok_tps=rate(now.finished - before.finished - failed),
        consume_failed_tps=rate(failed),
        consume_failed_msgs=now.failed,
    )


# What is in flight, and what becomes of it.

SCANS: Final = 15
"""How often a message is looked at before it has taken too long."""
TIMEOUT_DELAY_LEVEL: Final = 3
"""What takes too long is sent back with this delay, as RocketMQ does."""


@define(eq=False)
class InFlight:
    """The messages that a task, or a delivery, is consuming."""

    messages: Sequence[PulledMessage] = ()


@define(eq=False)
class ConsumeTimeouts:
    """Checks the messages being consumed at intervals; `on_timeout(message)` is called for each that takes
    too long. Times count from the first check, so that taking a message costs nothing."""

    seconds: float
    on_timeout: Callable[[PulledMessage], Awaitable[None]]
    in_flight: set[InFlight] = field(factory=set)
    _since: dict[int, tuple[PulledMessage, float]] = field(factory=dict)

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await anyio.sleep(self.seconds / SCANS)
            for message in self.scan(anyio.current_time()):
                await self.on_timeout(message)

    def extend(self, message: PulledMessage, until: float) -> None:
        """Let a message take until then."""
        self._since[id(message)] = message, until - self.seconds

    def scan(self, now: float) -> list[PulledMessage]:
        """What has taken too long by now; each message is given once."""
        before, self._since = self._since, {}
        late: list[PulledMessage] = []
        for message in [message for one in list(self.in_flight) for message in one.messages]:
            _, since = self._since[id(message)] = before.get(id(message), (message, now))
            if since <= now - self.seconds:
                self._since[id(message)] = (message, float("inf"))
                late.append(message)
        return late


class Deliveries:
    """The messages of a consumer that are in flight."""

    def __init__(
        self,
        session: Session,
        group: str,
        options: ConsumerOptions,
        dispatch: Dispatch[Any],
        metrics: ConsumeMetrics,
    ) -> None:
        """`dispatch` takes the messages to redeliver locally."""
        self.group = group
        self.observers = session.observers
        self.timeouts = ConsumeTimeouts(session.config.consume_timeout_ms / 1000, self._on_timeout)
        self._session = session
        self.stalls = Stalls(group, session.config.stall_warning_ms / 1000, dispatch)
        self._sender = Sender(session, group)
        self._options = options
        self._dispatch = dispatch
        self._metrics = metrics
        self.came = Wakeup()
        """Rung when a pull has brought messages."""
        self._empty: Wakeup | None = None  # only while somebody waits: `release` runs for each message

    # --- in flight ---

    def hold(self, one: InFlight) -> None:
        """A task or delivery begins with some messages."""
        self.timeouts.in_flight.add(one)

    def extend(self, message: PulledMessage, seconds: float | None) -> bool:
        """Let a message take `seconds` from now; False when it already belongs to another member."""
        window = _window(message)
        if window.is_dropped or message.queue_offset not in window:
            return False
        self.stalls.restart(message)
        self.timeouts.extend(
            message, self._session.now() + (self.timeouts.seconds if seconds is None else seconds)
        )
        return True

    def release(self, one: InFlight) -> None:
        """It holds none any more."""
        one.messages = ()
        self.timeouts.in_flight.discard(one)
        if self._empty is not None:
            self._empty.set()

    @property
    def in_flight(self) -> list[PulledMessage]:
        """What handlers and deliveries have in hand."""
        return [message for one in list(self.timeouts.in_flight) for message in one.messages]

    async def watch_stalls(self, windows: Callable[[], Iterable[ProcessQueue]]) -> None:
        """Warn of what does not get on, until cancelled; see `Stalls`."""
        stalls = self.stalls
        if not stalls.seconds:
            return
        while True:
            if not (stalls.has_found or any(map(len, windows()))):
                await self.came.wait()
            await anyio.sleep(stalls.seconds / STALL_SCANS)
            before = dict(stalls.current)
            for stalled in stalls.scan(self._session.now(), windows(), self.in_flight):
                log.warning("%s", stalled)
                self._session.tell(stalled)
            for place in before.keys() - stalls.current.keys():
                log.info("%s: resumed after offset %d of %s", self.group, place[1], place[0])

    async def drained(self) -> None:
        """Return when nothing is in flight."""
        self._empty = Wakeup()
        while self.timeouts.in_flight:
            await self._empty.wait()

    # --- what becomes of a message ---

    async def failed(
        self, message: PulledMessage, error: Exception | None, asked: Delay | None = None
    ) -> None:
        """Handle a failed delivery: retry through the broker, or redeliver locally (ordered). `error` is None
        after an explicit nack, whose `asked` is the delay. Cancelled: the message is redelivered locally, or
        sent back."""
        if isinstance(error, AskerGone):
            log.info("%s: message %s: %s", self.group, message.message_id, error)
            _window(message).finish(message.queue_offset)
            return
        delay = delay_of(error, asked, self._options.retry, message.reconsume_times)
        self._metrics.failure(_window(message).queue.topic)
        self._log_failure(message, error, delay)
        if self._options.ordered:
            await self._retry_in_place(message, _window(message), delay, reason_told(error))
        else:
            await self._send_back(message, _window(message), delay, reason_told(error))

    async def nack_all(self, messages: Sequence[PulledMessage], error: Exception | None) -> None:
        """`failed` for messages taken together. Cancelled: messages not sent back yet are postponed."""
        for number, message in enumerate(messages):
            try:
                await self.failed(message, error)
            except BaseException:
                self.schedule_redelivery(messages[number + 1 :])
                raise

    def schedule_redelivery(self, messages: Iterable[PulledMessage]) -> None:
        """Redeliver messages locally after a while, since their outcome is unknown."""
        for message in messages:
            self._dispatch.schedule_redelivery(message)

    def raises(self, error: Exception) -> bool:
        """Whether an error of a handler is raised by `run`, or by the block of a delivery."""
        if isinstance(error, InvalidBody):
            return True
        return self._options.on_error == "raise" and not isinstance(error, (Retry, AskerGone))

    def drop_expired(self, message: PulledMessage) -> bool:
        """Finish a request whose requester no longer waits; return whether the message was such a request."""
        until, now_ms = asker_waits_until(message), self._session.now_ms()
        if until is None or until > now_ms:
            return False
        # A warning: where the clocks of hosts differ by more than a request's time to live, all would go this
        # way.
        late = (now_ms - until) / 1000
        log.warning("%s: request %s expired %g s before its delivery", self.group, message.message_id, late)
        _window(message).finish(message.queue_offset)
        return True

    def _log_failure(self, message: PulledMessage, error: Exception | None, delay: Delay) -> None:
        """Log the failed message with its identity, the number of tries, and the next step."""
        if error is None:
            return
        what, times, then = named(message), message.reconsume_times, self._next_step(message, delay)
        if isinstance(error, Retry):
            log.info(
                "%s: attempt %d of %s asks for a retry: %s; %s", self.group, times + 1, what, error, then
            )
        else:
            log.error("%s: attempt %d of %s failed; %s", self.group, times + 1, what, then, exc_info=error)

    def _next_step(self, message: PulledMessage, delay: Delay) -> str:
        options, times = self._options, message.reconsume_times
        limit = options.retries if options.ordered else self._max_reconsume_times
        if options.broadcasting and not options.ordered:
            return "not redelivered: the group broadcasts"
        if not options.broadcasting and (delay.level < 0 or (limit is not None and times >= limit)):
            return f"it goes to the dead letters, {dlq_topic(self.group)}"
        then = delay.told(times)
        if options.ordered:
            then = f"redelivered in {self._suspended_seconds(delay):g} s, and its queue waits"
        return then if limit is None else f"{then} (attempt {times + 2} of {limit + 1})"

    def _suspended_seconds(self, delay: Delay) -> float:
        """How long a message of an ordered consumer holds up its queue."""
        return self._session.config.suspend_queue_ms / 1000 if delay.seconds is None else delay.seconds

    async def _send_back(
        self, message: PulledMessage, window: ProcessQueue, delay: Delay, reason: str
    ) -> None:
        """Have the broker redeliver a message; if the broker refuses, redeliver it locally after a while."""
        if self._options.broadcasting:
            window.finish(message.queue_offset)
            return
        if window.is_dropped or message.queue_offset not in window:
            return  # its queue is somebody else's, who gets it again
        limit = self._max_reconsume_times
        try:
            await self._session.brokers.send_back(
                message, self.group, delay.level, limit, reason, delay.milliseconds
            )
        except (*NETWORK_ERRORS, ResponseError) as refusal:
            log.warning("%s: cannot send %s back to the broker: %s", self.group, named(message), refusal)
            message.reconsume_times += 1
            self._dispatch.schedule_redelivery(message)
        except BaseException:
            self._dispatch.schedule_redelivery(message)
            raise
        else:
            window.finish(message.queue_offset)

    @property
    def _max_reconsume_times(self) -> int:
        limit = self._options.retries
        return self._session.config.max_reconsume_times if limit is None else limit

    async def _on_timeout(self, message: PulledMessage) -> None:
        """Send back a message whose handler does not end; the handler goes on, and its end means nothing."""
        seconds = self.timeouts.seconds
        log.warning("%s: %s has been in its handler for more than %g s", self.group, named(message), seconds)
        window, options = _window(message), self._options
        if options.ordered or options.broadcasting or window.is_dropped:
            return
        reason, limit = f"not consumed within {seconds:g} s", self._max_reconsume_times
        delay = delay_of(None, None, options.retry, message.reconsume_times, TIMEOUT_DELAY_LEVEL)
        try:
            await self._session.brokers.send_back(
                message, self.group, delay.level, limit, reason, delay.milliseconds
            )
        except (*NETWORK_ERRORS, ResponseError) as error:
            log.warning("%s: cannot send %s back to the broker: %s", self.group, named(message), error)
        else:
            window.finish(message.queue_offset)

    # --- ordered ---

    async def _retry_in_place(
        self, message: PulledMessage, window: ProcessQueue, delay: Delay, reason: str
    ) -> None:
        """Redeliver the message before all others of its queue; after too many tries, or a give-up, move it
        to the dead letters instead."""
        limit = self._options.retries
        if not window.is_dropped and not self._options.broadcasting:
            is_spent = limit is not None and message.reconsume_times >= limit
            if (is_spent or delay.level < 0) and await self._send_to_dead_letters(message, reason):
                window.finish(message.queue_offset)
                return
        message.reconsume_times += 1
        self._dispatch.schedule_redelivery(message, self._suspended_seconds(delay))

    async def _send_to_dead_letters(self, message: PulledMessage, reason: str) -> bool:
        """False when that failed; the message then goes on holding up its queue."""
        try:
            queue = MessageQueue(retry_topic(self.group), message.broker_name, 0)
            await self._sender.send(self._dead_letter(message, queue.topic, reason), queue)
        except RmqError as error:
            log.warning("%s: cannot send %s to the dead letters: %s", self.group, named(message), error)
            return False
        except BaseException:
            self._dispatch.schedule_redelivery(message)
            raise
        return True

    def _dead_letter(self, message: PulledMessage, topic: str, reason: str) -> Outgoing:
        """A send to the retry topic of a message that was tried too often: the broker makes it a dead
        letter."""
        times = str(message.reconsume_times)
        properties = dict(message.properties)
        properties.pop(PROPERTY_TRANSACTION_PREPARED, None)
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.message_id)
        properties[PROPERTY_RETRY_TOPIC] = with_namespace(self._session.config.namespace, message.topic)
        properties[PROPERTY_RECONSUME_TIME] = properties[PROPERTY_MAX_RECONSUME_TIMES] = times
        properties |= {DLQ_REASON: reason} if reason else {}
        return Outgoing(
            topic,
            message.body,
            0,
            message.flag,
            checked_properties(properties),
            message.message_id,
            more={"d": "1", "j": times, "l": times},
        )


def _window(message: PulledMessage) -> ProcessQueue:
    assert message.window is not None, "only what was pulled for a process queue is delivered"
    return message.window


class Delivery:
    """A message, to be consumed inside `async with delivery as message`.

    A normal exit means consumed. An `Exception` is logged and the message goes back for a retry (`Retry` sets
    the delay); the exception is swallowed, or raised with `on_error="raise"`. At the end of the block context
    variables have their values of its beginning. Cancelled: not consumed; if the consumer stays open, the
    message is redelivered locally.
    """

    __slots__ = ("_deliveries", "_in_flight", "_is_open", "_pulled", "_requests", "_snapshot", "_tokens")

    def __init__(self, deliveries: Deliveries, message: PulledMessage) -> None:
        self._deliveries = deliveries
        self._pulled = message
        self._in_flight = InFlight((message,))
        self._tokens: list[tuple[Observer, Any]] = []
        self._requests = 0
        self._snapshot: Snapshot | None = None
        self._is_open = True

    @property
    def message(self) -> StoredMessage:
        """The message, also outside the block."""
        return self._pulled

    async def __aenter__(self) -> StoredMessage:
        self._snapshot = Snapshot()
        return self.begin()

    def begin(self) -> StoredMessage:
        """What the block begins with, for a block in another thread that has no loop."""
        if not self._is_open:
            raise LocalProtocolError("this delivery was already used: enter each delivery once")
        deliveries = self._deliveries
        deliveries.hold(self._in_flight)
        self._requests = cancel_requests()
        observers, group = deliveries.observers, deliveries.group
        if observers:
            self._tokens = observers.begin(lambda observer: observer.consuming(group, [self._pulled]))
        return self._pulled

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        deliveries = self._deliveries
        if self._tokens:
            deliveries.observers.end(self._tokens, lambda observer, token: observer.consumed(token, error))
        try:
            failure = None if error is None else as_failure(error, self._requests)
            if error is None:
                self.done()
            elif failure is not None:
                await self._fail(failure)
                if deliveries.raises(failure):
                    raise_failure(failure, error)
                return True
            elif self._is_open:
                self._is_open = False
                deliveries.schedule_redelivery([self._pulled])
        finally:
            deliveries.release(self._in_flight)
            if self._snapshot is not None:
                self._snapshot.restore()
        return False

    def done(self) -> None:
        """Acknowledge the message, before the end of the block or without a block. Repeating has no
        effect."""
        if self._is_open:
            self._is_open = False
            message = self._pulled
            window = message.window
            assert window is not None
            window.finish(message.queue_offset)

    async def retry(self, delay_level: int = 0, *, after: float | None = None) -> None:
        """Nack: send the message back. `after` and `delay_level` are `Retry`'s; -1: the dead letters.
        Cancelled: the message is redelivered locally, or sent back."""
        asked = Delay.requested(delay_level, after)
        if self._is_open:
            self._is_open = False
            await self._deliveries.failed(self._pulled, None, asked)

    def extend(self, seconds: float | None = None) -> bool:
        """Extend the time: a message that is not consumed within `consume_timeout_ms` is sent back, and this
        time starts again now, or is `seconds` for once. To be called inside the block.

        False when it comes too late: the message was sent back, or its queue belongs to another member, which
        gets the message too. Raises InvalidType, ConfigError.
        """
        if seconds is not None:
            check_number("seconds", seconds, 0, whole=False)
        return self._is_open and self._deliveries.extend(self._pulled, seconds)

    async def _fail(self, error: Exception) -> None:
        if self._is_open:
            self._is_open = False
            await self._deliveries.failed(self._pulled, error)
        else:
            log.error("error after message %s was acknowledged", self._pulled.message_id, exc_info=error)
