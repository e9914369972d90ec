"""Consumption: what a consumer has in hand, and what becomes of it.

A message is finished, or sent back to come again, or, where the broker cannot be asked for that, delivered
again here after a while.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import anyio
from attrs import define, field

from rmq.client.consume_metrics import Rates
from rmq.client.dispatch import Inbox
from rmq.client.handlers import Retry, told_reason, wanted_delay
from rmq.client.message_view import PulledMessage
from rmq.client.name_servers import UNREACHABLE
from rmq.client.observer import Observer
from rmq.client.process_queue import ProcessQueue
from rmq.client.session import Session
from rmq.client.subscription import ConsumerOptions
from rmq.errors import LocalProtocolError, ResponseError
from rmq.message import StoredMessage

# Messages whose handler does not end: after `consume_timeout_ms` they are sent back, so that another member

LOOKS = 15
"""How often a message is looked at before it is overdue."""


@define(eq=False)
class Hand:
    """The messages that one task, or one delivery, is consuming."""

    messages: Sequence[PulledMessage] = ()


@define(eq=False)
class Overdue:
    """Looks now and then at what is being consumed; `expire(message)` is called for what takes too long.

    Times are counted from the first look, so nothing is noted when a message is taken.
    """

    seconds: float
    expire: Callable[[PulledMessage], Awaitable[None]]
    hands: set[Hand] = field(factory=set)
    _since: dict[int, tuple[PulledMessage, float]] = field(factory=dict)

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await anyio.sleep(self.seconds / LOOKS)
            for message in self.look(anyio.current_time()):
                await self.expire(message)

    def look(self, now: float) -> list[PulledMessage]:
        """What is overdue now; each message is given once."""
        before, self._since = self._since, {}
        overdue: list[PulledMessage] = []
        for message in self._in_hand():
            _, since = self._since[id(message)] = before.get(id(message), (message, now))
            if since <= now - self.seconds:
                self._since[id(message)] = (message, float("inf"))
                overdue.append(message)
        return overdue

    def _in_hand(self) -> Iterable[PulledMessage]:
        return [message for hand in self.hands for message in hand.messages]


log = logging.getLogger(__name__)

OVERDUE_DELAY_LEVEL = 3
"""What takes too long is sent back with this delay, as RocketMQ does."""


class Consumption:
    """`deliver` is given what is to be delivered again; nothing is when the inbox is closed."""

    returns_late = True
    """Whether what takes too long is sent back; else that is only logged."""

    def __init__(
        self,
        session: Session,
        group: str,
        options: ConsumerOptions,
        inbox: Inbox[PulledMessage],
        deliver: Callable[[PulledMessage], None],
    ) -> None:
        self.group = group
        self.observers = session.observers
        self.rates = Rates()
        self.overdue = Overdue(session.config.consume_timeout_ms / 1000, self._expire)
        self._session = session
        self._options = options
        self._inbox = inbox
        self._deliver = deliver
        self._empty: anyio.Event | None = None
        self._later: deque[tuple[float, PulledMessage]] = deque()
        self._later_came = anyio.Event()

    # --- hands ---

    def hold(self, hand: Hand) -> None:
        """A task or delivery begins with some messages."""
        self.overdue.hands.add(hand)

    def release(self, hand: Hand) -> None:
        """It holds none any more."""
        hand.messages = ()
        self.overdue.hands.discard(hand)
        if self._empty is not None and not self.overdue.hands:
            self._empty.set()

    async def drained(self) -> None:
        """Return when nothing is in anybody's hand."""
        while self.overdue.hands:
            self._empty = anyio.Event()
            await self._empty.wait()

    # --- what becomes of a message ---

    async def failed(
        self, message: PulledMessage, window: ProcessQueue, error: Exception | None, delay_level: int = 0
    ) -> None:
        """Send a message back; one that cannot be sent back is delivered again here, after a while."""
        self.count_failure(message, error)
        if self._options.broadcasting:
            window.finish(message.queue_offset)
            return
        if window.dropped or message.queue_offset not in window:
            return  # its queue is somebody else's, who gets it again
        level, reason, limit = wanted_delay(error, delay_level), told_reason(error), self._max_reconsume_times
        try:
            await self._session.brokers.send_back(message, self.group, level, limit, reason)
        except (*UNREACHABLE, ResponseError) as refusal:
            log.warning("%s: message %s cannot be sent back: %s", self.group, message.message_id, refusal)
            message.reconsume_times += 1
            self.put_off(message, window)
        except BaseException:
            self.put_off(message, window)
            raise
        else:
            window.finish(message.queue_offset)

    async def all_failed(
        self, taken: Sequence[tuple[PulledMessage, ProcessQueue]], error: Exception | None
    ) -> None:
        """`failed` for what was taken together. Cancelled: what is not sent back yet is put off."""
        for number, (message, window) in enumerate(taken):
            try:
                await self.failed(message, window, error)
            except BaseException:
                self.put_all_off(taken[number + 1 :])
                raise

    def put_all_off(self, taken: Iterable[tuple[PulledMessage, ProcessQueue]]) -> None:
        """`put_off` for what was taken together."""
        for message, window in taken:
            self.put_off(message, window)

    @property
    def _max_reconsume_times(self) -> int:
        limit = self._options.max_reconsume_times
        return self._session.config.max_reconsume_times if limit is None else limit

    def count_failure(self, message: PulledMessage, error: Exception | None) -> None:
        """Count and log that a message was not consumed; None stands for a delivery that said so itself."""
        self.rates.failure(queue_topic(message))
        if isinstance(error, Retry):
            log.info("%s: message %s is to come again: %s", self.group, message.message_id, error)
        elif error is not None:
            log.error("%s: message %s failed", self.group, message.message_id, exc_info=error)

    def lets_out(self, error: Exception) -> bool:
        """Whether an error of a handler ends `run`, or comes out of the block."""
        return self._options.on_error == "raise" and not isinstance(error, Retry)

    async def _expire(self, message: PulledMessage) -> None:
        """Send back a message whose handler does not end; the handler goes on, and its end means nothing."""
        log.warning(
            "%s: message %s is being consumed for over %g s",
            self.group,
            message.message_id,
            self.overdue.seconds,
        )
        window = message.window
        if not self.returns_late or self._options.broadcasting or window is None or window.dropped:
            return
        reason, limit = f"not consumed within {self.overdue.seconds:g} s", self._max_reconsume_times
        try:
            await self._session.brokers.send_back(message, self.group, OVERDUE_DELAY_LEVEL, limit, reason)
        except (*UNREACHABLE, ResponseError) as error:
            log.warning("%s: message %s cannot be sent back: %s", self.group, message.message_id, error)
        else:
            window.finish(message.queue_offset)

    def put_off(self, message: PulledMessage, window: ProcessQueue) -> None:
        """Deliver it again here after `redelivery_delay_ms`, unless it was sent back for being late."""
        if not self._inbox.closed and not window.dropped and message.queue_offset in window:
            self.deliver_later(message, self._session.config.redelivery_delay_ms)

    def deliver_later(self, message: PulledMessage, delay_ms: int) -> None:
        """Deliver it here after this time, whatever it is that holds it up."""
        self._later.append((self._session.now() + delay_ms / 1000, message))
        self._later_came.set()

    async def redeliver(self) -> None:
        """Deliver what was put off, when it is due, until cancelled."""
        while True:
            if not self._later:
                self._later_came = anyio.Event()
                await self._later_came.wait()
            due, message = self._later[0]
            await anyio.sleep(max(due - self._session.now(), 0))
            self._later.popleft()
            self._deliver(message)


def queue_topic(message: PulledMessage) -> str:
    """Where it was pulled from, which for a retried message is not its topic."""
    return message.topic if message.window is None else message.window.queue.topic


# Delivery: one message that a consumer's iteration gives.


class Delivery:
    """One message, to be consumed inside `async with delivery as message`.

    A normal exit means consumed. An `Exception` is logged and the message goes back for a retry (`Retry` says
    when); it is swallowed, or let out with `on_error="raise"`. Cancelled: not consumed; if the consumer stays
    open, it is delivered again here.
    """

    __slots__ = ("_consumption", "_hand", "_open", "_pulled", "_tokens", "_window")

    def __init__(self, consumption: Consumption, message: PulledMessage, window: ProcessQueue) -> None:
        self._consumption = consumption
        self._pulled = message
        self._window = window
        self._hand = Hand((message,))
        self._tokens: list[tuple[Observer, Any]] = []
        self._open = True

    @property
    def message(self) -> StoredMessage:
        """The message, also outside the block."""
        return self._pulled

    async def __aenter__(self) -> StoredMessage:
        if not self._open:
            raise LocalProtocolError("a delivery is consumed once")
        consumption = self._consumption
        consumption.hold(self._hand)
        observers, group = consumption.observers, consumption.group
        if observers:
            self._tokens = observers.begin(lambda observer: observer.consuming(group, [self._pulled]))
        return self._pulled

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        consumption = self._consumption
        if self._tokens:
            consumption.observers.end(self._tokens, lambda observer, token: observer.consumed(token, error))
        try:
            if error is None:
                self.done()
            elif isinstance(error, Exception):
                await self._fail(error)
                return not consumption.lets_out(error)
            elif self._open:
                self._open = False
                consumption.put_off(self._pulled, self._window)
        finally:
            consumption.release(self._hand)
        return False

    def done(self) -> None:
        """Consumed, before the end of the block or without one. Repeating it does nothing."""
        if self._open:
            self._open = False
            self._window.finish(self._pulled.queue_offset)

    async def retry(self, delay_level: int = 0) -> None:
        """Not consumed: send it back. `delay_level` 0 is the group's next delay, -1 the dead letters.

        Cancelled: it is delivered again here, or sent back.
        """
        if self._open:
            self._open = False
            await self._consumption.failed(self._pulled, self._window, None, delay_level)

    async def _fail(self, error: Exception) -> None:
        if self._open:
            self._open = False
            await self._consumption.failed(self._pulled, self._window, error)
        else:
            log.error("an error after the end of message %s", self._pulled.message_id, exc_info=error)
