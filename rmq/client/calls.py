"""Functions that the application gives us, as coroutines."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread


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
