"""The simulation of sets with controllers and replicas whose folders go back in time.

Controllers start again on what their disks had some seconds before, with an empty folder, or with a last
frame of which a bit has changed; a replica starts again on an old copy of its folder. At a time one thing is
lost that others have: the faults of `sets` go on, but none comes to brokers before the table has what they
were told, and none to the folder of a replica before all that was acknowledged is on the disks of two again.
Nothing that was acknowledged may be lost then. `gather_s` has no end here: when it does, the first that comes
is elected, and the others set their logs aside.
"""

from __future__ import annotations

import random
from typing import Any

from attrs import define

from rmq.controller.consensus.journal import Journal
from rmq.controller.replica import Epochs, Replica
from rmq.controller.sets import BrokerSet
from rmq.errors import CorruptRecord
from tests.sim.sets import Broker, SetSimulation

OLD_SECONDS = (5.0, 9.0)
"""So old is the copy of a replica's folder: what is confirmed reaches the controllers within a lease."""
GO_BACK_SECONDS = (0.5, 8.0)


@define
class Folder:
    """A copy of a broker's folder."""

    life: int
    log: list[int]
    epochs: Epochs
    known: int


class OldSets(SetSimulation):
    """`run()` raises Violation; see the module."""

    kind = "old"
    gather_s = 1e9

    def __init__(self, seed: int, *, brokers: int = 3, members: int = 3) -> None:
        super().__init__(seed, brokers=brokers, members=members)
        if members == 1:
            self.faults = [one for one in self.faults if one not in (self.partition, self.one_link)]
            self.faults = self.faults or [self.kill]
        self.old = random.Random(f"{seed} old")
        kinds = (
            *(self.old_tables, self.empty_folder, self.flipped_bit, self.old_folder),
            *(self.restart_on_a_copy, self.shrink_and_go_back),
        )
        self.deeds = self.old.sample(kinds, self.old.randrange(1, 4))
        self.links_cut = False
        self.lives = 0  # how often the controllers went back
        self.lost = (0, 0)  # the latest version of the set that the table may lack

    @classmethod
    def of(cls, seed: int) -> OldSets:
        return cls(seed, brokers=2 + seed % 2, members=(1, 3)[seed // 2 % 2])

    def run(self) -> None:
        self.at(6.0, self.go_back)
        super().run()

    def send(self, sender: str, to: str, data: bytes) -> None:
        """Send a message, but drop it if the controllers go back before it arrives: it would come from their
        future."""
        if (sender, to) in self.cuts or self.chance.random() < self.loss:
            return
        lives = self.lives
        when = self.now + self.slow.get((sender, to), 0.0) + self.chance.uniform(*self.delay)

        def receive() -> None:
            if self.lives == lives:
                self.call(to, lambda raft, now: raft.receive(data, now))

        self.at(when, receive)

    # ---- what goes back ----

    def go_back(self) -> None:
        if self.healed:
            return
        self.old.choice(self.deeds)()
        self.at(self.now + self.old.uniform(0.5, 5.0), self.go_back)

    def is_behind(self) -> bool:
        """True if no leader has a table yet that is as new as the table that went back, and as the latest
        table that a replica was told, maybe by an answer that arrived later."""
        for member in self.members.values():
            raft = member.raft
            if raft is not None and raft.is_leading(member.clock(self.now)):
                known = member.machine.sets.get("s")
                if known is not None and (known.epoch, known.version) >= max(self.lost, self.newest()):
                    self.lost = (0, 0)
        return self.lost != (0, 0)

    def are_brokers_well(self) -> bool:
        """True if all brokers run, and lead or follow in the newest epoch."""
        return not (self.is_behind() or self.broker_cuts) and all(
            one.is_up
            and one.paused_until <= self.now
            and one.replica is not None
            and one.replica.epoch == self.newest()[0]
            for one in self.brokers.values()
        )

    def newest(self) -> tuple[int, int]:
        replicas = [one.replica for one in self.brokers.values() if one.replica is not None]
        return max(map(self.known, replicas), default=(0, 0))

    def old_tables(self) -> None:
        """All controllers lose power later, and start on what they have now."""
        images = {name: member.disk.image(self.old.random()) for name, member in self.members.items()}

        def restore() -> None:
            if not self.healed and self.are_brokers_well():
                self.lost = self.newest()
                self.lives += 1
                for name, image in images.items():
                    self.replace_disk(name, image)
                self.count("tables went back")

        self.at(self.now + self.old.uniform(*GO_BACK_SECONDS), restore)

    def empty_folder(self) -> None:
        """One of three controllers loses its folder."""
        if len(self.members) > 1 and self.are_whole():
            self.replace_disk(self.old.choice(list(self.members)), None)
            self.count("empty folder")

    def flipped_bit(self) -> None:
        """A bit of the last frame of a controller's journal changes, and it starts again."""
        name = self.old.choice(list(self.members))
        member = self.members[name]
        if not self.are_whole() or not self.are_brokers_well():
            return
        member.disk.heal()
        image = member.disk.copy()
        files = image.list("/raft")
        path = f"/raft/{files[-1]}"
        data = image.load(path)
        end = len((data or b"").rstrip(b"\0"))
        if not end:
            return
        image.flip(path, end - self.old.randint(2, 9), self.old.randrange(8))
        try:
            Journal(image.copy(), "/raft", {})
        except CorruptRecord:  # of a file's first frame, which is noticed: an operator has to act
            return
        self.lost = self.newest()
        self.replace_disk(name, image)
        self.count("flipped bit")

    def restart_on_a_copy(self) -> None:
        """Later all replicas lose power, and all controllers; one that starts on what its folder has now is
        there first."""
        broker = self.brokers[self.old.choice(list(self.brokers))]
        folder = Folder(broker.life, broker.log[: broker.flushed], broker.epochs, broker.known)

        def restore() -> None:
            if self.healed or not broker.is_up or broker.life != folder.life or not self.is_elsewhere(broker):
                return
            for name in self.members:
                self.crash(name, power=True, away=self.old.uniform(0.1, 1.0))
            for one in self.brokers.values():
                self.take_power(one)
                away = 0.5 if one is broker else self.old.uniform(6.0, 12.0)
                self.at(self.now + away, lambda name=one.name: self.start_broker(name))
            broker.log, broker.flushed = list(folder.log), len(folder.log)
            broker.epochs, broker.known = folder.epochs, folder.known
            self.count("restart with a folder that went back")

        self.at(self.now + self.old.uniform(*OLD_SECONDS), restore)

    def shrink_and_go_back(self) -> None:
        """A slave is out of those in sync, the controllers do not know that any more, and the master dies."""
        master = next((one for one in self.brokers.values() if one.replica and self.acts(one)), None)
        if master is None or not self.are_brokers_well():
            return
        images = {name: member.disk.image(self.old.random()) for name, member in self.members.items()}
        known = master.replica.broker_set if master.replica is not None else None
        assert known is not None
        slaves = [one for one in self.brokers.values() if one is not master]
        self.links_cut = True
        life = master.life

        def restore() -> None:
            replicas = [one.replica for one in self.brokers.values()]
            newest = self.newest()
            is_told = all(one is not None and self.known(one) == newest for one in replicas)
            # After an election that the table lacks all must run.
            is_told = is_told and newest[0] == known.epoch
            if not self.healed and master.is_up and master.life == life and is_told and self.acts(master):
                self.lost = newest
                self.lives += 1
                for name, image in images.items():
                    self.replace_disk(name, image)
                self.take_power(master)
                self.at(self.now + self.old.uniform(8.0, 12.0), lambda: self.start_broker(master.name))
                self.count("tables went back, and the master died")
            self.at(self.now + 8.0, mend)

        def mend() -> None:
            self.links_cut = False

        self.count(f"{len(slaves)} slaves cut off from the master")
        self.at(self.now + self.old.uniform(3.0, 5.0), restore)

    def acts(self, broker: Broker) -> bool:
        return (
            broker.is_up and broker.replica is not None and broker.replica.is_master(broker.clock(self.now))
        )

    def slave_beat(self, broker: Broker, replica: Replica) -> None:
        if not self.links_cut:
            super().slave_beat(broker, replica)

    def take_power(self, broker: Broker) -> None:
        """Same as `kill_broker`, without a new start of the broker."""
        if broker.is_up:
            kept = self.old.randint(broker.flushed, len(broker.log))
            del broker.log[kept:]
            broker.flushed = len(broker.log)
            broker.is_up, broker.replica = False, None

    def are_whole(self) -> bool:
        """True if each controller has all that the other controllers have, so that one of them may lose
        it."""
        rafts = [member.raft for member in self.members.values()]
        if any(raft is None for raft in rafts):
            return False
        places = {(raft.applied, raft._journal.last, raft._journal.is_doubtful) for raft in rafts if raft}
        return len(places) == 1 and not next(iter(places))[2]

    def replace_disk(self, name: str, image: Any) -> None:
        member = self.members[name]
        if member.raft is not None:
            self.crash(name, power=False, away=self.old.uniform(0.01, 2.0))
        if image is None:
            image = type(member.disk)(self.old.randrange(1 << 30))
        member.disk = image

    def old_folder(self) -> None:
        """A replica loses power later, and starts on what its folder has now."""
        broker = self.brokers[self.old.choice(list(self.brokers))]
        folder = Folder(broker.life, broker.log[: broker.flushed], broker.epochs, broker.known)

        def restore() -> None:
            if self.healed or not broker.is_up or broker.life != folder.life or not self.is_elsewhere(broker):
                return
            self.kill_broker(broker, power=True)
            broker.log, broker.flushed = list(folder.log), len(folder.log)
            broker.epochs, broker.known = folder.epochs, folder.known
            self.count("folder went back")

        self.at(self.now + self.old.uniform(*OLD_SECONDS), restore)

    def is_elsewhere(self, broker: Broker) -> bool:
        """True if another in-sync replica has every acknowledged message on its disk."""
        if not self.are_brokers_well():
            return False
        replicas = [one.replica for one in self.brokers.values() if one.replica is not None]
        if any(one._proposed for one in replicas):  # it may come to hold that this one alone is in sync
            return False
        sets = [one.broker_set for one in replicas if one.broker_set is not None]
        known = max(sets, key=lambda one: (one.epoch, one.version))
        if not self.is_told_all(known):
            return False
        return any(
            other is not broker
            and other.replica is not None
            and other.replica.number in known.in_sync
            and other.replica.epoch == known.epoch
            and self.is_heard(other.replica)
            and all(other.log[at : at + 1] == [value] for at, (value, _) in self.acknowledged.items())
            and all(at < other.flushed for at in self.acknowledged)
            for other in self.brokers.values()
        )

    def is_heard(self, replica: Replica) -> bool:
        """True if the leading controllers heard the replica just now, and will go on hearing it.

        Else the master may lose its lease now, and the controllers would elect the replica whose folder goes
        back by its last heartbeat. It would be refused with nobody else in sync, and the set would rightly
        wait for an operator.
        """
        leading = [
            (self.controllers[member.name].elections, member.clock(self.now))
            for member in self.members.values()
            if member.raft is not None and member.raft.is_leading(member.clock(self.now))
        ]
        return bool(leading) and all(
            self.delay[1] < one.lease_s / 4 and one.lives("s", replica.number, now + one.lease_s * 3 / 4)
            for one, now in leading
        )

    def is_told_all(self, known: BrokerSet) -> bool:
        """True if the controllers hold nothing newer, and nothing is on its way into their tables: else they
        may have elected the replica whose folder goes back, with nobody else in sync."""
        rafts = [member.raft for member in self.members.values()]
        if any(raft is None or raft.applied < raft._journal.last for raft in rafts):
            return False
        tables = [member.machine.sets.get("s") for member in self.members.values()]
        return all(one is None or (one.epoch, one.version) <= (known.epoch, known.version) for one in tables)

    def broker_fault(self) -> None:
        if self.is_behind():
            self.at(self.now + 0.5, self.broker_fault)
        else:
            super().broker_fault()
