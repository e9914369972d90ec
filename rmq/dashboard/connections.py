"""Connections of the dashboard: a bound of their number, and a share of the places for each address.

Hypercorn takes every connection, and keeps a silent connection for a minute, so that a stranger could take
all descriptors. The acceptor of rmq's servers lets connections in instead: a connection is a guest until a
whole request has come, and the oldest guest makes room for a newcomer.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from rmq.remoting.address import join_address
from rmq.remoting.serving.acceptor import Acceptor, Guest

CONNECTIONS: Final = 1_000
"""Connections at a time. A page that follows a topic keeps a connection open."""
SHARE: Final = 0.5
"""Part of the descriptors for connections: the dashboard's connections to brokers need descriptors, too."""

Application = Any


async def serve(
    app: Application,
    config: Config,
    acceptor: Acceptor | None = None,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an ASGI application until cancelled; the task status gets the address. Raises OSError for a taken
    port."""
    sockets = config.create_sockets()
    ssl_context = config.create_ssl_context()
    (sock,) = (*sockets.secure_sockets, *sockets.insecure_sockets)
    sock.listen(config.backlog)
    listener = _Listener(trio.SocketListener(trio.socket.from_stdlib_socket(sock)))
    guests: dict[tuple[str, int], Guest] = {}

    async def asgi(scope: Any, receive: Any, send: Any, *more: Any) -> None:
        guest = guests.get(tuple((scope.get("client") or ("", 0))[:2]))
        if guest is not None:
            guest.prove()
        await app(scope, receive, send)

    context = WorkerContext(None)
    wrapped = ASGIWrapper(cast(Any, asgi))

    async def converse(visitor: _Visitor, guest: Guest) -> None:
        stream: Any = visitor.stream
        if ssl_context is not None:
            stream = trio.SSLStream(stream, ssl_context, server_side=True, https_compatible=True)
        guests[visitor.client] = guest
        try:
            await TCPServer(wrapped, config, context, ConnectionState({}), stream)
        finally:
            del guests[visitor.client]

    places = acceptor or Acceptor(CONNECTIONS, share=SHARE)
    try:
        async with trio.open_nursery() as nursery:
            scheme = "http" if ssl_context is None else "https"
            task_status.started(f"{scheme}://{listener.address}")
            await places.run(cast(Any, listener), partial(cast(Any, converse)), cast(Any, _Group(nursery)))
    finally:
        with trio.CancelScope(shield=True):
            await context.terminated.set()
            await listener.aclose()


class _Group:
    """A nursery under the names of anyio's task groups."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.start_soon = nursery.start_soon


class _Visitor:
    """An accepted connection, as an `Acceptor` needs it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        name = stream.socket.getpeername()
        self.client: tuple[str, int] = name[0], name[1]
        self.peer = join_address(*self.client)
        self.descriptor = stream.socket.fileno()

    def close_now(self) -> bool:
        """Close the connection at once, and return True: nothing is left to wait for."""
        self.stream.socket.close()
        return True

    async def aclose(self) -> None:
        """Close the connection at once."""
        await trio.aclose_forcefully(self.stream)


class _Listener:
    """The port, as an `Acceptor` needs it."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener
        name = listener.socket.getsockname()
        self.address = join_address(name[0], name[1])

    async def accept(self) -> _Visitor:
        """Return the next peer that has not hung up."""
        while True:
            stream = await self._listener.accept()
            try:
                return _Visitor(stream)
            except OSError:  # it is gone
                await trio.aclose_forcefully(stream)

    async def aclose(self) -> None:
        """Stop listening."""
        await self._listener.aclose()
