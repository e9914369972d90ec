"""Server: listen on some addresses, and serve every peer that comes, within limits."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import anyio
import anyio.abc
import attrs

from rmq.errors import RemoteProtocolError
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.limits import Limits, MemoryBudget
from rmq.remoting.loop import Wakeup, current_loop, disconnect_errors
from rmq.remoting.network import Network
from rmq.remoting.poller import Poller
from rmq.remoting.serving.accept import FRAME, UPGRADE, detect, first_bytes, websocket
from rmq.remoting.serving.acceptor import Acceptor, Guest
from rmq.remoting.serving.doors import DoorServer
from rmq.remoting.transports.stream import Listener, Stream
from rmq.remoting.transports.tls import TlsConfig, TlsContexts
from rmq.remoting.transports.websocket_policy import WebSocketAccess

if TYPE_CHECKING:
    from rmq.remoting.loop import Tasks

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
    budget: MemoryBudget | None = None,
    doors: DoorServer | None = None,
    task_status: anyio.abc.TaskStatus[list[str]] = anyio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Listen on all of `addresses` and serve; `started` gets the addresses as bound, in the same order.

    Raises PortInUse and OSError before `started`, and ConfigError for unusable TLS files, with no open
    listener. An error with a peer ends that peer's connection, also a bug of `endpoint`. `acceptor` knows the
    refused peers; by default it is made of `limits`. `access` decides about WebSocket upgrades, `budget`
    bounds the bytes that peers make the process hold. Cancelled: all connections are closed, after their
    outboxes were sent to peers that read.
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
        doors=doors,
        task_status=task_status,
    )


async def open_listeners(network: Network, addresses: Sequence[str], *, held: bool = False) -> list[Listener]:
    """Bind all addresses or none. For services that must know their port before they can answer; `held`:
    peers are refused until the service begins."""
    listeners: list[Listener] = []
    try:
        for address in addresses:
            listeners.append(await network.listen(address, held=held))
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
    budget: MemoryBudget | None = None,
    poller: Poller | None = None,
    doors: DoorServer | None = None,
    task_status: anyio.abc.TaskStatus[list[str]] = anyio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """`serve` on open listeners; closes them at the end. `poller` runs in this call. `doors` serves a peer
    that begins as a door's peers do."""
    limits = limits or Limits()
    acceptor = acceptor or Acceptor.of(limits)
    poller = poller or Poller()
    poller.attach(endpoint)
    try:
        server = Server(endpoint, limits, tls, access, budget, poller, doors)
        async with current_loop().tasks() as nursery:
            server.spare_tasks(nursery)
            await nursery.start(poller.run)
            nursery.start_soon(server.expire)
            for listener in listeners:
                nursery.start_soon(acceptor.run, listener, server.serve, nursery)
            task_status.started([listener.address for listener in listeners])
    finally:
        await _close_all(listeners)
    raise AssertionError("unreachable: the tasks above end only by an error or by cancellation")


class Server:
    """The connections of a service, from all its listeners.

    An idle connection has no task where that is possible (`Connection.run`): the task, with its frames and
    cancel scopes, would be two thirds of its memory. `expire` closes such connections at the end.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        limits: Limits,
        tls: TlsConfig | None = None,
        access: WebSocketAccess | None = None,
        budget: MemoryBudget | None = None,
        poller: Poller | None = None,
        doors: DoorServer | None = None,
    ) -> None:
        self.is_open = False
        """True while connections may be left without a task."""
        self.poller = poller or Poller()
        if doors is not None:
            doors.read_by(self.poller)
        self._endpoint = endpoint
        self._nursery: Tasks | None = None
        self._doors = doors
        self._limits = limits
        # Peers that take nothing are holders, which are checked more often.
        self._idle_limits = attrs.evolve(limits, stall_seconds=math.inf)
        self._access = access
        self._budget = budget or MemoryBudget()
        self._held = Wakeup()
        self._budget.on_held.append(self._held.set)
        self._tls = TlsContexts(tls or TlsConfig())
        if self._tls.mode != "disabled":
            self._tls.server()  # unusable files end the start, not the first handshake
        self._connections: dict[Connection, Guest] = {}

    def spare_tasks(self, nursery: Tasks) -> None:
        """Leave idle connections without a task from now on: later tasks start in `nursery`, where `expire`
        runs."""
        self._nursery, self.is_open = nursery, True

    async def expire(self) -> NoReturn:
        """Close connections that are idle or stuck: a single task checks all connections. Connections that
        hold bytes are few, and checked more often. Cancelled: the connections without a task get one for
        their end."""
        try:
            await self._expire()
        finally:
            self.is_open = False
            for connection in list(self._connections):
                if connection.is_parked:
                    connection.close("cancelled")

    async def _expire(self) -> NoReturn:
        scan_at = anyio.current_time() + self._limits.scan_seconds
        while True:
            if self._budget.holders() or await self._held.wait(scan_at):
                stalled_at = anyio.current_time() + self._limits.stall_scan_seconds
                await anyio.sleep_until(min(stalled_at, scan_at))
            now = anyio.current_time()
            for holder in self._budget.holders():
                holder.expire(now)
            if now >= scan_at:
                scan_at = self._idle_limits.scan_at(now, [one.expire(now) for one in list(self._connections)])

    async def serve(self, raw: Stream, guest: Guest) -> None:
        """Serve a peer until it disconnects or sends bytes that are no frame. A whole frame proves the
        peer."""
        raw.keep_alive(self._limits.keepalive_seconds, self._limits.unacknowledged_seconds)
        raw.reset_if_killed()  # RocketMQ's clients for Java wait on, for half a minute, after a graceful end
        try:
            speaks = _nothing_else if self._doors is None else self._doors.speaks
            stream, first = await detect(
                raw, tls=self._tls, limits=self._limits, on_first=guest.speaks, speaks=speaks
            )
            if first[0] == FRAME:
                await self._converse(stream, first, guest)
            elif first[0] == UPGRADE:
                await self._upgrade(stream, first, guest)
            else:
                assert self._doors is not None, "`speaks` says so"
                await self._doors.converse(stream, first, guest, is_upgraded=False)
        except RemoteProtocolError as error:
            log.warning("closing %s: %s", raw.peer, error)
        except disconnect_errors() as error:
            log.debug("%s: %s", raw.peer, error)

    async def _upgrade(self, stream: Stream, first: bytes, guest: Guest) -> None:
        """Serve a peer that asks for a WebSocket."""
        doors = self._doors
        subprotocols = () if doors is None else doors.subprotocols
        async with websocket(stream, first, self._limits, self._access, subprotocols) as messages:
            inner = await first_bytes(messages, self._limits) if doors and doors.has_websocket else b""
            if inner and inner[0] != FRAME and doors is not None:
                await doors.converse(messages, inner, guest, is_upgraded=True)
            else:
                await self._converse(messages, inner, guest)

    async def _converse(self, stream: Stream, first: bytes, guest: Guest) -> None:
        connection = Connection(
            stream,
            self._endpoint,
            limits=self._limits,
            first=first,
            budget=self._budget,
            poller=self.poller,
            keeper=self,
        )
        self._connections[connection] = guest
        guest.watch(lambda: connection.has_received)
        is_kept = False
        try:
            self._endpoint.on_open(connection)
            is_kept = await connection.run()
            if is_kept:
                guest.keep()
        finally:
            if not is_kept:
                del self._connections[connection]

    def resume(self, connection: Connection) -> None:
        """Go on with a connection that had no task."""
        assert self._nursery is not None
        self._nursery.start_soon(self._go_on, connection)

    async def _go_on(self, connection: Connection) -> None:
        is_kept = False
        try:
            is_kept = await connection.run()
        except Exception as error:  # a bug: it ends one peer, not all
            log.error(
                "closing %s after an unexpected error: %s", connection.peer_address, error, exc_info=error
            )
        finally:
            if not is_kept:
                self._connections.pop(connection).leave()


def _nothing_else(byte: int) -> bool:
    return False


async def _close_all(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        with anyio.CancelScope(shield=True):
            await listener.aclose()
