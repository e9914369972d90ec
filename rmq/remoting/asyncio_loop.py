"""asyncio's own form of the event-loop primitives of the hot path: loaded only where asyncio runs.

A task that waits for bytes costs a turn of the loop for each chunk, a tenth of the time of a send. In this
module the function that the loop calls for a socket reads, decodes and wakes the waiting calls; the
connection's task only runs for work that must wait, as with a server's `Poller`.

A future of asyncio wakes its task in the next turn of the loop, which asks the system once more for sockets.
The tasks whose answers a chunk brought are woken at its end, in the same turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Final
from weakref import WeakKeyDictionary

import sniffio


class Turn:
    """Wakes the tasks of waiters that were resolved while a socket was read, once the reading is over.

    Tasks run one after the other, as in the loop, and only where no other task runs: in a function that the
    loop itself calls.
    """

    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due: list[AsyncioWaiter] | None = None
        """Waiters that are resolved and whose tasks are still to run; None outside of a turn."""

    def begin(self) -> None:
        """Gather the waiters that are resolved until `end`."""
        self.due = []

    def end(self) -> None:
        """Run the tasks of the gathered waiters. Raises an error that ends the loop, such as
        KeyboardInterrupt; in this case the other tasks run in the loop's next turn."""
        due, self.due = self.due, None
        if not due:
            return
        at = 0
        try:
            for waiter in due:
                at += 1
                waiter.wake()
        finally:
            for waiter in due[at:]:
                waiter.wake_soon()


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turn] = WeakKeyDictionary()


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """The turn of a loop's waiters and readers."""
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = Turn()
    return turn


class AsyncioWaiter(asyncio.Future[Any]):
    """A `Waiter`: a future whose task is woken in the present `Turn`, if there is one."""

    __slots__ = ("_context", "_turn", "_wake")

    def __init__(self, loop: asyncio.AbstractEventLoop, turn: Turn) -> None:
        super().__init__(loop=loop)
        self._turn = turn
        self._wake: Callable[[AsyncioWaiter], object] | None = None
        self._context: Context | None = None

    def wait(self) -> Awaitable[Any]:
        return self  # a coroutine around it would cost each send two turns more

    def resolve(self, value: Any) -> None:
        if not self.done():
            self.set_result(value)
            self._finished()

    def fail(self, error: BaseException) -> None:
        if not self.done():
            self.set_exception(error)
            self.exception()  # marks it as seen: perhaps no task waits any more
            self._finished()

    def wake(self) -> None:
        """Run the waiting task now; no task may be running."""
        wake, self._wake = self._wake, None
        if wake is not None:
            assert self._context is not None
            self._context.run(wake, self)

    def wake_soon(self) -> None:
        """Run the waiting task in the loop's next turn."""
        wake, self._wake = self._wake, None
        if wake is not None:
            self.get_loop().call_soon(wake, self, context=self._context)

    def _finished(self) -> None:
        if self._wake is None:
            return
        if self._turn.due is None:
            self.wake_soon()
        else:
            self._turn.due.append(self)

    # --- as a future: its only callback is that of the task that waits ---

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        if self._wake is None and context is not None and not self.done():
            self._wake, self._context = fn, context
        else:
            super().add_done_callback(fn, context=context)

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        self.wake_soon()
        return True


class AsyncioPoller:
    """Reads the sockets of any number of connections of the running loop; see the module."""

    is_running: Final = True
    spares_tasks: Final = False
    """A client has few connections, and calls over each of them."""
    alone: Final = -1
    """No descriptor has a treatment of its own for being the only one."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._call_soon = loop.call_soon
        self._turn = turn_of(loop)

    def send_soon(self, send: Callable[[], None]) -> None:
        """Call `send` once other functions and tasks have had their turn; it must not block or raise."""
        self._call_soon(send)

    def note(self, descriptor: int) -> None:
        """Do nothing: a chunk has come from a descriptor."""

    async def attend(self, descriptor: int, on_readable: Callable[[], bool]) -> None:
        """Call `on_readable` whenever the descriptor can be read, until it returns False, or raises an error,
        which this call then raises. `on_readable` must not block, and may be called without data.

        No other code may wait for the descriptor at the same time, and the descriptor stays open. Cancelled:
        the calls end.
        """
        loop, turn = asyncio.get_running_loop(), self._turn
        ended: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            if ended.done():
                return
            turn.begin()
            try:
                if not on_readable():
                    ended.set_result(None)
            except Exception as error:
                ended.set_exception(error)
            finally:
                turn.end()

        # The loop calls it outside of any task, where only this variable says which library runs.
        sniffio.current_async_library_cvar.set("asyncio")
        loop.add_reader(descriptor, read)
        try:
            await ended
        finally:
            loop.remove_reader(descriptor)
