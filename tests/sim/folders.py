"""Folders of replicas that lose their end while the brokers are away: copied badly, cut short, zeroed.

In each round a replica is stopped in order or killed (kill -9, so that the page cache survives), or all are
killed at once; one folder is damaged, and all are started in any order, by a supervisor that starts again
whoever ends. Nothing that was acknowledged may be gone, the damaged copy is kept, all come in sync again, and
in the end the logs are the same byte by byte.
"""

from __future__ import annotations

import random
from collections import Counter

import trio

from rmq.client.produce.producer import Producer
from rmq.store.audit.audit import check as audit
from tests.sim.pauses import pausable
from tests.sim.real_brokers.broker_traffic import Violation
from tests.sim.real_brokers.brokers import Node, Set, controlled_set
from tests.sim.real_brokers.replica_bytes import check_replicas
from tests.sim.seeded import seeded
from tests.sim.virtual_loop import no_sockets, virtual_clock

FOLDER = "/store"
ASIDE = f"{FOLDER}/aside/commitlog"
DAMAGES = ("a share of its end", "some bytes of its end", "its newest file")
SECONDS = 90.0
"""A new replica copies all, and comes in sync."""


class FolderSimulation:
    """One seed: `rounds` of damage to a set of 2 or 3 brokers."""

    kind = "folders"

    def __init__(self, seed: int, *, rounds: int = 4) -> None:
        self.seed = seed
        self.size = 2 + seed % 2
        self.rounds = rounds
        self.now = 0.0
        self.chance = random.Random(f"{seed} folders")
        self.counts: Counter[str] = Counter()
        self.accepted = 0
        self._number = 0

    @classmethod
    def of(cls, seed: int) -> FolderSimulation:
        """The simulation of a seed."""
        return cls(seed)

    def run(self) -> None:
        """Run the simulation. Raises Violation."""
        with seeded(self.seed), no_sockets(), pausable():
            try:
                trio.run(self._run, clock=virtual_clock())
            except BaseExceptionGroup as group:
                error: BaseException = group
                while isinstance(error, BaseExceptionGroup):
                    error = error.exceptions[0]
                raise error from None

    async def _run(self) -> None:
        began = trio.current_time()
        async with controlled_set(self.size, self.seed) as (found, client):
            await found.begin(client, queues=2)
            async with client.producer("P") as producer:
                for _ in range(self.rounds):
                    await self._send(found, producer)
                    await self._round(found)
                await self._send(found, producer)
            await trio.sleep(3)
            if len({found.log_digest(node) for node in found.nodes}) > 1:
                raise Violation("logs differ in the end")
            self.accepted = len(found.acknowledged)
        self.now = trio.current_time() - began
        check_replicas({node.host: node.disk for node in found.nodes})
        for node in found.nodes:
            report = audit(node.disk, FOLDER)
            if not report.is_clean:
                raise Violation(f"{node.host}: {report.findings[:5]}")

    async def _send(self, found: Set, producer: Producer) -> None:
        for _ in range(self.chance.randint(20, 60)):
            self._number += 1
            await found.sent(producer, f"m{self._number} " + "x" * self.chance.choice((0, 100, 3000)))

    async def _round(self, found: Set) -> None:
        node = self.chance.choice(found.nodes)
        if self.chance.random() < 0.5:
            away = [*found.nodes]
            await self._kill(found, *away)
        else:
            away = [node]
            await (found.end(node) if self.chance.random() < 0.5 else self._kill(found, node))
            await trio.sleep(self.chance.uniform(0.0, 8.0))
        node = await self._one_of_several(found, away)
        damaged = self._damage(node)
        self.chance.shuffle(away)
        async with trio.open_nursery() as supervisors:
            for one in away:
                one.has_bad_disk = True
                supervisors.start_soon(self._supervise, found, one)
                await trio.sleep(self.chance.choice((0.0, 0.5, 5.0)))
            await self._wait_until_stable(found)
            supervisors.cancel_scope.cancel()
        for one in away:
            one.has_bad_disk = False
        kept = {name: node.disk.load(f"{ASIDE}/{name}") for name in node.disk.list(ASIDE)}
        if kept != damaged:
            raise Violation(f"{node.host} has not kept its damaged log: {sorted(kept)}, {sorted(damaged)}")
        node.disk.remove(f"{FOLDER}/aside")  # an operator has looked at it

    async def _one_of_several(self, found: Set, away: list[Node]) -> Node:
        """A node whose log others in sync have, too. After a kill of all the controllers may elect a replica
        that was heard last, dead as it is: it is alone in sync then, and the others wait for it.
        """
        await trio.sleep(5)
        in_sync = (await found.status())["inSync"]
        return next(one for one in away if in_sync != [one.number()])

    async def _kill(self, found: Set, *nodes: Node) -> None:
        """All at the same moment: else the last one is elected, and alone in sync."""
        left = [node.disk.copy() for node in nodes]
        for node in nodes:
            found.cut_off(node)
        for node, disk in zip(nodes, left, strict=True):
            await found.kill(node, left=disk)
        found.network.heal()
        self.counts["kill"] += len(nodes)

    def _damage(self, node: Node) -> dict[str, bytes | None]:
        """Take something from the end of a log; returns what is left of it."""
        place = f"{FOLDER}/commitlog"
        files = {name: node.disk.load(f"{place}/{name}") or b"" for name in node.disk.list(place)}
        name = max(name for name, data in files.items() if any(data))
        data = files[name]
        used = len(data.rstrip(b"\0"))
        how = self.chance.choice(DAMAGES)
        self.counts[how] += 1
        if how == "its newest file" and len(files) > 1:
            for one in files:
                if one >= name:
                    node.disk.remove(f"{place}/{one}")
        else:
            lost = (
                29 if how == "some bytes of its end" else max(29, int(used * self.chance.uniform(0.05, 1.0)))
            )
            segment = node.disk.open(f"{place}/{name}", len(data))
            segment.clear(max(0, used - lost))
            segment.sync()
        return {one: node.disk.load(f"{place}/{one}") for one in node.disk.list(place)}

    async def _supervise(self, found: Set, node: Node) -> None:
        """Start a broker again when it ends by itself, for as long as its store may be damaged."""
        found.start_later(node)
        while True:
            await node.ended.wait()
            self.counts["started again"] += 1
            await trio.sleep(1)
            found.start_later(node)

    async def _wait_until_stable(self, found: Set) -> None:
        """Wait until all are in sync. Raises Violation."""
        with trio.move_on_after(SECONDS) as waiting:
            while len((await found.status())["inSync"]) < self.size or not found.acting():
                await trio.sleep(0.2)
            await trio.sleep(1)
        if waiting.cancelled_caught:
            raise Violation(f"not all are in sync after {SECONDS:.0f} s: {await found.status()}")
        lost = set(found.acknowledged) - set(found.stored(await found.master()))
        if lost:
            raise Violation(f"acknowledged and lost: {len(lost)} of {len(found.acknowledged)}")
