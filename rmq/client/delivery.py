"""Delivery: one message that a consumer's iteration gives."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rmq.client.observer import Observer
from rmq.client.overdue import Hand
from rmq.errors import LocalProtocolError
from rmq.message import StoredMessage

if TYPE_CHECKING:
    from rmq.client.consumption import Consumption
    from rmq.client.process_queue import ProcessQueue
    from rmq.client.pulled import PulledMessage

log = logging.getLogger(__name__)


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
