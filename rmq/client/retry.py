"""Retry: how a handler says that a message is to be delivered again, and when."""

from __future__ import annotations

from rmq.protocol.deadletter import reason_of


class Retry(Exception):
    """Raised by a handler, or in a delivery's block: this message is not consumed, deliver it again.

    `delay_level` is one of messageDelayLevel's; 0 is the group's next delay, -1 gives the message to the dead
    letters at once. To an ordered consumer all levels but -1 mean the same: what fails holds up its queue.
    `reason` is logged, and the dead letter tells it. No error: also with `on_error="raise"` it does not come
    out.
    """

    def __init__(self, reason: str = "", *, delay_level: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay_level = delay_level


def wanted_delay(error: Exception | None, delay_level: int) -> int:
    """The delay level of a message that ended with `error`."""
    return error.delay_level if isinstance(error, Retry) else delay_level


def told_reason(error: Exception | None) -> str:
    """What the broker is told of `error`."""
    return error.reason if isinstance(error, Retry) else reason_of(error)
