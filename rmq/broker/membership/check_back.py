"""Check-backs: which producer is asked for the end of a half message."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from rmq.broker.membership.clients import Clients
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection


class CheckBack:
    """Check-backs to producers. `may_publish(connection, topic)`: whether a peer may send to a topic."""

    def __init__(
        self, clients: Clients, chance: Random, may_publish: Callable[[Connection, str], bool]
    ) -> None:
        self._clients = clients
        self._chance = chance
        self._may_publish = may_publish

    def ask(self, group: str, topic: str, request: Command) -> bool:
        """Send a check-back, which holds the message, to some live producer of the group that may send to its
        topic; whether there is one."""
        members = [
            member
            for member in self._clients.producers(group)
            if not member.connection.is_closed and self._may_publish(member.connection, topic)
        ]
        if not members:
            return False
        self._chance.choice(members).connection.notify(request)
        return True
