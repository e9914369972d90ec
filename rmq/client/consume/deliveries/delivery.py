"""Delivery: one message in flight, until its outcome is known."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any

from rmq.client.consume.deliveries.outcomes import Deliveries
from rmq.client.consume.deliveries.timeouts import InFlight
from rmq.client.consume.isolation import Snapshot
from rmq.client.consume.message_view import PulledMessage
from rmq.client.consume.retry import Delay
from rmq.client.session.observer import Observer
from rmq.errors import (
    LocalProtocolError,
    check_number,
)
from rmq.message import (
    StoredMessage,
)
from rmq.remoting.cancellation import as_failure, cancel_requests, raise_failure

log = logging.getLogger("rmq.client.delivery")


class Delivery:
    """A message, to be consumed inside `async with delivery as message`.

    A normal exit acknowledges the message. An `Exception` is logged and the message is retried (`Retry` sets
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
        """The first part of the block, for a block in another thread without a loop."""
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
        """Acknowledge the message, before the end of the block or without a block. A second call has no
        effect."""
        if self._is_open:
            self._is_open = False
            message = self._pulled
            window = message.window
            assert window is not None
            window.finish(message.queue_offset)

    async def retry(self, delay_level: int = 0, *, after: float | None = None) -> None:
        """Nack the message. `after` and `delay_level` are `Retry`'s; -1: the dead letters. Cancelled: the
        message is redelivered, locally or by the broker."""
        asked = Delay.requested(delay_level, after)
        if self._is_open:
            self._is_open = False
            await self._deliveries.failed(self._pulled, None, asked)

    def extend(self, seconds: float | None = None) -> bool:
        """Extend the time of the message: a message that is not acknowledged within `consume_timeout_ms` is
        redelivered. The time starts again now, or is `seconds` for once. Call this inside the block.

        False when the call comes too late: the message is redelivered, or its queue belongs to another
        member, which gets the message too. Raises InvalidType, ConfigError.
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
