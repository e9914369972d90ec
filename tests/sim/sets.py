"""A simulation of a broker set: real controllers, and brokers that are a `Replica` over the model of a log.

The controllers run as in `controllers`, under the same faults. A broker of this model has a log of values,
of which a prefix is on its disk; it asks the controllers, leads, follows and copies by the rules of
`Replica`, and is killed, cut off, paused and deprived of power as well. A client sends values to whoever
takes them.

What must hold: nothing acknowledged is lost by a clean election; one broker at a time may act as master;
nobody acknowledges for an epoch that is over; and messages are acknowledged again after all is healed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from attrs import define, field

from rmq.controller.consensus.raft import NotLeader, Raft
from rmq.controller.controller import Answer, Controller, ElectRequest, Request
from rmq.controller.elections import Elections
from rmq.controller.heartbeat import Heartbeat
from rmq.controller.replica import Epochs, Replica, common_end
from rmq.controller.sets import Adopt, AlterInSync, BrokerSets, Register
from rmq.controller.sets import Replica as Registered
from tests.sim.controllers import Member, Simulation, Violation

LEASE_SECONDS = 2.0
LEASES = (0.7, LEASE_SECONDS, 4.0)
LAG_SECONDS = 1.5
TICK_SECONDS = 0.25
FIRST_THAT_DIFFER = 3_000
"""From this seed on controllers have different leases, another at each start."""
WANTS_FROM = 10_000
"""In half of the seeds from here on an operator asks for other masters; seeds below go as before."""


@define(eq=False)
class Broker:
    """A model of a broker. `log` is lost behind `flushed` by a power cut; `epochs` are those on the disk."""

    name: str
    offset: float
    rate: float
    log: list[int] = field(factory=list)
    flushed: int = 0
    epochs: Epochs = ()
    known: int = 0
    life: int = 0
    is_up: bool = False
    paused_until: float = 0.0
    replica: Replica | None = None
    changing: bool = False
    sent: dict[int, int] = field(factory=dict)  # offset -> value that a client waits for
    agreed: tuple[int, int] = (0, 0)  # as `Heartbeat.confirmed`

    def clock(self, now: float) -> float:
        return self.offset + self.rate * now


class SetSimulation(Simulation):
    """`run()` raises Violation; see the module."""

    kind = "sets"
    gather_s = 10.0

    def __init__(self, seed: int, *, brokers: int = 3, members: int = 3, seconds: float = 60.0) -> None:
        super().__init__(seed, members=members, seconds=seconds, spare=0)
        self.controllers: dict[str, Controller] = {}
        chance = self.chance
        self.brokers = {
            name: Broker(name, chance.uniform(0, 1e6), chance.uniform(0.96, 1.04))
            for name in [f"b{number}" for number in range(brokers)]
        }
        self.acknowledged: dict[int, tuple[int, int]] = {}  # offset -> value, and the epoch of its master
        self.last_epoch = 0  # for which something was acknowledged
        self.values = 0
        self.last_ack = 0.0
        self.link = (0.001, 0.01)
        kinds = (self.kill_broker, self.cut_broker, self.pause_broker, self.slow_disk, self.black_out)
        self.broker_faults = self.chance.sample(kinds, self.chance.randrange(1, len(kinds) + 1))
        self.wants = Random(f"{seed} wants")
        self.has_wants = seed >= WANTS_FROM and self.wants.random() < 0.5
        if self.has_wants:
            self.pace = 0.1  # most of the time a controller leads
        self.broker_cuts: set[str] = set()
        self.flush_share = 0.9
        # An operator changes the lease, at one controller after the other.
        self.differ, self.settings = seed >= FIRST_THAT_DIFFER, Random(seed)

    @classmethod
    def of(cls, seed: int) -> SetSimulation:
        return cls(seed, brokers=2 + seed % 2)

    def run(self) -> None:
        for number, name in enumerate(self.brokers):
            self.at(1.0 + 2.0 * number, lambda name=name: self.start_broker(name))
        self.at(3.0, self.produce)
        self.at(4.0, self.broker_fault)
        if self.has_wants:
            self.at(8.0, self.want)
        super().run()

    # ---- controllers ----

    def machine(self) -> Any:
        return BrokerSets(round(LEASE_SECONDS * 1000))

    def started(self, member: Member) -> None:
        assert member.raft is not None
        lease_s = self.settings.choice(LEASES) if self.differ else LEASE_SECONDS
        elections = Elections(lease_s, gather_s=self.gather_s)
        self.controllers[member.name] = Controller(member.raft, member.machine, elections)

    def propose(self) -> None:
        """Entries come of brokers here."""

    def change_member(self, name: str) -> None:
        """The members stay."""

    def check(self, member: Member, raft: Raft) -> None:
        self.check_leases()

    def check_agreement(self) -> None:
        leaders = [
            one for one in self.members.values() if one.raft and one.raft.is_leading(one.clock(self.now))
        ]
        if len(leaders) != 1:
            raise Violation(f"{len(leaders)} leaders after healing")
        if self.now - self.last_ack > 2.0:
            raise Violation(f"nothing was acknowledged since {self.last_ack:.1f}: {leaders[0].machine.sets}")

    def wake(self, name: str) -> None:
        """Controllers are stepped at a fixed pace here: elections wait for leases too."""
        member = self.members[name]
        life = member.life

        def tick() -> None:
            if member.raft is not None and member.life == life:
                self.call(name, lambda raft, now: self.controllers[name].step(now))
                self.at(max(self.now + 0.05, member.paused_until), tick)

        if member.step_at != life:
            member.step_at = life
            self.at(self.now + 0.05, tick)

    # ---- brokers and what they ask ----

    def ask(self, broker: Broker, question: Request, took: Callable[[Answer], None]) -> None:
        """Ask all controllers; the answer of the leader comes back, unless it is lost."""
        life = broker.life
        if broker.name in self.broker_cuts:
            return

        def answered(answer: Answer | NotLeader) -> None:
            if isinstance(answer, Answer) and broker.name not in self.broker_cuts:
                self.at(
                    self.now + self.chance.uniform(*self.delay),
                    lambda: self.on_broker(broker, life, lambda: took(answer)),
                )

        for name in self.members:
            when = self.now + self.chance.uniform(*self.delay)
            self.at(
                when,
                lambda name=name: self.call(
                    name, lambda raft, now: self.controllers[name].submit(question, answered, now)
                ),
            )

    def on_broker(self, broker: Broker, life: int, work: Callable[[], None]) -> None:
        if not broker.is_up or broker.life != life:
            return
        if broker.paused_until > self.now:
            self.at(broker.paused_until, lambda: self.on_broker(broker, life, work))
            return
        work()
        self.check_masters()

    def start_broker(self, name: str) -> None:
        broker = self.brokers[name]
        if broker.is_up:
            return
        broker.is_up, broker.life, broker.replica, broker.changing = True, broker.life + 1, None, False
        broker.sent, broker.agreed = {}, (0, 0)
        self.tick(broker, broker.life)

    def tick(self, broker: Broker, life: int) -> None:
        """Do a broker's repeated work once."""
        if not broker.is_up or broker.life != life:
            return
        self.on_broker(broker, life, lambda: self.beat(broker))
        self.at(self.now + self.chance.uniform(0.5, 1.0) * TICK_SECONDS, lambda: self.tick(broker, life))

    def beat(self, broker: Broker) -> None:
        if self.chance.random() < self.flush_share:
            broker.flushed = len(broker.log)
        replica, asked_at = broker.replica, broker.clock(self.now)
        if replica is None:
            self.register(broker)
            return
        epoch = max(replica.epoch, broker.known)  # as `ReplicaManager.heartbeat`
        heartbeat = Heartbeat(
            "s",
            replica.number,
            broker.life,
            epoch,
            broker.flushed,
            identity=broker.name,
            knows=self.known(replica),
            acted=replica.epoch,
            confirmed=self.agreed(broker, replica, asked_at),
            lease_s=replica.longest_lease_s,
        )
        self.ask(broker, heartbeat, lambda answer: self.beaten(broker, answer, asked_at, heartbeat.epoch))
        if replica.is_master(asked_at):
            self.master_beat(broker, replica)
        else:
            self.slave_beat(broker, replica)

    def register(self, broker: Broker) -> None:
        registered = Registered(broker.name, broker.life, broker.name, broker.name)
        question = Register("c", "s", registered, broker.name == "b0", broker.known)
        self.ask(broker, question, lambda answer: self.registered(broker, answer))

    def known(self, replica: Replica) -> tuple[int, int]:
        """Epoch and version of the set as a replica knows it."""
        known = replica.broker_set
        return (0, 0) if known is None else (known.epoch, known.version)

    def agreed(self, broker: Broker, replica: Replica, now: float) -> tuple[int, int]:
        """Same as `ReplicaManager._agree`; records are whole in this simulation."""
        agreed = replica.agreed(broker.flushed, now)
        if agreed is not None:
            before = broker.agreed[1] if broker.agreed[0] == replica.epoch else 0
            broker.agreed = replica.epoch, max(agreed, before)
        return broker.agreed

    def registered(self, broker: Broker, answer: Answer) -> None:
        if not answer.number or answer.broker_set is None:
            return
        if broker.replica is not None and broker.replica.number == answer.number:
            self.learn(broker, answer)
        elif broker.replica is None:
            broker.replica = Replica(answer.number, broker.epochs, lag_s=LAG_SECONDS)
            self.learn(broker, answer)

    def beaten(self, broker: Broker, answer: Answer, asked_at: float, epoch: int) -> None:
        replica = broker.replica
        if answer.is_behind and replica is not None and replica.broker_set is not None:
            self.count("table taken over")
            self.ask(broker, Adopt(replica.broker_set), lambda answer: None)
        if replica is not None and answer.refusal.endswith(": register"):
            self.register(broker)
        if replica is None or answer.broker_set is None:
            return
        self.learn(broker, answer)
        replica.take_lease_length(answer.lease_s, broker.clock(self.now))
        if answer.is_leased and epoch == replica.epoch == answer.broker_set.epoch:
            replica.lease(answer.broker_set.epoch, asked_at, answer.lease_s)

    def learn(self, broker: Broker, answer: Answer) -> None:
        replica, known = broker.replica, answer.broker_set
        assert replica is not None
        assert known is not None
        if replica.take_set(known) and known.master == replica.number:
            broker.flushed = len(broker.log)
            replica.lead(known.epoch, len(broker.log), broker.clock(self.now))
            broker.epochs, broker.known = replica.epochs, known.epoch
            broker.sent = {}
            self.note("lead", broker.name, known.epoch, len(broker.log))
            # It may hear so late that later epochs have begun; what these acknowledged it need not have.
            lost = [
                at
                for at, (value, epoch) in self.acknowledged.items()
                if epoch < known.epoch and broker.log[at : at + 1] != [value]
            ]
            if lost:
                raise Violation(f"{broker.name} leads epoch {known.epoch} without {len(lost)} acknowledged")

    # ---- replication ----

    def slave_beat(self, broker: Broker, replica: Replica) -> None:
        """Copy from whom the controllers name: greet, cut, follow, report."""
        known = replica.broker_set
        if known is None or known.master in (0, replica.number) or broker.name in self.broker_cuts:
            return
        master = self.brokers[known.replicas[known.master].identity]
        life, epoch = broker.life, known.epoch
        reach, epochs = len(broker.log), replica.epochs

        def greeted() -> None:
            other = master.replica
            if other is None or other.epoch != epoch or not other.is_master(master.clock(self.now)):
                return
            if master.name in self.broker_cuts:
                return
            if replica.epoch == epoch:
                end: int | None = reach
            else:
                end = common_end(epochs, reach, other.epochs, len(master.log)) if reach else 0
            start = 0 if end is None else end
            data, full = master.log[start : start + 200], other.epochs
            self.at(
                self.now + self.chance.uniform(*self.link),
                lambda: self.on_broker(
                    broker, life, lambda: self.copied(broker, epoch, reach, start, data, full)
                ),
            )

        self.at(
            self.now + self.chance.uniform(*self.link),
            lambda: self.on_broker(master, master.life, greeted),
        )

    def copied(
        self, broker: Broker, epoch: int, reach: int, start: int, data: list[int], full: Epochs
    ) -> None:
        replica = broker.replica
        assert replica is not None
        known = replica.broker_set
        if known is None or known.epoch != epoch or len(broker.log) != reach or replica.epoch > epoch:
            return
        if known.master not in known.replicas:
            return
        if replica.epoch == epoch and start != reach:
            return
        if replica.epoch != epoch:
            del broker.log[start:]
            broker.flushed = min(broker.flushed, start)
            replica.follow(epoch, full)
            broker.epochs, broker.known = full, epoch
            self.note("follow", broker.name, epoch, start)
        broker.log += data
        if self.chance.random() < self.flush_share:
            broker.flushed = len(broker.log)
        master = self.brokers[known.replicas[known.master].identity]
        number, flushed = replica.number, broker.flushed

        def reported() -> None:
            other = master.replica
            if other is not None and not {broker.name, master.name} & self.broker_cuts:
                other.report(number, epoch, flushed, len(master.log), master.clock(self.now))
                self.acknowledge(master)

        self.at(
            self.now + self.chance.uniform(*self.link), lambda: self.on_broker(master, master.life, reported)
        )

    def master_beat(self, broker: Broker, replica: Replica) -> None:
        self.acknowledge(broker)
        now, known = broker.clock(self.now), replica.broker_set
        assert known is not None
        if broker.changing:
            return
        wanted = replica.change(broker.flushed, now)
        if wanted is not None:
            broker.changing = True
            life = broker.life

            def give_up() -> None:
                if broker.life == life:
                    broker.changing = False

            def changed(answer: Answer) -> None:
                broker.changing = False
                self.learn(broker, answer) if answer.broker_set else None

            self.at(self.now + 1.0, give_up)
            self.ask(broker, AlterInSync("s", known.epoch, known.version, wanted), changed)

    # ---- clients ----

    def produce(self) -> None:
        broker = self.chance.choice(list(self.brokers.values()))

        def send() -> None:
            replica = broker.replica
            if replica is not None and replica.is_master(broker.clock(self.now)):
                self.values += 1
                broker.sent[len(broker.log)] = self.values
                broker.log.append(self.values)
                self.acknowledge(broker)

        self.on_broker(broker, broker.life, send)
        self.at(self.now + self.chance.expovariate(50.0), self.produce)

    def acknowledge(self, broker: Broker) -> None:
        replica = broker.replica
        assert replica is not None
        now = broker.clock(self.now)
        if not replica.is_master(now):
            return
        safe = replica.ack_limit(broker.flushed, now)
        done = [at for at in broker.sent if at < safe]
        for at in done:
            value = broker.sent.pop(at)
            if self.acknowledged.setdefault(at, (value, replica.epoch))[0] != value:
                raise Violation(f"offset {at} was acknowledged twice, for two messages")
            if replica.epoch < self.last_epoch:
                raise Violation(
                    f"{broker.name} acknowledges for epoch {replica.epoch}, {self.last_epoch} has begun"
                )
            self.last_epoch, self.last_ack = replica.epoch, self.now
            self.accepted += 1
        if done:
            self.note("acknowledged", broker.name, replica.epoch, safe)

    def check_masters(self) -> None:
        masters = [
            one.name
            for one in self.brokers.values()
            if one.is_up and one.replica is not None and one.replica.is_master(one.clock(self.now))
        ]
        if len(masters) > 1:
            raise Violation(f"{' and '.join(masters)} may act as master at the same time")

    # ---- faults of brokers ----

    def broker_fault(self) -> None:
        if self.healed:
            return
        names = list(self.brokers)
        masters = [
            one.name
            for one in self.brokers.values()
            if one.replica is not None and one.replica.is_master(one.clock(self.now))
        ]
        name = masters[0] if masters and self.chance.random() < 0.6 else self.chance.choice(names)
        self.chance.choice(self.broker_faults)(self.brokers[name])
        self.at(self.now + self.chance.expovariate(0.5), self.broker_fault)

    def black_out(self, broker: Broker) -> None:
        """All brokers lose power at once."""
        for one in self.brokers.values():
            self.kill_broker(one, power=True)

    def kill_broker(self, broker: Broker, power: bool | None = None) -> None:
        if not broker.is_up:
            return
        power = self.chance.random() < 0.5 if power is None else power
        if power:
            kept = self.chance.randint(broker.flushed, len(broker.log))
            del broker.log[kept:]
            broker.flushed = len(broker.log)
        broker.is_up, broker.replica = False, None
        self.count("broker power cut" if power else "broker killed")
        self.at(self.now + self.chance.choice((0.1, 1.0, 5.0, 12.0)), lambda: self.start_broker(broker.name))

    def cut_broker(self, broker: Broker) -> None:
        self.broker_cuts.add(broker.name)
        self.count("broker cut off")
        away = self.chance.choice((0.5, 2.5, 6.0))
        self.at(self.now + away, lambda: self.broker_cuts.discard(broker.name))

    def pause_broker(self, broker: Broker) -> None:
        broker.paused_until = self.now + self.chance.choice((0.5, 3.0, 8.0))
        self.count("broker paused")

    def want(self) -> None:
        """An operator asks the master for another one. Mostly the master is away from about when its last
        lease ends, and the controllers take some tenths of a second to agree."""
        if self.healed:
            return
        chance = self.wants
        self.at(self.now + chance.uniform(0.5, 4.0), self.want)
        for broker in self.brokers.values():
            replica = broker.replica
            if replica is None or not replica.is_master(broker.clock(self.now)):
                continue
            assert replica.broker_set is not None
            others = [number for number in replica.broker_set.in_sync if number != replica.number]
            if not others:
                continue
            self.ask(broker, ElectRequest("s", chance.choice(others)), lambda answer: None)
            self.count("another master wanted")
            if chance.random() < 0.7:
                over = self.now + max(one.elections.lease_s for one in self.controllers.values())
                self.at(over + chance.uniform(-0.2, 1.0), lambda broker=broker: self.cut_broker(broker))
                self.slow_agreement(chance.uniform(0.1, 0.4), over + 2.0)

    def slow_agreement(self, seconds: float, until: float) -> None:
        """Messages between controllers take longer, no leader loses its lease by it."""
        links = [(one, other) for one in self.members for other in self.members if one != other]
        self.slow.update(dict.fromkeys(links, seconds))

        def mend() -> None:
            for link in links:
                self.slow.pop(link, None)

        self.at(until, mend)

    def slow_disk(self, broker: Broker) -> None:
        self.flush_share = self.chance.choice((1.0, 0.3, 0.05))
        self.link = self.chance.choice(((0.001, 0.01), (0.001, 0.5)))
        self.count("slow disks and links")

    def heal(self) -> None:
        super().heal()
        self.broker_cuts.clear()
        self.flush_share, self.link = 0.95, (0.001, 0.01)
        for broker in self.brokers.values():
            broker.paused_until = 0.0
            self.start_broker(broker.name)
