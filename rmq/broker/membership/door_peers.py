"""DoorPeers: the connections of doors, their clients, and their messages that are not acknowledged yet."""

from __future__ import annotations

from typing import Final

from rmq.shares import Shares

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
        self._last: object = None
        self._in_a_row = 0

    def is_alone(self, peer: object) -> bool:
        """True if all turns for a while, this one included, were of one connection: nobody else's messages
        would share its round."""
        if peer is not self._last:
            self._last, self._in_a_row = peer, 0
        self._in_a_row += 1
        return self._in_a_row > ALONE_AFTER

    def opened(self, door: str) -> None:
        """A connection has come to a door."""
        self.connections[door] = self.connections.get(door, 0) + 1

    def closed(self, door: str) -> None:
        """A connection of a door has ended."""
        self.connections[door] -= 1
