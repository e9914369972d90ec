"""Check-backs: the choice of the producer that is asked for the end of a half message.

A producer group is a name, and any account may use it. So a half message belongs to the account that sent it:
only connections that may act for that account are shown the message, and only they end it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from rmq.broker.membership.clients import Clients
    from rmq.plugin import Hooks
    from rmq.protocol.command import Command


class CheckBack:
    """Check-backs to producers. `hooks()` gives the plug-ins' hooks that hold now."""

    def __init__(self, clients: Clients, chance: Random, hooks: Callable[[], Hooks]) -> None:
        self._clients = clients
        self._chance = chance
        self._hooks = hooks

    def ask(self, group: str, account: str, topic: str, request: Command) -> bool:
        """Send a check-back, which holds the message, to a live producer of the group that may act for the
        account and send to the topic; return whether such a producer exists."""
        hooks, members = self._hooks(), self._clients.producers(group)
        if not members:
            return False
        # Not a choice among those that may: a group may have very many members, and most of them may.
        first = self._chance.randrange(len(members))
        for at in range(first, first + len(members)):
            connection = members[at % len(members)].connection
            if (
                not connection.is_closed
                and hooks.may_act_for(connection, account)
                and hooks.may_publish(connection, topic)
            ):
                connection.notify(request)
                return True
        return False
