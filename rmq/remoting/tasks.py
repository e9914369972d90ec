"""Errors that leave a task group, and tasks that are started again."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import anyio

RESTART_SECONDS: Final = (1.0, 60.0)
"""First and longest pause before a task is started again."""

log = logging.getLogger("rmq.tasks")


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


async def restarting(what: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run a task whose errors are not ours; when it fails, again after a pause. Ends when it returns."""
    pause, longest = RESTART_SECONDS
    while True:
        began = anyio.current_time()
        try:
            return await run()
        except Exception as error:
            log.error("%s failed, starting it again: %s", what, error, exc_info=error)
        if anyio.current_time() - began > longest:
            pause = RESTART_SECONDS[0]
        await anyio.sleep(pause)
        pause = min(2 * pause, longest)
