"""The simulation of the controllers with one member at a time that loses its folder, or its last frame.

What it forgets the others count on: nothing that was told may be taken back, nobody may lead beside another.
Before the next one loses anything it has what it forgot. The members stay.
"""

from __future__ import annotations

import random

from rmq.controller.consensus.journal import Journal
from rmq.errors import CorruptRecord
from rmq.testing.disk import MemoryDisk
from tests.sim.controllers import Simulation


class Wiped(Simulation):
    """`run()` raises Violation; see the module."""

    kind = "wiped"

    def __init__(self, seed: int) -> None:
        super().__init__(seed, members=3, spare=0)
        self.own = random.Random(f"{seed} wiped")
        self.faults = [one for one in self.faults if one not in (self.change_members, self.change_unheard)]
        self.wiped = ""
        """Who has lost something, and has not all of it again."""

    @classmethod
    def of(cls, seed: int) -> Wiped:
        return cls(seed)

    def run(self) -> None:
        self.at(2.0, self.wipe)
        super().run()

    def is_whole(self) -> bool:
        """True if each member has all entries that it ever confirmed."""
        raft = self.members[self.wiped].raft if self.wiped else None
        if raft is not None and raft._recall.is_done and raft.term and not raft._journal.is_doubtful:
            self.wiped = ""
        return not self.wiped

    def wipe(self) -> None:
        """Kill a member, which starts soon on an empty folder, or without what it wrote last. Those that it
        leaves are struck at once, at times."""
        if self.healed:
            return
        name = self.own.choice(list(self.members))
        member = self.members[name]
        if self.is_whole() and member.raft is not None and member.raft.term:
            disk = MemoryDisk(self.own.randrange(1 << 30)) if self.own.random() < 0.5 else self.flipped(name)
            if disk is not None:
                self.crash(name, power=False, away=self.own.uniform(0.01, 1.0))
                member.disk, self.wiped = disk, name
                self.count("lost its folder" if not disk.list("/raft") else "lost its last frame")
                if self.own.random() < 0.5:
                    self.crash(self.own.choice(list(self.members)), power=self.own.random() < 0.5, away=3.0)
        self.at(self.now + self.own.uniform(0.2, 4.0), self.wipe)

    def flipped(self, name: str) -> MemoryDisk | None:
        """The member's disk with a changed bit in the last frame; None if the journal would refuse to
        open."""
        disk = self.members[name].disk.copy()
        path = f"/raft/{disk.list('/raft')[-1]}"
        end = len((disk.load(path) or b"").rstrip(b"\0"))
        disk.flip(path, end - self.own.randint(2, 9), self.own.randrange(8))
        try:
            Journal(disk.copy(), "/raft", {})
        except CorruptRecord:
            return None
        return disk
