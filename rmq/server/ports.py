"""The ports of a server: the bounds of its connections by its settings, and the doors of its plug-ins."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import anyio
import anyio.abc

from rmq.doors import Door
from rmq.errors import PortInUse
from rmq.remoting.address import join_address
from rmq.remoting.limits import Limits, MemoryBudget
from rmq.remoting.loop import Wakeup
from rmq.remoting.network import Network
from rmq.remoting.serving.accept import accept_stream
from rmq.remoting.serving.acceptor import Acceptor
from rmq.remoting.serving.doors import DoorConnection, DoorServer, Visitor, serve_doors
from rmq.remoting.serving.server import open_listeners
from rmq.remoting.transports.stream import Listener
from rmq.remoting.transports.tls import TlsConfig, TlsContexts
from rmq.remoting.transports.websocket_policy import WebSocketAccess
from rmq.server.deferred import DeferredCalls
from rmq.server.door_host import ServerDoorPeer, ServerOfDoors
from rmq.server.profile import connection_rate
from rmq.server.settings import ServerSettings
from rmq.shares import Gateways

if TYPE_CHECKING:
    from rmq.plugin import Hooks

CLIENTS: Final = "clients"
"""The name of the port for clients among the acceptors of a server."""
DOOR_SHARE: Final = 0.25
"""The share of the file descriptors for connections that the connections of one door may take."""


def client_limits(config: ServerSettings) -> Limits:
    """The bounds of a client's connection."""
    return Limits(
        idle_seconds=config.server_channel_max_idle_time_seconds,
        keepalive_seconds=config.tcp_keepalive_seconds,
        unacknowledged_seconds=config.tcp_user_timeout_seconds,
    )


def acceptor(
    config: ServerSettings,
    connections: int | None = None,
    per_address: int | None = None,
    *,
    share: float = 1.0,
) -> Acceptor:
    """The acceptor of a port for `connections`, `per_address` of an address (None: by the settings), which
    may take `share` of the descriptors for connections."""
    return Acceptor(
        config.max_connections if connections is None else connections,
        config.max_connections_per_address if per_address is None else per_address,
        per_second=connection_rate(config),
        share=share,
        gateways=Gateways(config.trusted_gateways),
    )


def web_socket_access(config: ServerSettings, *names: str) -> WebSocketAccess:
    """The WebSocket upgrades that a server takes; `names` are further names of its own."""
    own = (*names, config.bind_address, socket.gethostname())
    return WebSocketAccess(
        origins=config.web_socket_origins, hosts=config.web_socket_hosts, own=[name for name in own if name]
    )


class OpenDoor(NamedTuple):
    """A door with its listener and acceptor; both None for a door without a port of its own."""

    door: Door
    listener: Listener | None
    acceptor: Acceptor | None


async def open_doors(
    network: Network, config: ServerSettings, doors: Sequence[Door], own: Iterable[Listener] = ()
) -> list[OpenDoor]:
    """Listen at the ports of doors; peers are refused until the doors are served. `own` are the server's
    present listeners.

    Raises PortInUse, which names the door, and OSError; then no port stays open.
    """
    opened: list[OpenDoor] = []
    taken = {int(listener.address.rpartition(":")[2]) for listener in own}
    try:
        for door in doors:
            if door.port in taken:  # both would be bound, and the second could not listen
                raise PortInUse(
                    join_address(config.bind_address, door.port), f"for door {door.name} of a plug-in"
                )
            opened.append(await _open_door(network, config, door))
    except BaseException:
        for one in opened:
            if one.listener is not None:
                await one.listener.aclose()
        raise
    return opened


async def _open_door(network: Network, config: ServerSettings, door: Door) -> OpenDoor:
    if door.port is None:
        return OpenDoor(door, None, None)
    try:
        address = join_address(config.bind_host, door.port)
        (listener,) = await open_listeners(network, [address], held=True)
    except PortInUse as error:
        raise PortInUse(error.address, f"for door {door.name} of a plug-in") from None
    return OpenDoor(door, listener, acceptor(config, door.connections, share=DOOR_SHARE))


def door_acceptors(doors: Sequence[OpenDoor]) -> dict[str, Acceptor]:
    """The acceptors of the ports of doors, by the names of the doors."""
    return {one.door.name: one.acceptor for one in doors if one.acceptor is not None}


def door_addresses(doors: Sequence[OpenDoor]) -> dict[str, str]:
    """The addresses at which doors listen, by the names of the doors."""
    return {one.door.name: one.listener.address for one in doors if one.listener is not None}


def door_server(
    doors: Sequence[OpenDoor],
    visitor: Callable[[str, DoorConnection], Visitor],
    *,
    config: ServerSettings,
    tls: TlsContexts,
    access: WebSocketAccess,
    budget: MemoryBudget,
) -> DoorServer | None:
    """The server of these doors; None without any. `visitor(door name, connection)` makes a peer's host."""
    if not doors:
        return None
    limits = client_limits(config)
    return DoorServer(
        [one.door for one in doors],
        lambda door, connection: visitor(door.name, connection),
        accept=partial(accept_stream, tls=tls, limits=limits, access=access),
        limits=limits,
        budget=budget,
    )


def own_ports(doors: Sequence[OpenDoor]) -> list[tuple[Door, Listener, Acceptor]]:
    """The doors that have a port of their own."""
    return [
        (one.door, one.listener, one.acceptor)
        for one in doors
        if one.listener is not None and one.acceptor is not None
    ]


class PluginDoors:
    """The doors of a server that stores no messages: `server` is None without any, `addresses` are those of
    their own ports."""

    def __init__(self, opened: Sequence[OpenDoor], server: DoorServer | None, calls: DeferredCalls) -> None:
        self.server = server
        self.addresses = door_addresses(opened)
        self._ports = own_ports(opened)
        self._calls = calls

    async def serve(
        self, due: Wakeup, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve the peers of the doors, and make their deferred calls: `due` wakes this for an earlier one.
        Cancelled: listeners and connections are closed."""
        if self.server is None:
            task_status.started()
            return
        async with anyio.create_task_group() as tasks:
            await tasks.start(serve_doors, self.server, self._ports)
            task_status.started()
            while True:
                await due.wait(self._calls.step(anyio.current_time()))

    def stop(self) -> None:
        """Say goodbye to all peers, and end their connections."""
        if self.server is not None:
            self.server.stop("this server is stopping")


async def plugin_doors(
    network: Network,
    config: ServerSettings,
    hooks: Hooks,
    title: str,
    *,
    acceptors: dict[str, Acceptor],
    tls: TlsConfig,
    budget: MemoryBudget,
    due: Wakeup,
    now_ms: Callable[[], int],
    peer: Callable[[ServerOfDoors, str, DoorConnection], object] = ServerDoorPeer,
) -> PluginDoors:
    """Open the doors of the plug-ins of a `title`, which stores no messages; `acceptors` gets the doors'
    acceptors, `peer` makes the host of a connection. Raises PluginRefused for doors that cannot be opened
    together, PortInUse, OSError."""
    opened = await open_doors(network, config, hooks.doors())
    acceptors |= door_acceptors(opened)
    calls = DeferredCalls(anyio.current_time, lambda at: due.set())
    server = ServerOfDoors(title, config, lambda: hooks, calls, now_ms)
    return PluginDoors(
        opened,
        door_server(
            opened,
            lambda door, connection: cast(Visitor, peer(server, door, connection)),
            config=config,
            tls=TlsContexts(tls),
            access=web_socket_access(config),
            budget=budget,
        ),
        calls,
    )
