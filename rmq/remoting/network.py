"""Network: dialling and listening; plain TCP in this module, simulated in rmq.testing.

Over a network's raw streams, `open_stream` adds TLS and WebSocket as the address's scheme says, so that both
run over every network alike; `accept.accept_stream` detects the protocol of a new peer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

import anyio

from rmq.errors import ConfigError, ConnectFailed, RmqError
from rmq.remoting.address import Address, split_address
from rmq.remoting.limits import Limits
from rmq.remoting.loop import current_loop, disconnect_errors, unwrap_groups
from rmq.remoting.transports import tcp
from rmq.remoting.transports.stream import Listener, Stream
from rmq.remoting.transports.tls import TlsConfig, TlsContexts, tls_client

if TYPE_CHECKING:
    import trio


class Network(Protocol):
    """A way to reach peers by address. Real or simulated."""

    async def dial(self, address: str) -> Stream:
        """Connect; only host and port of the address count. Raises OSError. Cancelled: no socket stays
        open."""

    async def listen(self, address: str, *, held: bool = False) -> Listener:
        """Bind and listen; port 0 takes any free port. Raises PortInUse, OSError.

        `held`: the port is taken, but peers are refused until the first accept: for a server that knows its
        port long before it can answer.
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
    `limits.connect_seconds`. The function is a block because on trio a WebSocket reads in a task of its own.
    """
    limits = limits or Limits()
    target = split_address(address)
    async with AsyncExitStack() as stack:
        nursery = None
        if target.is_websocket and current_loop().name == "trio":
            import trio  # only for addresses with TLS

            stack.enter_context(unwrap_groups())
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
    """An attempt to reach an address; knows its present stage."""

    def __init__(self, network: Network, target: Address, tls: TlsContexts) -> None:
        self._network = network
        self._target = target
        self._tls = tls
        self._stage = ""
        self._stream: Stream | None = None

    async def within(self, limits: Limits, nursery: trio.Nursery | None) -> Stream:
        """The stream, ready to use. Raises ConnectFailed; after any failure no socket stays open."""
        seconds = limits.connect_seconds
        try:
            with anyio.move_on_after(seconds):
                return await self._run(nursery, limits)
            raise ConnectFailed(str(self._target), f"{self._stage}: no answer within {seconds:g} s")
        except BaseException as error:
            if self._stream is not None:
                await _close_at_once(self._stream)
            if isinstance(error, RmqError) or not isinstance(error, (OSError, *disconnect_errors())):
                raise
            raise ConnectFailed(
                str(self._target), f"{self._stage}: {error or type(error).__name__}"
            ) from error

    async def _run(self, nursery: trio.Nursery | None, limits: Limits) -> Stream:
        target = self._target
        self._stage = "looking up the name" if not target.is_literal else "connecting"
        self._stream = stream = await self._network.dial(target.plain)
        stream.keep_alive(limits.keepalive_seconds, limits.unacknowledged_seconds)
        if target.is_tls:
            self._stage = "TLS handshake"
            self._stream = stream = await tls_client(stream, self._tls, target.host)
        if nursery is not None:
            with _websocket_packages(target):
                from rmq.remoting.transports import websocket

            self._stage = "WebSocket handshake"
            self._stream = stream = await websocket.connect_websocket(nursery, stream, target.plain)
        elif target.is_websocket:
            with _websocket_packages(target):
                from rmq.remoting.transports import websocket_client

            self._stage = "WebSocket handshake"
            self._stream = stream = await websocket_client.connect_websocket(stream, target.plain)
        return stream


@contextmanager
def _websocket_packages(target: Address) -> Iterator[None]:
    """Imports for WebSocket, whose packages are an extra of `rmq-client`. Raises ConfigError without them."""
    try:
        yield
    except ImportError as error:
        needed = f"an address without ws:// or wss://, or the package {error.name}"
        raise ConfigError("address", str(target), f"{needed}: pip install 'rmq-client[websocket]'") from None


async def _close(stream: Stream) -> None:
    with suppress(OSError, *disconnect_errors()):  # the socket has ended either way
        await stream.aclose()


async def _close_at_once(stream: Stream) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await _close(stream)
