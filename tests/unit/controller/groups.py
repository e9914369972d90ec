"""Members of a group that agree, without a network."""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec

from rmq.controller.consensus.journal import Journal
from rmq.controller.consensus.messages import Message
from rmq.controller.consensus.raft import Raft, Timing
from rmq.testing.disk import MemoryDisk
from tests.sim.controllers import Register

TIMING = Timing(election_s=1.0, heartbeat_s=0.2, drift=0.1)


class Group:
    """Members with one clock, whose messages are handed over by the test."""

    def __init__(self, *names: str, compact_entries: int = 1000) -> None:
        self.now = 100.0
        self.names = {name: name for name in names}
        self.disks = {name: MemoryDisk(seed=1) for name in names}
        self.rafts: dict[str, Raft] = {}
        self.machines: dict[str, Register] = {}
        self.compact_entries = compact_entries
        self.down: set[str] = set()
        for name in names:
            self.start(name)
        for raft in self.rafts.values():
            raft.step(self.now)
        self.deliver()  # all are as empty as the others: they found a cluster

    def start(
        self, name: str, members: dict[str, str] | None = None, machine: Register | None = None
    ) -> Raft:
        disk = self.disks.setdefault(name, MemoryDisk(seed=1))
        journal = Journal(disk, "/raft", self.names if members is None else members)
        machine = self.machines[name] = machine or Register()
        self.rafts[name] = Raft(
            name,
            name,
            journal,
            machine,
            now=self.now,
            chance=random.Random(name),
            timing=TIMING,
            compact_entries=self.compact_entries,
        )
        return self.rafts[name]

    def deliver(self, rounds: int = 50) -> None:
        for _ in range(rounds):
            sent = [message for name in self.up() for message in self.rafts[name].take_messages()]
            sent = [(to, data) for to, data in sent if to in self.up()]
            for to, data in sent:
                self.rafts[to].receive(data, self.now)
            if not sent:
                return

    def up(self) -> list[str]:
        return [name for name in self.rafts if name not in self.down]

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.05
            for name in self.up():
                self.rafts[name].step(self.now)
            self.deliver()

    def leader(self) -> Raft:
        self.run(3.0)
        (leader,) = (self.rafts[name] for name in self.up() if self.rafts[name].is_leading(self.now))
        return leader

    def propose(self, leader: Raft, count: int, seconds: float = 0.0) -> None:
        """Propose so many entries, and let so much time pass after each."""
        for number in range(count):
            leader.propose(b"%d" % number, self.now)
            if seconds:
                self.run(seconds)


def tell(raft: Raft, message: Message, now: float) -> None:
    raft.receive(msgspec.msgpack.encode(message), now)


def others(group: Group, leader: Raft) -> Iterable[Raft]:
    return [raft for raft in group.rafts.values() if raft is not leader]
