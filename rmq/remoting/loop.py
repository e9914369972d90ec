"""The few event-loop primitives of the hot path, in trio's own form or through anyio.

anyio's versions work on both loops; trio's own cost a third less per wait, so a stream and a connection ask
once which loop runs them and keep the functions.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio
import attrs
import outcome
import trio


class Waiter(Protocol):
    """One task waits, once, for one value or one error."""

    async def wait(self) -> Any:
        """Return the value or raise the error. When cancelled, later results are dropped."""

    def resolve(self, value: Any) -> None:
        """Wake the task with a value; the second result is dropped."""

    def fail(self, error: BaseException) -> None:
        """Wake the task with an error; the second result is dropped."""


class TrioWaiter:
    """A parked trio task: half the price of an Event and a slot beside it."""

    __slots__ = ("_done", "_result", "_task")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._result: outcome.Outcome[Any] | None = None
        self._done = False

    async def wait(self) -> Any:
        if self._result is not None:
            await trio.lowlevel.checkpoint()
            return self._result.unwrap()
        self._task = trio.lowlevel.current_task()
        return await trio.lowlevel.wait_task_rescheduled(self._abort)

    def resolve(self, value: Any) -> None:
        self._settle(outcome.Value(value))

    def fail(self, error: BaseException) -> None:
        self._settle(outcome.Error(error))

    def _settle(self, result: outcome.Outcome[Any]) -> None:
        if self._done:
            return
        self._done = True
        if self._task is None:
            self._result = result
        else:
            trio.lowlevel.reschedule(self._task, result)

    def _abort(self, raise_cancel: Any) -> trio.lowlevel.Abort:
        self._done = True
        return trio.lowlevel.Abort.SUCCEEDED


class AsyncioWaiter:
    """The same over an asyncio future."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def wait(self) -> Any:
        return await self._future

    def resolve(self, value: Any) -> None:
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # marks it as seen: nobody may be waiting any more


@attrs.frozen
class Loop:
    """The running event loop, as far as remoting needs it. Streams' errors are trio's on both."""

    name: str
    now: Callable[[], float]
    wait_readable: Callable[[socket.socket], Awaitable[None]]
    wait_writable: Callable[[socket.socket], Awaitable[None]]
    notify_closing: Callable[[socket.socket], None]
    waiter: Callable[[], Waiter]


async def _wait_readable(sock: socket.socket) -> None:
    try:
        await anyio.wait_readable(sock)
    except anyio.ClosedResourceError as error:
        raise trio.ClosedResourceError from error


async def _wait_writable(sock: socket.socket) -> None:
    try:
        await anyio.wait_writable(sock)
    except anyio.ClosedResourceError as error:
        raise trio.ClosedResourceError from error


_TRIO = Loop(
    "trio",
    trio.current_time,
    trio.lowlevel.wait_readable,
    trio.lowlevel.wait_writable,
    trio.lowlevel.notify_closing,
    TrioWaiter,
)
_ASYNCIO = Loop(
    "asyncio", anyio.current_time, _wait_readable, _wait_writable, anyio.notify_closing, AsyncioWaiter
)


def current_loop() -> Loop:
    """The loop that runs the calling task."""
    return _TRIO if trio.lowlevel.in_trio_run() else _ASYNCIO
