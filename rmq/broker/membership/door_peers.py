"""DoorPeers: the connections of doors, their clients, and their messages that are not acknowledged yet."""

from __future__ import annotations

from rmq.shares import Shares


class DoorPeers:
    """Counts of what the peers of doors hold.

    `connections`: door -> its open connections. `sends`: messages of doors that wait to be acknowledged, by
    account and address. `clients`: clients beside the first of each connection, by account and address.
    """

    def __init__(self) -> None:
        self.connections: dict[str, int] = {}
        self.sends = Shares(0)
        self.clients = Shares(0)

    def opened(self, door: str) -> None:
        """A connection has come to a door."""
        self.connections[door] = self.connections.get(door, 0) + 1

    def closed(self, door: str) -> None:
        """A connection of a door has ended."""
        self.connections[door] -= 1
