"""The reading place: at which replica of a controlled set clients pull that do not see a broker die.

A Go client that waits for an answer of a broker goes on waiting for half a minute when that is killed, and
clients of all languages do so when its machine is gone. So that they read on when a master dies, their pulls
shall not wait at it: each answer names a slave in sync as the broker to pull from next
(`suggestWhichBrokerId`), and a pull that comes to another place all the same is held for a moment only. Which
slaves are there the master knows; a slave that is not in sync names the master. Where a client's routes do
not have the number that it is told, it pulls from any address that they have, a second's wait each; so
nothing is read late by a wrong guess.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from rmq.protocol.codes import MASTER_ID

if TYPE_CHECKING:
    from rmq.broker.replication.failover.replica_manager import ReplicaManager


SILENT_SECONDS: Final = 10.0
"""A slave that has not heard the controllers for so long does not know whether it is in sync."""
ROUTES_SECONDS: Final = 60.0
"""So long clients may have routes in which a new master has the number that it had as a slave: they ask for
routes each half minute. A master's is 0."""


class PreferredReplica:
    """See the module. `languages()` are RocketMQ's names of those whose clients are guided, as it is set;
    `linked()` the numbers of the slaves that have a link to this master."""

    def __init__(
        self,
        manager: ReplicaManager,
        languages: Callable[[], tuple[str, ...]],
        linked: Callable[[], Collection[int]],
    ) -> None:
        self._manager = manager
        self._languages = languages
        self._linked = linked
        self._was_here = False

    def applies_to(self, language: str) -> bool:
        """Whether clients of this language are told where to pull."""
        return language in self._languages()

    def is_here(self) -> bool:
        """Whether they may wait at this replica: a slave in sync, or a master that has none, and a lease."""
        return self._is_slave_in_sync() or (self._manager.has_lease() and not self._slaves())

    def has_left(self) -> bool:
        """Whether it is here no more since the last call."""
        before, self._was_here = self._was_here, self.is_here()
        return before and not self._was_here

    def preferred(self, queue_id: int) -> int:
        """The number of the broker to pull this queue from, as routes have it."""
        manager = self._manager
        if self._is_slave_in_sync():
            return manager.number
        if manager.is_elected and (slaves := self._slaves()):
            return slaves[queue_id % len(slaves)]
        return MASTER_ID if manager.master_seconds() > ROUTES_SECONDS else manager.master_number

    def _is_slave_in_sync(self) -> bool:
        manager = self._manager
        is_slave = manager.number in manager.in_sync and not manager.is_elected
        return is_slave and manager.silent_seconds() <= SILENT_SECONDS

    def _slaves(self) -> list[int]:
        """Of a master: the slaves that are in sync and there. Without a lease another may be the master, and
        the slaves have their links to that."""
        manager = self._manager
        there = self._linked() if manager.has_lease() else manager.in_sync
        return [one for one in manager.in_sync if one in there and one != manager.number]
