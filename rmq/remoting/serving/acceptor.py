"""Acceptor: decides which connections are accepted, and which make room for new connections.

The accept loop lets in clients, slaves and probes alike. Neither peers nor the system end the loop: without
descriptors it waits. Files come first: a broker that cannot open the next file of its log stops taking
messages, while a refused client tries again.

A connection is a guest until its peer has proved itself, by a whole request or a secret. Guests have no
reserved places: when a newcomer finds no place, the oldest guest is cut off. Each address has a share of the
places.
"""

from __future__ import annotations

import errno
import logging
import math
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NoReturn

import anyio

from rmq.remoting.limits import AddressRate, Limits
from rmq.remoting.loop import current_loop
from rmq.remoting.transports.stream import Listener, Stream, close_at_once
from rmq.shares import Gateways, Holders, Shares, by_address

if TYPE_CHECKING:
    from rmq.remoting.loop import Tasks

if sys.platform != "win32":
    import resource

log = logging.getLogger(__name__)

KEPT_BACK: Final = 448
"""Descriptors for files: a store has up to 416 (256 for queues, 128 for the log, 32 for the index); the
others are for tables, the loop, logs, dials."""
SMALL_SHARE: Final = 0.125
"""Share of the descriptors up to which a service counts as one for few connections: slaves, probes."""
FOR_SMALL: Final = 0.16
"""Share of the descriptors for connections that only such services may take."""
_TRIED: Final = (1 << 20, 65_536, 10_240)
"""Limits of descriptors to try where the hard limit cannot be set, as on macOS."""

PAUSE_SECONDS: Final = 0.1
WARNING_SECONDS: Final = 10.0
_BUGS: Final = {errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EADDRINUSE, errno.EOPNOTSUPP}
"""Errors of accept() that mean that the descriptor is no listener: they do not come from a peer, the network
or the system."""

BURST_SECONDS: Final = 4
"""Seconds for which the rate may be saved up: this many times the rate may come at once, after a restart for
example."""
YOUNG_SECONDS: Final = 10.0
"""Seconds for which a guest counts as a handshake in progress."""
WAIT_SECONDS: Final = 10.0
"""Longest wait of a connection over its address's rate, in seconds, before it is refused."""
SCAN_SECONDS: Final = 0.02
"""Seconds between two looks at the waiting connections."""
KNOWN_MAX: Final = 1_000
"""Number of remembered addresses whose peers have proved themselves: their guests are cut off last."""


class Descriptors:
    """Count of the descriptors that the connections of this process have, whatever their service."""

    def __init__(self) -> None:
        self.used = 0

    def take(self, count: int) -> None:
        """A connection has so many more; less than 0: it has closed."""
        self.used += count


OF_PROCESS: Final = Descriptors()


class Guest:
    """An accepted connection, as its service sees it: the service reports the peer's proof."""

    __slots__ = (
        "_acceptor",
        "_is_proved",
        "_proof",
        "descriptors",
        "has_begun",
        "has_spoken",
        "holders",
        "is_kept",
        "peer",
        "scope",
        "since",
    )

    def __init__(self, acceptor: Acceptor, peer: str, holders: Holders, since: float) -> None:
        self.peer = peer
        self.holders = holders
        self.since = since
        self.scope = current_loop().scope()
        self.descriptors = 0  # that it has
        self.has_begun = False  # it does not wait for its turn
        self.has_spoken = False
        self.is_kept = False  # after the end of its first task
        self._acceptor = acceptor
        self._is_proved = False
        self._proof: Callable[[], bool] | None = None

    @property
    def key(self) -> str:
        """The narrowest name of its address; empty behind a trusted gateway."""
        return self.holders[0] if self.holders else ""

    def speaks(self) -> None:
        """Note that the first bytes have come: from now on the connection costs work."""
        self.has_spoken = True

    def prove(self) -> None:
        """Note that the peer has proved itself: the connection keeps its place until its end."""
        if not self._is_proved:
            self._is_proved = True
            self._acceptor.proved(self)

    def watch(self, proof: Callable[[], bool]) -> None:
        """Use the answer of `proof` in place of `prove`, at the time when the answer matters."""
        self._proof = proof

    def keep(self) -> None:
        """Keep the place of a proved peer when `serve` returns: the service calls `leave` at the end of the
        connection."""
        self.prove()
        self._proof = None
        self.is_kept = True

    def leave(self) -> None:
        """Give the place of a kept connection back."""
        self._acceptor.leave(self)

    def has_proved(self) -> bool:
        """True if the peer has proved itself."""
        if not self._is_proved and self._proof is not None and self._proof():
            self.prove()
        return self._is_proved


Serve = Callable[[Stream, Guest], Awaitable[None]]


class Acceptor:
    """The connections of a service, from all its listeners.

    `connections` bounds all connections, `per_address` the connections of an address; 0: no bound of its own.
    `per_second` bounds how many handshakes of an address may fail (0: any number); further connections wait.
    `share` is the part of the descriptors for connections that this service may take. An address of
    `gateways` has no bounds of its own. `descriptors` are those of all services together: each of them alone
    is in its bounds before files have none left. `refused` counts by reason.
    """

    def __init__(
        self,
        connections: int,
        per_address: int = 0,
        *,
        per_second: float = 0,
        share: float = 1.0,
        gateways: Gateways | None = None,
        descriptors: Descriptors = OF_PROCESS,
    ) -> None:
        self.most = max(1, int(min(connections, descriptors_for_connections() * share)))
        is_small = share <= SMALL_SHARE
        self._last_descriptor = last_descriptor(is_small=is_small)
        self._descriptors = descriptors
        self._most_descriptors = descriptors_for_connections() * (1 if is_small else 1 - FOR_SMALL)
        self.per_address = min(per_address, self.most)
        self.per_second = per_second
        self.refused: Counter[str] = Counter()
        self.delayed = 0
        self.failed = 0
        """Connections that spoke and proved nothing: their certificate, secret or protocol is not taken."""
        """Number of connections that had to wait for their turn."""
        self._rate = AddressRate(per_second, BURST_SECONDS)
        self._holders = by_address(gateways)
        self._shares = Shares(self.most)
        self._guests: dict[str, dict[Guest, None]] = {}  # guests without a proof by address, oldest first
        self._known: dict[str, None] = {}  # addresses whose peers have proved themselves, the last one last
        self._waiting: dict[str, deque[tuple[Guest, anyio.Event]]] = {}
        self._is_looking = False
        self._next_warning_at = 0.0

    @classmethod
    def of(cls, limits: Limits, gateways: Gateways | None = None) -> Acceptor:
        """An Acceptor with the bounds of `limits`."""
        rate = limits.new_connections_per_address
        return cls(limits.connections, limits.connections_per_address, per_second=rate, gateways=gateways)

    @property
    def open(self) -> int:
        """The number of open connections."""
        return self._shares.used

    @property
    def waiting(self) -> int:
        """The number of connections that wait for their turn."""
        return sum(map(len, self._waiting.values()))

    async def run(self, listener: Listener, serve: Serve, nursery: Tasks) -> NoReturn:
        """Take peers from a listener until cancelled; `serve` is run for each, its errors are logged.

        Raises OSError and ClosedResourceError only when the listener cannot be listened on.
        """
        loop = current_loop()
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno in _BUGS:
                    raise
                self._complain(listener, error)
                await anyio.sleep(PAUSE_SECONDS)
                continue
            guest = Guest(self, stream.peer, self._holders(stream.peer), loop.now())
            reason = self._refusal(stream, guest.holders)
            if reason and self._make_room(guest, reason):
                reason = "" if reason == "descriptors" else self._refusal(stream, guest.holders)
            if reason:
                self.refused[reason] += 1
                log.warning(
                    "refusing %s on %s: %s", stream.peer, listener.address, self._words(reason, guest)
                )
                await close_at_once(stream)
                continue
            self._shares.add(guest.holders)
            guest.descriptors = int(stream.descriptor >= 0)
            self._descriptors.take(guest.descriptors)
            self._guests.setdefault(guest.key, {})[guest] = None
            nursery.start_soon(self._serve, stream, guest, serve, nursery)

    # --- places ---

    def _refusal(self, stream: Stream, holders: Holders) -> str:
        if self.open >= self.most:
            return "connections"
        if self.per_address:
            if holders and self._shares.held(holders[0]) >= self.per_address:
                return "address"
        elif self._shares.full(holders):
            return "address"
        is_last = self._has_all_descriptors or stream.descriptor >= self._last_descriptor
        return "descriptors" if stream.descriptor >= 0 and is_last else ""

    @property
    def _has_all_descriptors(self) -> bool:
        """True if the connections of all services have as many descriptors as leave this one none."""
        return self._descriptors.used >= self._most_descriptors

    def _words(self, reason: str, guest: Guest) -> str:
        if reason == "connections":
            return f"{self.open} connections are open (the limit)"
        if reason == "address" and self.per_address:
            return f"{self.per_address} connections of its address are open (the limit)"
        if reason == "address":
            return f"too many connections of its address are open: {self._shares.full(guest.holders)}"
        if reason == "rate":
            return f"its address connects more than {self.per_second:g} times a second (the limit)"
        most = (
            f"all connections together have {self._descriptors.used} descriptors"
            if self._has_all_descriptors
            else f"{self._last_descriptor:g} descriptors are in use"
        )
        return f"{most}, the rest are reserved for files and other ports (raise ulimit -n)"

    def _make_room(self, newcomer: Guest, reason: str) -> bool:
        """Cut off an unproved guest; return whether a guest was found."""
        victim = self._oldest(newcomer.key) if reason == "address" else self._oldest_of_most()
        if victim is None:
            return False
        self.refused["unproved"] += 1
        log.info(
            "closing %s, which has sent no valid request, to make room for %s", victim.peer, newcomer.peer
        )
        self.leave(victim)
        victim.scope.cancel()
        return True

    def _oldest(self, key: str) -> Guest | None:
        """The oldest guest of an address without a proof."""
        for guest in list(self._guests.get(key, ())):
            if not guest.has_proved():
                return guest
        return None

    def _oldest_of_most(self) -> Guest | None:
        """The oldest guest of the address that has the most guests, of addresses that never proved
        themselves."""
        for is_known in (False, True):
            while keys := [key for key in self._guests if (key in self._known) is is_known]:
                key = max(keys, key=lambda key: len(self._guests[key]))
                if self._sweep(key):
                    return self._oldest(key)
        return None

    def _sweep(self, key: str) -> int:
        """Forget the proved connections of an address; return the number of remaining guests."""
        for guest in list(self._guests.get(key, ())):
            guest.has_proved()
        return len(self._guests.get(key, ()))

    def proved(self, guest: Guest) -> None:
        """A guest's peer has proved itself."""
        self._forget(guest)
        self._known.pop(guest.key, None)
        self._known[guest.key] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def _forget(self, guest: Guest) -> bool:
        """End the guest status; return whether the connection was a guest."""
        guests = self._guests.get(guest.key, {})
        if guest not in guests:
            return False
        del guests[guest]
        if not guests:
            del self._guests[guest.key]
        return True

    def leave(self, guest: Guest) -> None:
        """Give the place of a connection back, once."""
        if guest.holders is not _LEFT:
            was_guest = self._forget(guest) and not guest.has_proved()
            self.failed += was_guest and guest.has_spoken
            if was_guest and guest.has_spoken and guest.holders:
                self._rate.take(guest.key, anyio.current_time())  # a handshake that failed
            self._shares.give(guest.holders)
            guest.holders = _LEFT
            self._descriptors.take(-guest.descriptors)

    def _complain(self, listener: Listener, error: OSError) -> None:
        now = anyio.current_time()
        if now >= self._next_warning_at:
            self._next_warning_at = now + WARNING_SECONDS
            log.error("cannot accept on %s, trying again: %s", listener.address, error)

    # --- turns ---

    async def _serve(self, stream: Stream, guest: Guest, serve: Serve, nursery: Tasks) -> None:
        try:
            with guest.scope:
                if self.per_second and not self._may_begin(guest) and not await self._turn(guest, nursery):
                    self.refused["rate"] += 1
                    log.warning("refusing %s: %s", stream.peer, self._words("rate", guest))
                    return
                guest.has_begun = True
                await serve(stream, guest)
        except Exception as error:  # a bug, or an error of a library below: it ends one peer, not all
            log.error("closing %s after an unexpected error: %s", stream.peer, error, exc_info=error)
        finally:
            if not guest.is_kept:
                self.leave(guest)
                await close_at_once(stream)

    def _may_begin(self, guest: Guest) -> bool:
        """True if the address's rate has room for one more handshake, even if all handshakes in progress
        fail."""
        if not guest.holders or guest.key in self._waiting:
            return not guest.holders
        return self._has_room(guest.key)

    def _has_room(self, key: str) -> bool:
        now = anyio.current_time()
        left = self._rate.left(key, now)
        if len(self._guests.get(key, ())) <= left:
            return True
        self._sweep(key)
        young = now - YOUNG_SECONDS
        on_their_way = sum(one.has_begun and one.since > young for one in self._guests.get(key, ()))
        return on_their_way + 1 <= left

    async def _turn(self, guest: Guest, nursery: Tasks) -> bool:
        """Wait in the line of the address; return whether the connection may begin. Cancelled: the wait
        ends."""
        if not self._is_looking:
            self._is_looking = True
            nursery.start_soon(self._let_in)
        self.delayed += 1
        row = guest, anyio.Event()
        queue = self._waiting.setdefault(guest.key, deque())
        queue.append(row)
        try:
            with anyio.move_on_after(WAIT_SECONDS):
                await row[1].wait()
        finally:
            if row in queue:
                queue.remove(row)
        return row[1].is_set()

    async def _let_in(self) -> None:
        """Let waiting connections begin, as their addresses have room; ends when none waits."""
        while self._waiting:
            for key, queue in list(self._waiting.items()):
                while queue and self._has_room(key):
                    guest, turn = queue.popleft()
                    guest.has_begun = True
                    turn.set()
                if not queue:
                    del self._waiting[key]
            await anyio.sleep(SCAN_SECONDS)
        self._is_looking = False


_LEFT: Final[Holders] = ("",)
"""Placeholder for the holders of a guest that has left."""


def raise_descriptor_limit() -> None:
    """Let this process have as many descriptors as it may: most systems give 1,024 to begin with.

    For rmq's own programs only: select() in other people's code knows descriptors below 1,024.
    """
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (hard, *_TRIED):
        if limit == soft or (soft < limit and _set_limit(limit, hard)):
            break
    log.info("this process may open %d files and connections (RLIMIT_NOFILE)", _soft_limit())


def _set_limit(limit: int, hard: int) -> bool:
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (ValueError, OSError):
        return False
    return True


def _soft_limit() -> float:
    if sys.platform == "win32":
        return math.inf
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if soft == resource.RLIM_INFINITY else soft


def descriptor_limit() -> int | None:
    """Number of files and connections that this process may open; None without a limit."""
    soft = _soft_limit()
    return int(soft) if soft < math.inf else None


def descriptors_for_connections() -> float:
    """Descriptors for connections; the rest, at most half, is reserved for files."""
    soft = _soft_limit()
    return soft - min(KEPT_BACK, soft // 2) if soft < math.inf else soft


def last_descriptor(*, is_small: bool) -> float:
    """The descriptor number from which a connection is refused: a new descriptor has the lowest free number,
    so it shows how many are in use, including files. Ports for few connections may use higher numbers, so
    that clients do not keep slaves and probes out."""
    soft = _soft_limit()
    return soft - min(KEPT_BACK, soft // 2) // (8 if is_small else 2) if soft < math.inf else soft
