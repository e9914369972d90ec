"""Power cuts in the windows between two syncs of different files, while everything is under way.

A broker in simulated time gets messages of every kind: plain, in batches, delayed, for a time of day,
transactions that end or do not; consumers commit offsets; topics are made and deleted; files are small, so
that logs, queues and index files fill up, and in one run of three the tables of topics, offsets and timers
are full soon, too. Before each sync and after each change of its disk an image is made now and then: what a
power cut at that moment may leave. Each is opened, and some once more after a second cut. Between, the
broker is stopped, killed or loses its power itself, its disk fills up, or its descriptors are used up.
"""

from __future__ import annotations

import random
from typing import Any, Final, cast

import pytest
import trio
from attrs import define, field

from rmq.broker.delay.timers import Timers
from rmq.errors import RmqError
from rmq.store.config import FlushDiskType
from rmq.testing.disk import MemoryDisk

from .ledger import Lost, Promise
from .simulation import Left, Machine, Producers, World, keeps, look, simulate

SYNC: dict[str, Any] = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
NARROW: dict[str, Any] = {"max_auto_created_topics": 15, "max_consumer_offsets": 1}
"""Room for one or two topics beside RocketMQ's own and those that are kept, and for some of the readers."""
TIMERS: Final = 4


@define(eq=False)
class Windows:
    """One seeded run, of which `images` are looked at."""

    seed: int
    images: int
    share: float = 0.2
    made: int = 0
    boundaries: int = 0
    lost: Lost | None = None
    _chance: random.Random = field(init=False)

    @property
    def is_narrow(self) -> bool:
        """True if the tables of the broker are full soon."""
        return self.seed % 3 == 0

    async def run(self) -> None:
        """Raise Lost, with the seed and the number of the image."""
        with pytest.MonkeyPatch.context() as patch:
            if self.is_narrow:
                patch.setitem(cast(Any, Timers.__init__).__kwdefaults__, "limit", TIMERS)
            await self._run()

    async def _run(self) -> None:
        self._chance = random.Random(-self.seed)
        async with trio.open_nursery() as nursery:
            world = World.of(self.seed, nursery)
            store = SYNC if self.seed % 4 else None
            machine = world.machine(NARROW if self.is_narrow else None, store)
            async with world.pool() as pool:
                producers = Producers(world, machine, pool, keeps(machine))
                await self._start(world, machine)
                for _ in range(3):
                    nursery.start_soon(producers.work)
                nursery.start_soon(producers.consume)
                nursery.start_soon(producers.delete)
                while self.made < self.images:
                    await self._accident(world, machine)
                await machine.lose(world, machine.disk.copy())
                nursery.cancel_scope.cancel()
        if self.lost is not None:
            raise self.lost

    async def _start(self, world: World, machine: Machine) -> None:
        await machine.start(world)
        world.ledger.synced(machine.name)  # what a start finds, it has synced
        machine.disk.on_change = lambda: self._boundary(world, machine)
        machine.disk.on_sync = lambda path: self._boundary(world, machine)

    async def _accident(self, world: World, machine: Machine) -> None:
        await trio.sleep(self._chance.choice([1, 4, 9]))
        what = self._chance.choice(["stop", "kill", "power", "power", "full", "open", "none"])
        if what == "full":
            used = machine.disk.used
            machine.disk.capacity = used + self._chance.choice([0, 8_192, 60_000])
            await trio.sleep(self._chance.choice([0.5, 3]))
            machine.disk.capacity = None
            return
        if what == "open":
            machine.disk.fail("open", times=self._chance.choice([1, 20]))
            await trio.sleep(self._chance.choice([0.5, 3]))
            machine.disk.heal()
            return
        if what == "none":
            return
        machine.disk.on_change = machine.disk.on_sync = None
        if what == "stop":
            world.ledger.interrupted(world.now_ms())
            await machine.stop()
        elif what == "kill":
            await machine.kill(world)
        else:
            await machine.cut_power(world)
        await self._start(world, machine)

    def _boundary(self, world: World, machine: Machine) -> None:
        self.boundaries += 1
        if self.made < self.images and self._chance.random() < self.share:
            self.made += 1
            image = machine.disk.image(self._chance.random())
            image.capacity = None  # whoever starts it again has made room
            try:
                now_ms = world.now_ms()
                if self.made % 8 == 0:
                    now_ms = self._cut_twice(machine, image, now_ms)
                look(world, machine, image, Promise.SYNCED, now_ms)
            except (RmqError, AssertionError, ArithmeticError, LookupError, ValueError) as error:
                # Raised here it would be the answer to some request.
                self.lost = Lost(f"seed {self.seed}, image {self.made}: {type(error).__name__}: {error}")
                self.lost.__cause__ = error
                self.made = self.images

    def _cut_twice(self, machine: Machine, image: MemoryDisk, now_ms: int) -> int:
        """The power comes back, and goes again soon after the start; returns when."""
        left = Left(machine, image, now_ms)
        left.wait(now_ms + self._chance.choice([0, 1_000]))
        left.close()
        image.crash()
        return left.now_ms


def campaign(seed: int, images: int, run_images: int = 150) -> tuple[int, int]:
    """Run with seeds from `seed` on until this number of images was checked; return (images, boundaries)."""
    made = boundaries = 0
    while made < images:
        run = Windows(seed, min(run_images, images - made))
        simulate(run.run, seed)
        made += run.made
        boundaries += run.boundaries
        seed += 1
    return made, boundaries
