"""A master and its slave under load, accidents of both, and what operators do about them.

At `replicated`, in simulated time. Each machine is stopped, killed, loses its power or its disk; the line
between them breaks; the master comes back empty and later with its right disk; the slave begins from nothing,
or is away for longer than its master keeps messages; roles are changed, and the old master comes back as a
slave, once with its log put aside. After each step each machine must have what it promised, by itself.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NoReturn

import trio
from attrs import define, field

from rmq.errors import RmqError
from rmq.protocol.bodies import KVTable
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.pool import Pool
from rmq.store.config import BrokerRole, DivergedLog, Durability, FlushDiskType

from .ledger import Lost, Promise
from .simulation import QUEUES, SMALL, UNKNOWN, Machine, Producers, World, look, simulate

KEPT_HOURS = 1
MASTER: dict[str, Any] = {"durability": Durability.replicated, "file_reserved_time": KEPT_HOURS}
SLAVE: dict[str, Any] = {"broker_role": BrokerRole.SLAVE, "flush_disk_type": FlushDiskType.SYNC_FLUSH}
SETTLE_SECONDS = 20


@define(eq=False)
class Operators:
    """One seeded run of `steps`."""

    seed: int
    steps: int
    names: list[str] = field(factory=list)
    """What was done."""
    acknowledged: int = 0
    world: World = field(init=False)
    master: Machine = field(init=False)
    slave: Machine = field(init=False)
    _chance: random.Random = field(init=False)
    _producers: Producers = field(init=False)
    _pool: Pool = field(init=False)

    async def run(self) -> None:
        """Raise Lost, with the seed and the steps so far."""
        self._chance = random.Random(-self.seed)
        async with trio.open_nursery() as nursery:
            self.world = World.of(self.seed, nursery)
            self.master, self.slave = self.world.machine(), self.world.machine()
            async with self.world.pool() as self._pool:
                self._producers = Producers(self.world, self.master, self._pool, {}, pauses=[0.01, 0.3, 1.5])
                await self._lead(self.master, self.slave)
                await trio.sleep(SETTLE_SECONDS)
                nursery.start_soon(self._producers.work)
                for _ in range(self.steps):
                    await trio.sleep(self._chance.choice([0.3, 2, 8]))
                    await self._step()
                self.acknowledged = self._producers.acknowledged
                for machine in (self.master, self.slave):
                    await machine.lose(self.world, machine.disk.copy())
                nursery.cancel_scope.cancel()

    async def _lead(self, master: Machine, slave: Machine, **slave_settings: Any) -> None:
        """Start the two as master and slave, those that do not run."""
        self.master, self.slave = master, slave
        master.broker, master.store = {}, dict(MASTER)
        slave.broker = {"broker_id": 1}
        slave.store = SLAVE | {"ha_master_address": f"{master.name}:10912"} | slave_settings
        self._producers.machine = master
        self._producers.promises = dict.fromkeys((master.name, slave.name), Promise.SYNCED)
        for machine in (master, slave):
            if not machine.is_running:
                await machine.start(self.world)

    async def _step(self) -> None:
        kinds: list[Callable[[], Awaitable[None]]] = [self._accident] * 4
        kinds += [self._line, self._slave_from_nothing, self._empty_master, self._old_master_back]
        kinds.append(self._slave_away_for_long)
        kind = self._chance.choice(kinds)
        self.names.append(kind.__name__.strip("_"))
        await kind()
        await trio.sleep(SETTLE_SECONDS)
        self._look()
        await self._follows()

    # ---- what happens ----

    async def _accident(self) -> None:
        """Of one machine, or of one after the other."""
        machines = self._chance.choice([[self.master], [self.slave], [self.master, self.slave]])
        for machine in machines:
            accident = self._chance.choice(["stop", "kill", "power"])
            self.names.append(f"{accident} {machine.name}")
            if accident == "stop":
                self.world.ledger.interrupted(self.world.now_ms())
                await machine.stop()
            elif accident == "kill":
                await machine.kill(self.world)
            else:
                await machine.cut_power(self.world)
            await trio.sleep(self._chance.choice([0, 3]))
        for machine in self._chance.sample(machines, len(machines)):
            await machine.start(self.world)

    async def _line(self) -> None:
        """Between the two."""
        self.world.network.partition(self.master.name, self.slave.name)
        await trio.sleep(self._chance.choice([1, 25]))
        self.world.network.heal()
        self.world.network.cut(self.master.name, self.slave.name)

    async def _slave_from_nothing(self) -> None:
        await self.slave.lose_disk(self.world)
        await self.slave.start(self.world)

    async def _slave_away_for_long(self) -> None:
        """Keep the slave away until its master has removed messages that the slave never got; younger
        messages must be kept."""
        world, ledger = self.world, self.world.ledger
        ledger.interrupted(world.now_ms())
        await self.slave.stop()
        end = await self._reached()
        await self._grow(end + 2 * SMALL["mapped_file_size_commit_log"])
        count = len(ledger)
        world.ahead_ms += KEPT_HOURS * 3_600_000 + 60_000
        await self._grow(await self._reached() + 10_000)
        await self._ask(self.master, RequestCode.DELETE_EXPIRED_COMMITLOG)
        start = int((await self._figures(self.master))["commitLogMinOffset"])
        if start <= end:
            self._lost(f"the master removed too little: it begins at {start}, its slave ended before {end}")
        begins = {}
        for topic, queue_id in QUEUES:
            asked = {"topic": topic, "queueId": str(queue_id)}
            answer = await self._ask(self.master, RequestCode.GET_MIN_OFFSET, asked)
            begins[topic, queue_id] = int(answer.ext["offset"])
        ledger.expired(count, begins)
        self._clear_aside(self.slave)
        await self.slave.start(world)
        await trio.sleep(SETTLE_SECONDS)
        figures = await self._figures(self.slave)
        if (figures["replication"], figures["commitLogMinOffset"]) != ("following", str(start)):
            state = f"at {figures['commitLogMinOffset']}, {figures['replication']}"
            self._lost(f"the slave did not begin anew where its master does, at {start}, but is {state}")

    @staticmethod
    def _clear_aside(machine: Machine) -> None:
        """The operator has looked at what an earlier time has left there. As long as it is there, the slave
        would put nothing aside.
        """
        aside = f"{SMALL['store_path_root_dir']}/aside/commitlog"
        if machine.disk.exists(aside):
            machine.disk.remove(aside)

    async def _reached(self) -> int:
        return int((await self._figures(self.master))["commitLogMaxOffset"])

    async def _grow(self, end: int) -> None:
        """Send until the master's log reaches so far."""
        with trio.fail_after(300):
            while await self._reached() < end:
                await self._producers.one("plain")

    async def _empty_master(self) -> None:
        """Start the master without its disk; later it gets the right disk back."""
        world, machine = self.world, self.master
        world.ledger.interrupted(world.now_ms())
        right = machine.disk.image(self._chance.random())
        kept = {body: sent.promises.get(machine.name) for body, sent in world.ledger.sent.items()}
        await machine.lose_disk(world)
        await machine.start(world)
        await trio.sleep(SETTLE_SECONDS)
        self._look()
        if self._chance.random() < 0.3:
            await self._give_up_the_slave_s()
            return
        await machine.lose_disk(world)
        machine.disk = right
        for body, promise in kept.items():
            if promise is Promise.SYNCED:
                world.ledger.sent[body].promises[machine.name] = promise
        await machine.start(world)

    async def _give_up_the_slave_s(self) -> None:
        """The operator has the slave follow the empty master; its old log is kept aside."""
        self.names.append("aside")
        await self.slave.stop()
        self.world.ledger.disk_lost(self.slave.name, self.world.now_ms())
        self._clear_aside(self.slave)
        await self._lead(self.master, self.slave, ha_diverged_log=DivergedLog.aside)

    async def _old_master_back(self) -> None:
        """The slave becomes the master; the old one, which may have more, its slave."""
        old, new = self.master, self.slave
        await self._chance.choice([old.kill, old.cut_power])(self.world)
        await new.stop()
        await self._lead(new, old)
        await trio.sleep(SETTLE_SECONDS)
        self._look()

    # ---- what must be left ----

    def _look(self) -> None:
        for machine in (self.master, self.slave):
            try:
                look(self.world, machine, machine.disk.copy(), Promise.WRITTEN)
            except (RmqError, AssertionError, LookupError, ValueError) as error:
                self._lost(f"{type(error).__name__}: {error}", error)

    def _lost(self, why: str, cause: Exception | None = None) -> NoReturn:
        raise Lost(f"seed {self.seed} after {', '.join(self.names)}: {why}") from cause

    async def _follows(self) -> None:
        """The operator looks whether the slave follows, and has it begin anew if it stopped."""
        if (await self._figures(self.slave)).get("replication", "").startswith("stopped"):
            await self._give_up_the_slave_s()
            await trio.sleep(SETTLE_SECONDS)

    async def _figures(self, machine: Machine) -> dict[str, str]:
        answer = await self._ask(machine, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(KVTable.from_json(answer.body).table)

    async def _ask(self, machine: Machine, code: int, fields: dict[str, str] | None = None) -> Command:
        """An operator's question, asked again when the line breaks."""
        with trio.fail_after(60):
            while True:
                with suppress(*UNKNOWN):
                    answer = await self._pool.call(machine.address, Command.request(code, fields or {}), 5)
                    if answer.code == ResponseCode.SUCCESS:
                        return answer
                    self._lost(f"the operator was answered {answer.code} {answer.remark}")
                await trio.sleep(0.1)


def campaign(seed: int, runs: int, steps: int = 6) -> int:
    """The number of acknowledged messages."""
    acknowledged = 0
    for number in range(seed, seed + runs):
        run = Operators(number, steps)
        simulate(run.run, number)
        acknowledged += run.acknowledged
    return acknowledged
