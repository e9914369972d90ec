"""SendingSide: the bytes of a connection that wait to be sent.

A frame goes into the outbox. Inside of the endpoint's `handle` the reader sends the outbox at the end of the
chunk; a call sends its frame at once, unless more calls are likely to follow; all other frames are sent soon:
by the poller, or by a writer task without a poller or when the peer is behind. A peer that does not take its
bytes makes callers wait for room, and is cut off beyond a limit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from rmq.remoting.limits import Limits
from rmq.remoting.loop import Waiter, current_loop, disconnect_or_close_errors
from rmq.remoting.transports.stream import Buffer, Outbox, Stream

if TYPE_CHECKING:
    from rmq.remoting.asyncio_loop import AsyncioPoller
    from rmq.remoting.poller import Poller


class SendingSide(ABC):
    """The outbox of a connection, and the ways in which it is sent. `Connection` adds calls and reading.

    `active_at` is the time of the last byte, in the loop's seconds. `reason` is the reason why the connection
    `is_closed`.
    """

    __slots__ = (  # a dictionary for all these attributes takes 1.2 KB
        "_has_writer",
        "_held",
        "_is_blocked",
        "_is_due",
        "_is_eager",
        "_is_handling",
        "_is_mute",
        "_is_parked",
        "_is_torn",
        "_late",
        "_left",
        "_limits",
        "_new_scope",
        "_new_waiter",
        "_now",
        "_outbox",
        "_poller",
        "_reply_bytes",
        "_room",
        "_sending",
        "_solo",
        "_stream",
        "_taken_at",
        "_tasks",
        "_watched_bytes",
        "active_at",
        "is_closed",
        "reason",
    )

    def __init__(self, stream: Stream, limits: Limits, poller: Poller | AsyncioPoller | None) -> None:
        loop = current_loop()
        self._stream, self._limits, self._poller = stream, limits, poller
        self._watched_bytes = min(self._limits.outbox_bytes, self._limits.pause_bytes)
        self._taken_at = math.inf  # the peer last took bytes at this time, while some wait
        self._left = -1  # unsent bytes of the system at that time
        self._outbox = Outbox()
        self._is_handling = False  # inside endpoint.handle: the reader will send
        self._is_eager = True  # the next write may be sent at once instead of being gathered
        self._sending: anyio.Lock | None = None  # held by the task that waits for the peer to take bytes
        self._is_blocked = False  # the same, cheaper to read
        self._is_torn = False  # a send was cancelled halfway: the next bytes would not be a frame
        self._is_mute = False  # nothing more is sent: the peer has ended or does not read
        self._reply_bytes = 0  # of responses put into the outbox since it was last empty
        self._room: anyio.Event | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._solo: anyio.CancelScope | None = None  # of the reader, while it has no task group
        self._is_parked = False  # the poller reads, and no task waits
        self._late: Waiter | None = None  # the writer, when it sleeps
        self._has_writer = False
        self._is_due = False  # the poller sends the waiting bytes
        self._held = 0  # our bytes that the budget counts
        self.active_at = loop.now()
        self._now: Callable[[], float] = loop.now
        self._new_waiter = loop.waiter
        self._new_scope = loop.scope
        self.is_closed, self.reason = False, ""

    # --- functions of the connection ---

    @abstractmethod
    def abort(self, reason: str) -> None:
        """End the connection at once: nothing more is sent."""

    @abstractmethod
    def _count(self) -> None:
        """Report the held bytes to the budget."""

    @abstractmethod
    def _end(self, reason: str, cause: BaseException | None) -> None:
        """End the lost connection."""

    @abstractmethod
    def _failed(self, error: Exception) -> None:
        """End the connection by a bug."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Have the reader that has no task group continue with one, or end."""

    # --- into the outbox ---

    def write(self, frame: Buffer | Sequence[Buffer]) -> None:
        """Send encoded responses, as a buffer or as several in a row; large buffers are not copied.

        Never blocks. Past `limits.outbox_bytes` the connection is closed, since its peer does not read.
        """
        before = self._outbox.size
        self._put(frame)
        self._reply_bytes += self._outbox.size - before

    def flush(self) -> None:
        """Send the outbox now, as far as the peer takes it: for an endpoint that works on after its
        response."""
        if self._outbox.size and not self.is_closed:
            with suppress(*disconnect_or_close_errors()):  # the next send or read meets the error again
                self._flush_now()

    def answer(self, frames: bytes) -> None:
        """Write responses as `write` does, and send the outbox as `flush` does; the rest is sent soon: also
        for an answer outside of `handle`."""
        if self.is_closed or self._is_blocked:
            self._put(frames)
            return
        try:
            self._outbox.send(self._stream, frames)
        except disconnect_or_close_errors():
            pass  # as above
        if self._outbox.size:
            self._reply_bytes = self._outbox.size
            self._queued()
        elif self._room is not None:
            self._make_room()

    def _put(self, frame: Buffer | Sequence[Buffer]) -> None:
        if not self.is_closed:
            self._outbox.add(frame)
            self._queued()

    def _queued(self) -> None:
        if self._outbox.size > self._watched_bytes:
            self._grown()
        if not self._is_handling and not self.is_closed:
            self._send_late()

    # --- room ---

    async def room(self) -> None:
        """Return once the outbox is short enough for more; for callers that send without waiting for
        responses."""
        while self._outbox.size > self._limits.busy_bytes and not self.is_closed:
            await self._next_room()

    @property
    def is_busy(self) -> bool:
        """True if many bytes wait to be sent: an endpoint that can send less for now should do so."""
        return self._outbox.size > self._limits.busy_bytes

    async def _next_room(self) -> None:
        self._room = self._room or anyio.Event()
        await self._room.wait()

    def _make_room(self) -> None:
        assert self._room is not None
        self._room.set()
        self._room = None

    # --- out of the outbox ---

    def _send_soon(self, frame: bytes) -> None:
        """Send a frame at once if it is likely to be the only write for now, else let more frames gather."""
        outbox = self._outbox
        if self._is_eager and not self._is_blocked:
            self._is_eager = False
            try:
                outbox.send(self._stream, frame)  # mostly the system takes all of it, and nothing is queued
                if not outbox.size:
                    self._reply_bytes = 0
                    if self._room is not None:
                        self._make_room()
                    return
            except disconnect_or_close_errors() as error:
                self._end(f"lost: {error}", error)
                return
        else:
            outbox.add(frame)
        self._send_late()

    def _send_late(self) -> None:
        """Send the waiting bytes soon: by the poller, together with other connections, as long as the peer
        takes them, else by a task of this connection."""
        poller = self._poller
        is_read = self._is_parked or self._tasks is not None or self._solo is not None
        if poller is None or self._has_writer or not is_read or not poller.is_running:
            self._wake_writer()
        elif not self._is_due:
            self._is_due = True
            poller.send_soon(self._send_due)

    def _send_due(self) -> None:
        self._is_due = False
        if self.is_closed:
            return  # the waiting bytes are sent at the end
        try:
            if self._outbox.size and not self._flush_now():
                self._wake_writer()
                return
            if self._held:
                self._count()
            self.active_at = self._now()
        except disconnect_or_close_errors() as error:
            self._end(f"lost: {error}", error)
        except Exception as error:
            self._failed(error)

    def _wake_writer(self) -> None:
        if self._late is not None:
            self._late.resolve(None)
            self._late = None
        elif not self._has_writer and self._tasks is not None:
            self._has_writer = True
            self._tasks.start_soon(self._write)
        else:
            self._interrupt()  # the reader continues with a task group, and starts the writer

    async def _write(self) -> None:
        try:
            while True:
                if self._outbox.size and not self._flush_now():
                    self._count()
                    await self._flush()
                if self._held:
                    self._count()
                self.active_at = self._now()
                self._late = self._new_waiter()
                await self._late.wait()
        except disconnect_or_close_errors() as error:
            self._end(f"lost: {error}", error)
        except Exception as error:
            self._failed(error)

    def _flush_now(self) -> bool:
        """Send the outbox without waiting; False when something is left for `_flush`."""
        if self._is_blocked:
            return False
        outbox = self._outbox
        outbox.consume(self._stream.send_now(outbox.peek()))
        if outbox.size:
            return False
        self._reply_bytes = 0
        if self._room is not None:
            self._make_room()
        return True

    async def _flush(self) -> None:
        """Send the outbox, waiting for the peer and for other senders of this connection."""
        outbox = self._outbox
        if self._sending is None:
            self._sending = anyio.Lock(fast_acquire=True)
        async with self._sending:
            self._is_blocked = True
            try:
                self._note_taken(self._now())
                self._count()
                while outbox.size:
                    before = outbox.size
                    await self._send_some()
                    self.active_at = now = self._now()
                    if outbox.size != before:
                        self._note_taken(now)
                        self._count()
                self._reply_bytes = 0
            finally:
                self._is_blocked = False
                self._taken_at = math.inf
        if self._room is not None:
            self._make_room()

    async def _send_some(self) -> None:
        stream, pieces = self._stream, self._outbox.peek()
        if stream.sends_now:  # also after a cancellation the number of sent bytes is known
            await stream.wait_send_all_might_not_block()
            self._outbox.consume(stream.send_now(pieces))
        else:
            self._is_torn = True
            await stream.send_all(pieces[0])
            self._is_torn = False
            self._outbox.consume(len(pieces[0]))

    def _grown(self) -> None:
        """Count the held bytes, and cut the peer off when more bytes wait than a reading peer leaves."""
        if self._outbox.size > self._limits.outbox_bytes:
            waiting = f"{self._outbox.size} bytes are waiting (limit {self._limits.outbox_bytes})"
            self.abort(f"its peer does not read: {waiting}")
        else:
            self._count()

    def _note_taken(self, now: float) -> None:
        self._taken_at, self._left = now, self._stream.unsent()

    def _is_stalled(self, now: float) -> bool:
        """True if the system, too, has sent none of our bytes: its buffer may be large."""
        left, before = self._stream.unsent(), self._left
        if 0 <= left < before:
            self._taken_at, self._left = now, left
            return False
        return True
