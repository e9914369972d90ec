"""Bugs planted in brokers of a controlled set, and in the rules that they go by, each of which the simulation
of real brokers must catch. What that would show in hours only is planted for the simulation of rules.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from rmq.broker import control
from rmq.broker.control import Control
from rmq.broker.schedule import Schedule
from rmq.broker.table_stream import TableFeed
from rmq.broker.transaction import Transactions
from rmq.controller.epochs import Epochs
from rmq.controller.replica import Replica
from rmq.protocol.codes import SYS_COMMIT
from rmq.protocol.headers import EndTransactionRequestHeader
from rmq.store.queues import Queues
from tests.sim.brokers import Node, Set
from tests.sim.bugs import Bug, planted
from tests.sim.set_bugs import SET_BUGS

BROKERS_CAUGHT_BY = {
    "a master acts without a lease": 0,
    "elected before the lease is over": 26,
    "whoever lives is elected": 1,
    "cut to the shorter log, whatever is in it": 2,
    "acknowledged when the master alone has it": 1,
    "an old master goes on acknowledging": 1,
    "a slave is believed to have all": 6,
    "who has resigned acts on": 1,
    "queues keep what was cut from the log": 4,
    "a queue is cut one message shorter than the log": 3,
    "a rollback is taken for a commit": 0,
    "nobody checks back": 0,
    "a slave counts one delayed message more as delivered": 0,
    "delivered a second before it is due": 0,
    "the clock of leases stands still with its machine": 2,
    "followers are told no offsets of groups": 0,
    "consumers read what only the master has": 3,
}
"""The first seed that shows a bug."""

BROKER_BUGS: dict[str, Bug] = {name: SET_BUGS[name] for name in list(BROKERS_CAUGHT_BY)[:3]}


def _shorter(mine: Epochs, my_end: int, others: Epochs, other_end: int) -> int:
    return min(my_end, other_end)


BROKER_BUGS["cut to the shorter log, whatever is in it"] = planted((control, "common_end", _shorter))


def _acknowledges_all(self: Control) -> int:
    return self.flushed()


BROKER_BUGS["acknowledged when the master alone has it"] = planted(
    (Control, "safe_offset", _acknowledges_all)
)


def _not_refused(self: Control) -> str:
    return ""


BROKER_BUGS["an old master goes on acknowledging"] = planted(
    (Control, "refusal", _not_refused), (Control, "safe_offset", _acknowledges_all)
)


def _all(self: Control, number: int, reach: int) -> None:
    self._replica.report(number, self._replica.epoch, 1 << 60, 1 << 60, self._clock())


BROKER_BUGS["a slave is believed to have all"] = planted((Control, "report", _all))


def _acts_on(self: Replica) -> None:
    self.has_resigned = True


BROKER_BUGS["who has resigned acts on"] = planted((Replica, "resign", _acts_on))


def _not_cut(self: Queues, log_end: int) -> None:
    pass


BROKER_BUGS["queues keep what was cut from the log"] = planted((Queues, "truncate", _not_cut))

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


BROKER_BUGS["nobody checks back"] = planted((Transactions, "step", _never))

_follow, _step = Schedule.follow, Schedule.step


def _one_more(self: Schedule, progress: Any) -> None:
    _follow(self, {level: offset + 1 for level, offset in progress.items()})


BROKER_BUGS["a slave counts one delayed message more as delivered"] = planted((Schedule, "follow", _one_more))


def _early(self: Schedule, now_ms: int) -> int:
    return _step(self, now_ms + 1000) - 1000


BROKER_BUGS["delivered a second before it is due"] = planted((Schedule, "step", _early))


def _stands_still(self: Set, node: Node) -> float:
    return self.pauses.own_time(node.host)


BROKER_BUGS["the clock of leases stands still with its machine"] = planted((Set, "clock", _stands_still))

_feed = TableFeed.note


def _no_offsets(self: TableFeed, now: float) -> Any:
    self._offsets = []
    return _feed(self, now)


BROKER_BUGS["followers are told no offsets of groups"] = planted((TableFeed, "note", _no_offsets))


def _everything(self: Control) -> int | None:
    return None


BROKER_BUGS["consumers read what only the master has"] = planted((Control, "confirmed", _everything))
