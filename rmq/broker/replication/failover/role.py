"""Role of a replica whose master the controllers elect: as the master of an epoch, or as a slave."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from rmq.broker.replication.failover.read_preference import ReadingPlace
from rmq.broker.role import SLAVE_REFUSAL, ReadPreference, Role

if TYPE_CHECKING:
    from rmq.broker.replication.failover.replica import Control
    from rmq.controller.epochs import Epochs
    from rmq.metrics import Metric


class FailoverReplica(Role):
    """A broker of a set with controllers, for one life of its service: as the master of `epoch`, or with 0
    as a slave. `control` outlives the service.
    """

    is_in_set = True

    def __init__(self, control: Control, epoch: int) -> None:
        self.control = control
        self.epoch = epoch
        self.awaits_replicas = bool(epoch)

    def refusal(self) -> str:
        """Without a lease, with too few replicas in sync, or as a slave no message is taken."""
        return self.control.refusal() if self.epoch else SLAVE_REFUSAL

    def has_lease(self) -> bool:
        """A master has a lease of the controllers, or not; what a slave answers needs none."""
        return not self.epoch or self.control.may_act()

    def refuses_commits(self) -> bool:
        """A master that steps down, or has no lease, refuses commits."""
        return bool(self.epoch) and self.refuses_locks()

    def refuses_locks(self) -> bool:
        """Queues are locked at the master, while it has a lease and does not step down."""
        return self.control.is_closed or not self.control.may_act()

    def high_watermark(self) -> int | None:
        """Up to where all replicas in sync have the log; 0 before anything is known."""
        return self.control.confirmed() or 0

    def read_preference(
        self, languages: Callable[[], tuple[str, ...]], linked: Callable[[], Collection[int]]
    ) -> ReadPreference:
        """A slave in sync, so that a dead master stalls nobody."""
        return ReadingPlace(self.control, languages, linked)

    # ---- a master ----

    def acknowledged(self, reported: Iterable[int]) -> int:
        """Up to where all replicas in sync have the log."""
        return self.control.safe_offset() if self.epoch else super().acknowledged(reported)

    def may_wait(self, position: int, offset: int, most_behind: int) -> bool:
        """A master that steps down takes no more, and waits with what it took."""
        control = self.control
        if not self.epoch:
            return super().may_wait(position, offset, most_behind)
        return not control.refusal() or (control.hands_over and control.may_act())

    def report(self, number: int, offset: int) -> None:
        """As of any replica of the set."""
        if self.epoch:
            self.control.report(number, offset)

    def moved(self) -> None:
        """Consumers may read further."""
        if self.epoch:
            self.control.confirmed_more()

    def awaited(self) -> frozenset[int]:
        """The other replicas in sync."""
        return self.control.awaited() if self.epoch else frozenset()

    def is_lagging(self, number: int) -> bool:
        """Whether the slave is not among those in sync."""
        return bool(self.epoch) and number not in self.control.in_sync

    def answers_for_slaves(self) -> bool:
        """With a lease only: else another may be the master, whose slaves they are."""
        return bool(self.epoch) and self.control.may_act()

    def answered_for_slave(self, count: int) -> None:
        """Count them for the metrics."""
        self.control.count_answered(count)

    def led(self) -> tuple[int, Epochs]:
        """As the controllers and the log say."""
        return self.control.led()

    # ---- a slave ----

    def master_addresses(self, address: str, ha_address: str) -> tuple[str, str]:
        """Those of the elected master; empty while there is none, or it is this broker."""
        master = self.control.master
        return ("", "") if master is None else (master.address, master.ha_address)

    def hello(self) -> tuple[int, int]:
        """As the controllers say."""
        return self.control.number, self.control.epoch

    def watch_master(self, on_change: Callable[[], None]) -> None:
        """Controllers may elect another at any time."""
        self.control.watch_master(on_change)

    def known_high_watermark(self) -> int:
        """As it was told last."""
        return self.control.known_confirmed

    def take_high_watermark(self, offset: int) -> None:
        """Consumers may read further."""
        self.control.told_confirmed(offset)

    def cut(self, end: int) -> None:
        """The high watermark is not beyond the log."""
        self.control.unconfirm(end)

    # ---- operators ----

    @property
    def stays(self) -> bool:
        """Whether the service ends only to begin again in another role."""
        return self.control.stays

    def rows(self) -> dict[str, str]:
        """The set as this broker knows it."""
        return self.control.rows()

    def metrics(self) -> list[Metric]:
        """The set as this broker knows it."""
        return self.control.metrics()
