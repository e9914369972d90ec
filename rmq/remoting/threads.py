"""Ordinary functions as async functions in worker threads, with a bound on the wait for functions that do not
end."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from rmq.errors import StrayCancellation


class ThreadWaits:
    """Waits for functions in threads, which a cancellation does not end: a thread cannot be stopped, and a
    thread that ends in time has done its work. `give_up` ends all waits."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let this object own the waits for functions of `as_async`, in the block and in tasks that begin in
        it."""
        token = _waits.set(self)
        try:
            yield
        finally:
            _waits.reset(token)

    def give_up(self) -> int:
        """End all waits; return their number. The functions run on, and their results are dropped."""
        for scope in (scopes := list(self._scopes)):
            scope.cancel()
        return len(scopes)

    async def run(
        self, work: Callable[[Any], Any], argument: Any, limiter: anyio.CapacityLimiter
    ) -> list[Any]:
        await anyio.lowlevel.checkpoint_if_cancelled()
        with anyio.CancelScope(shield=True) as scope:
            self._scopes.add(scope)
            try:
                return await anyio.to_thread.run_sync(work, argument, limiter=limiter, abandon_on_cancel=True)
            finally:
                self._scopes.discard(scope)
        await anyio.lowlevel.checkpoint()  # the caller has cancelled the task, too
        raise StrayCancellation("a function in a thread is not waited for any more")


_waits: ContextVar[ThreadWaits | None] = ContextVar("rmq_thread_waits", default=None)


def is_async(function: Callable[..., Any]) -> bool:
    """True if `function` is async, or an object with an async call."""
    call = getattr(function, "__call__", None)  # noqa: B004 - of an object
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def as_async(handler: Callable[[Any], Any], threads: int) -> Callable[[Any], Awaitable[Any]]:
    """The handler itself, or a wrapper that runs it in a worker thread, at most `threads` at a time."""
    if is_async(handler):
        return handler
    limiter = anyio.CapacityLimiter(max(threads, 1))

    def in_thread(argument: Any) -> list[Any]:
        return [handler(argument)]  # in a list, because trio refuses functions that return coroutines

    async def call(argument: Any) -> Any:
        waits = _waits.get()
        if waits is None:
            (result,) = await anyio.to_thread.run_sync(in_thread, argument, limiter=limiter)
        else:
            (result,) = await waits.run(in_thread, argument, limiter)
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise TypeError(f"{handler!r} returned a generator, of which nothing has run: return its result")
        return await result if inspect.isawaitable(result) else result

    return call
