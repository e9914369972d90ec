"""Writer of the files of `DeferredSaves`, in a thread, with the responses to the waiting requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import anyio.to_thread

from rmq.remoting.loop import Wakeup
from rmq.server.deferred import DeferredSaves

RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a blocking function, and returns its result."""


async def write_files(answers: DeferredSaves, run: RunBlocking = anyio.to_thread.run_sync) -> None:
    """Write the waiting files in order, and answer. Cancelled: the present file is completed, without a
    response to its request."""
    while (one := answers.next()) is not None:
        try:
            result = await run(one.write)
        except Exception as error:
            answers.failed(one, error)
        else:
            answers.written(one, result)


async def keep_writing(answers: DeferredSaves, pending: Wakeup) -> NoReturn:
    """Run `write_files` repeatedly, whenever `pending` is set. Cancelled: as `write_files`."""
    while True:
        await write_files(answers)
        await pending.wait()
