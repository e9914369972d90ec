"""Network: who can be dialled and where one can listen; plain TCP here, simulated in rmq.testing.

Above a network's raw streams, `open_stream` adds what the address's scheme asks for, so that TLS and
WebSocket run over every network alike; `accept_stream` finds out what a peer that came in speaks. One port
serves all, told apart by the first byte: a frame begins with the high byte of its length, 0 below 16 MiB; a
TLS record with 0x16, as Java's handshake handler looks for; a WebSocket upgrade with the G of GET. Inside TLS
it is frames or a WebSocket again.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import Protocol

import anyio
import trio

from rmq.errors import ConfigError, ConnectFailed, RemoteProtocolError, RmqError
from rmq.remoting import tcp, websocket
from rmq.remoting.address import Address, split_address
from rmq.remoting.limits import Limits
from rmq.remoting.loop import bare_errors
from rmq.remoting.stream import Listener, PrefixedStream, Stream
from rmq.remoting.tls import TlsConfig, TlsContexts, tls_client, tls_server
from rmq.remoting.websocket import WebSocketAccess, accept_websocket


class Network(Protocol):
    """A way to reach peers by address. Real or simulated."""

    async def dial(self, address: str) -> Stream:
        """Connect; of the address only host and port count. Raises OSError. Cancelled: nothing stays open."""

    async def listen(self, address: str, *, held: bool = False) -> Listener:
        """Bind and listen; port 0 takes any free one. Raises PortInUse, OSError.

        `held`: the port is taken, but peers are refused until somebody waits for the first: for a server that
        knows its port long before it can answer.
        """


class TcpNetwork:
    """The real network."""

    async def dial(self, address: str) -> Stream:
        return await tcp.dial(split_address(address))

    async def listen(self, address: str, *, held: bool = False) -> Listener:
        return await tcp.listen(split_address(address), held=held)


@asynccontextmanager
async def open_stream(
    network: Network, address: str, *, tls: TlsContexts | None = None, limits: Limits | None = None
) -> AsyncIterator[Stream]:
    """A stream to `address`, through TLS and WebSocket as its scheme says, closed at the end of the block.

    Raises ConnectFailed, which names the stage that failed, also when the stream is not ready within
    `limits.connect_seconds`. It is a block because a WebSocket reads in a task of its own.
    """
    limits = limits or Limits()
    target = split_address(address)
    if target.is_websocket and not trio.lowlevel.in_trio_run():
        raise ConfigError(
            "address", address, "host:port or tls://host:port; WebSocket needs trio, this is asyncio"
        )
    async with AsyncExitStack() as stack:
        nursery = None
        if target.is_websocket:
            stack.enter_context(bare_errors())
            nursery = await stack.enter_async_context(trio.open_nursery())
        stream = await _Dial(network, target, tls or TlsContexts(TlsConfig())).within(limits, nursery)
        try:
            yield stream
        finally:
            with anyio.move_on_after(limits.linger_seconds, shield=True):
                await _close(stream)
            if nursery is not None:
                nursery.cancel_scope.cancel()


class _Dial:
    """One attempt to reach an address; knows which stage it is in."""

    def __init__(self, network: Network, target: Address, tls: TlsContexts) -> None:
        self._network = network
        self._target = target
        self._tls = tls
        self._stage = ""
        self._stream: Stream | None = None

    async def within(self, limits: Limits, nursery: trio.Nursery | None) -> Stream:
        """The stream, ready to use. Raises ConnectFailed; however it fails, nothing stays open."""
        seconds = limits.connect_seconds
        try:
            with anyio.move_on_after(seconds):
                return await self._run(nursery)
            raise ConnectFailed(str(self._target), f"{self._stage}: no answer within {seconds:g} s")
        except BaseException as error:
            if self._stream is not None:
                await _close_at_once(self._stream)
            if isinstance(error, RmqError) or not isinstance(error, (OSError, trio.BrokenResourceError)):
                raise
            raise ConnectFailed(
                str(self._target), f"{self._stage}: {error or type(error).__name__}"
            ) from error

    async def _run(self, nursery: trio.Nursery | None) -> Stream:
        target = self._target
        self._stage = "looking up the name" if not target.is_literal else "connecting"
        self._stream = stream = await self._network.dial(target.plain)
        if target.is_tls:
            self._stage = "TLS handshake"
            self._stream = stream = await tls_client(stream, self._tls, target.host)
        if nursery is not None:
            self._stage = "WebSocket handshake"
            self._stream = stream = await websocket.connect_websocket(nursery, stream, target.plain)
        return stream


async def _close(stream: Stream) -> None:
    with suppress(trio.BrokenResourceError, OSError):  # it is gone either way
        await stream.aclose()


async def _close_at_once(stream: Stream) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await _close(stream)


FRAME = 0x00
TLS = 0x16
UPGRADE = ord("G")
_FIRST_BYTES = 64 * 1024


@asynccontextmanager
async def accept_stream(
    raw: Stream, *, tls: TlsContexts, limits: Limits, access: WebSocketAccess | None = None
) -> AsyncIterator[tuple[Stream, bytes]]:
    """Find out what a new peer speaks: the stream of its frames, and the bytes already read from it.

    Raises RemoteProtocolError when the peer speaks something else, something that `tls` or `access` does not
    allow, nothing within `limits.idle_seconds`, or does not end a handshake within
    `limits.handshake_seconds`; BrokenResourceError when it goes away or a handshake fails. The caller closes
    the stream, or after an error `raw`.
    """
    stream, first = await remove_tls(raw, tls, limits)
    if first[0] not in (FRAME, UPGRADE):
        raise RemoteProtocolError(f"the first byte 0x{first[0]:02x} begins neither a frame nor a handshake")
    if first[0] != UPGRADE:
        yield stream, first
        return
    with bare_errors():
        async with trio.open_nursery() as nursery:
            with _within(limits.handshake_seconds, "did not finish its WebSocket handshake"):
                stream = await accept_websocket(nursery, PrefixedStream(first, stream), access)
            try:
                yield stream, b""
            finally:
                nursery.cancel_scope.cancel()


@contextmanager
def _within(seconds: float, words: str) -> Iterator[None]:
    with trio.CancelScope(deadline=trio.current_time() + seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise RemoteProtocolError(f"the peer {words} within {seconds:g} s")


async def remove_tls(raw: Stream, tls: TlsContexts, limits: Limits | None = None) -> tuple[Stream, bytes]:
    """A new peer's stream, decrypted if the peer speaks TLS, and the bytes already read from it.

    A client may connect and say nothing for as long as any other may be idle, as in Java. Raises
    RemoteProtocolError for what `tls` does not allow, BrokenResourceError when the peer goes away.
    """
    limits = limits or Limits()
    first = await _first_bytes(raw, limits)
    if first[0] == TLS and tls.mode != "disabled":
        with _within(limits.handshake_seconds, "did not finish its TLS handshake"):
            stream = await _secured(PrefixedStream(first, raw), tls)
        return stream, await _first_bytes(stream, limits)
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


async def _first_bytes(stream: Stream, limits: Limits) -> bytes:
    with _within(limits.idle_seconds, "did not say a word"):
        first = bytes(await stream.receive_some(_FIRST_BYTES))
    if not first:
        raise trio.BrokenResourceError("the peer left without a word")
    return first
