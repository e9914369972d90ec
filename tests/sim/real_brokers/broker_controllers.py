"""The controllers of the simulation of real brokers: each a machine with a disk that outlives it."""

from __future__ import annotations

import random
from functools import partial
from typing import Final

import trio

from rmq.controller import service
from rmq.controller.config import ControllerConfig
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork
from tests.sim.pauses import MACHINE, Pauses
from tests.sim.real_brokers.broker_clocks import LeaseClocks

SOON_SECONDS: Final = 5.0
CONTROLLERS: Final = [f"10.0.8.{number}:9878" for number in (1, 2, 3)]


class Controller:
    """One of them."""

    def __init__(
        self, number: int, network: MemoryNetwork, nursery: trio.Nursery, leases: LeaseClocks
    ) -> None:
        self.host = CONTROLLERS[number].partition(":")[0]
        self.disk = MemoryDisk(seed=number)
        self._network = network
        self._nursery = nursery
        self._leases = leases
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.is_up = False

    async def start(self) -> None:
        """Serve, from what is on the disk."""
        self._scope, self._ended, self.is_up = trio.CancelScope(), trio.Event(), True
        await self._nursery.start(self._live)

    async def _live(self, *, task_status: trio.TaskStatus[None]) -> None:
        MACHINE.set(self.host)
        config = ControllerConfig(
            controllers=";".join(CONTROLLERS), bind_address=self.host, controller_path="/controller"
        )
        with self._scope:
            await service.run(
                config,
                network=self._network.host(self.host),
                disk=self.disk,
                clock=partial(self._leases.now, self.host),
                task_status=task_status,
            )
        self._ended.set()

    async def stop(self, pauses: Pauses) -> None:
        """The process ends."""
        pauses.resume(self.host)
        self._scope.cancel()
        await self._ended.wait()
        self.is_up = False

    async def lose_power(self, pauses: Pauses, chance: random.Random) -> None:
        """The machine does, before or in its next write if there is one soon; `disk` is what is left then."""
        left: list[MemoryDisk] = []
        struck = trio.Event()

        def strike(*path: str) -> None:
            if not left:
                left.append(self.disk.image(chance.random()))
                self._network.partition(self.host, *self._network._hosts())
                self._network.vanish(self.host)
                struck.set()

        self.disk.tears = chance.random() < 0.5
        if chance.random() < 0.5:
            setattr(self.disk, chance.choice(("on_change", "on_sync")), strike)
            with trio.move_on_after(SOON_SECONDS):
                await struck.wait()
        strike()
        await self.stop(pauses)
        self._network.heal(self.host)
        self.disk = left[0]
