"""Controller: a member of the controllers as a whole: the log, the table of sets, and elections.

Requests of brokers and operators come by `submit` and are answered by a callback, at once or when the log has
agreed. Only the leader answers; other members answer `NotLeader`. The journal is the only I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from attrs import frozen

from rmq.config import is_loopback, parse_addresses
from rmq.controller.consensus.raft import ChangeUnderWay, NotLeader, Raft
from rmq.controller.elections import Elections
from rmq.controller.heartbeat import UNKNOWN, Heartbeat
from rmq.controller.sets import (
    NOBODY,
    Adopt,
    AlterInSync,
    BrokerSet,
    BrokerSets,
    Confirmed,
    Lease,
    Outcome,
    Register,
    Remove,
    encode,
)
from rmq.errors import ConfigError
from rmq.server.deferred import Deferred

log = logging.getLogger("rmq.controller")

WAITING_MAX = 10_000
"""Requests that wait for the log; further requests are refused."""
MEMBERS_MAX = 7
"""Controllers of a cluster; each change waits for most of them."""


@frozen
class ElectRequest:
    """An operator's request that a replica becomes the next master of the set. `is_unclean`: although it is
    not in sync, because no replica in sync lives, and none will come back."""

    name: str
    number: int
    is_unclean: bool = False


@frozen
class AddMember:
    """An operator adds the controller at an address. The controller was started with `controllerJoins`, gets
    the log, and becomes a member once its log is complete."""

    address: str


@frozen
class RemoveMember:
    """An operator removes the controller at an address."""

    address: str


@frozen
class Answer:
    """Answer to a request. `broker_set`: the present set, if known; `refusal`: the reason when nothing was
    done.

    To a heartbeat: `is_leased`: the replica may act as master for `lease_s`, counted from its request, less
    the drift. `hands_over`: the replica is the master, and another replica shall become master; the master
    may step down before its last lease is over. `leaving`: numbers of the replicas that have shut down
    gracefully. `is_behind`: the controllers' table is older than the replica's set, so that the replica must
    send its set (`Adopt`). `controllers`, also to a change of members: the addresses of all members.
    """

    refusal: str = ""
    broker_set: BrokerSet | None = None
    number: int = 0
    is_leased: bool = False
    lease_s: float = 0.0
    hands_over: bool = False
    controllers: tuple[str, ...] = ()
    leaving: tuple[int, ...] = ()
    is_behind: bool = False


Request = Heartbeat | Register | AlterInSync | Adopt | Remove | ElectRequest | AddMember | RemoveMember
Reply = Callable[[Answer | NotLeader], None]


class Controller:
    """A controller; the module has its rules. `sets` must be the machine of `raft`; the owner calls `advance`
    after each call of `raft`, and sends its messages."""

    def __init__(self, raft: Raft, sets: BrokerSets, elections: Elections) -> None:
        self.raft = raft
        self.sets = sets
        self.elections = elections
        self._led = 0  # the term in which it leads
        self._last_led = 0
        self._waiting: Deferred[int, tuple[int, Reply]] = Deferred(WAITING_MAX, "the questions that wait")
        self.elected = self.elected_uncleanly = 0
        """Masters that were elected while it led, and how many of them were not in sync."""
        self._electing: dict[str, int] = {}  # set -> index of the entry that elects
        self._leasing = 0  # index of the entry that changes the lease

    def submit(self, question: Request, reply: Reply, now: float) -> None:
        """Answer a request, now or later; each request is answered once, unless this controller stops
        before."""
        self.advance(now)
        if not self.raft.is_leading(now):
            reply(self._not_leader())
            return
        match question:
            case Heartbeat():
                reply(self._heard(question, now))
            case ElectRequest():
                reply(self._elect_on_request(question, now))
            case AddMember():
                reply(self._add(question.address, now))
            case RemoveMember():
                self._drop(question.address, reply, now)
            case _:
                known = self.sets.sets.get(question.name)
                refusal = "" if known is None else self._refused(known, question, now)
                if refusal:
                    reply(Answer(refusal, known))
                else:
                    if known is not None and isinstance(question, Register):
                        self.elections.take_start(known, question.replica)
                    self._propose(question, reply, now)
        self.advance(now)

    def step(self, now: float) -> float:
        """Do the due work; return the time of the next call at the latest."""
        self.raft.step(now)
        self.advance(now)
        due = self.raft.deadline
        if self._led:
            due = min(due, self.elections.deadline(self.sets.sets, now))
        return due

    def advance(self, now: float) -> None:
        """Answer the requests whose entries were applied, and hold the elections that are due."""
        for done in self.raft.take_applied():
            self._applied(done.index, done.term, done.result)
        self.elections.agree(self.sets.lease_ms / 1000)
        if not self.raft.is_leading(now):
            # Even if this member leads again in the same term: it heard no heartbeats in between.
            self._led = 0
            if self.raft.leader != self.raft.me:
                self.give_up()
            return
        if self._led != self.raft.term:
            is_new_term = self._last_led != self.raft.term
            self._led = self._last_led = self.raft.term
            if is_new_term:
                self._electing, self._leasing = {}, 0
            self.elections.begin(now, is_new_term=is_new_term, inherited=self.sets.sets)
            self.elections.evidence.doubt(self.raft.is_doubtful)
        evidence = self.elections.evidence
        if evidence.is_doubtful and not evidence.has_inherited:
            evidence.doubt(False)
            self.raft.trust()
        for elect in self.elections.due(self.sets.sets, now):
            if not self._is_proposed(elect.name):
                log.warning("%s: %d is to be master after epoch %d", elect.name, elect.master, elect.epoch)
                index, term = self.raft.propose(encode(elect), now)
                self._electing[elect.name] = index
                count = partial(self._elected, is_unclean=elect.is_unclean)
                self._waiting.add(index, (term, count))
        for points in evidence.unsaved(self.sets.sets, now):
            self.raft.propose(encode(Confirmed(points)), now)
        lease_s = self.elections.due_lease(now)
        if lease_s is not None and self._leasing <= self.raft.applied:
            before_s = self.elections.agreed_s
            log.warning("leases of masters last %g s (controllerLeaseMs), no longer %g s", lease_s, before_s)
            self._leasing, _ = self.raft.propose(encode(Lease(round(lease_s * 1000))), now)

    def _elected(self, answer: Answer | NotLeader, *, is_unclean: bool) -> None:
        if isinstance(answer, Answer) and not answer.refusal:
            self.elected += 1
            self.elected_uncleanly += is_unclean

    def _is_proposed(self, name: str) -> bool:
        return self._electing.get(name, 0) > self.raft.applied

    def _heard(self, heartbeat: Heartbeat, now: float) -> Answer:
        self.elections.take_lease_length(heartbeat)
        known = self.sets.sets.get(heartbeat.name)
        if known is None:
            return Answer(f"there is no broker set {heartbeat.name}: register")
        self.elections.meet(known)
        is_behind = self.elections.evidence.knows_more(heartbeat, known)
        if why := self.elections.refusal(heartbeat, known):
            return Answer(why, is_behind=is_behind)
        if heartbeat.number not in known.replicas:
            return Answer(f"replica {heartbeat.number} of {heartbeat.name} was removed: register", known)
        is_leased = self.elections.hear(heartbeat, known, now)
        hands_over = known.master == heartbeat.number and self.elections.is_handing_over(known)
        lease_s, members = self.elections.lease_s, self._members()
        leaving = self.elections.leaving(known)
        return Answer(
            "", known, heartbeat.number, is_leased, lease_s, hands_over, members, leaving, is_behind
        )

    def _elect_on_request(self, request: ElectRequest, now: float) -> Answer:
        known = self.sets.sets.get(request.name)
        if known is None:
            names = ", ".join(sorted(self.sets.sets)) or "none"
            return Answer(f"the controllers know no broker set {request.name}; they know: {names}")
        if request.is_unclean:
            refusal = self._refused_unclean(known, request.number, now)
            if not refusal:
                self.elections.choose_unclean_successor(known, request.number)
            return Answer(refusal, known, NOBODY if refusal else request.number)
        if self.elections.evidence.doubts(request.name):
            why = (
                f"the controllers' journal was damaged: {request.name} gets a master without this "
                "command, once all of its replicas have answered; --unclean elects a replica now, and "
                "loses the messages that it lacks"
            )
            return Answer(why, known)
        if self.elections.evidence.has_lost(request.name, request.number):
            return Answer(
                f"replica {request.number} of {request.name} lacks messages that were confirmed", known
            )
        if request.number not in known.in_sync:
            there = ", ".join(map(str, known.in_sync))
            return Answer(f"{request.name} has no replica {request.number} in sync; in sync: {there}", known)
        if not self.elections.lives(request.name, request.number, now):
            return Answer(f"replica {request.number} of {request.name} was not heard of", known)
        self.elections.choose_successor(known, request.number)
        return Answer("", known, request.number)

    def _refused_unclean(self, known: BrokerSet, number: int, now: float) -> str:
        """The reason why a replica that is not in sync cannot become the master; empty when it can."""
        elections, name = self.elections, known.name
        living = [one for one in known.in_sync if elections.lives(name, one, now)]
        living = [one for one in living if not elections.evidence.has_lost(name, one)]
        if number not in known.replicas:
            return f"{name} has no replica {number}"
        if living and not elections.evidence.doubts(name):
            there = ", ".join(map(str, living))
            return f"replica {there} of {name} is in sync and lives: nothing has to be lost"
        if now < max(elections.leased_until(name), elections.are_earlier_over_at):
            return f"the lease of the master of {name} is not over, or replicas were not heard yet: try again"
        if elections.evidence.is_behind(known):
            return f"the controllers' table of {name} is an old one"
        reach = elections.reach(name, number) if elections.lives(name, number, now) else None
        if reach is None or reach == UNKNOWN:
            return f"replica {number} of {name} was not heard of, or has not opened its log"
        return ""

    # ---- members ----

    def _members(self) -> tuple[str, ...]:
        return tuple(sorted(self.raft.members.values()))

    def _add(self, address: str, now: float) -> Answer:
        raft = self.raft
        refusal = refused_address(raft.address, address)
        if address in raft.members and address not in raft.lost_journal:
            return Answer(controllers=self._members())
        if address in raft.members:
            # A majority may rest on data that this member has forgotten, such as its votes.
            refusal = f"{address} is a controller that has lost its journal: drop it first, then add it"
        if not refusal and raft.learners not in ([], [address]):
            refusal = f"{', '.join(raft.learners)} is being added: wait until it is a member, or drop it"
        if not refusal and len(raft.members) >= MEMBERS_MAX:
            refusal = f"there are {MEMBERS_MAX} controllers already: drop one first"
        if not refusal:
            try:
                raft.add(address, address, now)
            except ChangeUnderWay as error:
                refusal = f"{error}: try again in a moment"
        return Answer(refusal, controllers=self._members())

    def _drop(self, address: str, reply: Reply, now: float) -> None:
        raft = self.raft
        rest = set(raft.members) - {address}
        refusal = ""
        if address not in raft.members and address not in raft.learners:
            refusal = f"{address} is none of the controllers; they are {', '.join(self._members())}"
        elif not rest:
            refusal = f"{address} is the only controller: add another first, or stop it"
        elif address in raft.members and len(raft.heard(now) & rest) <= len(rest) // 2:
            silent = ", ".join(sorted(rest - raft.heard(now)))
            refusal = f"the rest would have no majority: {silent} was not heard; drop that one first"
        try:
            place = None if refusal else raft.remove(address, now)
        except ChangeUnderWay as error:
            place, refusal = None, f"{error}: try again in a moment"
        if place is None:
            reply(Answer(refusal, controllers=self._members()))
        else:
            index, term = place
            self._waiting.add(index, (term, reply))

    # ---- the log ----

    def _refused(self, known: BrokerSet, command: Register | AlterInSync | Adopt | Remove, now: float) -> str:
        """The reason to refuse a request before it goes to the log; empty without one. The log has no clock,
        and does not know which replicas live."""
        if isinstance(command, AlterInSync):
            is_behind = self.elections.evidence.is_behind(known)
            return f"the controllers' table of {known.name} is an old one" if is_behind else ""
        if isinstance(command, Adopt):
            return self._refused_adoption(known, command.broker_set, now)
        if isinstance(command, Remove):
            return self._refused_removal(known, command.number, now)
        number = known.number_of(command.replica.identity)
        one, new = known.replicas.get(number), command.replica
        if one is None and self._may_be_old(known, now):
            # An older table would give the broker a number that another replica has.
            return f"the master of {known.name} was not heard yet, which may know of more replicas: wait"
        if one is None or (one.address, one.ha_address) == (new.address, new.ha_address):
            return ""
        if not self.elections.may_live(known.name, number, now):
            return ""
        return (
            f"replica {number} of {known.name} lives at {one.address}: if this store's folder is a "
            "copy of that replica's, remove config/controller.json here"
        )

    def _refused_removal(self, known: BrokerSet, number: int, now: float) -> str:
        """The reason to refuse the removal of a replica; empty without one. The replica may have a lease of
        an earlier leader, or delay acknowledgements."""
        elections, one = self.elections, known.replicas.get(number)
        if one is None or not elections.may_live(known.name, number, now):
            return ""
        if elections.lives(known.name, number, now):
            return (
                f"replica {number} of {known.name} lives at {one.address}: stop it first; it counts as living"
                f" for {elections.lease_s:g} s more"
            )
        return (
            f"replica {number} of {known.name} may live at {one.address}: this controller has led for too"
            f" short a time to know; try again in {max(0.1, elections.are_earlier_over_at - now):.1f} s"
        )

    def _may_be_old(self, known: BrokerSet, now: float) -> bool:
        evidence = self.elections.evidence
        return evidence.is_behind(known) or (
            evidence.is_inherited(known.name) and now < self.elections.are_earlier_over_at + evidence.gather_s
        )

    def _refused_adoption(self, known: BrokerSet, reported: BrokerSet, now: float) -> str:
        """The reason to refuse a replica's later version of a set; empty when the table adopts it. Within an
        epoch the later version is right. Beyond a later epoch an even later epoch may exist, whose master may
        have a lease."""
        elections = self.elections
        if reported.epoch == known.epoch:
            log.error(
                "%s: the controllers have version %d of epoch %d, replicas were told version %d: the table is"
                " an old one, and takes theirs",
                *(known.name, known.version, known.epoch, reported.version),
            )
            return ""
        if now < elections.are_earlier_over_at or not elections.evidence.all_heard(known, reported):
            return (
                f"{known.name} is at epoch {known.epoch} here, and was at {reported.epoch}: all of its"
                " replicas must be heard before that is believed"
            )
        elections.expect_master(known.name, now)
        return ""

    def _propose(self, command: Register | AlterInSync | Adopt | Remove, reply: Reply, now: float) -> None:
        if len(self._waiting) >= WAITING_MAX:
            reply(Answer("too many requests wait: try again"))
            return
        index, term = self.raft.propose(encode(command), now)
        self._waiting.add(index, (term, reply))

    def _applied(self, index: int, term: int, result: Outcome | dict[str, str] | None) -> None:
        for proposed, reply in self._waiting.end(index):
            if proposed != term or result is None:
                reply(self._not_leader())
            elif isinstance(result, dict):
                reply(Answer(controllers=tuple(sorted(result.values()))))
            else:
                reply(Answer(result.refusal, result.broker_set, result.number))

    def give_up(self) -> None:
        """Answer NotLeader to all requests that wait for the log."""
        for _, reply in self._waiting.drain():
            reply(self._not_leader())

    def _not_leader(self) -> NotLeader:
        return NotLeader(self.raft.leader_address if self.raft.leader != self.raft.me else "")


def refused_address(own: str, address: str) -> str:
    """The reason why a controller with the address `own` refuses another controller at `address`; empty when
    it accepts."""
    try:
        known = parse_addresses(address, "controller")
    except ConfigError as error:
        return str(error)
    if known != [address]:
        return f"{address!r} is not an address host:port"
    if is_loopback(_host(own)) and not is_loopback(_host(address)):
        return f"this controller is known as {own}, which {address} cannot reach: it needs `controllers`"
    return ""


def _host(address: str) -> str:
    return address.rpartition("://")[2].rpartition(":")[0].strip("[]")
