"""Deliveries: the messages of a consumer that are in flight, and their outcomes.

A message is finished, or has failed. A failed message is sent back to its broker, which redelivers it by the
group's retry topic; a failed message of an ordered consumer stays in front of its queue and is redelivered
locally. A message that takes too long counts as failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import anyio

from rmq.client.consume.deliveries.consume_metrics import ConsumeMetrics
from rmq.client.consume.deliveries.timeouts import ConsumeTimeouts, InFlight
from rmq.client.consume.dispatch import Dispatch
from rmq.client.consume.message_view import PulledMessage
from rmq.client.consume.process_queue import ProcessQueue
from rmq.client.consume.retry import Delay, Retry, delay_of, named, reason_text
from rmq.client.consume.stalls import SCANS as STALL_SCANS
from rmq.client.consume.stalls import Stalls
from rmq.client.consume.subscription import ConsumerOptions
from rmq.client.produce.outgoing import Outgoing, asker_waits_until, checked_properties
from rmq.client.produce.sender import Sender
from rmq.client.session.session import Session
from rmq.errors import (
    NETWORK_ERRORS,
    AskerGone,
    ConnectFailed,
    CorruptRecord,
    InvalidBody,
    ResponseError,
    RmqError,
)
from rmq.message import (
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRANSACTION_PREPARED,
    MessageQueue,
    dlq_topic,
    retry_topic,
    with_namespace,
)
from rmq.protocol.properties import DLQ_REASON
from rmq.remoting.loop import Wakeup

log = logging.getLogger("rmq.client.delivery")

TIMEOUT_DELAY_LEVEL: Final = 3
"""The delay level of a message that took too long, as in RocketMQ."""


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
        """Set when a pull has brought messages."""
        self._empty: anyio.Event | None = None  # only while tasks wait: `release` runs for each message

    # --- in flight ---

    def hold(self, one: InFlight) -> None:
        """Note that a task or delivery begins with some messages."""
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
        """Note that a task or delivery holds no messages any more."""
        one.messages = ()
        self.timeouts.in_flight.discard(one)
        if self._empty is not None and not self.timeouts.in_flight:
            self._empty.set()
            self._empty = None

    @property
    def in_flight(self) -> list[PulledMessage]:
        """The messages of handlers and deliveries."""
        return [message for one in list(self.timeouts.in_flight) for message in one.messages]

    async def watch_stalls(self, windows: Callable[[], Iterable[ProcessQueue]]) -> None:
        """Warn of messages and queues without progress, until cancelled; see `Stalls`."""
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
                self._session.emit(stalled)
            for place in before.keys() - stalls.current.keys():
                log.info("%s: resumed after offset %d of %s", self.group, place[1], place[0])

    async def drained(self) -> None:
        """Wait until nothing is in flight. Any number of tasks may wait."""
        while self.timeouts.in_flight:
            self._empty = empty = self._empty or anyio.Event()
            await empty.wait()

    # --- outcome of a message ---

    async def failed(
        self,
        message: PulledMessage,
        error: Exception | None,
        asked: Delay | None = None,
        *,
        silent: set[str] | None = None,
    ) -> None:
        """Handle a failed delivery: retry through the broker, or redeliver locally (ordered). `error` is None
        after an explicit nack, whose delay is `asked`. In `silent` are brokers that did not answer a moment
        ago, and are not asked again. Cancelled: the message is redelivered locally, or sent back."""
        if isinstance(error, AskerGone):
            log.info("%s: message %s: %s", self.group, message.message_id, error)
            _window(message).finish(message.queue_offset)
            return
        delay = delay_of(error, asked, self._options.retry, message.reconsume_times)
        self._metrics.failure(_window(message).queue.topic)
        self._log_failure(message, error, delay)
        if self._options.ordered:
            await self._retry_in_place(message, _window(message), delay, reason_text(error))
        else:
            await self._send_back(message, _window(message), delay, reason_text(error), silent)

    async def nack_all(self, messages: Sequence[PulledMessage], error: Exception | None) -> None:
        """Handle failed messages that were taken together, as `failed` does: a broker that does not answer
        costs one time-out, not one for each message. Cancelled: messages not sent back yet are postponed."""
        silent = set[str]()
        for number, message in enumerate(messages):
            try:
                await self.failed(message, error, silent=silent)
            except BaseException:
                self.schedule_redelivery(messages[number + 1 :])
                raise

    def schedule_redelivery(self, messages: Iterable[PulledMessage]) -> None:
        """Redeliver messages locally after a while, since their outcome is unknown."""
        for message in messages:
            self._dispatch.schedule_redelivery(message)

    def raises(self, error: Exception) -> bool:
        """True if an error of a handler is raised by `run`, or by the block of a delivery."""
        if isinstance(error, InvalidBody):
            return True
        return self._options.on_error == "raise" and not isinstance(error, (Retry, AskerGone))

    def drop_expired(self, message: PulledMessage) -> bool:
        """Finish a request whose requester no longer waits; return whether the message was such a request."""
        try:
            until, now_ms = asker_waits_until(message), self._session.now_ms()
        except CorruptRecord:
            return False
        if until is None or until > now_ms:
            return False
        # A warning: where the clocks of hosts differ by more than a request's time to live, all requests
        # would end this way.
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
        then = delay.describe(times)
        if options.ordered:
            then = f"redelivered in {self._suspended_seconds(delay):g} s, and its queue waits"
        return then if limit is None else f"{then} (attempt {times + 2} of {limit + 1})"

    def _suspended_seconds(self, delay: Delay) -> float:
        """Seconds for which a message of an ordered consumer holds up its queue."""
        return self._session.config.suspend_queue_ms / 1000 if delay.seconds is None else delay.seconds

    async def _send_back(
        self,
        message: PulledMessage,
        window: ProcessQueue,
        delay: Delay,
        reason: str,
        silent: set[str] | None,
    ) -> None:
        """Let the broker redeliver a message; if the broker refuses, redeliver it locally after a while."""
        if self._options.broadcasting:
            window.finish(message.queue_offset)
            return
        if window.is_dropped or message.queue_offset not in window:
            return  # its queue is another member's, which gets the message again
        limit = self._max_reconsume_times
        try:
            if silent is not None and message.broker_name in silent:
                raise ConnectFailed(message.broker_name, "not asked: the broker did not answer before")
            await self._session.brokers.send_back(
                message, self.group, delay.level, limit, reason, delay.milliseconds
            )
        except (*NETWORK_ERRORS, ResponseError) as refusal:
            log.warning("%s: cannot send %s back to the broker: %s", self.group, named(message), refusal)
            if silent is not None and isinstance(refusal, NETWORK_ERRORS):
                silent.add(message.broker_name)
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

    async def _on_timeout(self, message: PulledMessage) -> bool:
        """Send back a message whose handler does not end; the handler runs on, and its end has no effect.
        False when the broker does not answer."""
        seconds, window, options = self.timeouts.seconds, _window(message), self._options
        if message.queue_offset not in window:
            return True  # it has ended since the look at it, while another message was sent back
        log.warning("%s: %s has been in its handler for more than %g s", self.group, named(message), seconds)
        if options.ordered or options.broadcasting or window.is_dropped:
            return True
        reason, limit = f"not consumed within {seconds:g} s", self._max_reconsume_times
        delay = delay_of(None, None, options.retry, message.reconsume_times, TIMEOUT_DELAY_LEVEL)
        try:
            await self._session.brokers.send_back(
                message, self.group, delay.level, limit, reason, delay.milliseconds
            )
        except (*NETWORK_ERRORS, ResponseError) as error:
            log.warning("%s: cannot send %s back to the broker: %s", self.group, named(message), error)
            return not isinstance(error, NETWORK_ERRORS)
        window.finish(message.queue_offset)
        return True

    # --- ordered ---

    async def _retry_in_place(
        self, message: PulledMessage, window: ProcessQueue, delay: Delay, reason: str
    ) -> None:
        """Redeliver the message before all others of its queue; after too many tries, or a nack without
        retry, make it a dead letter instead."""
        limit = self._options.retries
        if not window.is_dropped and not self._options.broadcasting:
            is_spent = limit is not None and message.reconsume_times >= limit
            if (is_spent or delay.level < 0) and await self._send_to_dead_letters(message, reason):
                window.finish(message.queue_offset)
                return
        message.reconsume_times += 1
        self._dispatch.schedule_redelivery(message, self._suspended_seconds(delay))

    async def _send_to_dead_letters(self, message: PulledMessage, reason: str) -> bool:
        """Make the message a dead letter. False when that failed; the message still holds up its queue."""
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
    assert message.window is not None, "a delivery needs a message that was pulled for a process queue"
    return message.window
