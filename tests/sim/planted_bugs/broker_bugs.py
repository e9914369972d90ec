"""Bugs planted in brokers of a controlled set, and in the rules that they go by, each of which the simulation
of real brokers must catch. What that would show in hours only is planted for the simulation of rules.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from attrs import evolve

from rmq.broker.broker import Broker
from rmq.broker.delay.delay_levels import Schedule
from rmq.broker.delay.timers import Timers
from rmq.broker.disk_work import DiskWork
from rmq.broker.replication.failover import replica_manager
from rmq.broker.replication.failover.replica_manager import ReplicaManager
from rmq.broker.replication.failover.role import FailoverReplica
from rmq.broker.replication.failover.table_acks import TableAcks
from rmq.broker.replication.table_replication import TableSender
from rmq.broker.runtime.failover_service import FailoverService
from rmq.broker.tables.queue_locks import Locks
from rmq.broker.transactions import Transactions
from rmq.controller.epochs import Epochs
from rmq.controller.replica import Replica
from rmq.message import SCHEDULE_TOPIC
from rmq.protocol.codes import SYS_COMMIT
from rmq.protocol.headers import EndTransactionRequestHeader
from rmq.store.files.queues import Queues
from tests.sim.planted_bugs.bugs import Bug, planted
from tests.sim.planted_bugs.set_bugs import SET_BUGS
from tests.sim.real_brokers.brokers import Node, Set

BROKERS_CAUGHT_BY = {
    "a master acts without a lease": 0,
    "elected before the lease is over": 5,
    "any living replica is elected": 0,
    "cut to the shorter log, without a comparison": 1,
    "acknowledged when only the master has the message": 4,
    "an old master goes on acknowledging": 4,
    "a slave counts as having the whole log": 4,
    "a master that stepped down acts on": 6,
    "queues keep units that were cut from the log": 1,
    "a queue is cut one message shorter than the log": 1,
    "a rollback is taken for a commit": 0,
    "no broker checks back": 0,
    "a slave counts one delayed message more as delivered": 0,
    "delivered a second before it is due": 0,
    "the clock of leases stands still with its machine": 6,
    "followers get no offsets of groups": 0,
    "consumers read messages that only the master has": 0,
    "leases use the wall clock": 0,
    "delayed messages come at once when a clock was set back": 23,
    "queues are locked without a lease": 1,
    "followers get no locks": 2,
    "timed messages stay in memory after delivery": 0,
    "a commit is answered before the replicas have it": 0,
    "a lease is not shortened by the drift of clocks": 0,
    "a master stays although its disk takes no bytes": 38,
    "a hanging sync is waited for": 38,
}
"""A seed that shows a bug, of the first 45."""

BROKER_BUGS: dict[str, Bug] = {name: SET_BUGS[name] for name in list(BROKERS_CAUGHT_BY)[:3]}


def _shorter(mine: Epochs, my_end: int, others: Epochs, other_end: int) -> int:
    return min(my_end, other_end)


BROKER_BUGS["cut to the shorter log, without a comparison"] = planted(
    (replica_manager, "common_end", _shorter)
)


def _acknowledges_all(self: ReplicaManager) -> int:
    return self.flushed()


BROKER_BUGS["acknowledged when only the master has the message"] = planted(
    (ReplicaManager, "ack_limit", _acknowledges_all)
)


def _not_refused(self: ReplicaManager) -> str:
    return ""


BROKER_BUGS["an old master goes on acknowledging"] = planted(
    (ReplicaManager, "refusal", _not_refused), (ReplicaManager, "ack_limit", _acknowledges_all)
)


def _all(self: ReplicaManager, number: int, reach: int) -> None:
    self._replica.report(number, self._replica.epoch, 1 << 60, 1 << 60, self._clock())


BROKER_BUGS["a slave counts as having the whole log"] = planted((ReplicaManager, "report", _all))


def _acts_on(self: Replica) -> None:
    self.has_stepped_down = True


BROKER_BUGS["a master that stepped down acts on"] = planted((Replica, "step_down", _acts_on))


def _not_cut(self: Queues, log_end: int) -> None:
    pass


BROKER_BUGS["queues keep units that were cut from the log"] = planted((Queues, "truncate", _not_cut))

_truncate = Queues.truncate


def _cut_more(self: Queues, log_end: int) -> None:
    _truncate(self, log_end - 1)


BROKER_BUGS["a queue is cut one message shorter than the log"] = planted((Queues, "truncate", _cut_more))

_decide = Transactions._decide


def _committed(self: Transactions, header: EndTransactionRequestHeader, now_ms: int) -> None:
    _decide(self, evolve(header, commit_or_rollback=SYS_COMMIT), now_ms)


BROKER_BUGS["a rollback is taken for a commit"] = planted((Transactions, "_decide", _committed))


def _never(self: Transactions, now_ms: int) -> int:
    return now_ms + 1000


BROKER_BUGS["no broker checks back"] = planted((Transactions, "step", _never))

_follow, _step = Schedule.follow, Schedule.step


def _one_more(self: Schedule, progress: Any) -> None:
    _follow(self, {level: offset + 1 for level, offset in progress.items()})


BROKER_BUGS["a slave counts one delayed message more as delivered"] = planted((Schedule, "follow", _one_more))


def _early(self: Schedule, now_ms: int) -> int:
    return _step(self, now_ms + 1000) - 1000


BROKER_BUGS["delivered a second before it is due"] = planted((Schedule, "step", _early))


def _stands_still(self: Set, node: Node) -> float:
    return self.leases.now(node.host, self.pauses.own_time(node.host))


BROKER_BUGS["the clock of leases stands still with its machine"] = planted((Set, "clock", _stands_still))


def _in_full(self: Replica, epoch: int, asked_at: float, lease_s: float) -> None:
    if epoch == self.epoch and not self.has_stepped_down:
        self._lease_until = max(self._lease_until, asked_at + lease_s)


BROKER_BUGS["a lease is not shortened by the drift of clocks"] = planted((Replica, "lease", _in_full))

_feed = TableSender.note


def _no_offsets(self: TableSender, now: float) -> Any:
    self._offsets = []
    return _feed(self, now)


BROKER_BUGS["followers get no offsets of groups"] = planted((TableSender, "note", _no_offsets))


def _everything(self: ReplicaManager) -> int | None:
    return None


BROKER_BUGS["consumers read messages that only the master has"] = planted(
    (ReplicaManager, "high_watermark", _everything)
)


def _not_looked_at(self: FailoverService, broker: Broker) -> None:
    pass


BROKER_BUGS["a master stays although its disk takes no bytes"] = planted(
    (FailoverService, "_check_disk", _not_looked_at)
)


def _waited_for(self: DiskWork) -> str:
    return ""


BROKER_BUGS["a hanging sync is waited for"] = planted((DiskWork, "hangs", _waited_for))


def _set(self: Set, node: Node) -> float:
    return self.now_ms(node) / 1000


BROKER_BUGS["leases use the wall clock"] = planted((Set, "clock", _set))


def _at_once(self: Schedule, level: int, offset: int, now_ms: int) -> int | None:
    unit = self._store.unit(SCHEDULE_TOPIC, level - 1, offset)
    if unit is None:
        return None
    return unit[2] if unit[2] <= now_ms + self.levels[level] else now_ms


BROKER_BUGS["delayed messages come at once when a clock was set back"] = planted(
    (Schedule, "_due_of", _at_once)
)


def _open(self: FailoverReplica) -> bool:
    return False


BROKER_BUGS["queues are locked without a lease"] = planted((FailoverReplica, "refuses_locks", _open))


def _no_rows(self: Locks, names: Collection[str]) -> bytes:
    return b"{}"


BROKER_BUGS["followers get no locks"] = planted((Locks, "text_of", _no_rows))

_delivered = Timers._delivered


def _kept(self: Timers, group: Any, end: int) -> None:
    waiting = dict(self._waiting)
    _delivered(self, group, end)
    self._waiting |= waiting


BROKER_BUGS["timed messages stay in memory after delivery"] = planted((Timers, "_delivered", _kept))


def _told_before(self: TableAcks, table: str, changes: Any, connection: Any, on_done: Any) -> bool:
    return False


BROKER_BUGS["a commit is answered before the replicas have it"] = planted((TableAcks, "wait", _told_before))
