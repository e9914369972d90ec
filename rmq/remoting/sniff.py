"""One port, three transports: the first byte tells which.

A frame begins with the high byte of its length, 0 below 16 MiB; a TLS record with 0x16, as Java's handshake
handler looks for; a WebSocket upgrade with the G of GET. Inside TLS it is frames or a WebSocket again.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import trio

from rmq.errors import RemoteProtocolError
from rmq.remoting.limits import Limits
from rmq.remoting.stream import Buffer, Stream
from rmq.remoting.tasks import bare_errors
from rmq.remoting.tls import TlsContexts
from rmq.remoting.tls_stream import tls_server
from rmq.remoting.websocket import accept_websocket

FRAME = 0x00
TLS = 0x16
UPGRADE = ord("G")
_FIRST_BYTES = 64 * 1024


class PrefixedStream(Stream):
    """A stream some of whose bytes were read already."""

    def __init__(self, prefix: bytes, stream: Stream) -> None:
        self._prefix = prefix
        self._stream = stream
        self.sends_now = stream.sends_now
        self.peer = stream.peer
        self.local = stream.local

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if not self._prefix:
            return bytes(await self._stream.receive_some(max_bytes))
        await trio.lowlevel.checkpoint()
        size = len(self._prefix) if max_bytes is None else max_bytes
        data, self._prefix = self._prefix[:size], self._prefix[size:]
        return data

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        return self._stream.send_now(buffers)

    async def send_all(self, data: Buffer) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        self._prefix = b""
        await self._stream.aclose()


@asynccontextmanager
async def accept_stream(
    raw: Stream, *, tls: TlsContexts, limits: Limits
) -> AsyncIterator[tuple[Stream, bytes]]:
    """What a new peer speaks: the stream of its frames, and the bytes that were read from it already.

    Raises RemoteProtocolError when the peer speaks something else, something that `tls` does not allow, or
    nothing within `limits.handshake_seconds`; BrokenResourceError when it goes away or a handshake fails.
    The caller closes the stream, or after an error `raw`.
    """
    deadline = trio.current_time() + limits.handshake_seconds
    with _until(deadline, limits):
        stream, first = await _sniff(raw, tls)
    if first[0] != UPGRADE:
        yield stream, first
        return
    with bare_errors():
        async with trio.open_nursery() as nursery:
            with _until(deadline, limits):
                stream = await accept_websocket(nursery, PrefixedStream(first, stream))
            try:
                yield stream, b""
            finally:
                nursery.cancel_scope.cancel()


@contextmanager
def _until(deadline: float, limits: Limits) -> Iterator[None]:
    with trio.CancelScope(deadline=deadline) as scope:
        yield
    if scope.cancelled_caught:
        raise RemoteProtocolError(
            f"the peer did not say what it speaks within {limits.handshake_seconds:g} s"
        )


async def _sniff(raw: Stream, tls: TlsContexts) -> tuple[Stream, bytes]:
    stream, first = await unwrapped(raw, tls)
    if first[0] not in (FRAME, UPGRADE):
        raise RemoteProtocolError(f"the first byte 0x{first[0]:02x} begins neither a frame nor a handshake")
    return stream, first


async def unwrapped(raw: Stream, tls: TlsContexts) -> tuple[Stream, bytes]:
    """A new peer's stream, out of its TLS if it speaks that, and the bytes that were read from it already.

    Raises RemoteProtocolError for what `tls` does not allow, BrokenResourceError when the peer goes away.
    """
    first = await _first_bytes(raw)
    if first[0] == TLS and tls.mode != "disabled":
        stream = await _secured(PrefixedStream(first, raw), tls)
        return stream, await _first_bytes(stream)
    if first[0] == TLS:
        raise RemoteProtocolError("the peer speaks TLS, which tlsMode=disabled does not allow")
    if tls.mode == "enforcing":
        raise RemoteProtocolError("the peer does not speak TLS, which tlsMode=enforcing asks for")
    return raw, first


async def _secured(stream: Stream, tls: TlsContexts) -> Stream:
    try:
        return await tls_server(stream, tls)
    except trio.BrokenResourceError as error:
        if isinstance(error.__cause__, ssl.SSLError):  # else the peer just went away
            raise RemoteProtocolError(f"TLS handshake: {error}") from error
        raise


async def _first_bytes(stream: Stream) -> bytes:
    first = bytes(await stream.receive_some(_FIRST_BYTES))
    if not first:
        raise trio.BrokenResourceError("the peer left without a word")
    return first
