"""CopiedLog: the log of a slave, which its master sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmq.broker.replication.replica_state import ReplicaState
    from rmq.broker.replication.table_replication import TableReceiver
    from rmq.broker.wakeups import Wakeups
    from rmq.store.store import Arrival, Store


class CopiedLog:
    """Takes bytes of the master's log. `arrived` is called with the queues that have grown."""

    def __init__(
        self,
        store: Store,
        followed: TableReceiver,
        replica: ReplicaState,
        arrived: Callable[[Sequence[Arrival]], None],
        wake: Wakeups,
    ) -> None:
        self._store = store
        self._followed = followed
        self._replica = replica
        self._arrived = arrived
        self._wake = wake

    def append(self, physical_offset: int, data: memoryview) -> None:
        """Append bytes of the master's log, and wake the pulls that wait for them. Raises StoreError."""
        for at, part in self._followed.parts(physical_offset, data):
            arrivals = self._store.append_raw(at, part)
            self._followed.drop_deleted_queues()
            self._arrived(arrivals)
        self._wake.reput()
        if self._replica.flushes_copies:
            self._wake.flush()
