"""An event loop in a thread of its own, and calls into it from threads that have none."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import anyio
from anyio.from_thread import BlockingPortal

from rmq.client.threads.inline_loop import InlineLoop, inline_loop
from rmq.errors import LocalProtocolError
from rmq.remoting.loop import current_loop

T = TypeVar("T")


class LoopThread(BlockingPortal):
    """The way into a loop's thread. A fork copies no threads: a caller in the copy, which would wait for
    ever, gets LocalProtocolError."""

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()
        self.opened: WeakSet[Any] = WeakSet()
        """Objects that were opened without a block, to be closed before the loop ends."""

    def start_task_soon(self, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        self.check_process()
        return super().start_task_soon(*arguments, **options)

    def start_task(self, *arguments: Any, **options: Any) -> Any:
        self.check_process()
        return super().start_task(*arguments, **options)

    @property
    def is_of_this_process(self) -> bool:
        """True if the thread belongs to this process, and not to the process from which it was forked."""
        return os.getpid() == self._pid

    def check_process(self) -> None:
        """Raises LocalProtocolError in a copy of the process."""
        if not self.is_of_this_process:
            raise LocalProtocolError("this client was opened before a fork: open one in each process")


@contextmanager
def loop_thread(backend: str) -> Iterator[LoopThread]:
    """A loop of anyio's `backend` in a thread that the interpreter does not wait for when it ends. The end of
    the block cancels everything that still runs in the loop. Raises the errors of starting the loop."""
    made: Future[LoopThread] = Future()

    async def serve() -> None:
        async with LoopThread() as portal:
            made.set_result(portal)
            await portal.sleep_until_stopped()

    def run() -> None:
        try:
            options = {"loop_factory": inline_loop} if backend == "asyncio" else {}
            anyio.run(serve, backend=backend, backend_options=options)
        except BaseException as error:
            if made.done():
                raise
            made.set_exception(error)

    thread = threading.Thread(target=run, name="rmq-blocking", daemon=True)
    thread.start()
    portal = made.result()
    try:
        yield portal
    finally:
        if portal.is_of_this_process:
            portal.call(portal.stop, True)  # blocks that were never left would keep it
            thread.join()


def wait_for(
    portal: BlockingPortal, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **options: Any
) -> T:
    """The result or the error of the coroutine function. Interrupted by Ctrl-C, the call is cancelled
    first."""
    if isinstance(portal, LoopThread):
        portal.check_process()
    running = _loop_of(portal)
    if running is None:
        return _call_in_trio(portal, partial(function, *arguments, **options))
    # On asyncio a task of the loop's own and a lock to wait for: less than half of what a future of a thread
    # costs, which has a condition.
    portal._check_running()
    if isinstance(running, InlineLoop):
        running.check_caller()
    ended, results, task = threading.Lock(), list[T](), list[asyncio.Task[None]]()

    async def call() -> None:
        try:
            results.append(await function(*arguments, **options))
        except BaseException as error:
            failed.append(error)
        finally:
            ended.release()

    failed: list[BaseException] = []
    ended.acquire()
    try:  # from the first moment on, as Ctrl-C may come before this thread waits
        if isinstance(running, InlineLoop):
            running.run(call, task, ended)
        else:
            running.call_soon_threadsafe(lambda: task.append(running.create_task(call())))
            ended.acquire()
    except BaseException:
        running.call_soon_threadsafe(lambda: [one.cancel() for one in task])
        raise
    if failed:
        raise failed[0]
    return results[0]


def _call_in_trio(portal: BlockingPortal, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    scopes, returned, given_up = list[anyio.CancelScope](), list[T](), threading.Event()

    async def call() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            if not given_up.is_set():
                returned.append(await function())

    def cancel() -> None:
        for scope in scopes:
            scope.cancel()

    try:  # from the first moment on, as Ctrl-C may come before the future exists
        portal.start_task_soon(call).result()
    except BaseException:
        given_up.set()
        with suppress(RuntimeError, LocalProtocolError):  # the loop has ended
            portal.start_task_soon(cancel)
        raise
    return returned[0]


_loops: WeakKeyDictionary[BlockingPortal, asyncio.AbstractEventLoop | None] = WeakKeyDictionary()


def _loop_of(portal: BlockingPortal) -> asyncio.AbstractEventLoop | None:
    """The asyncio loop of a portal's thread; None when trio runs there."""
    if portal not in _loops:
        _loops[portal] = portal.call(_running_loop)
    return _loops[portal]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    return asyncio.get_running_loop() if current_loop().name == "asyncio" else None
