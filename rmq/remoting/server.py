"""Server: listen on some addresses and serve every peer that comes, until cancelled. On trio."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import NoReturn

import trio

from rmq.errors import RemoteProtocolError
from rmq.remoting.acceptor import Acceptor
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.limits import Budget, Limits
from rmq.remoting.network import Network, accept_stream
from rmq.remoting.stream import Listener, Stream
from rmq.remoting.tls import TlsConfig, TlsContexts
from rmq.remoting.websocket import WebSocketAccess

log = logging.getLogger(__name__)


async def serve(
    network: Network,
    addresses: Sequence[str],
    endpoint: Endpoint,
    *,
    limits: Limits | None = None,
    tls: TlsConfig | None = None,
    acceptor: Acceptor | None = None,
    access: WebSocketAccess | None = None,
    budget: Budget | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Listen on all of `addresses` and serve; `started` gets the addresses as bound, in the same order.

    Raises PortInUse and OSError before `started`, and ConfigError when the TLS files are not usable: then
    nothing listens. What goes wrong with a peer ends that peer's connection, a bug of `endpoint` too.
    `acceptor` tells who was refused; without it there is one of `limits`. `access` says which WebSocket
    upgrades are taken, `budget` how much peers may make the process hold. Cancelled: all connections are
    closed, after what is in their outboxes was sent to peers that read.
    """
    listeners = await open_listeners(network, addresses)
    await serve_listeners(
        listeners,
        endpoint,
        limits=limits,
        tls=tls,
        acceptor=acceptor,
        access=access,
        budget=budget,
        task_status=task_status,
    )


async def open_listeners(network: Network, addresses: Sequence[str]) -> list[Listener]:
    """Bind all addresses or none. For services that must know their port before they can answer."""
    listeners: list[Listener] = []
    try:
        for address in addresses:
            listeners.append(await network.listen(address))
    except BaseException:
        await _close_all(listeners)
        raise
    return listeners


async def serve_listeners(
    listeners: Sequence[Listener],
    endpoint: Endpoint,
    *,
    limits: Limits | None = None,
    tls: TlsConfig | None = None,
    acceptor: Acceptor | None = None,
    access: WebSocketAccess | None = None,
    budget: Budget | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """`serve` on listeners that are open already; closes them at the end."""
    limits = limits or Limits()
    acceptor = acceptor or Acceptor.of(limits)
    try:
        server = Server(endpoint, limits, tls, access, budget)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.expire)
            for listener in listeners:
                nursery.start_soon(acceptor.run, listener, server.serve, nursery)
            task_status.started([listener.address for listener in listeners])
    finally:
        await _close_all(listeners)
    raise AssertionError("unreachable: the tasks above end only by an error or by cancellation")


class Server:
    """The connections of one service, whichever listener they came by."""

    def __init__(
        self,
        endpoint: Endpoint,
        limits: Limits,
        tls: TlsConfig | None = None,
        access: WebSocketAccess | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._limits = limits
        self._access = access
        self._budget = budget or Budget()
        self._tls = TlsContexts(tls or TlsConfig())
        if self._tls.mode != "disabled":
            self._tls.server()  # unusable files end the start, not the first handshake
        self._connections: dict[Connection, None] = {}

    async def expire(self) -> NoReturn:
        """Close connections that are idle or stuck: one task looks at them all.

        Those that hold bytes are looked at more often, and they are few.
        """
        scan_at = trio.current_time() + self._limits.scan_seconds
        while True:
            await trio.sleep(self._limits.stall_scan_seconds)
            now = trio.current_time()
            for holder in self._budget.holders():
                holder.expire(now)
            if now >= scan_at:
                scan_at = now + self._limits.scan_seconds
                for connection in list(self._connections):
                    connection.expire(now)

    async def serve(self, raw: Stream) -> None:
        """Serve one peer until it goes, or sends nonsense."""
        try:
            async with self._accepted(raw) as (stream, first):
                await self._converse(stream, first)
        except RemoteProtocolError as error:
            log.warning("closing %s: %s", raw.peer, error)
        except trio.BrokenResourceError as error:
            log.debug("%s: %s", raw.peer, error)

    def _accepted(self, raw: Stream) -> AbstractAsyncContextManager[tuple[Stream, bytes]]:
        return accept_stream(raw, tls=self._tls, limits=self._limits, access=self._access)

    async def _converse(self, stream: Stream, first: bytes) -> None:
        connection = Connection(stream, self._endpoint, limits=self._limits, first=first, budget=self._budget)
        self._connections[connection] = None
        try:
            self._endpoint.on_open(connection)
            await connection.run()
        finally:
            del self._connections[connection]


async def _close_all(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        with trio.CancelScope(shield=True):
            await listener.aclose()
