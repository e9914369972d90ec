"""WebSocket of a client on asyncio: a byte stream in binary messages, with no meaning in their bounds.
wsproto has the protocol; servers, and clients on trio, have `websocket`.

Pings and close frames are answered during `receive_some`, which a connection always calls.
"""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import anyio.lowlevel
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)

from rmq.remoting.loop import broken, closed, disconnect_or_close_errors
from rmq.remoting.transports.stream import ByteStream, Stream

MESSAGE_BYTES = 64 * 1024
"""The longest message that is sent, and the bytes of one read."""
ANSWER_SECONDS = 5.0
"""Seconds for the answer to a ping, and for the server's close frame."""
RESOURCE = "/"
CLEAN = (1000, 1001, 1005)
"""Codes of a graceful end: normal, going away, none given."""


async def connect_websocket(stream: Stream, host: str) -> WebSocketClientStream:
    """Upgrade `stream` as the client. Raises BrokenResourceError. Cancelled: the stream can only be
    closed."""
    protocol = WSConnection(ConnectionType.CLIENT)
    await stream.send_all(protocol.send(Request(host=host, target=RESOURCE)))
    while True:
        data = await stream.receive_some(MESSAGE_BYTES)
        if not data:
            raise broken("the peer hung up")
        events = list(_events(protocol, bytes(data), "the peer's answer is not a WebSocket handshake"))
        for number, event in enumerate(events):
            if isinstance(event, RejectConnection):
                raise broken(f"the peer refused with HTTP status {event.status_code}")
            if isinstance(event, AcceptConnection):
                upgraded = WebSocketClientStream(protocol, stream)
                upgraded.take(events[number + 1 :])
                return upgraded


def _events(protocol: WSConnection, data: bytes, reason: str) -> Iterator[Event]:
    """The events in received bytes. Raises BrokenResourceError for bytes that break the protocol."""
    try:
        protocol.receive_data(data)
        yield from protocol.events()
    except Exception as error:  # the parsers raise undocumented errors over bytes that a peer chose
        raise broken(f"{reason} ({error})") from error


class WebSocketClientStream(ByteStream):
    """A stream over a WebSocket whose handshake is over. `wait_send_all_might_not_block` returns at once: a
    WebSocket has nothing to wait on. rmq never calls that function."""

    def __init__(self, protocol: WSConnection, stream: Stream) -> None:
        super().__init__()
        self._protocol, self._stream = protocol, stream
        self.peer, self.local = stream.peer, stream.local
        self._received = bytearray()
        self._end: Exception | None = None  # the meaning of the peer's end, once it came
        self._is_ended = False
        self._answers = bytearray()  # to pings and to a close
        self._writing = anyio.Lock(fast_acquire=True)

    # --- receiving ---

    def take(self, events: list[Event]) -> None:
        """Handle events of the protocol."""
        for event in events:
            if isinstance(event, BytesMessage):
                self._received += event.data
            elif isinstance(event, TextMessage):
                self._is_ended, self._end = True, broken("a text message: frames come in binary messages")
            elif isinstance(event, Ping):
                self._answers += self._protocol.send(event.response())
            elif isinstance(event, CloseConnection):
                if self._protocol.state is ConnectionState.REMOTE_CLOSING:
                    self._answers += self._protocol.send(event.response())
                self._is_ended = True
                if event.code not in CLEAN:
                    reason = event.reason or "no reason given"
                    self._end = broken(f"the peer closed with code {event.code}: {reason}")

    async def _receive(self, max_bytes: int) -> bytes:
        self._check_open()
        if self._received or self._is_ended:
            await anyio.lowlevel.checkpoint()
        while not self._received:
            if self._is_ended:
                if self._end is not None:
                    raise self._end.with_traceback(None)
                return b""
            await self._receive_more()
        data = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        return data

    async def _receive_more(self) -> None:
        try:
            data = await self._stream.receive_some(MESSAGE_BYTES)
        except disconnect_or_close_errors():
            self._check_open()
            raise
        self._check_open()
        if not data:
            self._is_ended, self._end = True, broken("the peer hung up")
            return
        self.take(list(_events(self._protocol, bytes(data), "no WebSocket")))
        if self._answers:
            await self._answer()

    async def _answer(self) -> None:
        """Send the answers whole, also when the reading task is cancelled."""
        with anyio.move_on_after(ANSWER_SECONDS, shield=True) as scope:
            async with self._writing:
                answers, self._answers = bytes(self._answers), bytearray()
                await self._stream.send_all(answers)
        if scope.cancelled_caught:
            self._is_ended, self._end = True, broken("the peer does not take the answer to its ping")

    # --- sending ---

    async def _send(self, data: memoryview) -> None:
        self._check_open()
        if not data:
            await anyio.lowlevel.checkpoint()
        for start in range(0, len(data), MESSAGE_BYTES):
            if self._protocol.state is not ConnectionState.OPEN:
                raise broken("the peer has closed the WebSocket")
            frame = self._protocol.send(BytesMessage(data=bytes(data[start : start + MESSAGE_BYTES])))
            async with self._writing:
                await self._write(frame)

    async def _write(self, frame: bytes) -> None:
        try:
            await self._stream.send_all(frame)
        except disconnect_or_close_errors():
            self._check_open()
            raise
        self._check_open()

    async def _wait_sendable(self) -> None:
        self._check_open()
        await anyio.lowlevel.checkpoint()

    def unsent(self) -> int:
        return self._stream.unsent()

    # --- the end ---

    async def aclose(self) -> None:
        """Send a close frame and wait for the peer's; cancelled: close without it."""
        was_closed, self._is_closed = self._is_closed, True
        try:
            is_open = self._protocol.state is ConnectionState.OPEN
            if is_open and not (was_closed or self._is_sending or self._writing.locked()):
                with anyio.move_on_after(ANSWER_SECONDS):
                    await self._stream.send_all(self._protocol.send(CloseConnection(code=1000)))
                    await self._wait_for_end()
        except disconnect_or_close_errors():
            pass  # the connection has ended already
        finally:
            await self._stream.aclose()

    async def _wait_for_end(self) -> None:
        while not (self._is_ended or self._is_receiving):
            data = await self._stream.receive_some(MESSAGE_BYTES)
            if not data:
                break
            self.take(list(_events(self._protocol, bytes(data), "no WebSocket")))

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed()
