"""Calls from a plain thread into the thread of an event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal

T = TypeVar("T")


def wait_for(
    portal: BlockingPortal, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **options: Any
) -> T:
    """What the coroutine function returns or raises. Interrupted by Ctrl-C, the call is cancelled first."""

    async def call() -> T:
        return await function(*arguments, **options)

    future = portal.start_task_soon(call)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
