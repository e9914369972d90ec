"""Shared: the state that all connections of the door have in common."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Final

from rmq.shares import Shares
from rmq_amqp.choosing import GroupOwners

if TYPE_CHECKING:
    from rmq_amqp.connection import Connection
    from rmq_amqp.temporary import Temporary

LINKS: Final = 200_000
"""Links of all connections."""
WORK: Final = 1_000_000
"""Messages of all open transactions."""
TEMPORARY_BYTES: Final = 256 << 20
"""Bytes of messages of all temporary queues and topics."""


class Shared:
    """The client ids that are in use, and the settings of the door."""

    def __init__(self, *, expired_are_dead: bool = False, has_external: bool = False) -> None:
        self.container = "rmq"
        try:
            self.version = metadata.version("rmq")
        except metadata.PackageNotFoundError:
            self.version = "0"
        self.expired_are_dead = expired_are_dead
        self.has_external = has_external
        self._soles: dict[str, Connection] = {}
        self._owners: dict[str, GroupOwners] = {}
        self._used: dict[str, list[object]] = {}
        self.temporaries: dict[str, Temporary] = {}
        self.halves: set[int] = set()
        """The half messages of open transactions, by their offsets in the queue of half messages."""
        self._connections = 0
        self.links = Shares(LINKS)
        self.work = Shares(WORK)
        self.kept = Shares(TEMPORARY_BYTES)
        """The bytes of messages of temporary queues and topics, by the holders of their connections."""

    def next_number(self) -> int:
        """A number that no other connection has."""
        self._connections += 1
        return self._connections

    def claim(self, container: str, connection: Connection, *, is_sole: bool) -> bool:
        """True if a connection may have a client id; with `is_sole` no other connection may have the id."""
        if not is_sole:
            return True
        return self._soles.setdefault(container, connection) is connection

    def add_temporary(self, temporary: Temporary, address: str) -> str:
        """Register a temporary queue or topic; returns its address."""
        self.temporaries[address] = temporary
        return address

    def remove_temporary(self, address: str) -> None:
        """Forget a temporary queue or topic."""
        self.temporaries.pop(address, None)

    def owners(self, queue: str) -> GroupOwners:
        """The owners of a queue's message groups, for a further consumer."""
        owners = self._owners.setdefault(queue, GroupOwners())
        owners.consumers += 1
        return owners

    def end_owner(self, queue: str) -> None:
        """Count one consumer of a queue less."""
        owners = self._owners[queue]
        owners.consumers -= 1
        if not owners.consumers:
            del self._owners[queue]

    def used(self, subscription: str) -> int:
        """The consumers of a subscription."""
        return len(self._used.get(subscription, ()))

    def fits(self, subscription: str, terms: object) -> bool:
        """True if the consumers of a subscription have these terms, or none has one."""
        return all(one == terms for one in self._used.get(subscription, ())[:1])

    def use(self, subscription: str, terms: object) -> None:
        """Count one more consumer of a subscription. All consumers have the same terms."""
        self._used.setdefault(subscription, []).append(terms)

    def end_use(self, subscription: str) -> int:
        """Count one consumer of a subscription less; returns the number of consumers left."""
        left = self._used[subscription]
        left.pop()
        if not left:
            del self._used[subscription]
        return len(left)

    def release(self, connection: Connection) -> None:
        """Free the client id of a connection that has ended."""
        if self._soles.get(connection.container) is connection:
            del self._soles[connection.container]
