"""Poller: reads the sockets of many connections in a single task, and sends their late answers in another.

A task for each connection wakes by way of the event loop, which costs more than a request when each
connection has a request. The poller keeps all sockets in an epoll of its own, the loop waits for that single
descriptor, and the poller serves the readable sockets. A connection has a task for its end and for work that
must wait; a connection that only waits for bytes may have none, and starts a task when it needs one. A
connection that is alone reads by its task, which is as fast in this case. On a system without epoll all
connections read by their tasks, and on asyncio the loop calls a function for each socket.

Answers outside of a chunk (a held pull for which a message came) gather in the outboxes of their connections
for the rest of the turn: then all of them are sent by one task, which costs less than a task for each
connection that wakes. A connection whose peer does not take all its answers continues by a task of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, NoReturn

import anyio
import anyio.abc
import trio

from rmq.remoting.endpoint import Endpoint
from rmq.remoting.loop import Waiter, current_loop
from rmq.remoting.trio_loop import TrioWaiter

if sys.platform == "linux":
    from select import EPOLLIN, epoll

    from rmq.remoting.trio_loop import InlineReads, begin_inline_reads

SLICE_SECONDS: Final = 0.005
"""Seconds after which tasks have their turn, also while more connections can be read."""
ALONE_AFTER: Final = 16
"""Chunks in a row from one connection, and none from others, after which it counts as alone."""


class _Call:
    """A function in the place of a waiting task; it gets the error of the last call, or None."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[Exception | None], None]) -> None:
        self._call = call

    def resolve(self, value: object) -> None:
        self._call(None)

    def fail(self, error: Exception) -> None:
        self._call(error)


class Poller:
    """The task that reads many sockets. `round_seconds` is the time that the last round took to serve
    everything readable, including turns of other tasks. `clock` is in seconds. Only trio has a running
    poller."""

    spares_tasks: Final = True
    """True if connections are so many, and so often idle, that their tasks are worth sparing."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, *, is_inline: bool = True) -> None:
        """`is_inline`: serve sockets where the loop waits, if this trio allows it."""
        self.round_seconds = 0.0
        self.is_serving = False
        """True if a round is not over yet while tasks have their turn."""
        self.alone = -1
        """The descriptor from which all chunks came for a while; -1: they come from several."""
        self._endpoint: Endpoint | None = None
        """Is told where a round of several chunks begins and ends."""
        self._clock = clock
        self._watched: dict[int, tuple[Callable[[], bool], Waiter | _Call]] = {}
        self._epoll: epoll | None = None
        self._is_inline = is_inline
        self._inline: InlineReads | None = None
        self._began = 0.0  # the present round
        self._unserved: list[tuple[int, int]] = []  # of the round, while other tasks have their turn
        self._last = -1  # the descriptor that the last chunks came from
        self._in_a_row = 0
        self._due: list[Callable[[], None]] = []
        self._sender: Waiter | None = None

    def attach(self, endpoint: Endpoint) -> None:
        """Inform `endpoint` when a round of several connections begins and ends."""
        self._endpoint = endpoint

    @property
    def is_running(self) -> bool:
        """True if `attend` may be called."""
        return self._epoll is not None

    def note(self, descriptor: int) -> None:
        """Note a chunk from a descriptor, whichever task read it."""
        if self._inline is not None:
            return  # a task of its own would be slower, also for a lone connection
        if descriptor != self._last:
            self._last, self._in_a_row, self.alone = descriptor, 0, -1
        self._in_a_row += 1
        if self._in_a_row > ALONE_AFTER:
            self.alone = descriptor

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve readable sockets until cancelled; return at once without epoll. `started` says that `attend`
        may be called now."""
        if sys.platform != "linux" or current_loop().name != "trio":
            task_status.started()
            return
        with epoll() as self._epoll:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._send)
                    if self._is_inline:
                        self._inline = begin_inline_reads(self._epoll, self._serve)
                    task_status.started()
                    if self._inline is None:
                        await self._wait(self._epoll)
                    else:
                        await trio.sleep_forever()
            finally:
                if self._inline is not None:
                    self._inline.end()
                self._epoll = self._inline = None
                self.is_serving, self._unserved = False, []
                for _, waiting in self._watched.values():  # their tasks read for themselves now
                    if isinstance(waiting, TrioWaiter):
                        waiting.resolve(None)

    def send_soon(self, send: Callable[[], None]) -> None:
        """Call `send` once other tasks have had their turn; it must not block or raise. Only while the poller
        is running."""
        self._due.append(send)
        if self._sender is not None:
            self._sender.resolve(None)
            self._sender = None

    async def _send(self) -> NoReturn:
        clock = self._clock
        while True:
            if not self._due:
                self._sender = waiter = TrioWaiter()
                await waiter.wait()
            due, self._due = self._due, []
            turn_began = clock()
            for send in due:
                send()
                if clock() - turn_began > SLICE_SECONDS:
                    await trio.lowlevel.checkpoint()
                    turn_began = clock()

    async def _wait(self, ready: epoll) -> NoReturn:
        """Serve in a task, where sockets are not served inline."""
        while True:
            await trio.lowlevel.wait_readable(ready.fileno())
            found = ready.poll(0)
            while not self._serve(found):
                await trio.lowlevel.checkpoint()

    def _serve(self, found: list[tuple[int, int]]) -> bool:
        """Serve a round of readable descriptors, or the rest of the present one. False when tasks must have
        their turn before the round continues. A round keeps the descriptors that it found at its begin, or it
        would never end while peers send."""
        clock, watched = self._clock, self._watched
        turn_began = clock()
        if self.is_serving:
            found = self._unserved
        else:
            self._began = turn_began
        endpoint = self._endpoint if len(found) > 1 or self.is_serving else None
        self.is_serving = False
        if endpoint is not None:
            endpoint.begin_round()
        for at, (descriptor, _) in enumerate(found, 1):
            entry = watched.get(descriptor)
            if entry is None:  # its connection ended while others were served
                continue
            try:
                goes_on = entry[0]()
            except Exception as error:
                self._drop(descriptor, entry)
                entry[1].fail(error)
            else:
                if not goes_on:
                    self._drop(descriptor, entry)
                    entry[1].resolve(None)
            if at < len(found) and clock() - turn_began > SLICE_SECONDS:
                self._unserved, self.is_serving = found[at:], True
                break
        if endpoint is not None:
            endpoint.end_round()
        if self.is_serving:
            return False
        self._unserved, self.round_seconds = [], clock() - self._began
        return True

    def _drop(self, descriptor: int, entry: tuple[Callable[[], bool], Waiter | _Call]) -> None:
        if self._watched.get(descriptor) is entry:  # else its own call has ended the watch
            del self._watched[descriptor]

    async def attend(self, descriptor: int, on_readable: Callable[[], bool]) -> None:
        """Call `on_readable` whenever the descriptor can be read, until it returns False, or raises an error,
        which this call then raises, or until the poller ends. `on_readable` must not block, and may be called
        without data.

        Returns after a single call when the descriptor is alone: the caller's own task waits in this case.
        Only one task may attend a descriptor, which stays open. Cancelled: the calls end.
        """
        if self.alone == descriptor:
            await trio.lowlevel.wait_readable(descriptor)
            on_readable()
            return
        assert self._epoll is not None
        assert descriptor not in self._watched
        waiter = TrioWaiter()
        self._watched[descriptor] = on_readable, waiter
        try:
            self._epoll.register(descriptor, EPOLLIN)
            await waiter.wait()
        finally:
            self._watched.pop(descriptor, None)
            if self._epoll is not None:
                self._epoll.unregister(descriptor)

    def watch(
        self,
        descriptor: int,
        on_readable: Callable[[], bool],
        on_over: Callable[[Exception | None], None],
    ) -> None:
        """Call `on_readable` as `attend` does, without a task that waits. `on_over(error)` is called, once,
        in place of the return of `attend`, and calls `forget`; both may be called inside of `on_readable`."""
        assert self._epoll is not None
        assert descriptor not in self._watched
        self._epoll.register(descriptor, EPOLLIN)
        self._watched[descriptor] = on_readable, _Call(on_over)

    def forget(self, descriptor: int) -> None:
        """End a `watch`."""
        self._watched.pop(descriptor, None)
        if self._epoll is not None:
            self._epoll.unregister(descriptor)

    def release(self, descriptor: int) -> None:
        """Let an `attend` of this descriptor return, as after a call that returned False."""
        entry = self._watched.pop(descriptor, None)
        if entry is not None:
            entry[1].resolve(None)

    async def round_end(self) -> float:
        """Wait for the end of the round in which tasks have their turn; return the round's seconds. 0 without
        such a round."""
        if not self.is_serving:
            return 0.0
        while self.is_serving:
            await trio.lowlevel.checkpoint()
        return self.round_seconds
