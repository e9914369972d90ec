"""Random faults in the simulation of real brokers.

Some kinds of faults every seed has, and of those in `MORE` about half: what all together hide, few show.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from rmq.testing.disk import MemoryDisk
from rmq.testing.network import Link
from tests.sim.real_brokers.broker_commits import Commits
from tests.sim.real_brokers.broker_controllers import CONTROLLERS, Controller
from tests.sim.real_brokers.broker_traffic import Violation

if TYPE_CHECKING:
    from tests.sim.real_brokers.brokers import Node, Set

DEEDS: Final = (
    *("power", "power", "apart", "away", "stop", "heal", "slow", "restart"),
    *("hand over", "hand over and away", "pause", "pause"),
)
MORE: Final = {
    "one way": ("one way", "one way only"),
    "bad link": ("lossy", "slow link"),
    "controllers": ("controller", "controller", "controller"),
    "power in a write": ("power in a write",),
    "clocks": ("clock", "clock", "clock"),
    "black out": ("black out",),
}
"""Kinds that a seed may have, and their deeds."""
DISKS: Final = ("disk", "disk", "disk only")
"""The same of disks that fail."""
PARTS: Final = ("", "", "commitlog", "consumequeue", "config")
"""Of a disk, the files that have a fault; all, mostly."""
CONTROLLER_HOSTS: Final = tuple(address.partition(":")[0] for address in CONTROLLERS)
NAME_SERVER: Final = "10.0.0.1"
TAKEN_SECONDS: Final = 30.0
"""A master's lease ends, another is elected, and who does not follow it is waited for ten seconds."""
CLIENT: Final = "10.0.9.1"
MENDED_SECONDS: Final = 60.0
SETTLED_SECONDS: Final = 40.0
"""After the first failed sync the next tries are up to half a minute apart."""


class Faults:
    """The faults of one seed; `saw` is told each, for the trace."""

    def __init__(self, found: Set, chance: random.Random, commits: Commits, saw: Callable[..., None]) -> None:
        self._found = found
        self._chance = chance
        self._commits = commits
        self._saw = saw
        self.counts: Counter[str] = Counter()
        self._struck: dict[str, trio.CancelScope] = {}
        """Controllers that are away, and what ends it."""
        self._mending: list[trio.CancelScope] = []
        """Disks that fail, and what ends it."""
        self._dying = 0
        """Machines that have lost power, and whose processes have not ended yet."""
        self._deeds = [*DEEDS]
        for deeds in MORE.values():
            if chance.random() < 0.5:
                self._deeds += deeds
        if found.have_bad_disks:
            self._deeds += DISKS

    async def happen(self) -> None:
        """One of them."""
        found, chance = self._found, self._chance
        dead = [node for node in found.nodes if node.stop is None]
        if dead and chance.random() < 0.3:
            self._restart(chance.choice(dead))
        acting = found.acting()
        # The master is struck more often than others.
        node = chance.choice(acting if acting and chance.random() < 0.6 else found.nodes)
        deed = chance.choice(self._deeds)
        self.counts[deed] += 1
        self._saw(deed, node.host)
        if deed in _LINKS:
            self._links(deed, node)
            await self._worse(deed, node)
        elif deed in ("hand over", "hand over and away"):
            await found.want(chance.randint(1, len(found.nodes)))
            if deed == "hand over and away":
                await trio.sleep(chance.uniform(0.0, 0.2))
                self._send_away(node)
        elif deed == "controller":
            await self._controller()
        elif deed == "one way only":
            await self._silence_only(node)
        elif deed == "black out":
            await self._black_out()
        elif deed == "disk":
            self._bad_disk(node, chance.uniform(0.5, 20.0))
        elif deed == "disk only":
            await self._bad_disk_only(node)
        else:
            await self._machine(deed, node)
            await self._worse(deed, node)

    async def _worse(self, deed: str, node: Node) -> None:
        """After some faults the same machine is away soon, at times: the one shows by the other."""
        if deed in _GROW and self._chance.random() < 0.5:
            await trio.sleep(self._chance.uniform(0.0, 3.0))
            self.counts[f"{deed} and away"] += 1
            self._send_away(node)

    async def _black_out(self) -> None:
        """All brokers lose power at once, and at times all controllers do."""
        found, chance = self._found, self._chance
        if chance.random() < 0.5:
            for one in found.controllers:
                if one.host not in self._struck:
                    self._begin(one, "power", chance.uniform(0.5, 3.0))
        alive = [node for node in found.nodes if node.stop is not None]
        images = [self._cut_power(node) for node in alive]
        for node, image in zip(alive, images, strict=True):
            await self._lost_power(node, image)

    def _cut_power(self, node: Node) -> MemoryDisk:
        """The machine is gone; returns what is left on its disk."""
        disk = node.disk
        self._dying += 1
        disk.on_change = disk.on_sync = None
        disk.tears = self._chance.random() < 0.5
        image = node.left = disk.image(self._chance.random())
        self._found.cut_off(node, silently=self._chance.random() < 0.5)
        return image

    async def _machine(self, deed: str, node: Node) -> None:
        found, chance = self._found, self._chance
        dead = [one for one in found.nodes if one.stop is None]
        if deed == "restart" and dead:
            self._restart(chance.choice(dead))
        elif node.stop is None:
            return
        elif deed == "clock":
            found.set_clock(node, chance.choice((-60_000, -10_000, -2_000, 2_000, 10_000, 60_000)))
        elif deed == "power in a write":
            self._power_in_a_write(node)
        elif deed == "power":
            await self._lost_power(node, self._cut_power(node))
        elif deed == "stop":
            had_bad_disk = node.has_bad_disk
            await found.end(node)
            if had_bad_disk:
                self._commits.lost_power(node, node.disk)
        elif deed == "pause" and node.host not in found.pauses:
            found.pause(node, chance.uniform(3.0, 30.0))

    def _power_in_a_write(self, node: Node) -> None:
        """The next write but some is the last, or the next sync does not come back."""
        left, stop = self._chance.randint(1, 30), node.stop

        def write(*path: str) -> None:
            nonlocal left
            left -= 1
            if left == 0 and node.stop is stop:
                self.counts["power in a write, lost"] += 1
                self._found.nursery.start_soon(self._lost_power, node, self._cut_power(node))

        setattr(node.disk, self._chance.choice(("on_change", "on_sync")), write)

    async def _lost_power(self, node: Node, left: MemoryDisk) -> None:
        if node.stop is None:  # it was about to end
            node.disk = left
        else:
            await self._found.kill(node, left=left)
        self._dying -= 1
        self._commits.lost_power(node, node.disk)

    def _ail(self, node: Node, seconds: float, how: Callable[[], None]) -> bool:
        """The disk of one broker at a time has a fault for so long, which `how` makes; whether it does."""
        found = self._found
        if node.stop is None or any(one.has_bad_disk for one in found.nodes):
            return False
        node.has_bad_disk = True  # it may end by itself
        how()
        self._mending.append(trio.CancelScope())
        found.nursery.start_soon(self._mend_disk, node, node.disk, seconds, self._mending[-1])
        return True

    def _bad_disk(self, node: Node, seconds: float) -> bool:
        """Let the disk of a broker fail, in one of several ways."""
        chance = self._chance

        def fail() -> None:
            kind = chance.choice(("write", "sync", "sync once", "full"))
            self.counts[f"disk: {kind}"] += 1
            self._saw(kind, node.host)
            part = chance.choice(PARTS)
            if kind == "full":
                node.disk.capacity = node.disk.used + chance.choice((0, 4096, 65536))
            else:
                node.disk.fail(kind.partition(" ")[0], part, 1 if kind == "sync once" else math.inf)

        return self._ail(node, seconds, fail)

    async def _mend_disk(self, node: Node, disk: MemoryDisk, seconds: float, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep(seconds)
        for one in (disk, node.disk, node.left):
            one.heal()
            one.capacity = None
        # What it could not write before may end it until it has settled, or has started again.
        with trio.move_on_after(SETTLED_SECONDS):
            while node.stop is not None and (node.broker is None or node.broker.store.ails):
                await trio.sleep(0.1)
        if node.stop is None:
            self._commits.lost_power(node, node.disk)
            self._found.start_later(node)
        node.has_bad_disk = False
        self._mending.remove(scope)

    async def _bad_disk_only(self, node: Node) -> None:
        """Let a disk fail without any other fault: sends must succeed soon. Raises Violation."""
        if not await self._alone():
            return
        if self._bad_disk(node, 2 * TAKEN_SECONDS):
            await self._until_taken(f"the disk of {node.host} fails")
            self._mending[-1].cancel()

    async def hang(self, chance: random.Random) -> None:
        """The syncs of a disk neither end nor fail for a while, a broker's or a controller's; at times
        nothing else is wrong, and messages are taken again soon. Raises Violation."""
        found, acting = self._found, self._found.acting()
        node = chance.choice(acting if acting and chance.random() < 0.6 else found.nodes)
        deed = chance.choice(("hang", "hang", "hang only", "hang journal"))
        self._saw(deed, node.host)
        if deed == "hang journal":
            standing = [one for one in found.controllers if one.host not in self._struck]
            if len(self._struck) < 2:
                self._begin(chance.choice(standing), "hang", chance.uniform(3.0, 30.0))
        elif deed == "hang":
            self._hang(node, chance, chance.uniform(3.0, 60.0))
        elif await self._alone() and self._hang(node, chance, 2 * TAKEN_SECONDS):
            self.counts["hang only"] += 1
            await self._until_taken(f"the disk of {node.host} hangs")
            self._mending[-1].cancel()

    def _hang(self, node: Node, chance: random.Random, seconds: float) -> bool:
        """Let the syncs of a disk hang."""

        def hang() -> None:
            self.counts["hang"] += 1
            node.disk.hang(chance.choice(PARTS))

        return self._ail(node, seconds, hang)

    async def _controller(self) -> None:
        """Strike one of the controllers, seldom a second one at the same time."""
        found, chance = self._found, self._chance
        if len(self._struck) > 1 or (self._struck and chance.random() < 0.8):
            return
        standing = [one for one in found.controllers if one.host not in self._struck]
        leading = await found.leading() if chance.random() < 0.5 else ""
        one = next((one for one in standing if one.host == leading), chance.choice(standing))
        deed = chance.choice(("power", "stop", "pause", "apart", "away", "one way"))
        self._begin(one, deed, chance.choice((0.5, 3.0, 15.0)))

    def _begin(self, one: Controller, deed: str, seconds: float) -> None:
        self.counts[f"controller: {deed}"] += 1
        self._saw(deed, one.host)
        self._struck[one.host] = trio.CancelScope()
        self._found.nursery.start_soon(self._strike, one, deed, seconds)

    async def _strike(self, one: Controller, deed: str, seconds: float) -> None:
        found, network = self._found, self._found.network
        others = [host for host in CONTROLLER_HOSTS if host != one.host]
        try:
            with self._struck[one.host]:
                if deed == "power":
                    with trio.CancelScope(shield=True):
                        await one.lose_power(found.pauses, self._chance)
                elif deed == "stop":
                    await one.stop(found.pauses)
                elif deed == "pause":
                    found.pauses.pause(one.host)
                elif deed == "hang":  # a controller syncs in its event loop, all of which stands still then
                    one.disk.on_sync = lambda path: found.pauses.pause(one.host)
                elif deed == "apart":
                    network.partition(one.host, *others)
                elif deed == "away":
                    network.partition(one.host, *others, *(node.host for node in found.nodes))
                else:
                    network.silence(one.host, *others, *(node.host for node in found.nodes))
                await trio.sleep(seconds)
        finally:  # cancelled, too: tasks that are held could not end
            one.disk.on_sync = None
            found.pauses.resume(one.host)
        network.heal(one.host)
        if not one.is_up:
            await one.start()
        del self._struck[one.host]

    def _links(self, deed: str, node: Node) -> None:
        network, chance = self._found.network, self._chance
        if deed == "apart":
            network.partition(node.host, *self._others(node))
        elif deed == "away":
            self._send_away(node)
        elif deed == "slow":
            network.latency = (0.0, chance.choice((0.0, 0.0, 0.02, 0.2)))
        elif deed == "heal":
            network.heal()
            network.links.clear()
        elif deed == "one way":
            self._silence(node)
        elif deed == "lossy":
            link = Link(
                breaks=chance.choice((0.0, 0.003, 0.03)),
                stalls=chance.choice((0.01, 0.1)),
                stall_seconds=(0.2, chance.choice((0.5, 3.0, 8.0))),
            )
            for other in self._peers(node):
                network.links[node.host, other] = network.links[other, node.host] = link
        elif deed == "slow link":
            link = Link(latency=chance.choice(((0.0, 0.05), (0.0, 0.3), (0.3, 1.0))))
            for other in self._peers(node):
                network.links[(node.host, other) if chance.random() < 0.5 else (other, node.host)] = link

    def _silence(self, node: Node) -> None:
        """Either nothing of it comes to some others, or nothing of them to it."""
        network, chance = self._found.network, self._chance
        others = chance.choice((self._others(node), CONTROLLER_HOSTS, (NAME_SERVER,)))
        if chance.random() < 0.5:
            network.silence(node.host, *others)
        else:
            for one in others:
                network.silence(one, node.host)

    async def _silence_only(self, node: Node) -> None:
        """Silence a direction without any other fault: sends must succeed soon. Raises Violation."""
        if await self._alone():
            self._silence(node)
            await self._until_taken(f"{node.host} is cut off one way")

    async def _alone(self) -> bool:
        """Mend what is wrong; whether nothing is, that takes longer. Raises Violation when the set has no
        master that the name server knows, or not all are in sync, a minute later."""
        found, everyone = self._found, list(range(1, len(self._found.nodes) + 1))
        is_well = [one.stop is not None and one.host not in found.pauses for one in found.nodes]
        if self._struck or self._dying or self._mending or not all(is_well):
            return False
        self._disarm()
        self._mend()
        with trio.move_on_after(MENDED_SECONDS):
            # A master that has resigned is in sync until another is elected.
            while (
                not found.acting()
                or (await found.status())["inSync"] != everyone
                or found.routed() not in [node.host for node in found.acting()]
            ):
                await trio.sleep(0.1)
            return True
        seen = f"{await found.status()}, master by the name server: {found.routed() or 'none'}"
        raise Violation(f"nothing is wrong, and the set is not well: {seen}")

    async def _until_taken(self, what: str) -> None:
        """Wait until messages are taken although this is wrong. Raises Violation."""
        await trio.sleep(2.0)
        before = len(self._found.acknowledged)
        with trio.move_on_after(TAKEN_SECONDS):
            while len(self._found.acknowledged) < before + 3:
                await trio.sleep(0.1)
            return
        raise Violation(f"no message is taken for {TAKEN_SECONDS} s, and only this is wrong: {what}")

    def _mend(self) -> None:
        network = self._found.network
        network.heal()
        network.links.clear()
        network.latency = (0.0, 0.0)

    def _disarm(self) -> None:
        """No write is the last any more."""
        for node in self._found.nodes:
            node.disk.on_change = node.disk.on_sync = None

    def _peers(self, node: Node) -> tuple[str, ...]:
        """The possible other ends of a bad link."""
        choices = (self._others(node), CONTROLLER_HOSTS, (NAME_SERVER,), (CLIENT,))
        return self._chance.choice(choices)

    def _others(self, node: Node) -> tuple[str, ...]:
        return tuple(one.host for one in self._found.nodes if one is not node)

    def _send_away(self, node: Node) -> None:
        """Clients and name servers still reach it, others do not."""
        self._found.network.partition(node.host, *CONTROLLER_HOSTS, *self._others(node))

    def _restart(self, node: Node) -> None:
        self._found.network.heal()
        self._found.start_later(node)

    async def heal(self) -> None:
        """End them all. Raises Violation when not all are in sync a minute later."""
        found = self._found
        self._disarm()
        while self._struck or self._dying or self._mending:
            for scope in (*self._struck.values(), *self._mending):
                scope.cancel()
            await trio.sleep(0.1)
        self._mend()
        for node in found.nodes:
            found.set_clock(node, 0)
            found.pauses.resume(node.host)
            if node.stop is None:
                found.start_later(node)
        try:
            await found.until(inSync=list(range(1, len(found.nodes) + 1)))
        except trio.TooSlowError:
            raise Violation(f"not all are in sync a minute after healing: {await found.status()}") from None


_GROW: Final = frozenset(("clock", "one way", "lossy", "slow link"))
_LINKS: Final = frozenset(("apart", "away", "slow", "heal", "one way", "lossy", "slow link"))
