"""Evidence: facts in the heartbeats of a set's replicas that speak against an election by the controllers'
table alone.

The table may be older than the agreed state: an old journal was put back, or its last frame was damaged. Such
a table may name replicas as in sync that are not in sync. A replica's folder may also be older than the
acknowledged messages: a copy was put back. So the leader compares:

- the version of the set that a replica knows with the version in the table. When a replica knows a later
  version, no master is elected before the table has that version (`Adopt` in `sets.py`);
- the log of a replica in sync with the set's confirmed point: a record's end that all replicas in sync had on
  their disks, by the master's word. A replica that lacks it has lost messages, and is not elected. The point
  is in the journal, too (`Confirmed`), at most `SAVE_SECONDS` old, so that the next leader knows it;
- after a restart of everything, the logs of all replicas in sync with each other, for `gather_s` at most;
- for a table in doubt, whose last frame was damaged, the logs of all replicas, however long that takes. The
  frame may have changed who is in sync. It may not have begun an epoch, as a replica that led it or followed
  in it knows the epoch. The master of the present epoch (`BrokerSet.led`) is always in sync and has all that
  was acknowledged in this epoch, so the longest log of those in sync has it too.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from rmq.controller.heartbeat import UNKNOWN, Point

if TYPE_CHECKING:
    from rmq.controller.heartbeat import Heartbeat
    from rmq.controller.sets import BrokerSet

log = logging.getLogger("rmq.controller")


GATHER_SECONDS: Final = 10.0
SAVE_SECONDS: Final = 2.0
"""Seconds between two entries of the log that keep confirmed points."""
SAVED_SETS: Final = 1_000
"""Confirmed points in one entry, at most."""
WARNING_SECONDS: Final = 60.0
"""Seconds between two log lines about the same replica."""


class Evidence:
    """The facts that the leading controller has heard, set by set; the module has the rules. `gather_s` is in
    seconds."""

    def __init__(self, gather_s: float = GATHER_SECONDS) -> None:
        self.gather_s = gather_s
        self.is_doubtful = False
        """The table itself is in doubt: of inherited sets no master is elected before all replicas were
        heard."""
        self._inherited: set[str] = set()
        self._since = 0.0
        self._heard: dict[tuple[str, int], Heartbeat] = {}
        self._knows: dict[tuple[str, int], tuple[int, int]] = {}
        self._confirmed: dict[str, Point] = {}
        self._ahead: dict[str, tuple[int, int]] = {}
        self._lost: dict[tuple[str, int], float] = {}  # when the log named the replica last
        self._lives: dict[tuple[str, int], int] = {}  # the incarnation whose log was checked last
        self._began_with: dict[str, Point] = {}  # confirmed points of the table at the start of this lead
        self._gathering: dict[str, tuple[int, float]] = {}  # epoch, and begin of the wait
        self._complained: dict[str, float] = {}
        self._stranded: dict[str, float] = {}  # set without a living replica in sync -> next log line
        self._saved_at = 0.0

    def doubt(self, is_doubtful: bool) -> None:
        """Note whether the table itself is in doubt."""
        self.is_doubtful = is_doubtful

    def begin(self, now: float, *, is_new_term: bool, inherited: Mapping[str, BrokerSet]) -> None:
        """Begin to lead, by a table that has the sets `inherited`."""
        self._heard, self._knows, self._ahead, self._lost = {}, {}, {}, {}
        self._gathering, self._complained, self._stranded = {}, {}, {}
        self._since = self._saved_at = now
        self._inherited, self._lives = set(inherited), {}
        self._began_with = {name: one.confirmed for name, one in inherited.items()}
        if is_new_term:
            self._confirmed = {}

    def forget(self, name: str) -> None:
        """Forget all facts about the set of that name, which was removed."""
        self._inherited.discard(name)
        by_set: tuple[dict[str, Any], ...] = (self._confirmed, self._ahead, self._began_with, self._gathering)
        for table in (*by_set, self._complained, self._stranded):
            table.pop(name, None)
        by_replica: tuple[dict[tuple[str, int], Any], ...] = (self._heard, self._knows, self._lost)
        for rows in (*by_replica, self._lives):
            for key in [key for key in rows if key[0] == name]:
                del rows[key]

    # ---- heartbeats ----

    def knows_more(self, heartbeat: Heartbeat, broker_set: BrokerSet) -> bool:
        """Take the version that a replica of the set knows; return whether the table is older."""
        name, replica = broker_set.name, broker_set.replicas.get(heartbeat.number)
        if replica is not None and heartbeat.identity != replica.identity:
            return False
        # A replica registered after the table's version is known, too, once the table adopts its version.
        self._knows[name, heartbeat.number] = heartbeat.knows
        if replica is None:
            return False
        self._ahead[name] = max(heartbeat.knows, self._ahead.get(name, (0, 0)))
        return heartbeat.knows > (broker_set.epoch, broker_set.version)

    def hear(self, heartbeat: Heartbeat, broker_set: BrokerSet, now: float) -> None:
        """Take a heartbeat of a replica's present life."""
        name, number = broker_set.name, heartbeat.number
        self.knows_more(heartbeat, broker_set)
        self._heard[name, number] = heartbeat
        epoch = broker_set.epoch
        point, is_master = heartbeat.confirmed, number == broker_set.master and heartbeat.epoch == epoch
        if is_master and point[0] == epoch and point[1]:
            self._confirmed[name] = _later(point, self._confirmed.get(name, (0, 0)))
        if number == broker_set.master and heartbeat.knows[0] == epoch and not self.is_behind(broker_set):
            self._inherited.discard(name)  # its living master knows no later version than the table
        self._check_log(heartbeat, broker_set, now)

    def _check_log(self, heartbeat: Heartbeat, broker_set: BrokerSet, now: float) -> None:
        name, number = broker_set.name, heartbeat.number
        if heartbeat.reach == UNKNOWN:
            return
        life = self._lives.get((name, number), heartbeat.incarnation)
        self._lives[name, number] = heartbeat.incarnation
        # A log loses nothing while its broker runs. The master may confirm newly written records sooner than
        # this replica reports them.
        has_started = heartbeat.acted == 0 or life != heartbeat.incarnation or (name, number) in self._lost
        point = self.confirmed(broker_set) if has_started else self._began_with.get(name, (0, 0))
        if number not in broker_set.in_sync or (heartbeat.epoch >= point[0] and heartbeat.reach >= point[1]):
            if self._lost.pop((name, number), None) is not None:
                log.warning("replica %d of %s has what was confirmed", number, name)
            return
        said = self._lost.get((name, number))
        if said is not None and now < said + WARNING_SECONDS:
            return
        self._lost[name, number] = now
        log.error(
            "replica %d of %s has its log up to %d in epoch %d, and all in sync had it up to %d in epoch %d:"
            " it is not elected (was an old copy of its store put back?)",
            *(number, name, heartbeat.reach, heartbeat.epoch, point[1], point[0]),
        )

    # ---- conclusions ----

    def confirmed(self, broker_set: BrokerSet) -> Point:
        """The set's confirmed point, by its master and by the journal."""
        return _later(broker_set.confirmed, self._confirmed.get(broker_set.name, (0, 0)))

    def has_lost(self, name: str, number: int) -> bool:
        """True if a replica in sync lacks confirmed records, by its last heartbeat."""
        return (name, number) in self._lost

    def is_behind(self, broker_set: BrokerSet) -> bool:
        """True if a replica knows a later version of the set than the table has."""
        return self._ahead.get(broker_set.name, (0, 0)) > (broker_set.epoch, broker_set.version)

    def is_inherited(self, name: str) -> bool:
        """True if no living master has confirmed the table's version of a set to this leader."""
        return name in self._inherited

    @property
    def has_inherited(self) -> bool:
        """True if there are such sets."""
        return bool(self._inherited)

    def doubts(self, name: str) -> bool:
        """True if the table may lack a change of a set that the controllers agreed on."""
        return self.is_doubtful and name in self._inherited

    def was_seen(self, broker_set: BrokerSet, number: int) -> bool:
        """True if a replica has led or followed in this epoch, in its present life, of a set that the table
        does not doubt: it has all records that the other replicas in sync have."""
        name = broker_set.name
        return not self.doubts(name) and self._has_acted(name, number, broker_set.epoch)

    def all_heard(self, broker_set: BrokerSet, later: BrokerSet) -> bool:
        """True if each replica of two versions of a set was heard, and none knows a later version than
        these."""
        numbers = {**broker_set.replicas, **later.replicas}
        known = [self._knows.get((broker_set.name, number)) for number in numbers]
        return all(one is not None and one <= (later.epoch, later.version) for one in known)

    def is_gathered(self, broker_set: BrokerSet, ready: Collection[int], now: float) -> bool:
        """True if enough replicas were heard to elect one of `ready`, which are in sync and have their logs
        open. A replica that has acted in its present life was seen to follow, or leads; a replica that has
        just started may have an old folder, so in that case all replicas in sync are awaited, `gather_s` at
        most."""
        name = broker_set.name
        self._forget_former_lives(broker_set)
        if self.doubts(name):
            return self._is_best_of_all(broker_set, ready, now)
        if any(self._has_acted(name, number, broker_set.epoch) for number in ready):
            return True
        best = max(self._rank(name, number) for number in ready)
        missing = [number for number in broker_set.in_sync if not self._is_behind_best(name, number, best)]
        epoch, since = self._gathering.get(name, (0, 0.0))
        if epoch != broker_set.epoch:
            since = now
            self._gathering[name] = broker_set.epoch, since
        if missing and now < since + self.gather_s:
            self._complain(name, now, "all replicas have just started: %s in sync are waited for", missing)
            return False
        if missing:
            log.error(
                "%s: replicas %s in sync were not heard for %g s after a restart of all: a master is elected"
                " without them",
                *(name, missing, self.gather_s),
            )
        return True

    def _forget_former_lives(self, broker_set: BrokerSet) -> None:
        for number, one in broker_set.replicas.items():
            heard = self._heard.get((broker_set.name, number))
            if heard is not None and heard.incarnation != one.incarnation:
                del self._heard[broker_set.name, number]

    def _has_acted(self, name: str, number: int, epoch: int) -> bool:
        heard = self._heard.get((name, number))
        return heard is not None and (heard.acted > 0 or (heard.acted == UNKNOWN and heard.epoch == epoch))

    def _is_behind_best(self, name: str, number: int, best: tuple[int, int]) -> bool:
        """True if no replica has a longer log than this one; this replica may have been silent since."""
        return self._has_said(name, number) and self._rank(name, number) <= best

    def _has_said(self, name: str, number: int) -> bool:
        heard = self._heard.get((name, number))
        return heard is not None and heard.reach != UNKNOWN

    def _is_best_of_all(self, broker_set: BrokerSet, ready: Collection[int], now: float) -> bool:
        name = broker_set.name
        missing = [number for number in broker_set.replicas if not self._has_said(name, number)]
        best = max(ready, key=lambda number: self._rank(name, number))
        if missing:
            self._complain_of_doubt(name, now, best, "replicas %s were not heard: start them", missing)
            return False
        has_master = broker_set.led in broker_set.in_sync
        compared = broker_set.in_sync if has_master else tuple(broker_set.replicas)
        longest = self._rank(name, best)
        ranks = {number: self._rank(name, number) for number in broker_set.replicas}
        ahead = [
            number
            for number, rank in ranks.items()
            if rank[0] > longest[0] or (number in compared and rank > longest)
        ]
        if ahead:
            text = f"replica {best} in sync lacks log that replicas %s have"
            self._complain_of_doubt(name, now, best, text, ahead)
            return False
        return True

    def _complain_of_doubt(
        self, name: str, now: float, best: int, text: str, numbers: Collection[int]
    ) -> None:
        way_on = (
            f". If a log is gone for good, `rmq controller elect {name} NUMBER --unclean` has the replica"
            f" with most messages (of those in sync: {best}) go on as the master; messages that were"
            " acknowledged, and that it lacks, are lost then"
        )
        self._complain(name, now, f"the controllers' journal was damaged, and {text}{way_on}", numbers)

    def _rank(self, name: str, number: int) -> tuple[int, int]:
        heard = self._heard[name, number]
        return heard.epoch, heard.reach

    def _complain(self, name: str, now: float, text: str, numbers: Collection[int]) -> None:
        if now >= self._complained.get(name, now):
            self._complained[name] = now + WARNING_SECONDS
            log.error(f"%s: no master is elected, {text}", name, ", ".join(map(str, numbers)))

    def complain_of_stranded(self, broker_set: BrokerSet, best: int, now: float) -> None:
        """Log an operator's remedy for a set of which only replicas not in sync live: first after `gather_s`,
        then once a minute."""
        name = broker_set.name
        if now < self._stranded.setdefault(name, now + self.gather_s):
            return
        self._stranded[name] = now + WARNING_SECONDS
        log.error("%s", stranded_text(broker_set, best))

    def elected(self, name: str, *, is_unclean: bool) -> None:
        """Note that an election is proposed: the set is in this leader's version from now on."""
        self._gathering.pop(name, None)
        self._stranded.pop(name, None)
        self._inherited.discard(name)
        if is_unclean:  # confirmed records may be lost by it
            self._confirmed.pop(name, None)
            self._began_with.pop(name, None)

    # ---- the journal ----

    def unsaved(self, sets: Mapping[str, BrokerSet], now: float) -> list[dict[str, Point]]:
        """The confirmed points to keep in the log now, at most `SAVED_SETS` in each part."""
        if now < self._saved_at + SAVE_SECONDS:
            return []
        self._saved_at = now
        found = [name for name, point in self._confirmed.items() if _is_new(sets.get(name), point)]
        parts = [found[first : first + SAVED_SETS] for first in range(0, len(found), SAVED_SETS)]
        return [{name: self._confirmed[name] for name in names} for names in parts]


def stranded_text(broker_set: BrokerSet, best: int) -> str:
    """The state of a set of which no replica in sync lives, and the remedy, as words for the log."""
    name, replicas, in_sync = broker_set.name, broker_set.replicas, broker_set.in_sync
    where = ", ".join(f"{number} ({replicas[number].address})" for number in in_sync)
    taken = "".join(
        f" (at the address of {number} replica {other} has registered: was its folder replaced by a copy?)"
        for number in in_sync
        for other, one in replicas.items()
        if other != number and one.address == replicas[number].address
    )
    return (
        f"{name} has no master: of its replicas in sync, {where}, none lives and has what was acknowledged"
        f"{taken}. Start one. If their folders are gone for good, `rmq controller elect {name} {best}"
        f" --unclean` has replica {best} go on as the master: messages that were acknowledged, and that only"
        " they had, are lost then"
    )


def _is_new(broker_set: BrokerSet | None, point: Point) -> bool:
    if broker_set is None or point[0] != broker_set.epoch:
        return False
    return _later(point, broker_set.confirmed) != broker_set.confirmed


def _later(one: Point, other: Point) -> Point:
    return max(one[0], other[0]), max(one[1], other[1])
