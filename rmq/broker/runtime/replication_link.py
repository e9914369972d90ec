"""The link between a master and a slave: it moves the bytes of both directions.

What is received and what is to be sent is the matter of `replication.sessions`. Where a poller reads plain
TCP, the peer's bytes are taken in the wait of the event loop, and the bytes that are due then leave in the
same turn: a task that wakes costs more than the copy of a message. The link's two tasks wait for the rest:
the end of the link, a peer that does not read, a pause, TLS.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from rmq.broker.runtime.replication_handshake import link_errors
from rmq.errors import RemoteProtocolError, RmqError
from rmq.remoting.loop import Wakeup, current_loop
from rmq.remoting.poller import Poller
from rmq.remoting.transports.stream import Stream

RECEIVE_BYTES: Final = 256 * 1024
INLINE_BYTES: Final = 16 * 1024
"""Bytes of the log above which the task sends them, or their report."""
INLINE_FRAMES: Final = 4
"""Frames that one call of `Link.send` sends; the task sends the rest."""


async def _no_pause(size: int) -> None:
    return


class Link:
    """Both directions of a link over `stream`.

    `received(data, now)` takes the peer's bytes. `due(now)` gives the next bytes to send, none if nothing is
    due; it is called after `grown` rings, and at the latest after `pause` seconds. `sent(size)` may wait
    before more is sent by the task. The peer, named `who` in errors, must not be silent for `silence`
    seconds. `poller` reads the stream where it can.
    """

    def __init__(
        self,
        stream: Stream,
        poller: Poller | None,
        *,
        received: Callable[[bytes, float], object],
        due: Callable[[float], bytes],
        grown: Wakeup,
        pause: float,
        silence: float,
        who: str,
        sent: Callable[[int], Awaitable[None]] = _no_pause,
    ) -> None:
        self._stream = stream
        self._poller = poller if stream.reads_now else None
        self._received = received
        self._due = due
        self._sent = sent
        self._grown = grown
        self._pause, self._silence, self._who = pause, silence, who
        self._now = current_loop().now
        self._heard_at = self._now()
        self._is_over = False
        self._is_waiting = False  # the task that sends has nothing to send
        self._left: bytes | memoryview = b""  # of the last frame
        self._failure: Exception | None = None  # of a call of `send`

    async def run(self) -> None:
        """Move bytes until the peer hangs up. Raises RemoteProtocolError for a silent peer, the errors of
        streams, and what `received` and `due` raise. Cancelled: a frame may have been sent in part."""
        failure: Exception | None = None

        async def guarded(work: Callable[[], Awaitable[None]]) -> None:
            nonlocal failure
            try:
                await work()
            except link_errors(RmqError) as error:
                failure = failure or error
            nursery.cancel_scope.cancel()

        async with anyio.create_task_group() as nursery:
            nursery.start_soon(guarded, self._read)
            nursery.start_soon(guarded, self._write)
        if failure is not None:
            raise failure

    # --- receiving ---

    async def _read(self) -> None:
        while not self._is_over:
            poller = self._poller
            with anyio.move_on_at(self._heard_at + self._silence):
                if poller is not None and poller.is_running:
                    await poller.attend(self._stream.descriptor, self._on_readable)
                else:
                    self._take(bytes(await self._stream.receive_some(RECEIVE_BYTES)))
            if self._now() >= self._heard_at + self._silence:
                raise RemoteProtocolError(f"the {self._who} is silent")

    def _on_readable(self) -> bool:
        data = self._stream.receive_now(RECEIVE_BYTES)
        if data is not None:
            self._take(data)
        return not self._is_over

    def _take(self, data: bytes) -> None:
        if not data:
            self._is_over = True
            return
        self._heard_at = now = self._now()
        self._received(data, now)

    # --- sending ---

    def send(self, waiting: int) -> None:
        """Send the bytes that are due, about `waiting` bytes of the log; the task sends the rest. Many bytes
        are left to the task: while it has no turn, more come, and larger pieces cost both sides less."""
        if waiting > INLINE_BYTES or not (self._is_waiting and self._stream.sends_now):
            self._grown.set()
            return
        self._is_waiting = False
        try:
            self._is_waiting = self._send_now()
        except Exception as error:  # of this link: the caller serves others
            self._failure = error
        if not self._is_waiting:
            self._grown.set()

    def _send_now(self) -> bool:
        """Send frames; return True if no more is due."""
        for _ in range(INLINE_FRAMES):
            frame = self._due(self._now())
            if not frame:
                return True
            count = self._stream.send_now((frame,))
            if count < len(frame):
                self._left = memoryview(frame)[count:]
                break
        return False

    async def _write(self) -> None:
        while True:
            if self._failure is not None:
                raise self._failure
            left, self._left = self._left, b""
            while frame := left or self._due(self._now()):
                left = b""
                await self._stream.send_all(frame)
                await self._sent(len(frame))
            self._is_waiting = True
            await self._grown.wait(self._now() + self._pause)
            self._is_waiting = False
