"""Limits of a connection, an address, a server and a process: `Limits`, `AddressRate` and `MemoryBudget`."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import anyio
import attrs

KIB = 1024
MIB = 1024 * KIB
TURN_SECONDS = 0.002
"""Seconds for which the requests of one connection are handled before others have their turn."""
LONGEST_TURN_SECONDS = 0.005
"""The same, where none of the requests costs more than `ORDINARY_SECONDS`."""
TURN_REQUESTS = 1024
"""Requests that are handled in one turn, at most."""
SENDS_OF_A_LOOK = 8
"""Sends between two looks at the clock, to see whether a turn is over; after any other request it is read at
once."""
ORDINARY_SECONDS = 20e-6
"""Seconds that a request may cost for the longer turn: each turn costs a write and a send."""


def turn_is_over(seconds: float, count: int) -> bool:
    """True if `count` requests that took `seconds` are enough for one turn."""
    if seconds <= TURN_SECONDS:
        return count >= TURN_REQUESTS
    return seconds > min(LONGEST_TURN_SECONDS, count * ORDINARY_SECONDS) or count >= TURN_REQUESTS


@attrs.frozen(kw_only=True)
class Limits:
    """Bounds of connections. A connection over a bound is refused or closed with a logged reason."""

    frame_bytes: int = 16 * MIB
    """The longest frame that is accepted. A longer frame is refused; a frame of more than four times as many
    bytes ends its connection."""
    header_bytes: int = 256 * KIB
    """The longest header of a frame that is read. A message's properties have 32,767 bytes at most, and JSON
    may need six for each. A request with a longer header is refused."""
    ask_bytes: int = MIB
    """Frame size past which the body is collected only after the endpoint has seen the header (`on_head`)."""
    decoded_frames: int = 1024
    """Frames that are decoded at once; an ordinary chunk has fewer."""
    receive_bytes: int = 256 * KIB
    """Bytes that are read, and therefore handled, at once: the unit of fairness between connections."""
    pause_bytes: int = 256 * KIB
    """Unsent bytes of responses past which a peer is not read from until it has read them."""
    outbox_bytes: int = 64 * MIB
    """Unsent bytes past which a connection is closed: its peer asks but does not read."""
    busy_bytes: int = 4 * MIB
    """Unsent bytes past which new calls wait for room before they are encoded."""
    pending_requests: int = 65_535
    """Calls of one connection that wait for a response; further calls wait for room."""
    connections: int = 20_000
    """Connections of one server; a further one is accepted and closed at once."""
    connections_per_address: int = 0
    """Connections of one address, or of one IPv6 network of 64 bits; 0: as many as are free."""
    new_connections_per_address: int = 0
    """Handshakes of one address that may fail in a second, four times as many at once; 0: any number. Further
    handshakes wait."""
    idle_seconds: float = 120.0
    """Seconds without a byte after which a connection is closed (Java: channelMaxIdleTimeSeconds)."""
    stall_seconds: float = 15.0
    """Seconds after which a peer that takes no waiting bytes is cut off."""
    frame_seconds: float = 60.0
    """Seconds within which a frame that has begun must be complete."""
    handshake_seconds: float = 10.0
    """Seconds for a TLS handshake, and for a WebSocket upgrade, once each has begun."""
    connect_seconds: float = 3.0
    """Seconds for name lookup, connecting and handshakes of a dial together (Java: connectTimeoutMillis)."""
    keepalive_seconds: float = 15.0
    """Seconds without traffic after which the system probes the peer (TCP keepalive); 0: never."""
    unacknowledged_seconds: float = 30.0
    """Seconds without an acknowledgement by the peer's system that end the connection (TCP_USER_TIMEOUT, on
    Linux); 0: the system's default, a quarter of an hour."""
    linger_seconds: float = 1.0
    """Seconds that a closing connection has to send its outbox and the closing messages of TLS and
    WebSocket."""

    @property
    def stall_scan_seconds(self) -> float:
        """Seconds between two looks for peers that take nothing."""
        return min(self.stall_seconds / 6, self.scan_seconds)

    @property
    def scan_seconds(self) -> float:
        """Longest time between two looks for idle connections, in seconds: they live at most a twelfth longer
        than allowed."""
        return min(self.idle_seconds / 12, self.frame_seconds / 6)

    def scan_at(self, now: float, expiries: Iterable[float]) -> float:
        """The time of the next check of the connections, whose `expiries` are known: not before a check can
        find anything. An interval that begins after `now` has its whole time."""
        latest = now + min(self.idle_seconds, self.frame_seconds, self.stall_seconds)
        return max(now + self.scan_seconds, min(latest, min(expiries, default=math.inf)))


BUDGET_BYTES: Final = 256 * MIB
RELIEF_SECONDS: Final = 5.0
"""Seconds for which a peer with a slow frame is not read from while the process holds too much."""
SMALL_BYTES: Final = 64 * 1024
"""Bytes below which a peer is read from even when the budget is tight."""
PATIENCE_SECONDS: Final = 1.0
"""Age of an unfinished frame below which its peer is read from, too: an honest frame is complete by then."""
TIGHT_SECONDS: Final = 10.0
UNPROVED_SECONDS: Final = 2.0
"""Age of a frame at which its peer is cut off while the budget is tight; the second, for a peer that never
sent a whole frame."""
UNPROVED_FACTOR: Final = 8.0
"""Factor for the time of held bytes of a peer that never sent a whole frame."""
LEFT: Final = 7 / 8
"""Share of the budget to which cutting peers off lowers its use, so that this happens seldom."""


def patience(*, is_proved: bool) -> float:
    """Seconds for which a peer may owe the rest of a frame while the budget is tight; `is_proved`: the peer
    has sent a whole frame."""
    return TIGHT_SECONDS if is_proved else UNPROVED_SECONDS


class BudgetHolder(Protocol):
    """A holder of bytes in a MemoryBudget, such as a connection; identified by identity."""

    def abort(self, reason: str) -> None:
        """End the holder at once, and drop the held bytes."""

    def expire(self, now: float) -> object:
        """End the holder if it waited for its peer for too long."""

    def waste(self, now: float) -> float:
        """Seconds for which held bytes led to no result: holders with most seconds are cut off first."""


class MemoryBudget:
    """The bytes that peers make this process hold, unsent responses and unfinished frames, by holder.

    Every connection has bounds of its own, but thousands of connections together would still fill the memory.
    Past half of the budget, peers whose frames take long are read from rarely, and cut off soon; past the
    whole budget, peers are cut off that have held most for longest, and proved nothing. The budget costs
    nothing for a peer without held bytes. `clock` is in seconds.
    """

    def __init__(self, most: int = BUDGET_BYTES, clock: Callable[[], float] = anyio.current_time) -> None:
        self._clock = clock
        self.most = most
        self.held = 0
        self.cuts = 0
        """Number of peers that were cut off."""
        self.on_held: list[Callable[[], None]] = []
        """Called when somebody holds something after nobody did."""
        self._holders: dict[BudgetHolder, int] = {}

    @property
    def is_tight(self) -> bool:
        """True if large holders should not be read from for now."""
        return self.held > self.most // 2

    async def relief(self) -> None:
        """Wait until use is no longer tight, or for `RELIEF_SECONDS`: a waiting reader reads a chunk now and
        then, so that a nearly whole frame can end. Cancelled: no state is left."""
        with anyio.move_on_after(RELIEF_SECONDS):
            while self.is_tight:
                await anyio.sleep(RELIEF_SECONDS / 20)

    def holders(self) -> list[BudgetHolder]:
        """The holders of parts of the budget."""
        return list(self._holders)

    def hold(self, holder: BudgetHolder, size: int) -> None:
        """Record the held bytes of a holder; may cut off the largest holders, including this holder."""
        assert size >= 0
        self.held += size - self._holders.get(holder, 0)
        if size:
            if not self._holders:
                for call in self.on_held:
                    call()
            self._holders[holder] = size
            if self.held > self.most:
                self._relieve()
        else:
            self._holders.pop(holder, None)
        assert self.held >= 0, "more was given back than was held"

    def _relieve(self) -> None:
        target = int(self.most * LEFT)
        now = self._clock()
        for holder in sorted(self._holders, key=lambda holder: holder.waste(now), reverse=True):
            if self.held <= target:
                break
            size = self._holders.pop(holder)
            self.held -= size
            self.cuts += 1
            holder.abort(f"it held {size} bytes for longest, and the budget of {self.most} is used up")


ADDRESSES_MAX: Final = 10_000


class AddressRate:
    """Rate limit of each address: a token bucket for each, as a time (GCRA).

    `burst_seconds` is the time for which the rate may be saved up. An address with a full bucket is not kept.
    Past `ADDRESSES_MAX` addresses, the least recently seen are forgotten, which gives them a full bucket.
    """

    def __init__(self, per_second: float, burst_seconds: float) -> None:
        """With `per_second` 0 there is no limit."""
        self._step = 1 / per_second if per_second else 0.0
        self._burst = burst_seconds
        self._full_at: dict[str, float] = {}  # address -> when its bucket will be full; last seen last

    def take(self, address: str, now: float, count: int = 1) -> bool:
        """Let an address have `count` more now, in seconds, if its bucket has any; a refusal takes nothing.
        `count` may exceed the rest of the bucket, so that no `count` is too large for ever."""
        full_at = max(now, self._full_at.pop(address, now))
        allowed = full_at + self._step / 2 < now + self._burst
        if self._step:
            self._full_at[address] = full_at + self._step * count * allowed
            self._forget(now)
        return allowed

    def left(self, address: str, now: float) -> float:
        """The number that an address may have now."""
        if not self._step:
            return math.inf
        return (now + self._burst - max(now, self._full_at.get(address, now))) / self._step

    def _forget(self, now: float) -> None:
        """Drop full buckets, two at most: a call adds one at most, and each costs the same."""
        for _ in range(2):
            oldest = next(iter(self._full_at))
            if self._full_at[oldest] > now and len(self._full_at) <= ADDRESSES_MAX:
                break
            del self._full_at[oldest]


def network_of(peer: str) -> str:
    """The key under which a peer at this ``ip:port`` is counted: its IPv4 address, or its IPv6 network of 64
    bits."""
    host = peer.rpartition(":")[0]
    if not host.startswith("["):
        return host
    try:
        address = ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return host
    return str(ipaddress.IPv6Network((int(address), 64), strict=False))
