"""DoorPeers: the connections of doors, their clients, and their messages that are not acknowledged yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmq.shares import Shares

if TYPE_CHECKING:
    from rmq.gateway import PlainSends
    from rmq.plugin import Peer

Check = Callable[[str, str], None]
"""Raises AccessDenied for an action that a client may not do to a topic or as a group."""

ALONE_AFTER: Final = 16
"""After so many turns of one connection, and none of others, it is taken to be alone."""


class DoorPeers:
    """Counts of the resources that peers of doors hold.

    `connections`: door -> its open connections. `sends`: messages of doors that wait to be acknowledged, by
    account and address. `clients`: clients beside the first of each connection, by account and address.
    """

    def __init__(self) -> None:
        self.connections: dict[str, int] = {}
        self.sends = Shares(0)
        self.clients = Shares(0)
        self._plain: Callable[[Peer, Check], PlainSends] | None = None
        self._last: object = None
        self._in_a_row = 0

    def is_alone(self, peer: object) -> bool:
        """True if all turns for a while, this one included, were of one connection: nobody else's messages
        would share its round."""
        if peer is not self._last:
            self._last, self._in_a_row = peer, 0
        self._in_a_row += 1
        return self._in_a_row > ALONE_AFTER

    def offer_plain_sends(self, make: Callable[[Peer, Check], PlainSends]) -> None:
        """Give clients the short way for plain sends from now on."""
        self._plain = make

    def plain_sends(self, peer: Peer, check: Check) -> PlainSends | None:
        """The short way of a client for plain sends, if there is one."""
        return None if self._plain is None else self._plain(peer, check)

    def opened(self, door: str) -> None:
        """A connection has come to a door."""
        self.connections[door] = self.connections.get(door, 0) + 1

    def closed(self, door: str) -> None:
        """A connection of a door has ended."""
        self.connections[door] -= 1
