"""The few event-loop primitives of the hot path, in trio's own form or through anyio, and `Wakeup`.

anyio's versions work on both loops; the loops' own cost a third less per wait, so a stream and a connection
look once which loop runs them, and keep its functions. On asyncio trio is not loaded, because loading takes
50 ms.
"""

from __future__ import annotations

import logging
import math
import socket
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from contextvars import Context, copy_context
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
import attrs
import sniffio

from rmq.errors import LocalProtocolError, StrayCancellation

if TYPE_CHECKING:  # programs on trio need not wait 15 ms for it: functions that run on asyncio import it
    import asyncio

    import anyio.abc
    import trio

    from rmq.remoting.asyncio_loop import AsyncioPoller

    Tasks = anyio.abc.TaskGroup | trio.Nursery


class Waiter(Protocol):
    """A single task waits, once, for a value or an error."""

    def wait(self) -> Awaitable[Any]:
        """Return the value or raise the error. When cancelled, later results are dropped."""

    def resolve(self, value: Any) -> None:
        """Wake the task with a value; the second result is dropped."""

    def fail(self, error: BaseException) -> None:
        """Wake the task with an error; the second result is dropped."""


class Scope(AbstractContextManager[Any], Protocol):
    """A cancel scope."""

    deadline: float

    @property
    def cancel_called(self) -> bool:
        """True after `cancel`, or at the deadline."""

    def cancel(self) -> None:
        """End the block of the scope."""


@attrs.frozen
class Loop:
    """The running event loop, with the functions that remoting needs."""

    name: str
    now: Callable[[], float]
    wait_readable: Callable[[socket.socket], Awaitable[None]]
    wait_writable: Callable[[socket.socket], Awaitable[None]]
    notify_closing: Callable[[socket.socket], None]
    waiter: Callable[[], Waiter]
    scope: Callable[..., Scope]
    """A cancel scope; `deadline` is on this clock."""
    call_at: Callable[..., asyncio.TimerHandle] | None = None
    """A timer without a task, where the loop has such timers: a wait that a timer ends costs a third of a
    wait in a scope."""
    tasks: Callable[[], AbstractAsyncContextManager[Any]] = anyio.create_task_group
    """A group of tasks, `Tasks`. Each task of trio's own takes 1.5 KB less than one of anyio's."""
    poller: Callable[[], AsyncioPoller] | None = None
    """Makes the reader of a client's sockets, where the loop calls functions for sockets."""


# --- errors of streams: trio's where trio is loaded, so that trio's own tools know them, else anyio's ---


def broken(text: str) -> Exception:
    """The error of a stream whose peer or network has failed."""
    trio = sys.modules.get("trio")
    return anyio.BrokenResourceError(text) if trio is None else trio.BrokenResourceError(text)


def closed(text: str = "this side closed the stream") -> Exception:
    """The error of a stream, or listener, that this side closed."""
    trio = sys.modules.get("trio")
    return anyio.ClosedResourceError(text) if trio is None else trio.ClosedResourceError(text)


def busy(text: str) -> Exception:
    """The error of a second task in the same direction."""
    trio = sys.modules.get("trio")
    return anyio.BusyResourceError(text) if trio is None else trio.BusyResourceError(text)


def disconnect_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Exceptions of a lost peer or network, plus `others`, for an `except` clause."""
    trio = sys.modules.get("trio")
    known: tuple[type[Exception], ...] = (anyio.BrokenResourceError, *others)
    return known if trio is None else (trio.BrokenResourceError, *known)


def disconnect_or_close_errors() -> tuple[type[Exception], ...]:
    """Exceptions for an `except` clause around code that may raise `broken` or `closed`."""
    trio = sys.modules.get("trio")
    ours = (anyio.BrokenResourceError, anyio.ClosedResourceError)
    return ours if trio is None else (trio.BrokenResourceError, trio.ClosedResourceError, *ours)


async def _wait_readable(sock: socket.socket) -> None:
    try:
        await anyio.wait_readable(sock)
    except anyio.ClosedResourceError as error:
        raise closed() from error


async def _wait_writable(sock: socket.socket) -> None:
    try:
        await anyio.wait_writable(sock)
    except anyio.ClosedResourceError as error:
        raise closed() from error


_asyncio_loops: tuple[asyncio.AbstractEventLoop | None, Loop | None] = (None, None)
"""The loop of the last call, and its functions, for each thread."""


def _asyncio_loop() -> Loop:
    global _asyncio_loops
    import asyncio

    running = asyncio.get_running_loop()
    known, loop = _asyncio_loops
    if known is not running or loop is None:
        from rmq.remoting import asyncio_loop  # not earlier: on trio asyncio is not loaded

        loop = Loop(
            "asyncio",
            running.time,
            _wait_readable,
            _wait_writable,
            anyio.notify_closing,
            partial(asyncio_loop.AsyncioWaiter, running, asyncio_loop.turn_of(running)),
            anyio.CancelScope,
            running.call_at,
            poller=None if sys.platform == "win32" else asyncio_loop.AsyncioPoller,
        )
        _asyncio_loops = running, loop
    return loop


def forget_loop() -> None:
    """Forget the known loop, before the running loop gets another clock: the next call of `current_loop`
    returns a new object."""
    global _asyncio_loops
    _asyncio_loops = (None, None)


_trio_loop: Any = None
"""A module by its name, once it is loaded: an import statement takes time on every call."""


def current_loop() -> Loop:
    """The loop that runs the calling task."""
    global _trio_loop
    if "trio" in sys.modules:
        if _trio_loop is None:
            from rmq.remoting import trio_loop  # not earlier: on asyncio trio is not loaded

            _trio_loop = trio_loop
        if _trio_loop.is_running():
            loop: Loop = _trio_loop.LOOP
            return loop
    return _asyncio_loop()


def running_loop() -> object | None:
    """An identity of the running loop, different from any other loop, even a later loop of this thread; None
    without a loop."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and (loop := asyncio._get_running_loop()) is not None:
        return loop  # type: ignore[no-any-return]
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return trio.lowlevel.current_trio_token()  # type: ignore[no-any-return]
    return None


def asyncio_loop() -> object | None:
    """The asyncio loop that runs this code; None on trio, and without a loop. It costs less than
    `running_loop`."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


def check_loop(opened_on: object | None, what: str) -> None:
    """Raises LocalProtocolError when this code runs in another loop than the loop in which `what` was
    opened."""
    running = running_loop()
    if running is not opened_on and running is not None and opened_on is not None:
        raise LocalProtocolError(
            f"{what} was opened on another event loop, which has ended or runs in another thread: open one"
            " for each loop, and close it before its loop ends"
        )


def task_context() -> Context:
    """A copy of the context variables, in which a function that the loop calls outside of any task may start
    tasks: on asyncio only a variable of the context says which library runs."""
    context = copy_context()
    if asyncio_loop() is not None:
        context.run(sniffio.current_async_library_cvar.set, "asyncio")
    return context


def thread_safe_call() -> Callable[..., object]:
    """A function that has another function called in this loop soon, from any thread. It raises RuntimeError
    when the loop has ended."""
    if current_loop().name == "trio":
        import trio

        return trio.lowlevel.current_trio_token().run_sync_soon
    import asyncio

    # In the context of this task: the context of another thread does not say which library runs.
    return partial(asyncio.get_running_loop().call_soon_threadsafe, context=task_context())


class Wakeup:
    """Wakes a single waiting task: `set` may be called any number of times before the task runs."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: Waiter | None = None

    def set(self) -> None:
        """Wake the waiting task, or the next task that waits."""
        self._is_set = True
        if self._waiter is not None:
            self._waiter.resolve(None)

    async def wait(self, deadline: float = math.inf) -> bool:
        """Sleep until `set` is called, or until the deadline on the loop's clock; return whether it was
        called.

        Cancelled: an unseen `set` is kept for the next wait.
        """
        assert self._waiter is None, "an alarm wakes one task"
        if self._is_set:
            await anyio.lowlevel.checkpoint()
        else:
            await self._sleep(deadline)
        rang, self._is_set = self._is_set, False
        return rang

    async def _sleep(self, deadline: float) -> None:
        loop = current_loop()
        self._waiter = waiter = loop.waiter()
        timer = None
        try:
            if deadline == math.inf:
                await waiter.wait()
            elif loop.call_at is not None:
                timer = loop.call_at(deadline, waiter.resolve, None)
                await waiter.wait()
            else:
                with loop.scope(deadline=deadline):
                    await waiter.wait()
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


RESTART_SECONDS: Final = (1.0, 60.0)
"""First and longest pause before a restart of a task, in seconds."""

log = logging.getLogger("rmq.tasks")

T = TypeVar("T")


@contextmanager
def unwrap_groups() -> Iterator[None]:
    """Unwrap the errors of a task group that callers do not see: an error comes out as itself, never as a
    group.

    When several tasks failed at the same time, Ctrl-C takes precedence, and after it the first error; its
    notes name the other errors. A group of several errors that a single task raised stays as it is; of a
    group with a single error, as of nested task groups, that error comes out.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        failed = [error for error in group.exceptions if _others(error, None)]
        if not failed:  # only cancellations, which belong to the canceller
            raise
        ended = [error for one in failed for error in _others(one, None) if not isinstance(error, Exception)]
        error = ended[0] if ended else failed[0]
        others = [other for other in failed if other is not error]
        if len(causes := _others(error, None)) == 1:
            (error,) = causes
        for other in others:
            error.add_note(f"at the same time: {other!r:.200}")
        raise error from error.__cause__


def exponential_backoff(first: float, times: int, longest: float) -> float:
    """A pause of `first` seconds doubled `times` times, at most `longest` seconds.

    `times` may be any number: a server that is away for a day is tried tens of thousands of times, while a
    float overflows after 1,023 doublings.
    """
    return min(first * 2.0 ** min(times, 60), longest)


async def supervise(
    what: str,
    run: Callable[[], Awaitable[None]],
    *,
    errors: type[Exception] | tuple[type[Exception], ...] = Exception,
    longest_pause: float = RESTART_SECONDS[1],
) -> None:
    """Run a task, and again after a pause when it fails by an error of `errors`. Ends when the task
    returns."""
    first, longest = RESTART_SECONDS
    pause = first
    while True:
        began = anyio.current_time()
        try:
            return await run()
        except errors as error:
            log.error("%s failed and is restarted: %s", what, error, exc_info=error)
        if anyio.current_time() - began > longest:
            pause = first
        await anyio.sleep(pause)
        pause = min(2 * pause, longest_pause)


async def run_cooperatively(work: Generator[None, None, T]) -> T:
    """Run long work that yields at intervals, and serve other tasks between its parts. Return its result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await anyio.lowlevel.checkpoint()


class TaskGroupScope:
    """Tasks that live exactly as long as the block.

    Cancelling the block from outside does not reach the tasks: a caller that shuts down gracefully still
    needs them. The tasks end when the block's end is reached, for any reason.

    The task that entered a task group must also leave it. Some callers open in one task and close in another:
    fixtures, cells of a notebook, hooks of a web application. So on asyncio the group lives in a task of its
    own, and on trio too after `detach`. A block on trio keeps a nursery.

    A task group wraps errors of its body in an ExceptionGroup; callers that do not see the group must not see
    the wrapping either. So an error of the block comes out bare, and errors of tasks are logged. Without an
    error of the block, a single error of the tasks comes out bare; several come out as a group.
    """

    def __init__(self) -> None:
        self._outer: anyio.abc.TaskGroup | None = None
        self._inner: anyio.abc.TaskGroup | None = None
        self._is_detached = False
        self._opener: asyncio.Task[Any] | None = None  # on asyncio: the task in the block
        self._around: Any = None  # the cancel scope of the opener, outside of the block
        self._is_cancelled = False  # the opener was cancelled, by a failed task
        self._ended: anyio.Event | None = None
        self._is_leaving = False
        self._failure: BaseException | None = None

    @property
    def tasks(self) -> anyio.abc.TaskGroup:
        """The group in which background tasks are started."""
        assert self._inner is not None, "the scope has not been entered"
        return self._inner

    def ended(self) -> str:
        """The errors with which the tasks ended before the scope was left; empty while they run."""
        if self._is_leaving or self._ended is None or not self._ended.is_set():
            return ""
        return repr(self._failure) if self._failure is not None else "they were cancelled"

    def detach(self) -> None:
        """Separate the tasks from the block, before the scope is entered: no block surrounds their use. An
        error of a task then cancels no block, and comes out at the end."""
        self._is_detached = True

    async def __aenter__(self) -> TaskGroupScope:
        on_asyncio = sniffio.current_async_library() == "asyncio"
        if on_asyncio or self._is_detached:
            await self._enter_alone(on_asyncio)
            return self
        self._outer = anyio.create_task_group()
        await self._outer.__aenter__()
        # Cannot block, so a cancellation cannot come between.
        with anyio.CancelScope(shield=True):
            await self._outer.start(self._host)
        return self

    @asynccontextmanager
    async def entering(self) -> AsyncIterator[None]:
        """Enter the scope for a block that completes the opening of its owner. The scope stays open after the
        block; if the block fails or is cancelled, the scope is left, and the error raised again."""
        await self.__aenter__()
        try:
            yield
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise

    async def _enter_alone(self, on_asyncio: bool) -> None:
        import asyncio

        ready, self._ended = anyio.Event(), anyio.Event()
        if on_asyncio:
            self._opener = None if self._is_detached else asyncio.current_task()
            self._around = _cancel_scope(asyncio.current_task())
            host = asyncio.get_running_loop().create_task(self._host_alone(ready, self._ended))
            _hosts.add(host)  # the loop itself keeps no task alive
            host.add_done_callback(_hosts.discard)
        else:
            import trio

            trio.lowlevel.spawn_system_task(self._host_alone, ready, self._ended)
        try:
            with anyio.CancelScope(shield=True):
                await ready.wait()
        except BaseException:  # asyncio's own cancellation, which no shield stops
            host.cancel()
            raise

    async def _host_alone(self, ready: anyio.Event, ended: anyio.Event) -> None:
        """Run the group's task, not shielded: without a close, this task ends with the loop."""
        try:
            async with anyio.create_task_group() as self._inner:
                ready.set()
                await anyio.sleep_forever()
            self._check_leaving()
        except BaseException as error:
            if not _others(error, None):
                raise
            self._failure = error
            while self._opener is not None and not self._opener.done():
                if _is_shielded(self._opener, self._around):
                    from asyncio import sleep

                    await sleep(0.01)
                    continue
                self._is_cancelled = True
                self._opener.cancel()
                break
        finally:
            ended.set()

    async def _host(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as self._inner:
                task_status.started()
                await anyio.sleep_forever()
        self._check_leaving()

    def _check_leaving(self) -> None:
        """Check that the whole scope leaves: a group swallows a cancellation of a single task, and ends all
        its other tasks."""
        if not self._is_leaving:
            raise StrayCancellation("a background task was cancelled, and ended all background tasks")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel the tasks and wait for them. Cancelled from outside: the same."""
        self._is_leaving = True
        self.tasks.cancel_scope.cancel()
        try:
            if self._outer is not None:
                await self._outer.__aexit__(kind, error, trace)
            else:
                await self._leave_alone(error)
        except BaseException as raised:
            users = error is not None and bool(_others(error, None))
            found = _others(raised, error if users else None)
            if users:
                for other in found:
                    log.error("a background task failed too", exc_info=other)
            else:
                ended = [error for error in found if not isinstance(error, Exception)]  # such as Ctrl-C
                if not found or (len(found) > 1 and not ended):
                    raise
                first = (ended or found)[0]
                raise first from first.__cause__

    async def _leave_alone(self, error: BaseException | None) -> None:
        import asyncio

        opener, self._opener = self._opener, None  # a task that leaves is no longer cancelled
        cancelled = None
        assert self._ended is not None
        if self._is_cancelled and opener is not None and opener is asyncio.current_task():
            if not isinstance(error, asyncio.CancelledError):  # the cancellation is still to come
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            opener.uncancel()
        while not self._ended.is_set():
            try:
                with anyio.CancelScope(shield=True):
                    await self._ended.wait()
            except asyncio.CancelledError as caught:  # asyncio's own, which no shield stops
                cancelled = caught
        if self._failure is not None:
            raise self._failure
        if cancelled is not None:
            raise cancelled


_hosts: set[asyncio.Task[None]] = set()


def _cancel_scope(task: asyncio.Task[Any] | None) -> Any:
    """anyio's innermost cancel scope of an asyncio task; None without a scope, or when anyio keeps it
    elsewhere.

    Publicly anyio gives the scope only to the task itself. Tests check the place of the scope in the
    installed anyio; with another place the only harm is that the task is cancelled although it is shielded.
    """
    from anyio._backends import _asyncio as backend

    states = getattr(backend, "_task_states", None)
    state = states.get(task) if states is not None and task is not None else None
    return getattr(state, "cancel_scope", None)


def _is_shielded(task: asyncio.Task[Any], around: Any) -> bool:
    """True if a scope inside of `around` shields the task; asyncio's own cancellation ignores shields."""
    scope = _cancel_scope(task)
    while scope is not None and scope is not around:
        if scope.shield:
            return True
        scope = getattr(scope, "_parent_scope", None)
    return False


class AsyncResource:
    """An object for `async with`, which can also be opened by `start` and closed by `aclose`."""

    _scope: TaskGroupScope
    _is_started = False

    async def start(self) -> Self:
        """Open the object without a block, to be closed with `aclose`, by any task: for fixtures, notebooks,
        start and stop hooks. An error of its background tasks comes out of `aclose`.

        Raises the errors of `async with`. Cancelled: the object is not open.
        """
        if self._is_started:
            raise LocalProtocolError(f"this {type(self).__name__} is open already")
        self._scope.detach()
        await self.__aenter__()
        self._is_started = True
        return self

    def __del__(self) -> None:
        if self._is_started:
            warnings.warn(f"unclosed {type(self).__name__}: {self!r}", ResourceWarning, 2, self)

    async def aclose(self) -> None:
        """Close an object opened by `start`, as the end of the block does. No effect on a closed object.

        Cancelled: the object is closed nevertheless, as by a block.
        """
        if self._is_started:
            self._is_started = False
            await self.__aexit__(None, None, None)

    async def __aenter__(self) -> Any:
        raise NotImplementedError

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError


def _others(raised: BaseException, error: BaseException | None) -> list[BaseException]:
    """The errors in `raised`, however nested, but for `error` and cancellations.

    A nursery of the block makes a group of cancellations, which is no error of the user's."""
    if raised is error or isinstance(raised, anyio.get_cancelled_exc_class()):
        return []
    if isinstance(raised, BaseExceptionGroup):
        return [found for inner in raised.exceptions for found in _others(inner, error)]
    return [raised]
