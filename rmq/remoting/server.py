"""Server: listen on some addresses, and serve every peer that comes, within limits.

One accept loop lets in clients, slaves and scrapers alike. It refuses by closing at once, and never ends by
what peers or the system do: out of descriptors it waits. Files come first: a broker that cannot open the next
file of its log stops taking messages, a client that is refused tries again.
"""

from __future__ import annotations

import errno
import logging
import math
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NoReturn

import anyio
import anyio.abc
import attrs

from rmq.errors import RemoteProtocolError
from rmq.remoting.accept import accept_stream
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.limits import AddressRate, Budget, Limits, network_of
from rmq.remoting.loop import Alarm, broken_errors
from rmq.remoting.network import Network
from rmq.remoting.poller import Poller
from rmq.remoting.stream import Listener, Stream, close_at_once
from rmq.remoting.tls import TlsConfig, TlsContexts
from rmq.remoting.upgrades import WebSocketAccess

if sys.platform != "win32":
    import resource

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
    task_status: anyio.abc.TaskStatus[list[str]] = anyio.TASK_STATUS_IGNORED,
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


async def open_listeners(network: Network, addresses: Sequence[str], *, held: bool = False) -> list[Listener]:
    """Bind all addresses or none. For services that must know their port before they can answer; `held`:
    peers are refused until they are served."""
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
    budget: Budget | None = None,
    poller: Poller | None = None,
    task_status: anyio.abc.TaskStatus[list[str]] = anyio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """`serve` on listeners that are open already; closes them at the end. `poller` is run here."""
    limits = limits or Limits()
    acceptor = acceptor or Acceptor.of(limits)
    poller = poller or Poller()
    poller.endpoint = endpoint
    try:
        server = Server(endpoint, limits, tls, access, budget, poller)
        async with anyio.create_task_group() as nursery:
            await nursery.start(poller.run)
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
        poller: Poller | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._limits = limits
        # Peers that take nothing are holders, which are looked at more often.
        self._idle_limits = attrs.evolve(limits, stall_seconds=math.inf)
        self._access = access
        self._budget = budget or Budget()
        self._held = Alarm()
        self._budget.on_held.append(self._held.ring)
        self._poller = poller
        self._tls = TlsContexts(tls or TlsConfig())
        if self._tls.mode != "disabled":
            self._tls.server()  # unusable files end the start, not the first handshake
        self._connections: dict[Connection, None] = {}

    async def expire(self) -> NoReturn:
        """Close connections that are idle or stuck: one task looks at them all.

        Those that hold bytes are looked at more often, and they are few.
        """
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

    async def serve(self, raw: Stream) -> None:
        """Serve one peer until it disconnects or sends what is no frame."""
        raw.reset_if_killed()  # RocketMQ's clients for Java wait on, for half a minute, after an end in order
        try:
            async with self._accepted(raw) as (stream, first):
                await self._converse(stream, first)
        except RemoteProtocolError as error:
            log.warning("closing %s: %s", raw.peer, error)
        except broken_errors() as error:
            log.debug("%s: %s", raw.peer, error)

    def _accepted(self, raw: Stream) -> AbstractAsyncContextManager[tuple[Stream, bytes]]:
        return accept_stream(raw, tls=self._tls, limits=self._limits, access=self._access)

    async def _converse(self, stream: Stream, first: bytes) -> None:
        connection = Connection(
            stream,
            self._endpoint,
            limits=self._limits,
            first=first,
            budget=self._budget,
            poller=self._poller,
        )
        self._connections[connection] = None
        try:
            self._endpoint.on_open(connection)
            await connection.run()
        finally:
            del self._connections[connection]


async def _close_all(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        with anyio.CancelScope(shield=True):
            await listener.aclose()


# --- admission control: which connections are accepted ---

KEPT_BACK: Final = 448
"""Descriptors for files: a store keeps up to 384 open; the others are for tables, the loop, logs, dials."""
_TRIED: Final = (1 << 20, 65_536, 10_240)
"""Limits of descriptors where the hard one is no number that may be set, as on macOS."""

PAUSE_SECONDS: Final = 0.1
COMPLAIN_SECONDS: Final = 10.0
_BUGS: Final = {errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EADDRINUSE, errno.EOPNOTSUPP}
"""Errors of accept() that say nothing of a peer, the network or the system, but that it is no listener."""

NEW_PER_SECOND: Final = 50
"""New connections of one address in a second, unless a setting says otherwise."""
BURST_SECONDS: Final = 4
"""For how long the rate may be saved up: so many times as many come at once, after a restart for example."""

Serve = Callable[[Stream], Awaitable[None]]


class Acceptor:
    """The peers of one service, whichever listener they came by.

    `connections` bounds all of them, `per_address` those of one address (an IPv6 network of 64 bits counts as
    one); 0 is half of all, so that one machine never takes every place. `per_second` bounds how often one
    address may connect (`AddressRate`): accepting, handshakes and first reads cost more than requests do.
    `share` is how much of the descriptors that connections may have this service may take. `refused` counts
    by reason.
    """

    def __init__(
        self,
        connections: int,
        per_address: int = 0,
        *,
        per_second: float = NEW_PER_SECOND,
        share: float = 1.0,
    ) -> None:
        self._descriptors = descriptors_for_connections()
        self.most = max(1, int(min(connections, self._descriptors * share)))
        self.per_address = min(per_address or max(1, self.most // 2), self.most)
        self.per_second = per_second
        self._rate = AddressRate(per_second, BURST_SECONDS)
        self.open = 0
        self.refused: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._complain_at = 0.0

    @classmethod
    def of(cls, limits: Limits) -> Acceptor:
        """An Acceptor with the bounds of `limits`."""
        rate = limits.new_connections_per_address
        return cls(limits.connections, limits.connections_per_address, per_second=rate)

    async def run(self, listener: Listener, serve: Serve, nursery: anyio.abc.TaskGroup) -> NoReturn:
        """Take peers from a listener until cancelled; `serve` is run for each, its errors are logged.

        Raises OSError and ClosedResourceError only when the listener cannot be listened on.
        """
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno in _BUGS:
                    raise
                self._complain(listener, error)
                await anyio.sleep(PAUSE_SECONDS)
                continue
            address = network_of(stream.peer)
            reason = self._refusal(stream, address)
            if reason:
                self.refused[reason] += 1
                log.warning("refusing %s on %s: %s", stream.peer, listener.address, self._words(reason))
                await close_at_once(stream)
                continue
            self.open += 1
            self._addresses[address] += 1
            nursery.start_soon(self._serve, stream, address, serve)

    def _refusal(self, stream: Stream, address: str) -> str:
        if self.open >= self.most:
            return "connections"
        if self._addresses[address] >= self.per_address:
            return "address"
        if stream.descriptor >= self._descriptors:
            return "descriptors"
        if not self._rate.take(address, anyio.current_time()):
            return "rate"
        return ""

    def _words(self, reason: str) -> str:
        if reason == "connections":
            return f"{self.open} connections are open (the limit)"
        if reason == "address":
            return f"{self.per_address} connections of its address are open (the limit)"
        if reason == "rate":
            return f"its address connects more than {self.per_second:g} times a second (the limit)"
        return (
            f"{self._descriptors:g} descriptors are in use, the others are for files (ulimit -n raises them)"
        )

    def _complain(self, listener: Listener, error: OSError) -> None:
        now = anyio.current_time()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAIN_SECONDS
            log.error("cannot accept on %s, trying again: %s", listener.address, error)

    async def _serve(self, stream: Stream, address: str, serve: Serve) -> None:
        try:
            await serve(stream)
        except Exception as error:  # a bug, or of a library below: one peer ends, not all
            log.error("closing %s after an unexpected error: %s", stream.peer, error, exc_info=error)
        finally:
            self.open -= 1
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]
            await close_at_once(stream)


def raise_descriptor_limit() -> None:
    """Let this process have as many descriptors as it may: most systems give 1,024 to begin with.

    For programs of our own only: select() in other people's code knows descriptors below 1,024.
    """
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, *_TRIED):
        if wanted == soft or (soft < wanted and _set_limit(wanted, hard)):
            break
    log.info("this process may open %d files and connections (RLIMIT_NOFILE)", _soft_limit())


def _set_limit(wanted: int, hard: int) -> bool:
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):
        return False
    return True


def _soft_limit() -> float:
    if sys.platform == "win32":
        return math.inf
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if soft == resource.RLIM_INFINITY else soft


def descriptors_for_connections() -> float:
    """How many descriptors connections may take; the others, at most half, are kept back for files.

    A new descriptor has the lowest number that is free, so a connection whose number is not below this says
    that as many are in use.
    """
    soft = _soft_limit()
    return soft - min(KEPT_BACK, soft // 2) if soft < math.inf else soft
