"""Stream and Listener: the interface of every transport; Outbox: the unsent bytes of a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Self

import anyio
import anyio.lowlevel

from rmq.remoting.loop import busy

if TYPE_CHECKING:
    from trio.abc import Stream as _Abstract
else:  # only programs on trio load trio; `trio_loop` registers the streams of this module
    _Abstract = ABC

Buffer = bytes | bytearray | memoryview


class Stream(_Abstract):
    """A byte stream to a peer: the contract of trio.abc.Stream plus names and a send that never waits.

    `receive_some` returns ``b""`` at the end. Errors are trio's if trio is loaded, else anyio's:
    BrokenResourceError (the peer or the network has failed), ClosedResourceError (this side closed it),
    BusyResourceError (two tasks in the same direction, a bug). Cancelling `receive_some` loses nothing;
    cancelling `send_all` leaves an unknown part sent, so that the stream can only be closed.
    """

    peer: str = ""
    """The peer's ``ip:port``."""
    local: str = ""
    """Our own ``ip:port`` of this stream."""

    certificate_name: str = ""
    """The common name of the client's certificate, which TLS has verified; empty without one."""

    descriptor: int = -1
    """The number of its socket's descriptor; -1 without one."""

    sends_now: bool = False
    """True if send_now() takes bytes, and wait_send_all_might_not_block() waits until it takes some."""

    reads_now: bool = False
    """True if `receive_now` works, and `descriptor` shows when bytes have come."""

    def receive_now(self, max_bytes: int) -> bytes | None:
        """The received bytes, without waiting: None without any, ``b""`` at the end. Raises
        BrokenResourceError, ClosedResourceError."""
        raise NotImplementedError

    @abstractmethod
    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """At least one byte, at most `max_bytes`; none at the end."""

    @abstractmethod
    async def send_all(self, data: Buffer) -> None:
        """Send all of `data`, waiting until the peer takes it."""

    @abstractmethod
    async def wait_send_all_might_not_block(self) -> None:
        """Wait until some bytes can be sent, or the stream has failed."""

    def reset_on_close(self) -> None:
        """Show the peer a broken connection when this stream is closed, if the stream supports it: clients of
        RocketMQ go on waiting for responses after an orderly end. Unread bytes may be lost."""
        return

    def reset_if_killed(self) -> None:
        """Let a kill of the process show the peer a broken connection, if the stream supports it. `aclose`
        still ends the connection in order."""
        return

    def keep_alive(self, idle_seconds: float, unacknowledged_seconds: float) -> None:
        """Let the system detect a peer that has failed without notice, if the stream supports it: the system
        probes after `idle_seconds` without traffic, and ends the connection when bytes or a probe are not
        acknowledged within `unacknowledged_seconds`. 0 leaves the system's default."""
        return

    def end_sending(self) -> None:
        """Let the peer see the end now, if the stream supports it: nothing more is sent, and the caller
        closes the stream soon."""
        return

    @abstractmethod
    async def aclose(self) -> None:
        """Close the stream; safe to repeat. Cancelled: the stream is closed at once."""

    def close_now(self) -> bool:
        """Close the stream as `aclose` does, if that needs no wait; False where `aclose` is needed."""
        return False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        """Give the transport as many bytes as it takes at once; return their number.

        After a partial send the next send, of any kind, must begin with the first byte that was not taken.
        Must not be called while a `send_all` runs. Raises BrokenResourceError, ClosedResourceError.
        """
        return 0

    def unsent(self) -> int:
        """Number of bytes that the system took and the peer has not acknowledged; -1 when unknown."""
        return -1


class Listener(Protocol):
    """A listener: accepts peers at an address."""

    @property
    def address(self) -> str:
        """``host:port`` as bound: never port 0."""

    async def accept(self) -> Stream:
        """The next peer. Raises ClosedResourceError after aclose(), OSError when out of descriptors."""

    async def aclose(self) -> None:
        """Stop listening; a waiting accept() gets ClosedResourceError."""


async def close_at_once(stream: Stream) -> None:
    """Close a stream without waiting for the peer."""
    if stream.close_now():
        return
    with anyio.CancelScope() as scope:
        scope.cancel()
        await stream.aclose()


class PrefixedStream(Stream):
    """A stream with bytes that were already read from it."""

    def __init__(self, prefix: bytes, stream: Stream) -> None:
        self._prefix = prefix
        self._stream = stream
        self.sends_now = stream.sends_now
        self.peer = stream.peer
        self.local = stream.local
        self.certificate_name = stream.certificate_name
        self.descriptor = stream.descriptor

    def rest(self) -> Stream:
        """The stream itself, once its prefix was read; until then this one."""
        return self if self._prefix else self._stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if not self._prefix:
            return bytes(await self._stream.receive_some(max_bytes))
        await anyio.lowlevel.checkpoint()
        size = len(self._prefix) if max_bytes is None else max_bytes
        data, self._prefix = self._prefix[:size], self._prefix[size:]
        return data

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        return self._stream.send_now(buffers)

    def unsent(self) -> int:
        return self._stream.unsent()

    async def send_all(self, data: Buffer) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        self._prefix = b""
        await self._stream.aclose()


class ByteStream(Stream):
    """Checks of the transports in this package: arguments, one task a direction."""

    def __init__(self) -> None:
        self._is_closed = False
        self._is_receiving = False
        self._is_sending = False

    @abstractmethod
    async def _receive(self, max_bytes: int) -> bytes: ...

    @abstractmethod
    async def _send(self, data: memoryview) -> None: ...

    @abstractmethod
    async def _wait_sendable(self) -> None: ...

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if max_bytes is None:
            max_bytes = 65536
        elif not isinstance(max_bytes, int):
            raise TypeError(f"max_bytes must be an int, not {max_bytes!r}")
        elif max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        if self._is_receiving:
            raise busy("another task is receiving from this stream")
        self._is_receiving = True
        try:
            return await self._receive(max_bytes)
        finally:
            self._is_receiving = False

    async def send_all(self, data: Buffer) -> None:
        self._begin_sending()
        try:
            with memoryview(data) as view:
                await self._send(view)
        finally:
            self._is_sending = False

    async def wait_send_all_might_not_block(self) -> None:
        self._begin_sending()
        try:
            await self._wait_sendable()
        finally:
            self._is_sending = False

    def _begin_sending(self) -> None:
        if self._is_sending:
            raise busy("another task is sending to this stream")
        self._is_sending = True


# --- bytes that wait to be sent ---

SMALL_BYTES = 16 * 1024
"""Buffers below this size are copied: that costs less than handing them to the kernel as separate pieces."""


class Outbox:
    """A queue of buffers. Small buffers are joined, large ones (pull replies) go out uncopied.

    `size` is the number of unsent bytes, `taken` the number of bytes sent since the beginning.
    """

    __slots__ = ("_buffers", "_packed", "size", "taken")

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []
        # Number of first buffers that are joined already. They must stay as they are while a transport has
        # taken a part of them: TLS wants the same bytes again (see `TlsStream.send_now`).
        self._packed = 0
        self.size = self.taken = 0

    def add(self, data: Buffer | Sequence[Buffer]) -> None:
        """Queue a buffer, or several in a row; they must not change before they are sent."""
        if isinstance(data, (bytes, bytearray, memoryview)):
            self._buffers.append(data)
            self.size += len(data)
        else:
            self._buffers.extend(data)
            self.size += sum(map(len, data))

    def peek(self) -> list[Buffer]:
        """All unsent bytes, as few buffers, in order. They stay queued until `consume` reports them as
        sent."""
        buffers = self._buffers
        fresh = len(buffers) - self._packed
        if fresh > 1:
            if self.size <= SMALL_BYTES:
                buffers[:] = [b"".join(buffers)]
            else:
                buffers[self._packed :] = _pack(buffers[self._packed :])
        self._packed = len(buffers)
        return buffers

    def consume(self, sent: int) -> None:
        """Forget the first `sent` bytes."""
        assert 0 <= sent <= self.size
        self.taken += sent
        if sent == self.size:
            self._buffers.clear()
            self._packed = self.size = 0
            return
        self.size -= sent
        done = 0
        for buffer in self._buffers:
            if sent < len(buffer):
                break
            sent -= len(buffer)
            done += 1
        del self._buffers[:done]
        assert self._buffers, "size says that bytes are left"
        self._packed = max(0, self._packed - done)
        if sent:
            self._buffers[0] = memoryview(self._buffers[0])[sent:]

    def send(self, stream: Stream, frame: bytes) -> None:
        """Queue a buffer, and give the transport as much as it takes at once: usually everything, so that the
        buffer never enters the queue. Raises as `Stream.send_now`, with the buffer queued."""
        if not self.size:
            try:
                sent = stream.send_now((frame,))
            except BaseException:
                self.add(frame)
                raise
            if sent == len(frame):
                self.taken += sent
                return
            self.add(frame)
            self._packed = 1
        else:
            self.add(frame)
            sent = stream.send_now(self.peek())
        self.consume(sent)

    def clear(self) -> None:
        self.consume(self.size)


def _pack(buffers: Sequence[Buffer]) -> list[Buffer]:
    packed: list[Buffer] = []
    run: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < SMALL_BYTES:
            run.append(buffer)
            continue
        if run:
            packed.append(b"".join(run))
            run = []
        packed.append(buffer)
    if run:
        packed.append(b"".join(run))
    return packed
