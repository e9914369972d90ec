"""Bugs that are planted in the rules of broker sets, each of which the simulation of sets must catch."""

from __future__ import annotations

import math
from typing import Any

from rmq.controller.consensus.raft import Raft, Role
from rmq.controller.elections import Elections
from rmq.controller.evidence import Evidence
from rmq.controller.heartbeat import UNKNOWN, Heartbeat
from rmq.controller.replica import Epochs, Replica
from rmq.controller.sets import BrokerSet, BrokerSets, Elect
from tests.sim import sets
from tests.sim.planted_bugs.bugs import Bug, planted

SET_BUGS: dict[str, Bug] = {}


def _early(self: Replica) -> frozenset[int]:
    assert self.broker_set is not None
    return min((frozenset(one) for one in (*self._proposed, self.broker_set.in_sync)), key=len)


SET_BUGS["a leaving replica is not awaited, before the controllers agree"] = planted(
    (Replica, "awaited", _early)
)


def _known_only(self: Replica) -> frozenset[int]:
    assert self.broker_set is not None
    return frozenset(self.broker_set.in_sync)


SET_BUGS["a joining replica is not awaited, when the controllers may have agreed"] = planted(
    (Replica, "awaited", _known_only)
)


def _shorter(mine: Epochs, my_end: int, others: Epochs, other_end: int) -> int:
    return min(my_end, other_end)


SET_BUGS["cut to the shorter log, without a comparison"] = planted((sets, "common_end", _shorter))


def _kept(mine: Epochs, my_end: int, others: Epochs, other_end: int) -> int:
    return my_end


SET_BUGS["nothing is cut"] = planted((sets, "common_end", _kept))


def _late_lease(self: Replica, epoch: int, asked_at: float, lease_s: float) -> None:
    _right_lease(self, epoch, asked_at + 0.6, lease_s)


_right_lease = Replica.lease
SET_BUGS["lease from the answer, not from the question"] = planted((Replica, "lease", _late_lease))


def _no_lease(self: Replica, now: float) -> bool:
    known = self.broker_set
    return known is not None and known.master == self.number and known.epoch == self.epoch


SET_BUGS["a master acts without a lease"] = planted((Replica, "is_master", _no_lease))
SET_BUGS["elected before the lease is over"] = planted(
    (Elections, "leased_until", lambda self, name: -math.inf)
)


def _anybody(self: Elections, broker_set: BrokerSet, now: float) -> Elect | None:
    living = [number for number in broker_set.replicas if self.lives(broker_set.name, number, now)]
    if broker_set.master in living or not living:
        return None
    best = self._best(broker_set.name, living)
    return Elect(broker_set.name, broker_set.epoch, broker_set.version, best, (best,), is_unclean=True)


SET_BUGS["any living replica is elected"] = planted((Elections, "_next", _anybody))


_right_register = BrokerSets._register


def _joins_early(self: Replica, flushed: int, now: float) -> tuple[int, ...] | None:
    safe, self.acknowledged = self.acknowledged, -1
    self._caught_up_at.update(dict.fromkeys(self._reach, now))
    try:
        return _right_change(self, flushed, now)
    finally:
        self.acknowledged = safe


_right_change = Replica.change
SET_BUGS["in sync before it has every acknowledged message"] = planted((Replica, "change", _joins_early))


def _without_own(self: Replica, flushed: int, now: float, *, least: int = 1) -> int:
    return _right_safe(self, 1 << 60, now, least=least)


_right_safe = Replica.ack_limit
SET_BUGS["acknowledged before the message is on the master's own disk"] = planted(
    (Replica, "ack_limit", _without_own)
)


def _one_leads(self: Raft, now: float) -> bool:
    return self.role is Role.LEADER and self.applied >= self._first


SET_BUGS["a controller answers without a lease"] = planted((Raft, "is_leading", _one_leads))


def _not_written(self: sets.SetSimulation, name: str) -> None:
    broker = self.brokers[name]
    broker.epochs = broker.epochs[:1]
    _right_start(self, name)


_right_start = sets.SetSimulation.start_broker
SET_BUGS["epochs are not kept beside the log"] = planted((sets.SetSimulation, "start_broker", _not_written))


def _flushed_in_memory(self: sets.SetSimulation, broker: sets.Broker, *rest: Any) -> None:
    flushed, self.flush_share = self.flush_share, 1.0
    before = broker.flushed
    _right_copied(self, broker, *rest)
    self.flush_share = flushed
    if self.chance.random() > flushed:
        broker.flushed = min(before, len(broker.log))


_right_copied = sets.SetSimulation.copied
# A replica that starts with less than what was confirmed is not elected, which hides the bug mostly.
SET_BUGS["a slave reports bytes that it has not flushed"] = planted(
    (sets.SetSimulation, "copied", _flushed_in_memory),
    (Evidence, "has_lost", lambda *rest: False),
    (Evidence, "is_gathered", lambda *rest: True),
)


def _grants(self: Elections, heartbeat: Heartbeat, broker_set: BrokerSet, now: float) -> bool:
    self._ending.clear()
    return _right_hear(self, heartbeat, broker_set, now)


_right_hear = Elections.hear
# Without the rule that a replica is elected by a recent word of its present life one seed of 2,000 shows it.
SET_BUGS["a lease is granted while an election is being agreed on"] = planted(
    (Elections, "hear", _grants),
    (Elections, "_is_in_this_life", lambda *rest: True),
    (Elections, "_is_ready", lambda self, name, number, now: self._heard[name, number][1].reach != UNKNOWN),
    (Evidence, "_forget_former_lives", lambda *rest: None),
)


def _at_once(self: Elections, now: float) -> float | None:
    return self.setting_s if self.setting_s != self.agreed_s else None


SET_BUGS["a shorter lease is agreed on while longer leases last"] = planted(
    (Elections, "due_lease", _at_once), (Elections, "take_lease_length", lambda self, heartbeat: None)
)


def _own_only(self: Elections, heartbeat: Heartbeat, broker_set: BrokerSet, now: float) -> bool:
    is_leased = _right_hear(self, heartbeat, broker_set, now)
    if is_leased:
        self._leased[broker_set.name] = now + self.lease_s
    return is_leased


SET_BUGS["a longer lease of an earlier controller is forgotten"] = planted((Elections, "hear", _own_only))

SETS_CAUGHT_BY = {
    "a shorter lease is agreed on while longer leases last": 3328,
    "a lease is granted while an election is being agreed on": 554,
    "a leaving replica is not awaited, before the controllers agree": 11,
    "a joining replica is not awaited, when the controllers may have agreed": 153,
    "cut to the shorter log, without a comparison": 17,
    "nothing is cut": 17,
    "lease from the answer, not from the question": 11,
    "a master acts without a lease": 11,
    "any living replica is elected": 3,
    "in sync before it has every acknowledged message": 71,
    "acknowledged before the message is on the master's own disk": 1,
    "a controller answers without a lease": 5,
    "epochs are not kept beside the log": 1,
    "a slave reports bytes that it has not flushed": 5,
    "elected before the lease is over": 75,
}
"""The first seed, or one of the first, that shows a bug."""
