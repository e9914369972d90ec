"""Several requests at once, within a bound."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

import anyio

K = TypeVar("K")
T = TypeVar("T")

AT_ONCE: Final = 16
"""Requests in flight of one page: they hide the round trips, and leave the brokers' capacity free for
others."""


async def ask_each(keys: Iterable[K], ask: Callable[[K], Awaitable[T]], at_once: int = AT_ONCE) -> dict[K, T]:
    """Call `ask` with each key, at most `at_once` at a time; return key -> result in the order of the keys.

    The first error cancels the other calls and is raised unchanged. Cancelled: the calls are cancelled too.
    """
    unique = list(dict.fromkeys(keys))
    found: dict[K, T] = {}
    waiting = iter(unique)

    async def work() -> None:
        for key in waiting:
            found[key] = await ask(key)

    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(min(at_once, len(unique))):
                tasks.start_soon(work)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__
    return {key: found[key] for key in unique}
