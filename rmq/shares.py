"""Shares of bounded tables: the part of each table for an account, or a network address.

With a bound on the whole table only, a single stranger can take every place; with fixed halves two can. So a
holder may have as many places as are still free: alone half of the table, and each further holder at most
half of the rest. Three holders leave an eighth for the next, ten holders of a table of 100,000 places leave
97. A holder without entries costs nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, Protocol

from rmq.errors import ConfigError

Holders = tuple[str, ...]
"""The names under which entries are counted, from the narrowest on: an account; or an IPv4 address; or an
IPv6 network of 64 bits, and the network of 48 bits around it. Empty: only the whole table has a bound."""

NOBODY: Final[Holders] = ()
DOOR_CLIENT_BYTES: Final = 8 * 1024
"""Bytes above the cost of a door's client with its group, its membership and its calls. Clients that share
connections may be as many as `connectionBufferBytes` has room for; their shares are counted."""
_REMEMBERED: Final = 4096


class Shares:
    """The counts of one table of at most `most` entries, or bytes. `used` is the sum."""

    __slots__ = ("_held", "most", "used")

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self._held: dict[str, int] = {}

    def held(self, name: str) -> int:
        """The counts of a holder."""
        return self._held.get(name, 0)

    def holders(self) -> int:
        """The number of holders."""
        return len(self._held)

    def largest(self) -> tuple[str, int]:
        """The holder with the most entries and their count; an empty name for an empty table."""
        return max(self._held.items(), key=lambda one: one[1], default=("", 0))

    def full(self, holders: Holders, count: int = 1) -> str:
        """The reason why `count` more are too many, as words for a remark; empty when the table has room."""
        free = self.most - self.used
        if count > free:
            return f"{self.used} of {self.most} are taken"
        held, allowed = self._held, free
        for name in holders:
            # A network holds the sum of its parts: it may have twice as much as one of them.
            if held.get(name, 0) + count > allowed:
                return f"{held.get(name, 0)} of {self.most} are taken by {name}, {free} are free"
            allowed *= 2
        return ""

    def room(self, holders: Holders) -> int:
        """The number of further entries that fit."""
        free = self.most - self.used
        left, allowed, held = free, free, self._held
        for name in holders:
            left = min(left, allowed - held.get(name, 0))
            allowed *= 2
        return max(0, left)

    def take(self, holders: Holders, count: int = 1) -> bool:
        """Count `count` more if they fit."""
        if self.full(holders, count):
            return False
        self.add(holders, count)
        return True

    def add(self, holders: Holders, count: int = 1) -> None:
        """Count `count` more, also if they do not fit; fewer with a negative number."""
        self.used += count
        held = self._held
        for name in holders:
            left = held.get(name, 0) + count
            assert left >= 0, f"{name} gives back more than it has"
            if left:
                held[name] = left
            else:
                held.pop(name, None)
        assert self.used >= 0, "more was given back than was taken"

    def give(self, holders: Holders, count: int = 1) -> None:
        """Count `count` fewer."""
        self.add(holders, -count)


class Holding(Protocol):
    """A connection as its holder's representative."""

    @property
    def peer_address(self) -> str:
        """``host:port`` of the other side."""

    @property
    def state(self) -> dict[str, Any]:
        """Values of the connection."""


class Gateways:
    """Networks from which many clients come by the same address: their addresses have no shares. Raises
    ConfigError for a text that is neither an address nor a network (10.1.2.3, 10.1.0.0/16, 2001:db8::/32)."""

    def __init__(self, texts: Iterable[str] = (), setting: str = "trustedGateways") -> None:
        self._networks = [_network(text, setting) for text in texts if text.strip()]

    def __contains__(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        return any(address.version == one.version and address in one for one in self._networks)


def _network(text: str, setting: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise ConfigError(setting, text, "IP addresses or networks, as 10.1.2.3 or 10.1.0.0/16") from None


HoldersOf = Callable[[Holding], Holders]
ACCOUNT: Final = "account"
"""The key in a connection's state for its account."""


def by_account_and_address(gateways: Gateways | None = None) -> HoldersOf:
    """The holders of a connection: its account, or else its address."""
    of_address = by_address(gateways)

    def holders_of(connection: Holding) -> Holders:
        state = connection.state
        if account := state.get(ACCOUNT):
            return (_OF_ACCOUNT + account,)
        known: Holders | None = state.get(_ADDRESS)
        if known is None:
            known = state[_ADDRESS] = of_address(connection.peer_address)
        return known

    return holders_of


_OF_ACCOUNT: Final = "account "
_ADDRESS: Final = "holders"
"""The key in a connection's state for the holders of its address."""


def is_account(name: str) -> bool:
    """True if a holder's name is an account's."""
    return name.startswith(_OF_ACCOUNT)


def by_address(gateways: Gateways | None = None) -> Callable[[str], Holders]:
    """The holders of an address ``host:port``."""
    trusted = gateways or Gateways()

    @lru_cache(_REMEMBERED)
    def of_host(host: str) -> Holders:
        try:
            address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
        except ValueError:
            return (host,)  # of a network in memory
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        if address in trusted:
            return NOBODY
        if address.version == 4:
            return (str(address),)
        return tuple(str(ipaddress.ip_network((int(address), bits), strict=False)) for bits in (64, 48))

    return lambda peer: of_host(peer.rpartition(":")[0])
