"""Protocol of a new peer: a single port serves all protocols, by the first byte.

A frame begins with the high byte of its length, 0 below 16 MiB; a TLS record with 0x16, as in Java's
handshake handler; a WebSocket upgrade with the G of GET. TLS contains frames or a WebSocket. Doors
(`rmq.doors`) add bytes of their own.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module

import anyio
import anyio.to_thread
import trio

from rmq.errors import RemoteProtocolError
from rmq.remoting.limits import Limits
from rmq.remoting.loop import broken, current_loop, disconnect_errors, unwrap_groups
from rmq.remoting.transports.stream import PrefixedStream, Stream
from rmq.remoting.transports.tls import TlsContexts, tls_server
from rmq.remoting.transports.websocket_policy import WebSocketAccess

FRAME = 0x00
TLS = 0x16
UPGRADE = ord("G")
_FIRST_BYTES = 64 * 1024
_WEBSOCKET = "rmq.remoting.transports.websocket"


@asynccontextmanager
async def accept_stream(
    raw: Stream,
    *,
    tls: TlsContexts,
    limits: Limits,
    access: WebSocketAccess | None = None,
    on_first: Callable[[], object] = lambda: None,
    speaks: Callable[[int], bool] = lambda byte: False,
    upgrades: bool = True,
    subprotocols: Sequence[str] = (),
) -> AsyncIterator[tuple[Stream, bytes]]:
    """Detect the protocol of a new peer. Return the stream of its frames, and the bytes already read.

    `on_first()` is called when the first bytes have come. `speaks(byte)` is true if another protocol begins
    with this byte, `upgrades` if a WebSocket is accepted; the first of the `subprotocols` that the peer
    proposes is chosen. Raises RemoteProtocolError for an unknown protocol, for a protocol that `tls` or
    `access` forbids, for silence during `limits.idle_seconds`, and for a handshake longer than
    `limits.handshake_seconds`; BrokenResourceError when the peer disconnects or a handshake fails. The caller
    closes the stream, or after an error `raw`.
    """
    stream, first = await detect(
        raw, tls=tls, limits=limits, on_first=on_first, speaks=speaks, upgrades=upgrades
    )
    if not upgrades or first[0] != UPGRADE:
        yield stream, first
        return
    async with websocket(stream, first, limits, access, subprotocols) as messages:
        yield messages, b""


async def detect(
    raw: Stream,
    *,
    tls: TlsContexts,
    limits: Limits,
    on_first: Callable[[], object] = lambda: None,
    speaks: Callable[[int], bool] = lambda byte: False,
    upgrades: bool = True,
) -> tuple[Stream, bytes]:
    """Detect the protocol as `accept_stream` does, without the upgrade: for a peer that asks for a WebSocket
    the first byte is `UPGRADE`."""
    stream, first = await remove_tls(raw, tls, limits, on_first)
    if not (upgrades and first[0] == UPGRADE) and first[0] != FRAME and not speaks(first[0]):
        raise RemoteProtocolError(f"the first byte 0x{first[0]:02x} begins neither a frame nor a handshake")
    return stream, first


@asynccontextmanager
async def websocket(
    stream: Stream, first: bytes, limits: Limits, access: WebSocketAccess | None, subprotocols: Sequence[str]
) -> AsyncIterator[Stream]:
    """The stream of a WebSocket that the peer asks for on `stream`; `first` are bytes already read from it.
    Raises as `accept_stream`."""
    if current_loop().name != "trio":
        raise RemoteProtocolError("the peer wants a WebSocket, which needs trio; this is asyncio")
    accept_websocket = await _websocket()
    with unwrap_groups():
        async with trio.open_nursery() as nursery:
            with _within(limits.handshake_seconds, "did not finish its WebSocket handshake"):
                messages = await accept_websocket(
                    nursery, PrefixedStream(first, stream), access, subprotocols
                )
            try:
                yield messages
            finally:
                nursery.cancel_scope.cancel()


async def _websocket() -> Callable[..., Awaitable[Stream]]:
    """The function that makes a stream of a WebSocket. Few servers ever see a WebSocket, and its parsers take
    30 ms to load: the first such peer loads them, while other peers are served."""
    if _WEBSOCKET not in sys.modules:
        try:
            await anyio.to_thread.run_sync(import_module, _WEBSOCKET)
        except ImportError as error:
            raise RemoteProtocolError(f"WebSocket is not available here: {error}") from error
    from rmq.remoting.transports.websocket import accept_websocket

    return accept_websocket


@contextmanager
def _within(seconds: float, words: str) -> Iterator[None]:
    with anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise RemoteProtocolError(f"the peer {words} within {seconds:g} s")


async def remove_tls(
    raw: Stream,
    tls: TlsContexts,
    limits: Limits | None = None,
    on_first: Callable[[], object] = lambda: None,
) -> tuple[Stream, bytes]:
    """A new peer's stream, decrypted if the peer speaks TLS, and the bytes already read.

    A client may connect and stay silent for as long as any connection may be idle, as in Java. Raises
    RemoteProtocolError if `tls` forbids the protocol, BrokenResourceError when the peer disconnects.
    """
    limits = limits or Limits()
    first = await first_bytes(raw, limits)
    on_first()
    if first[0] == TLS and tls.mode != "disabled":
        with _within(limits.handshake_seconds, "did not finish its TLS handshake"):
            stream = await _secured(PrefixedStream(first, raw), tls)
        return stream, await first_bytes(stream, limits)
    if first[0] == TLS:
        raise RemoteProtocolError("the peer speaks TLS, which tlsMode=disabled does not allow")
    if tls.mode == "enforcing":
        raise RemoteProtocolError("the peer does not speak TLS, which tlsMode=enforcing asks for")
    return raw, first


async def _secured(stream: Stream, tls: TlsContexts) -> Stream:
    try:
        return await tls_server(stream, tls)
    except disconnect_errors() as error:
        if isinstance(error.__cause__, ssl.SSLError):  # else the peer just disconnected
            raise RemoteProtocolError(f"TLS handshake: {error}") from error
        raise


async def first_bytes(stream: Stream, limits: Limits) -> bytes:
    """The first bytes of a peer, or of the protocol inside TLS or a WebSocket.

    Raises RemoteProtocolError when no byte comes in `limits.idle_seconds`, BrokenResourceError when the peer
    disconnects.
    """
    first = stream.receive_now(_FIRST_BYTES) if stream.reads_now else None
    if first is None:  # most peers speak as they come: only for others a wait and its deadline are made
        with _within(limits.idle_seconds, "sent nothing"):
            first = bytes(await stream.receive_some(_FIRST_BYTES))
    if not first:
        raise broken("the peer closed the connection before it sent anything")
    return first
