"""Read preference: which replica consumers should pull from, so that a dead broker does not stall their long
polls.

A Go client waits half a minute for a response of a broker that was killed, and clients of all languages do so
when the machine is gone. So their long polls should not wait at the master: each response names a slave in
sync as the next broker to pull from (`suggestWhichBrokerId`), and a pull that comes elsewhere is held only
for a moment. The master knows which slaves have a link; a slave that is not in sync names the master. If a
client's routes lack the number that a response names, the client pulls from any address of its routes, with a
second's wait each; so a wrong guess delays nothing for long.
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
    """See the module. `languages()`: the languages, by RocketMQ's names, whose clients are guided;
    `linked()`: the numbers of the slaves that have a link to this master."""

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
        """True if clients of this language get a preferred replica."""
        return language in self._languages()

    def is_here(self) -> bool:
        """True if long polls may wait at this replica: a slave in sync, or a master with a lease and without
        such slaves."""
        return self._is_slave_in_sync() or (self._manager.has_lease() and not self._slaves())

    def has_left(self) -> bool:
        """True if this replica was preferred at the last call, and is not now."""
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
        """A master's: the slaves in sync that have a link. Without a lease another broker may be the master,
        and the slaves have their links to that broker."""
        manager = self._manager
        there = self._linked() if manager.has_lease() else manager.in_sync
        return [one for one in manager.in_sync if one in there and one != manager.number]
