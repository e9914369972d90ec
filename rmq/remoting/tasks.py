"""Errors that leave a task group, and tasks that are started again."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import anyio
import anyio.lowlevel

RESTART_SECONDS: Final = (1.0, 60.0)
"""First and longest pause before a task is started again."""

log = logging.getLogger("rmq.tasks")

T = TypeVar("T")


@contextmanager
def bare_errors() -> Iterator[None]:
    """Put round a task group that callers do not see: its only error comes out as itself."""
    try:
        yield
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if error is group:
            raise
        raise error from error.__cause__


async def restarting(
    what: str,
    run: Callable[[], Awaitable[None]],
    *,
    errors: type[Exception] | tuple[type[Exception], ...] = Exception,
    longest_pause: float = RESTART_SECONDS[1],
) -> None:
    """Run a task again after a pause when it fails by one of `errors`. Ends when it returns."""
    first, longest = RESTART_SECONDS
    pause = first
    while True:
        began = anyio.current_time()
        try:
            return await run()
        except errors as error:
            log.error("%s failed, starting it again: %s", what, error, exc_info=error)
        if anyio.current_time() - began > longest:
            pause = first
        await anyio.sleep(pause)
        pause = min(2 * pause, longest_pause)


async def in_slices(work: Generator[None, None, T]) -> T:
    """Do long work that yields now and then; others are served in between. Returns what it returns."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await anyio.lowlevel.checkpoint()
