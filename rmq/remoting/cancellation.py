"""Cancellations that are not aimed at the running task.

A task ends by a cancellation when the task itself, or its scope, is cancelled. The same exception also comes
out of code that awaits a task or a future that another task has cancelled, and out of `future.result()`; such
an exception is an ordinary failure, since no code wants to end the running task.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn

import anyio
import anyio.lowlevel

from rmq.errors import StrayCancellation

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)


def cancel_requests() -> int:
    """The number of cancellations of the running asyncio task that were requested and not withdrawn; 0 on
    trio, and in a thread without a loop. Call this before foreign code runs, and give the result to
    `as_failure` and `withdraw` afterwards."""
    task = _asyncio_task()
    return 0 if task is None else task.cancelling()


def _asyncio_task() -> asyncio.Task[Any] | None:
    known = sys.modules.get("asyncio")
    if known is None or known._get_running_loop() is None:  # asks without raising: on trio there is none
        return None
    task: asyncio.Task[Any] | None = known.current_task()
    return task


def is_cancellation(error: BaseException) -> bool:
    """True if an error is trio's or asyncio's cancellation, whichever of them runs this task."""
    known = (sys.modules.get("trio"), "Cancelled"), (sys.modules.get("asyncio"), "CancelledError")
    return any(module is not None and isinstance(error, getattr(module, name)) for module, name in known)


def as_failure(error: BaseException, requests: int = 0) -> Exception | None:
    """The error as a failure of the code that raised it: the error itself, or a `StrayCancellation` for a
    cancellation that was not aimed at the running task. None for an error that must go on: a cancellation of
    this task or of its scope, Ctrl-C, `SystemExit`. `requests` is the result of `cancel_requests` before that
    code ran."""
    if isinstance(error, Exception):
        return error
    if not _has_only_failures(error) or _is_cancelled(requests):
        return None
    failure = StrayCancellation()
    failure.__cause__ = error
    return failure


def raise_failure(failure: Exception, error: BaseException) -> NoReturn:
    """Raise the result of `as_failure` for `error`, while `error` is being handled."""
    if failure is error:
        raise
    raise failure from error


async def resume_when_cancelled_alone(work: Callable[[], Awaitable[None]], whose: str) -> None:
    """Run `work`, and run it again when only this task is cancelled and not the scope that it runs in, for
    example by a handler that cancels its own task: only the handler of `whose` work knows the task. Cancelled
    with its scope: `work` is cancelled."""
    requests = cancel_requests()
    while True:
        try:
            return await work()
        except BaseException as error:
            if not withdraw(error, requests):
                raise
            log.warning("%s: the task of a handler was cancelled; its worker continues", whose)
            await anyio.lowlevel.checkpoint()


def withdraw(error: BaseException, requests: int) -> bool:
    """Withdraw a cancellation that was requested of the running task alone, and not of the scope that it runs
    in. For tasks of rmq's own, of which the application sees only its handler. False for any other error."""
    if not is_cancellation(error) or _is_scope_cancelled():
        return False
    task = _asyncio_task()
    while task is not None and task.cancelling() > requests:
        task.uncancel()
    return True


def _has_only_failures(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_has_only_failures, error.exceptions))
    return isinstance(error, Exception) or is_cancellation(error)


def _is_cancelled(requests: int) -> bool:
    return cancel_requests() > requests or _is_scope_cancelled()


def _is_scope_cancelled() -> bool:
    return anyio.current_effective_deadline() == -math.inf
