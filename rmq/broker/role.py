"""Role of a broker: which messages it may take, acknowledge and show, and which replicas it must wait for.

`Standalone` is a master of a set without controllers, with or without slaves; `Slave` is a slave of such a
master. `replication.failover.role` has the role of a replica whose master the controllers elect. A broker
gets its role when it is made, and its parts ask the role instead of asking whether controllers exist.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from rmq.protocol.codes import MASTER_ID
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from rmq.controller.epochs import Epochs
    from rmq.metrics import Metric
    from rmq.store.config import StoreConfig


SLAVE_REFUSAL: Final = "this broker is a slave; send to its master"


class ReadPreference(Protocol):
    """At which replica of a set clients pull; see `replication.failover.read_preference`."""

    def applies_to(self, language: str) -> bool:
        """True if clients of this language get a preferred replica."""

    def is_here(self) -> bool:
        """True if their long polls may wait at this replica."""

    def has_left(self) -> bool:
        """True if this replica was preferred at the last call, and is not now."""

    def preferred(self, queue_id: int) -> int:
        """The number of the broker to pull this queue from."""


class NoPreference:
    """Clients pull from the master, and long polls are not reported to it."""

    def applies_to(self, language: str) -> bool:
        """No client gets a preferred replica."""
        return False

    def is_here(self) -> bool:
        """No long poll waits here for that reason."""
        return False

    def has_left(self) -> bool:
        """False: this replica is never preferred."""
        return False

    def preferred(self, queue_id: int) -> int:
        """The master."""
        return MASTER_ID


class Role:
    """Base of all roles, with the behaviour of a master without controllers."""

    is_in_set = False
    """Controllers lead the set of this broker."""
    awaits_replicas = False
    """Each answer to a change waits until the replicas in sync have the change: the master of such a set."""
    epoch = 0
    """The epoch that this broker leads in such a set; 0 elsewhere."""

    def refusal(self) -> str:
        """The reason for which no message is taken now; empty when there is none."""
        return ""

    def has_lease(self) -> bool:
        """True if no other broker can be the master now."""
        return True

    def refuses_commits(self) -> bool:
        """True if commits of offsets are refused, since they would be lost with this master."""
        return False

    def refuses_locks(self) -> bool:
        """True if queue locks are refused, since another broker may be the one that locks."""
        return False

    def high_watermark(self) -> int | None:
        """The physical offset up to which consumers may read; None: the end of the log."""
        return None

    def read_preference(
        self, languages: Callable[[], tuple[str, ...]], linked: Callable[[], Collection[int]]
    ) -> ReadPreference:
        """The read preference for clients. `languages`: the guided languages; `linked`: the slaves that have
        a link."""
        return NoPreference()

    # ---- a master ----

    def acknowledged(self, reported: Iterable[int]) -> int:
        """The physical offset up to which messages may be acknowledged, when slaves have `reported` these;
        -1 without slaves."""
        return max(reported, default=-1)

    def may_wait(self, position: int, offset: int, most_behind: int) -> bool:
        """True if waiting for slaves makes sense: they have the log up to `offset`, and the log ends at
        `position`."""
        return offset >= 0 and position - offset < most_behind

    def report(self, number: int, offset: int) -> None:
        """Replica `number` has the log on its disk up to `offset`."""

    def moved(self) -> None:
        """More of the log is on disks, so that the high watermark may have moved."""

    def awaited(self) -> frozenset[int]:
        """Numbers of the replicas that must have a change before it is answered."""
        return frozenset()

    def is_lagging(self, number: int) -> bool:
        """True if a slave is not in sync, so that this master answers its long polls."""
        return False

    def answers_for_slaves(self) -> bool:
        """True if this master answers long polls of a slave that cannot."""
        return False

    def answered_for_slave(self, count: int) -> None:
        """Count long polls of a slave that this broker answered."""

    def led(self) -> tuple[int, Epochs]:
        """The epoch that this broker leads or follows, and where epochs begin in its log."""
        return 0, ()

    # ---- a slave ----

    def master_addresses(self, address: str, ha_address: str) -> tuple[str, str]:
        """The master's addresses for requests and for its log; `address` and `ha_address` come from the
        settings or the name servers."""
        return address, ha_address

    def hello(self) -> tuple[int, int]:
        """The number and the epoch by which a replica of a set names itself to its master."""
        return 0, 0

    def watch_master(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` when another master is to be followed."""

    def known_high_watermark(self) -> int:
        """The high watermark that is known; 0 before."""
        return 0

    def take_high_watermark(self, offset: int) -> None:
        """Take the offset up to which consumers may read, from the master."""

    def cut(self, end: int) -> None:
        """The log of this broker ends at `end` now: a later part was cut or set aside."""

    # ---- operators ----

    @property
    def stays(self) -> bool:
        """True if the service ends only to begin again in another role."""
        return False

    def rows(self) -> dict[str, str]:
        """Rows of the runtime metrics."""
        return {}

    def metrics(self) -> list[Metric]:
        """Metrics of the set."""
        return []


class Standalone(Role):
    """A master that no controllers lead, with or without slaves."""


class Slave(Role):
    """A slave of a master that no controllers lead."""

    def refusal(self) -> str:
        """A slave takes no messages."""
        return SLAVE_REFUSAL


def role_of(config: StoreConfig) -> Role:
    """The role according to the settings."""
    return Slave() if config.broker_role is BrokerRole.SLAVE else Standalone()
