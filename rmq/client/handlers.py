"""Functions that the application gives us, as coroutines."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread

from rmq.protocol.properties import reason_of


def as_async(handler: Callable[[Any], Any], threads: int) -> Callable[[Any], Awaitable[Any]]:
    """The handler itself, or one that runs it in a worker thread, at most `threads` at a time."""
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - an object whose call is async
    ):
        return handler
    limiter = anyio.CapacityLimiter(max(threads, 1))

    def in_thread(argument: Any) -> list[Any]:
        return [handler(argument)]  # in a list, because trio refuses functions that return coroutines

    async def call(argument: Any) -> Any:
        (result,) = await anyio.to_thread.run_sync(in_thread, argument, limiter=limiter)
        return await result if inspect.isawaitable(result) else result

    return call


# Retry: how a handler says that a message is to be delivered again, and when.


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
