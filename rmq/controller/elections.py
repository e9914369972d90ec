"""Elections: which replicas live, which leases are over, and which replica becomes the next master.

The leading controller keeps this state beside the log. A new leader begins without any state, and waits a
whole lease before it elects. `now` is in seconds, of the same clock as the leader's own lease. Every call
must come while `Raft.is_leading`, when no other controller grants leases.

A master with a lease may acknowledge until `lease_s`, less the drift of two clocks, after its *request*. The
controller counts the lease from the grant, which is later, and in full. So when a lease is over at the
controller, the lease was over at the master before, whichever clock runs faster.

The length of a lease is a setting, which may differ between controllers while operators change it. So the log
holds the length, too (`agreed_s`): no valid lease is longer. A leader grants the shorter of setting and
`agreed_s`; a new leader waits for the longer. A leader proposes a shorter length when no longer lease can be
valid. A log that went back to an older one may lack a longer length: replicas report the length that they
were told, and a new leader waits for that, too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from rmq.controller.evidence import GATHER_SECONDS, Evidence
from rmq.controller.heartbeat import UNKNOWN, Heartbeat
from rmq.controller.sets import NOBODY, BrokerSet, Elect, Replica

log = logging.getLogger("rmq.controller")


class Elections:
    """The leading controller's view of replicas and leases; the module has the rules. `is_unclean`: elect a
    replica that is not in sync when no other lives, which loses acknowledged messages. `gather_s`: seconds
    for which the controller waits for replicas in sync after a restart of all of them."""

    def __init__(self, lease_s: float, *, is_unclean: bool = False, gather_s: float = GATHER_SECONDS) -> None:
        self.setting_s = self.agreed_s = lease_s
        self.is_unclean = is_unclean
        self.evidence = Evidence(gather_s)
        self._since = math.inf
        self._told_s = 0.0  # the longest lease that replicas were told
        self._heard: dict[tuple[str, int], tuple[float, Heartbeat]] = {}
        self._started: dict[tuple[str, int], int] = {}  # the latest life of a replica that asked to register
        self._leased: dict[str, float] = {}  # set -> end of its last lease
        self._began: dict[str, str] = {}  # set -> `BrokerSet.began` of the set that the other tables describe
        self._successors: dict[str, tuple[int, int]] = {}  # set -> epoch, and the wanted next master
        self._unclean_successors: dict[str, tuple[int, int]] = {}  # the same, for a replica not in sync
        # set -> epoch and version that an election ends; it is proposed, and may not be agreed on yet
        self._ending: dict[str, tuple[int, int]] = {}

    @property
    def lease_s(self) -> float:
        """The length of new leases, in seconds."""
        return min(self.setting_s, self.agreed_s)

    def agree(self, lease_s: float) -> None:
        """Take the length of leases in the log."""
        self.agreed_s = lease_s

    @property
    def _earlier_over(self) -> float:
        """The time when all leases of earlier leaders are over."""
        return self._since + max(self.setting_s, self.agreed_s, self._told_s)

    def due_lease(self, now: float) -> float | None:
        """The length of a lease to propose now; None when the log has it, or when a shorter length may not be
        proposed yet."""
        is_due = self.setting_s > self.agreed_s or now >= self._earlier_over
        return self.setting_s if self.setting_s != self.agreed_s and is_due else None

    def begin(
        self, now: float, *, is_new_term: bool = True, inherited: Mapping[str, BrokerSet] | None = None
    ) -> None:
        """Begin to lead: an earlier leader may have granted leases until now. In a new term all earlier
        proposals are either agreed on or lost. `inherited` are the sets in its table."""
        if inherited is not None:
            self._forget_former_sets(inherited)
        self._since, self._told_s = now, 0.0
        self.evidence.begin(now, is_new_term=is_new_term, inherited=inherited or {})
        if is_new_term:
            self._ending, self._started = {}, {}
        self._heard, self._leased, self._successors = {}, {}, {}
        self._unclean_successors = {}

    def meet(self, broker_set: BrokerSet) -> None:
        """Forget all facts about an earlier, removed set of this name: they do not apply to this set, whose
        epochs and numbers of replicas begin again."""
        name, began = broker_set.name, broker_set.began
        if self._began.get(name) != began:
            self._forget(name)
            self._began[name] = began

    def _forget_former_sets(self, sets: Mapping[str, BrokerSet]) -> None:
        for broker_set in sets.values():
            self.meet(broker_set)
        if len(self._began) > len(sets):
            for name in [name for name in self._began if name not in sets]:
                self._forget(name)

    def _forget(self, name: str) -> None:
        for table in (self._began, self._leased, self._successors, self._unclean_successors, self._ending):
            table.pop(name, None)
        by_replica: tuple[dict[tuple[str, int], Any], ...] = (self._heard, self._started)
        for rows in by_replica:
            for key in [key for key in rows if key[0] == name]:
                del rows[key]
        self.evidence.forget(name)

    def refusal(self, heartbeat: Heartbeat, broker_set: BrokerSet) -> str:
        """The reason why a heartbeat does not belong to this set, so that its sender may not learn the set;
        empty when it belongs to it. A replica that was removed may learn the set."""
        replica, name = broker_set.replicas.get(heartbeat.number), broker_set.name
        if heartbeat.epoch > broker_set.epoch:
            # This table knows neither the electable replicas nor the replicas with all acknowledged messages.
            return f"{name} is at epoch {broker_set.epoch} here, replica {heartbeat.number} knows a later one"
        if replica is None:
            return ""
        if heartbeat.identity not in ("", replica.identity):
            return f"replica {heartbeat.number} of {name} is another broker: register"
        if heartbeat.incarnation < replica.incarnation:
            return f"replica {heartbeat.number} of {name} was started again since then"
        if heartbeat.incarnation > replica.incarnation:
            return f"{name} does not know here that replica {heartbeat.number} was started again: register"
        return ""

    def take_start(self, broker_set: BrokerSet, replica: Replica) -> None:
        """Take a registration, before the log has it: the replica may have lost a part of its log since its
        earlier life reported, and must not be elected for that."""
        if number := broker_set.number_of(replica.identity):
            key = broker_set.name, number
            self._started[key] = max(replica.incarnation, self._started.get(key, 0))

    def take_lease_length(self, heartbeat: Heartbeat) -> None:
        """Take the longest lease that a replica was told, also of a heartbeat that is refused."""
        self._told_s = max(self._told_s, heartbeat.lease_s)

    def hear(self, heartbeat: Heartbeat, broker_set: BrokerSet, now: float) -> bool:
        """Take a heartbeat; return whether the replica has a lease as a master from now on."""
        self.meet(broker_set)
        replica = broker_set.replicas.get(heartbeat.number)
        is_other = replica is None or replica.incarnation != heartbeat.incarnation
        if is_other or self.refusal(heartbeat, broker_set):
            return False
        self._heard[broker_set.name, heartbeat.number] = now, heartbeat
        self.evidence.hear(heartbeat, broker_set, now)
        is_master = broker_set.master == heartbeat.number and broker_set.epoch == heartbeat.epoch
        is_ending = self._ending.get(broker_set.name) == (broker_set.epoch, broker_set.version)
        if is_master and heartbeat.resigned:
            self._leased[broker_set.name] = now
            return False
        if not is_master or is_ending or self._successor(broker_set) != NOBODY:
            return False
        if self.evidence.is_behind(broker_set):
            return False  # in the later version another replica may be the master
        # An earlier leader may have granted a longer lease than this one grants now.
        self._leased[broker_set.name] = max(now + self.lease_s, self._earlier_over)
        return True

    def expect_master(self, name: str, now: float) -> None:
        """Elect no master for the length of a lease: the master that the table is about to name lives."""
        self._leased[name] = max(now + self.lease_s, self.leased_until(name))

    def choose_successor(self, broker_set: BrokerSet, number: int) -> None:
        """Make a replica the next master. The present master gets no lease any more, and the successor is
        elected when the master has stepped down or its last lease is over. The wish is dropped when the
        replica is not in sync or not alive by that time."""
        self._successors[broker_set.name] = broker_set.epoch, number

    def choose_unclean_successor(self, broker_set: BrokerSet, number: int) -> None:
        """Make a replica the next master although it is not in sync, unless a replica in sync lives again."""
        self._unclean_successors[broker_set.name] = broker_set.epoch, number

    def is_handing_over(self, broker_set: BrokerSet) -> bool:
        """True if a replica other than the present master shall become master."""
        return self._successor(broker_set) != NOBODY

    def _successor(self, broker_set: BrokerSet) -> int:
        epoch, number = self._successors.get(broker_set.name, (0, NOBODY))
        return number if epoch == broker_set.epoch and number != broker_set.master else NOBODY

    def leased_until(self, name: str) -> float:
        """The latest time until which a master of the set may acknowledge."""
        return self._leased.get(name, self._earlier_over)

    def lives(self, name: str, number: int, now: float) -> bool:
        """True if a replica was heard within a lease."""
        heard = self._heard.get((name, number))
        return heard is not None and now < heard[0] + self.lease_s

    def leaving(self, broker_set: BrokerSet) -> tuple[int, ...]:
        """The replicas that reported a stop and have not started since."""
        heard = ((number, self._heard.get((broker_set.name, number))) for number in broker_set.replicas)
        return tuple(
            number
            for number, one in heard
            if one is not None
            and one[1].leaving
            and one[1].incarnation == broker_set.replicas[number].incarnation
        )

    @property
    def are_earlier_over_at(self) -> float:
        """The time when no lease of an earlier leader is valid any more."""
        return self._earlier_over

    def may_live(self, name: str, number: int, now: float) -> bool:
        """True if `lives` is true, or this controller has led for too short a time to have heard the
        replica."""
        return now < self._earlier_over or self.lives(name, number, now)

    def reach(self, name: str, number: int) -> int | None:
        """The end of the flushed log in a replica's last heartbeat; None when the replica was not heard."""
        heard = self._heard.get((name, number))
        return None if heard is None else heard[1].reach

    def due(self, sets: Mapping[str, BrokerSet], now: float) -> list[Elect]:
        """The elections that are possible and necessary now. The caller proposes each; a failed election is
        returned again."""
        found = []
        self._forget_former_sets(sets)
        for broker_set in sets.values():
            if now >= self.leased_until(broker_set.name):
                elect = self._next(broker_set, now)
                if elect is not None:
                    # No lease from now on: the old master, back in time, would act beside the new master.
                    self._ending[elect.name] = elect.epoch, elect.version
                    self.evidence.elected(elect.name, is_unclean=elect.is_unclean)
                    found.append(elect)
        return found

    def deadline(self, sets: Mapping[str, BrokerSet], now: float) -> float:
        """The time when the next lease is over, or may be shortened; a set that waits for a replica has
        none."""
        times = [self.leased_until(name) for name in sets]
        if self.setting_s != self.agreed_s:
            times.append(self._earlier_over)
        return min((time for time in times if time > now), default=math.inf)

    def _next(self, broker_set: BrokerSet, now: float) -> Elect | None:
        name, evidence = broker_set.name, self.evidence
        if evidence.is_behind(broker_set):
            return None  # the table is older than the set that a replica knows
        living = [number for number in broker_set.replicas if self.lives(name, number, now)]
        in_sync = [number for number in broker_set.in_sync if number in living]
        in_sync = [number for number in in_sync if not evidence.has_lost(name, number)]
        in_sync = [number for number in in_sync if self._is_in_this_life(broker_set, number)]
        in_sync = [number for number in in_sync if not self._heard[name, number][1].leaving] or in_sync
        # A replica that waits for its disk can neither lead nor acknowledge, until its disk is back.
        is_any_left = bool(in_sync)
        in_sync = [number for number in in_sync if not self._heard[name, number][1].hangs]
        successor = self._successor(broker_set)
        self._successors.pop(name, None)
        if successor in in_sync and evidence.was_seen(broker_set, successor):
            return self._elect(broker_set, successor, in_sync)
        if evidence.doubts(name) and (wish := self._unclean_choice(broker_set, living)):
            return self._elect_uncleanly(broker_set, wish)
        if self._has_stepped_down(broker_set):
            in_sync = [number for number in in_sync if number != broker_set.master] or in_sync
        elif broker_set.master in living and not self._heard[name, broker_set.master][1].hangs:
            return None  # it lost its lease and is back: the next heartbeat renews the lease
        if ready := [number for number in in_sync if self._is_ready(name, number, now)]:
            if not evidence.is_gathered(broker_set, ready, now):
                return None
            best = self._best(name, ready)
            if evidence.doubts(name):  # another replica may have left the in-sync set
                longest = self._heard_rank(name, best)
                in_sync = [one for one in ready if self._heard_rank(name, one) == longest]
            return self._elect(broker_set, best, in_sync)
        if in_sync:
            return None  # it opens its log, or was not heard for a while
        if living and not is_any_left:
            return self._next_unclean(broker_set, living, now)
        return None

    def _next_unclean(self, broker_set: BrokerSet, living: list[int], now: float) -> Elect | None:
        """The replica to elect when no replica in sync lives, if a setting or an operator allows it; it may
        lack messages."""
        best = self._best(broker_set.name, living)
        if wish := self._unclean_choice(broker_set, living):
            return self._elect_uncleanly(broker_set, wish)
        if self.is_unclean:
            return self._elect_uncleanly(broker_set, best)
        self.evidence.complain_of_stranded(broker_set, best, now)
        return None

    def _unclean_choice(self, broker_set: BrokerSet, living: list[int]) -> int:
        """The replica that an operator wants as the master although messages may be lost, or NOBODY."""
        epoch, number = self._unclean_successors.pop(broker_set.name, (0, NOBODY))
        return number if epoch == broker_set.epoch and number in living else NOBODY

    def _elect_uncleanly(self, broker_set: BrokerSet, number: int) -> Elect:
        name = broker_set.name
        log.error("UNCLEAN ELECTION: replica %d of %s is the next master, messages may be lost", number, name)
        return Elect(name, broker_set.epoch, broker_set.version, number, (number,), is_unclean=True)

    def _is_in_this_life(self, broker_set: BrokerSet, number: int) -> bool:
        """True if a replica's last heartbeat came since its last start, which may have found another log."""
        heard = self._heard[broker_set.name, number][1].incarnation
        started = self._started.get((broker_set.name, number), 0)
        return heard == broker_set.replicas[number].incarnation >= started

    def _is_ready(self, name: str, number: int, now: float) -> bool:
        """True if a replica has its log open and was heard lately. When all replicas die at the same moment,
        the lease of the master ends first: another replica, elected at that time, would be in sync alone, and
        dead."""
        heard_at, heartbeat = self._heard[name, number]
        return heartbeat.reach != UNKNOWN and now < heard_at + self.lease_s / 2

    def _has_stepped_down(self, broker_set: BrokerSet) -> bool:
        heard = self._heard.get((broker_set.name, broker_set.master))
        return heard is not None and heard[1].resigned and heard[1].epoch == broker_set.epoch

    def _elect(self, broker_set: BrokerSet, master: int, in_sync: list[int]) -> Elect:
        return Elect(broker_set.name, broker_set.epoch, broker_set.version, master, tuple(in_sync))

    def _best(self, name: str, numbers: list[int]) -> int:
        """The replica with the longest log of the latest epoch. Each replica in sync would do; this choice
        cuts the least from other logs."""
        return max(numbers, key=lambda number: (*self._heard_rank(name, number), -number))

    def _heard_rank(self, name: str, number: int) -> tuple[int, int]:
        heartbeat = self._heard[name, number][1]
        return heartbeat.epoch, heartbeat.reach
