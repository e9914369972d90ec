"""Shared: the state that all connections of the door have in common."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmq_amqp.connection import Connection


class Shared:
    """The client ids that are in use, and the settings of the door."""

    def __init__(self, *, expired_are_dead: bool = False) -> None:
        self.container = "rmq"
        try:
            self.version = metadata.version("rmq")
        except metadata.PackageNotFoundError:
            self.version = "0"
        self.expired_are_dead = expired_are_dead
        self._soles: dict[str, Connection] = {}
        self._connections = 0

    def next_number(self) -> int:
        """A number that no other connection has."""
        self._connections += 1
        return self._connections

    def claim(self, container: str, connection: Connection, *, is_sole: bool) -> bool:
        """Whether a connection may have a client id; with `is_sole` no other connection may have it then."""
        if not is_sole:
            return True
        return self._soles.setdefault(container, connection) is connection

    def release(self, connection: Connection) -> None:
        """A connection has ended: its client id is free."""
        if self._soles.get(connection.container) is connection:
            del self._soles[connection.container]
