"""Role of a replica whose master the controllers elect: as the master of an epoch, or as a slave."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from rmq.broker.replication.failover.read_preference import PreferredReplica
from rmq.broker.role import SLAVE_REFUSAL, ReadPreference, Role

if TYPE_CHECKING:
    from rmq.broker.replication.failover.replica_manager import ReplicaManager
    from rmq.controller.epochs import Epochs
    from rmq.metrics import Metric


class FailoverReplica(Role):
    """A broker of a set with controllers, for the length of one service: as the master of `epoch`, or with 0
    as a slave. `manager` outlives the service."""

    is_in_set = True

    def __init__(self, manager: ReplicaManager, epoch: int) -> None:
        self.manager = manager
        self.epoch = epoch
        self.awaits_replicas = bool(epoch)

    def refusal(self) -> str:
        """Without a lease, with too few replicas in sync, or as a slave no message is taken."""
        return self.manager.refusal() if self.epoch else SLAVE_REFUSAL

    def has_lease(self) -> bool:
        """True if the controllers granted a lease to this master. A slave answers without a lease."""
        return not self.epoch or self.manager.has_lease()

    def refuses_commits(self) -> bool:
        """A master that steps down, or has no lease, refuses commits."""
        return bool(self.epoch) and self.refuses_locks()

    def refuses_locks(self) -> bool:
        """Only the master locks queues, while it has a lease and does not step down."""
        return self.manager.is_closed or not self.manager.has_lease()

    def high_watermark(self) -> int | None:
        """Up to where all replicas in sync have the log; 0 before anything is known."""
        return self.manager.high_watermark() or 0

    def read_preference(
        self, languages: Callable[[], tuple[str, ...]], linked: Callable[[], Collection[int]]
    ) -> ReadPreference:
        """A slave in sync, so that a dead master stalls no consumer."""
        return PreferredReplica(self.manager, languages, linked)

    # ---- a master ----

    def acknowledged(self, reported: Iterable[int]) -> int:
        """Up to where all replicas in sync have the log."""
        return self.manager.ack_limit() if self.epoch else super().acknowledged(reported)

    def may_wait(self, position: int, offset: int, most_behind: int) -> bool:
        """A master that steps down takes no new messages, and goes on waiting for replicas with the messages
        that it took."""
        manager = self.manager
        if not self.epoch:
            return super().may_wait(position, offset, most_behind)
        return not manager.refusal() or (manager.stepping_down and manager.has_lease())

    def report(self, number: int, offset: int) -> None:
        """Pass on a report, as of any replica of the set."""
        if self.epoch:
            self.manager.report(number, offset)

    def moved(self) -> None:
        """Consumers may read further."""
        if self.epoch:
            self.manager.advance_high_watermark()

    def awaited(self) -> frozenset[int]:
        """The other replicas in sync."""
        return self.manager.awaited() if self.epoch else frozenset()

    def is_lagging(self, number: int) -> bool:
        """True if the slave is not in sync."""
        return bool(self.epoch) and number not in self.manager.in_sync

    def answers_for_slaves(self) -> bool:
        """Only with a lease: without a lease another broker may be the master of these slaves."""
        return bool(self.epoch) and self.manager.has_lease()

    def answered_for_slave(self, count: int) -> None:
        """Count the answers for the metrics."""
        self.manager.count_answered(count)

    def led(self) -> tuple[int, Epochs]:
        """According to the controllers and the log."""
        return self.manager.led()

    # ---- a slave ----

    def master_addresses(self, address: str, ha_address: str) -> tuple[str, str]:
        """The addresses of the elected master; empty without a master, and on the master."""
        master = self.manager.master
        return ("", "") if master is None else (master.address, master.ha_address)

    def hello(self) -> tuple[int, int]:
        """According to the controllers."""
        return self.manager.number, self.manager.epoch

    def watch_master(self, on_change: Callable[[], None]) -> None:
        """Controllers may elect another at any time."""
        self.manager.watch_master(on_change)

    def known_high_watermark(self) -> int:
        """The value that was taken last."""
        return self.manager.known_high_watermark

    def take_high_watermark(self, offset: int) -> None:
        """Consumers may read further."""
        self.manager.take_high_watermark(offset)

    def cut(self, end: int) -> None:
        """The high watermark is not beyond the log."""
        self.manager.lower_high_watermark(end)

    # ---- operators ----

    @property
    def stays(self) -> bool:
        """True if the service ends only to begin again in another role."""
        return self.manager.stays

    def rows(self) -> dict[str, str]:
        """The set as this broker knows it."""
        return self.manager.rows()

    def metrics(self) -> list[Metric]:
        """The set as this broker knows it."""
        return self.manager.metrics()
