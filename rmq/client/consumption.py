"""Consumption: what a consumer has in hand, and what becomes of it.

A message is finished, or sent back to come again, or, where the broker cannot be asked for that, delivered
again here after a while.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import anyio

from rmq.client.consumer_options import ConsumerOptions
from rmq.client.inbox import Inbox
from rmq.client.names import UNREACHABLE
from rmq.client.overdue import Hand, Overdue
from rmq.client.process_queue import ProcessQueue
from rmq.client.pulled import PulledMessage
from rmq.client.rates import Rates
from rmq.client.retry import Retry, told_reason, wanted_delay
from rmq.client.session import Session
from rmq.errors import ResponseError

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
