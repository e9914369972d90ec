"""A simulation of the controllers: the Raft core and its journal under crashes, cuts and delays, from a seed.

Members are real: `Raft` over a `Journal` on a `MemoryDisk`. Time, network and power are simulated in one
loop without an event loop. What must hold is checked at every step (`Violation`): one leader in a term, one
leader that holds a lease, the same entries in the same places everywhere, what a leader says in its lease is
never behind what anybody was told, and all agree some seconds after all faults are over.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from typing import Any

import msgspec
from attrs import define, field

from rmq.controller.consensus.journal import MEMBERS, Journal
from rmq.controller.consensus.raft import ENTRIES_MAX, ChangeUnderWay, NotLeader, Raft, Role, Timing
from rmq.errors import CorruptRecord, RemoteProtocolError, StoreError
from rmq.testing.disk import MemoryDisk

TIMING = Timing(election_s=1.0, heartbeat_s=0.2, drift=0.1)
FILE_BYTES = 1 << 17
COMPACT_ENTRIES = 60
RATES = (0.96, 1.04)
"""How fast clocks run; their quotient stays within the drift that Timing allows."""
UNHEARD_FROM = 700_000
"""In half of the seeds from here on leaders change members while nobody hears them; others go as before."""
SHORT_FROM = 800_000
"""In half of the seeds from here on a message between controllers holds one or two entries."""
HEALING_SECONDS = 15.0
"""So long after the last fault all must agree."""


class Violation(AssertionError):
    """A broken rule."""


class PowerCut(Exception):
    """The power goes in the middle of a write."""


class Register:
    """The state machine: how many commands there were, and what they were, as one hash."""

    def __init__(self) -> None:
        self.restore(b"")

    def apply(self, data: bytes) -> int:
        self.count += 1
        self.digest = hashlib.blake2b(self.digest + data, digest_size=8).digest()
        return self.count

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode((self.count, self.digest))

    def restore(self, data: bytes) -> None:
        self.count, self.digest = msgspec.msgpack.decode(data, type=tuple[int, bytes]) if data else (0, b"")


@define(eq=False)
class Member:
    """One controller: its disk outlives it."""

    name: str
    disk: MemoryDisk
    offset: float
    rate: float
    raft: Raft | None = None
    machine: Register = field(factory=Register)
    paused_until: float = 0.0
    step_at: float = 0.0
    life: int = 0
    jump: float = 0.0
    """By how much the wall clock was set; the core must never see it."""

    def clock(self, now: float) -> float:
        """The clock that never runs back."""
        return self.offset + self.rate * now


class Simulation:
    """`run()` raises Violation; `trace` is a hash of all that happened, `counts` what faults there were."""

    kind = "controllers"

    @classmethod
    def of(cls, seed: int) -> Simulation:
        """The simulation that a seed names: its number of members, too."""
        return cls(seed, members=(3, 3, 5, 1)[seed % 4])

    def __init__(self, seed: int, *, members: int = 3, seconds: float = 60.0, spare: int = 1) -> None:
        self.chance = random.Random(seed)
        self.seconds = seconds
        self.now = 0.0
        self.counts: dict[str, int] = {}
        self._trace = hashlib.blake2b(digest_size=16)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        names = [f"n{number}" for number in range(members + spare)]
        self.first = {name: name for name in names[:members]}
        self.members = {name: self._new(name) for name in names}
        self.cuts: set[tuple[str, str]] = set()
        self.loss, self.delay, self.twice = 0.0, (0.001, 0.01), 0.0
        self.slow: dict[tuple[str, str], float] = {}  # seconds that a link takes
        self.healed = False
        kinds = (
            self.kill,
            self.cut_power,
            self.crash_all,
            self.cut_in_write,
            self.fail_disk,
            self.pause,
            self.set_clock,
            self.partition,
            self.one_link,
            self.slow_links,
            self.mend_links,
            self.restart_often,
            self.change_members,
        )
        # Some kinds only, others for each seed: what all together hide, few show.
        self.faults = self.chance.sample(kinds, self.chance.randrange(2, len(kinds)))
        if seed >= UNHEARD_FROM and random.Random(f"{seed} unheard").random() < 0.5:
            self.faults.append(self.change_unheard)
        short = random.Random(f"{seed} short")
        is_short = seed >= SHORT_FROM and short.random() < 0.5
        self.entries_max = short.randint(1, 2) if is_short else ENTRIES_MAX
        self.rate = self.chance.choice((0.2, 2.0, 20.0))  # proposals a second: who lags cannot win
        self.pace = self.chance.choice((0.2, 1.0, 2.0))
        self.leaders: dict[int, str] = {}  # term -> who led
        self.log: dict[int, tuple[int, bytes]] = {}  # index -> term and digest after it, as first applied
        self.changes: set[tuple[int, int]] = set()  # (term, index) of changes of members that were looked at
        self.voters: dict[int, list[str]] = {}  # index -> the members once it is applied
        self.told = 0  # the highest count that somebody was told
        self.waiting: dict[tuple[str, int, int], int] = {}  # (leader, life, index) -> term
        self.accepted = 0

    def _new(self, name: str) -> Member:
        chance = self.chance
        return Member(
            name, MemoryDisk(chance.randrange(1 << 30)), chance.uniform(0, 1e6), chance.uniform(*RATES)
        )

    # ---- events ----

    def at(self, when: float, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (when, self._number, what))

    def note(self, *what: object) -> None:
        self._trace.update(repr((round(self.now, 6), what)).encode())

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        self.note(what)

    @property
    def trace(self) -> str:
        return self._trace.hexdigest()

    def run(self) -> None:
        for name in self.members:
            self.start(name)
        self.found()
        self.at(0.5, self.propose)
        self.at(2.0, self.fault)
        self.at(self.seconds, self.heal)
        end = self.seconds + HEALING_SECONDS
        while self._queue and self._queue[0][0] < end:
            self.now, _, what = heapq.heappop(self._queue)
            what()
        self.check_agreement()

    def found(self) -> None:
        """Hand over what the first members ask each other at their first start."""
        rafts = {name: member.raft for name, member in self.members.items() if member.raft is not None}
        for name, raft in rafts.items():
            raft.step(self.members[name].clock(self.now))
        for _ in range(2):  # questions, answers
            for raft in rafts.values():
                for address, data in raft.take_messages():
                    rafts[address].receive(data, self.members[address].clock(self.now))

    # ---- members ----

    def start(self, name: str) -> None:
        member = self.members[name]
        if member.raft is not None:
            return
        member.life += 1
        member.machine = self.machine()
        try:
            journal = Journal(
                member.disk, "/raft", self.first if name in self.first else {}, file_bytes=FILE_BYTES
            )
        except CorruptRecord as error:
            raise Violation(f"{name} cannot start: {error}") from error
        except (StoreError, PowerCut) as error:
            if isinstance(error, PowerCut):
                member.disk.crash()
            self.at(self.now + 0.5, lambda: self.start(name))
            return
        member.raft = Raft(
            name,
            name,
            journal,
            member.machine,
            now=member.clock(self.now),
            chance=random.Random(self.chance.random()),
            timing=TIMING,
            compact_entries=COMPACT_ENTRIES,
            entries_max=self.entries_max,
        )
        self.started(member)
        self.note("start", name, journal.last, journal.term)
        self.wake(name)

    def machine(self) -> Any:
        """A new state machine."""
        return Register()

    def started(self, member: Member) -> None:
        """A member has begun another life."""

    def crash(self, name: str, *, power: bool, away: float | None = None) -> None:
        member = self.members[name]
        if member.raft is None or self.healed:
            return
        member.raft = None
        if power:
            member.disk.crash()
        self.count("power cut" if power else "kill")
        away = self.chance.choice((0.01, 0.3, 2.0, 8.0)) if away is None else away
        self.at(self.now + away, lambda: self.start(name))

    def wake(self, name: str) -> None:
        """Call `step` when the member wants it."""
        member = self.members[name]
        if member.raft is None:
            return
        due = self.now + max(0.0, member.raft.deadline - member.clock(self.now)) / member.rate + 1e-6
        due = max(due, member.paused_until + 1e-6)
        member.step_at = due

        def tick() -> None:
            if member.raft is not None and member.step_at == due:
                self.call(name, lambda raft, now: raft.step(now))
                self.wake(name)

        self.at(due, tick)

    def call(self, name: str, work: Callable[[Raft, float], Any]) -> Any:
        """Have a member do something, unless it is down; later when it is paused."""
        member = self.members[name]
        raft = member.raft
        if raft is None:
            return None
        if member.paused_until > self.now:
            life = member.life
            self.at(member.paused_until, lambda: self.call(name, work) if member.life == life else None)
            return None
        before = raft.deadline
        try:
            result = work(raft, member.clock(self.now))
        except StoreError:
            self.crash(name, power=False)
            return None
        except PowerCut:
            self.crash(name, power=True)
            return None
        except AssertionError as error:
            raise Violation(f"{name}: {error}") from error
        except RemoteProtocolError as error:
            raise Violation(f"{name} refuses what another sent: {error}") from error
        for address, data in raft.take_messages():
            self.send(name, address, data)
        self.check(member, raft)
        if raft.deadline != before:
            self.wake(name)
        return result

    def send(self, sender: str, to: str, data: bytes) -> None:
        if (sender, to) in self.cuts or self.chance.random() < self.loss:
            return
        for _ in range(1 + (self.chance.random() < self.twice)):
            when = self.now + self.slow.get((sender, to), 0.0) + self.chance.uniform(*self.delay)
            self.at(when, lambda: self.call(to, lambda raft, now: raft.receive(data, now)))

    # ---- clients ----

    def propose(self) -> None:
        """Ask any member for one more entry; and look at what the leader says."""
        name = self.chance.choice(list(self.members))
        told = self.told
        data = self.chance.randbytes(self.chance.choice((8, 8, 8, 9000)))

        def ask(raft: Raft, now: float) -> None:
            if raft.is_leading(now) and self.members[name].machine.count < told:
                raise Violation(f"{name} says {self.members[name].machine.count}, and {told} was told")
            try:
                index, term = raft.propose(data, now)
            except NotLeader:
                return
            self.waiting[name, self.members[name].life, index] = term
            self.note("propose", name, index, term)

        self.call(name, ask)
        self.at(self.now + self.chance.expovariate(self.rate), self.propose)

    # ---- faults ----

    def fault(self) -> None:
        if self.healed:
            return
        chance, names = self.chance, list(self.members)
        name = chance.choice(names)
        leaders = [one.name for one in self.members.values() if one.raft and one.raft.role is Role.LEADER]
        if leaders and chance.random() < 0.5:
            name = leaders[0]
        chance.choice(self.faults)(name)
        self.at(self.now + chance.expovariate(self.pace), self.fault)

    def kill(self, name: str) -> None:
        self.crash(name, power=False)

    def cut_power(self, name: str) -> None:
        self.crash(name, power=True)

    def crash_all(self, name: str) -> None:
        for one in self.members:
            self.crash(one, power=self.chance.random() < 0.5)

    def fail_disk(self, name: str) -> None:
        self.members[name].disk.fail(self.chance.choice(("write", "sync")))
        self.count("disk error")

    def pause(self, name: str) -> None:
        self.members[name].paused_until = self.now + self.chance.choice((0.5, 1.5, 4.0))
        self.count("pause")

    def set_clock(self, name: str) -> None:
        self.members[name].jump += self.chance.choice((-3600.0, -5.0, -1.0, 1.0, 5.0, 3600.0))
        self.count("clock set")

    def slow_links(self, name: str) -> None:
        self.loss = self.chance.choice((0.0, 0.05, 0.3))
        self.delay = self.chance.choice(((0.001, 0.01), (0.001, 0.4), (0.05, 1.5), (0.05, 4.0)))
        self.twice = self.chance.choice((0.0, 0.1))
        self.count("slow links")

    def mend_links(self, name: str) -> None:
        self.cuts.clear()
        self.count("links mended")

    def partition(self, name: str) -> None:
        others = [one for one in self.members if one != name]
        side = {name, *self.chance.sample(others, self.chance.randrange(2))}
        kind = self.chance.randrange(3)  # both ways, what they send, what they get
        for one in side:
            for other in self.members:
                if other not in side:
                    self.cuts |= {(one, other)} if kind != 2 else set()
                    self.cuts |= {(other, one)} if kind != 1 else set()
        self.count("partition" if kind == 0 else "one-way partition")

        def mend() -> None:
            self.cuts = {cut for cut in self.cuts if not side & set(cut)}

        self.at(self.now + self.chance.choice((0.5, 3.0, 10.0)), mend)

    def one_link(self, sender: str) -> None:
        """Cut one link, both ways or one, or make it slow one way."""
        raft = self.members[sender].raft
        voters = self.members if raft is None or self.chance.random() < 0.2 else raft.members
        to = self.chance.choice([one for one in voters if one != sender] or list(self.members))
        link, back, seconds = (sender, to), (to, sender), self.chance.choice((0.0, 0.0, 0.0, 0.7, 1.5, 2.5))
        if seconds:
            self.slow[link] = seconds
            self.count("slow link")
        else:
            self.cuts |= {link, back} if self.chance.random() < 0.7 else {link}
            self.count("one link cut")

        def mend() -> None:
            self.cuts -= {link, back}
            self.slow.pop(link, None)

        self.at(self.now + self.chance.choice((1.5, 4.0, 12.0)), mend)

    def restart_often(self, name: str) -> None:
        """Kill all but one again and again; they come back at once."""
        for number in range(self.chance.choice((1, 5))):
            for other in self.members:
                if other != name:
                    when = self.now + 0.4 * number + self.chance.uniform(0, 0.3)
                    self.at(when, lambda other=other: self.crash(other, power=False, away=0.01))

    def cut_in_write(self, name: str) -> None:
        """Cut the power within the next write or before its sync."""
        disk = self.members[name].disk
        place = self.chance.choice(("on_change", "on_sync"))

        def cut(*path: str) -> None:
            setattr(disk, place, None)
            raise PowerCut

        setattr(disk, place, cut)
        self.count("power cut in a write")

    def change_members(self, name: str) -> None:
        for _ in range(self.chance.randrange(1, 4)):
            self.change_member(name)

    def change_unheard(self, name: str) -> None:
        """Change members at one whose messages get lost, so that another leads and takes that back."""
        lost = {(name, other) for other in self.members if other != name}
        self.cuts |= lost
        self.count("unheard")
        self.change_members(name)

        def mend() -> None:
            self.cuts -= lost

        self.at(self.now + self.chance.choice((1.5, 4.0)), mend)

    def change_member(self, name: str) -> None:
        other = self.chance.choice(list(self.members))

        def change(raft: Raft, now: float) -> None:
            try:
                if other not in raft.members:
                    raft.add(other, other, now)
                elif len(raft.members) > 2:
                    raft.remove(other, now)
                self.count("change of members")
            except (NotLeader, ChangeUnderWay):
                pass

        self.call(name, change)

    def heal(self) -> None:
        self.healed = True
        self.cuts.clear()
        self.slow.clear()
        self.loss, self.delay, self.twice = 0.0, (0.001, 0.01), 0.0
        for name, member in self.members.items():
            member.paused_until = 0.0
            member.disk.heal()
            member.disk.on_change = member.disk.on_sync = None
            self.start(name)

    # ---- what must hold ----

    def check(self, member: Member, raft: Raft) -> None:
        for done in raft.take_applied():
            was = self.log.setdefault(done.index, (done.term, b""))
            if was[0] != done.term:
                raise Violation(f"entry {done.index}: {member.name} applied one of another term")
            term = self.waiting.pop((member.name, member.life, done.index), None)
            if term == done.term and done.result is not None:
                self.accepted += 1
                self.told = max(self.told, done.result)
                self.note("told", member.name, done.index, done.result)
        known = self.log.get(raft.applied)
        if known is not None:
            digest = member.machine.snapshot()
            if known[1] and known[1] != digest:
                raise Violation(f"entry {raft.applied}: {member.name} has another state there")
            self.log[raft.applied] = known[0], digest
        self.check_voters(member, raft)
        self.check_changes(member, raft)
        if raft.role is Role.LEADER and self.leaders.setdefault(raft.term, member.name) != member.name:
            raise Violation(f"term {raft.term}: {self.leaders[raft.term]} led, and so does {member.name}")
        self.check_leases()
        if len(raft._journal.entries) > 5000:
            raise Violation(f"{member.name} keeps {len(raft._journal.entries)} entries")

    def check_voters(self, member: Member, raft: Raft) -> None:
        changed, members = raft._journal.members()
        # Of a change on its way each may know or not; one that has just come knows nobody yet.
        if members and changed <= raft.applied:
            names = sorted(members)
            if self.voters.setdefault(raft.applied, names) != names:
                raise Violation(
                    f"entry {raft.applied}: the members are {names} at {member.name}, and "
                    f"{self.voters[raft.applied]} elsewhere"
                )

    def check_changes(self, member: Member, raft: Raft) -> None:
        """A leader changes members one at a time, and takes in nobody who lacks what is committed."""
        if raft.role is not Role.LEADER or raft.commit < raft._first:
            return
        journal = raft._journal
        changes = [n for n in range(journal.base + 1, journal.last + 1) if journal.entry(n).kind == MEMBERS]
        pending = [number for number in changes if number > raft.commit]
        if len(pending) > 1:
            raise Violation(f"{member.name} changes members at entries {pending}, and none is committed")
        if not pending or (raft.term, pending[0]) in self.changes:
            return
        self.changes.add((raft.term, pending[0]))
        before = journal.entry(changes[-2]).members if len(changes) > 1 else journal.snapshot.members
        for name in raft.members.keys() - before.keys():
            if raft._match_index[name] < raft.commit:
                raise Violation(f"{member.name} makes {name} a member, which lacks what is committed")

    def check_leases(self) -> None:
        now = self.now
        holders = [
            one.name for one in self.members.values() if one.raft and one.raft.is_leading(one.clock(now))
        ]
        if len(holders) > 1:
            raise Violation(f"{' and '.join(holders)} have a lease at the same time")

    def check_agreement(self) -> None:
        leaders = [
            one for one in self.members.values() if one.raft and one.raft.is_leading(one.clock(self.now))
        ]
        if len(leaders) != 1:
            raise Violation(f"{len(leaders)} leaders {HEALING_SECONDS:g} s after the last fault")
        (leader,) = leaders
        assert leader.raft is not None
        if leader.machine.count < self.told:
            raise Violation(f"{self.told} was told, and {leader.machine.count} is left")
        for name in leader.raft.members:
            raft = self.members[name].raft
            if raft is None or raft.applied < leader.raft.applied - 20:
                raise Violation(f"{name} is behind {leader.name} {HEALING_SECONDS:g} s after the last fault")
