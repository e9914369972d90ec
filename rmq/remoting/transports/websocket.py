"""WebSocket, on trio: a byte stream in binary messages, whose bounds have no meaning."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import trio
import trio_websocket
import wsproto.utilities

from rmq.errors import RemoteProtocolError
from rmq.remoting.transports.stream import Buffer, PrefixedStream, Stream
from rmq.remoting.transports.websocket_policy import WebSocketAccess as WebSocketAccess

log = logging.getLogger(__name__)

MESSAGE_BYTES = 64 * 1024
"""Bytes of one sent message, and of the longest accepted one: with QUEUE it bounds a connection's memory."""
QUEUE = 16
SERVER_QUEUE = 1
SERVER_READ_BYTES = 4 * 1024
"""Bytes that a server takes of one peer before others have their turn: up to 680 fragments, 7 ms."""
EMPTY_FRAMES = 512
"""Frames without content that a peer may send: pings, empty fragments and messages."""
EMPTY_FRAMES_PER_SECOND = 10
"""Rate, a second, at which their count falls."""
CONTENT_BYTES = 8
"""Bytes of content that lower the count by one."""
RESOURCE = "/"

_EXPECTED = (
    trio_websocket.ConnectionClosed,
    trio_websocket.HandshakeError,
    wsproto.utilities.ProtocolError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
)


async def connect_websocket(nursery: trio.Nursery, stream: Stream, host: str) -> WebSocketStream:
    """Upgrade as the client; the socket's reader runs in `nursery`. Raises BrokenResourceError."""

    async def upgrade(reader: _Reader) -> trio_websocket.WebSocketConnection:
        return await trio_websocket.wrap_client_stream(
            cast(Any, reader),
            cast(Any, stream),
            host,
            RESOURCE,
            message_queue_size=QUEUE,
            max_message_size=MESSAGE_BYTES,
            receive_buffer_size=MESSAGE_BYTES,
        )

    return await _Reader(nursery, stream).upgraded(upgrade)


async def accept_websocket(
    nursery: trio.Nursery,
    stream: Stream,
    access: WebSocketAccess | None = None,
    subprotocols: Sequence[str] = (),
) -> WebSocketStream:
    """Upgrade as the server; the socket's reader runs in `nursery`. The first of the `subprotocols` that the
    peer proposes is chosen.

    Raises BrokenResourceError, and RemoteProtocolError when `access` refuses the peer, which gets status 403.
    """
    access = access or WebSocketAccess()
    metered = MeteredStream(stream)

    async def upgrade(reader: _Reader) -> trio_websocket.WebSocketConnection:
        request = await trio_websocket.wrap_server_stream(
            cast(Any, reader),
            metered,
            message_queue_size=SERVER_QUEUE,
            max_message_size=MESSAGE_BYTES,
            receive_buffer_size=SERVER_READ_BYTES,
        )
        host = str(cast(Any, request)._event.host)  # it is not among `headers`
        refusal = access.refusal(host, request.headers, stream.local)
        if refusal:
            await request.reject(403, body=refusal.encode("ascii", "backslashreplace"))
            raise RemoteProtocolError(f"WebSocket: {refusal}")
        agreed = [name for name in request.proposed_subprotocols if name in subprotocols]
        return await request.accept(subprotocol=agreed[0] if agreed else None)

    return await _Reader(nursery, stream).upgraded(upgrade)


class _Reader:
    """The nursery that trio-websocket sees. Its reader task may fail with the peer, which must not end the
    caller's nursery. It also ends a handshake whose stream broke; trio-websocket alone would wait without
    end."""

    def __init__(self, nursery: trio.Nursery, stream: Stream) -> None:
        self._nursery = nursery
        self._stream = stream
        self._handshake = trio.CancelScope()
        self._error: BaseException | None = None

    def start_soon(self, read: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(self._run, read)

    async def _run(self, read: Callable[[], Awaitable[None]]) -> None:
        try:
            await read()
        except _EXPECTED as error:
            self._error = error
        except Exception as error:
            # The parsers below it raise undocumented errors over bytes that a peer chose: UnicodeDecodeError
            # for a header that is not ASCII, h11's errors for an answer that is not HTTP. One peer ends,
            # not all.
            log.warning("WebSocket with %s: %s: %s", self._stream.peer, type(error).__name__, error)
            self._error = error
        finally:
            self._handshake.cancel()

    async def upgraded(
        self, upgrade: Callable[[_Reader], Awaitable[trio_websocket.WebSocketConnection]]
    ) -> WebSocketStream:
        with self._handshake:
            try:
                return WebSocketStream(await upgrade(self), self._stream)
            except _EXPECTED as error:
                self._error = error
        raise trio.BrokenResourceError(_reason(self._error)) from self._error


def _reason(error: BaseException | None) -> str:
    if isinstance(error, trio_websocket.ConnectionRejected):
        return f"the peer refused with HTTP status {error.status_code}"
    if error is None or isinstance(error, trio_websocket.ConnectionClosed):
        return "the peer hung up"
    return f"the peer's answer is not a WebSocket handshake ({error})"


class MeteredStream(PrefixedStream):
    """A stream under a WebSocket that ends when its peer sends many frames without data.

    Each frame costs the parsers above 10 µs, also an empty fragment or a ping of 6 bytes. So this stream
    checks the headers of frames (RFC 6455, 5.2) first, which costs a twentieth: each frame counts 1, and each
    `CONTENT_BYTES` of messages -1. Messages of any honest size never reach the limit.
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__(b"", stream)
        self._is_upgraded = False  # the HTTP request has ended
        self._part = b""  # of a header that is incomplete
        self._skip = 0  # missing bytes of a frame's content
        self._empty = 0.0
        self._at = trio.current_time()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = await super().receive_some(max_bytes)
        now = trio.current_time()
        self._empty = max(0.0, self._empty - (now - self._at) * EMPTY_FRAMES_PER_SECOND)
        self._at = now
        self._look(data)
        return data

    def _look(self, data: bytes) -> None:
        """Count the frames that begin in `data`. Raises BrokenResourceError past the limit."""
        data = self._part + data
        if not self._is_upgraded:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._part = data[-3:]
                return
            self._is_upgraded = True
            self._skip = end + 4
        at, size, empty = self._skip, len(data), self._empty
        while size - at >= 2:
            length = data[at + 1] & 0x7F
            head = (6 if data[at + 1] & 0x80 else 2) + (2 if length == 126 else 8 if length == 127 else 0)
            if size - at < head:
                break
            if length >= 126:
                length = int.from_bytes(data[at + 2 : at + (4 if length == 126 else 10)], "big")
            empty += 1
            if not data[at] & 0x08:  # no ping, pong or close
                empty = max(0.0, empty - length / CONTENT_BYTES)
            if empty > EMPTY_FRAMES:
                reason = f"WebSocket: more than {EMPTY_FRAMES} frames were pings or had no content"
                log.warning("closing %s: %s", self.peer, reason)
                raise trio.BrokenResourceError(reason)
            at += head + length
        self._empty, self._skip, self._part = empty, max(0, at - size), data[at:]


class WebSocketStream(Stream):
    """A stream over a WebSocket.

    WebSocket has no half-close, and trio-websocket nothing to wait on until a send would not block:
    `wait_send_all_might_not_block` returns at once. rmq never calls it.
    """

    def __init__(self, socket: trio_websocket.WebSocketConnection, stream: Stream) -> None:
        self._socket = socket
        self._stream = stream
        self._rest = b""
        self._is_closed = False
        self._is_receiving = False
        self.peer = stream.peer
        self.local = stream.local
        self.certificate_name = stream.certificate_name

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        max_bytes = _checked(max_bytes)
        if self._is_receiving:
            raise trio.BusyResourceError("another task is receiving from this stream")
        self._is_receiving = True
        try:
            self._check_open()
            if self._rest:
                await trio.lowlevel.checkpoint()
            while not self._rest:
                self._rest = await self._message()
                if not self._rest and self._socket.closed:
                    return b""
        finally:
            self._is_receiving = False
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return data

    async def _message(self) -> bytes:
        try:
            message = await self._socket.get_message()
        except trio_websocket.ConnectionClosed as error:
            await trio.lowlevel.checkpoint()  # get_message() may not have been one
            self._check_open()
            if error.reason is not None and error.reason.code in (1000, 1001, 1005):
                return b""
            raise trio.BrokenResourceError(str(error.reason)) from error
        except trio.BrokenResourceError:
            self._check_open()
            raise
        if isinstance(message, str):
            raise trio.BrokenResourceError("a text message: frames come in binary messages")
        return message

    async def send_all(self, data: Buffer) -> None:
        self._check_open()
        with memoryview(data) as view:
            if not view:
                await trio.lowlevel.checkpoint()
            for start in range(0, len(view), MESSAGE_BYTES):
                await self._send(bytes(view[start : start + MESSAGE_BYTES]))

    def unsent(self) -> int:
        return self._stream.unsent()

    async def _send(self, message: bytes) -> None:
        try:
            await self._socket.send_message(message)
        except (trio_websocket.ConnectionClosed, wsproto.utilities.LocalProtocolError) as error:
            self._check_open()
            raise trio.BrokenResourceError(str(error)) from error

    async def wait_send_all_might_not_block(self) -> None:
        self._check_open()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Send a close frame and wait for the peer's; cancelled: close without it."""
        self._is_closed = True
        try:
            await self._socket.aclose()
        except trio.BrokenResourceError:
            pass  # the connection has ended already
        finally:
            await self._stream.aclose()

    def _check_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this side closed the stream")


def _checked(max_bytes: int | None) -> int:
    if max_bytes is None:
        return MESSAGE_BYTES
    if not isinstance(max_bytes, int):
        raise TypeError(f"max_bytes must be an int, not {max_bytes!r}")
    if max_bytes < 1:
        raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
    return max_bytes
