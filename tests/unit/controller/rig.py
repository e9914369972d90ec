"""A controller without a network."""

from __future__ import annotations

import random

from rmq.controller.consensus.journal import Journal
from rmq.controller.consensus.raft import NotLeader, Raft
from rmq.controller.controller import Answer, Controller, Request
from rmq.controller.elections import Elections
from rmq.controller.sets import AlterInSync, BrokerSets, Register, Replica
from rmq.testing.disk import MemoryDisk


class Rig:
    """A controller of its own, or one of three whose others say nothing."""

    def __init__(self, *members: str) -> None:
        self.now = 50.0
        self.members, self.disk = members, MemoryDisk(seed=1)
        self.start(3.0)

    def start(self, lease_s: float) -> None:
        """Start it, or start it again, with this setting."""
        journal = Journal(self.disk, "/raft", {name: name for name in self.members})
        self.sets = BrokerSets()
        own = self.members[0]
        raft = Raft(own, own, journal, self.sets, now=self.now, chance=random.Random(1))
        self.controller = Controller(raft, self.sets, Elections(lease_s))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.1
            self.controller.step(self.now)

    def ask(self, question: Request) -> Answer | NotLeader:
        answers: list[Answer | NotLeader] = []
        self.controller.submit(question, answers.append, self.now)
        (answer,) = answers
        return answer

    def done(self, question: Request) -> Answer:
        answer = self.ask(question)
        assert isinstance(answer, Answer)
        return answer


def register(name: str) -> Register:
    return Register("c", "s", Replica(name, 1, f"{name}:1", f"{name}:2"), is_founder=True)


def led(rig: Rig) -> Rig:
    """With a set of two replicas, both in sync."""
    rig.run(3.0)
    for name in "ab":
        rig.done(register(name))
    rig.done(AlterInSync("s", 1, 1, (1, 2)))
    return rig
