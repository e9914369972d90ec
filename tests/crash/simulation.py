"""Whole brokers in simulated time: machines with disks in memory, load from several producers, and accidents.

A `Machine` is a broker as a service on a `MemoryDisk` and a `MemoryNetwork`, which can be stopped, killed or
lose its power at any moment. `Producers` send messages of every kind and write down in the `Ledger` what they
are told. `look` opens what an accident left, lets everything come due, ends what transactions are open, and
compares. All chance comes from the seed, all time from trio's mock clock.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from rmq.broker.broker import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import service
from rmq.errors import ConnectFailed, ConnectionLost, RequestTimeout, StoreError
from rmq.protocol.codes import SYS_COMMIT, SYS_PREPARED, SYS_ROLLBACK, RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import EndTransactionRequestHeader, UpdateConsumerOffsetRequestHeader
from rmq.protocol.record import decode_records, encode_batch, host_bytes
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.loop import unwrap_groups
from rmq.remoting.pool import Pool
from rmq.store.config import FlushDiskType, StoreConfig
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork
from tests.unit.broker.rig import send

from .ledger import Ledger, Lost, Promise, Queue, Sent

START_MS: Final = 1_795_253_354_000
TOPICS: Final = ("Orders", "Bills")
QUEUES: Final[list[Queue]] = [(topic, number) for topic in TOPICS for number in range(2)]
GROUP: Final = "readers"
OTHERS: Final = ("10.0.9.1",)
"""The host of the producers."""
LONGEST_MS: Final = 60_000
"""Within this time everything that was sent comes due."""
UNKNOWN: Final = (ConnectFailed, ConnectionLost, RequestTimeout)
"""Errors that leave open whether a message was stored."""
SMALL: Final[dict[str, Any]] = {
    "store_path_root_dir": "/store",
    "mapped_file_size_commit_log": 20_480,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 8,
    "max_index_num": 40,
    "flush_interval_commit_log": 3_000,
    "flush_consume_queue_thorough_interval": 4_000,
    "clean_resource_interval": 3_600_000,
    "clean_file_forcibly_enable": False,  # on a full disk the oldest messages would go
}
BROKER: Final[dict[str, Any]] = {
    "broker_name": "b",
    "vip_channel_enabled": False,
    "flush_consumer_offset_interval": 1_000,
    "transaction_time_out": 2_000,
    "transaction_check_interval": 3_000,
    "default_topic_queue_nums": 2,
}


def simulate(scenario: Callable[[], Awaitable[None]], seed: int) -> None:
    """Run a scenario in simulated time, with tasks in an order that the seed decides."""
    scheduler: Any = trio._core._run  # as Hypothesis does it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        patch.setattr(scheduler, "_r", random.Random(seed))
        # A loop that fails for another reason than its disk, and would be started again, is a fault.
        patch.setattr(service, "ENDURED", (StoreError, OSError))
        trio.run(_unwrapped, scenario, clock=MockClock(autojump_threshold=0))


async def _unwrapped(scenario: Callable[[], Awaitable[None]]) -> None:
    with unwrap_groups():  # which asks the loop that runs what a cancellation is
        await scenario()


@define(eq=False)
class Machine:
    """One machine, by its address, and the broker on it."""

    name: str
    disk: MemoryDisk
    broker: dict[str, Any] = field(factory=dict)
    store: dict[str, Any] = field(factory=dict)
    _stop: trio.Event | None = None
    _ended: trio.Event | None = None

    @property
    def address(self) -> str:
        return f"{self.name}:10911"

    @property
    def is_running(self) -> bool:
        return self._stop is not None

    def configs(self) -> tuple[BrokerConfig, StoreConfig]:
        """The settings of its broker."""
        own = {"listen_port": 10911, "broker_ip1": self.name}
        return BrokerConfig(**BROKER | own | self.broker), StoreConfig(**SMALL | self.store)

    async def start(self, world: World) -> None:
        """Start the broker on the disk as it is. Raises what its start raises."""
        config, store_config = self.configs()
        self._stop, self._ended = trio.Event(), trio.Event()
        try:
            await world.nursery.start(partial(self._live, world, config, store_config, self._ended))
        except BaseException:
            self._stop = self._ended = None
            raise

    async def _live(
        self,
        world: World,
        config: BrokerConfig,
        store_config: StoreConfig,
        ended: trio.Event,
        *,
        task_status: trio.TaskStatus[list[str]],
    ) -> None:
        host, now = world.network.host(self.name), world.now_ms
        with suppress_when(lambda: self._ended is not ended):
            await service.run(
                config,
                store_config,
                network=host,
                disk=self.disk,
                now_ms=now,
                stop=self._stop,
                task_status=task_status,
            )
        ended.set()

    async def stop(self) -> None:
        """A clean stop."""
        assert self._stop is not None
        assert self._ended is not None
        self._stop.set()
        await self._ended.wait()
        self._stop = self._ended = None

    async def lose(self, world: World, left: MemoryDisk) -> None:
        """The broker is gone at this moment, and its disk is as `left`. Nobody hears of it again."""
        stop, ended = self._stop, self._ended
        self.disk.on_change = self.disk.on_sync = None
        self.disk, self._stop, self._ended = left, None, None
        if stop is None or ended is None:
            return
        world.network.partition(self.name, *world.hosts())
        world.network.cut(self.name)
        stop.set()
        await ended.wait()
        world.network.heal()

    async def kill(self, world: World) -> None:
        """SIGKILL: what the kernel had is there."""
        world.ledger.interrupted(world.now_ms())
        await self.lose(world, self.disk.copy())

    async def cut_power(self, world: World) -> None:
        """Cut the power: a part of the unsynced bytes stays."""
        world.ledger.power_cut(self.name, world.now_ms())
        await self.lose(world, self.disk.image(world.chance.random()))

    async def lose_disk(self, world: World) -> None:
        """Replace the disk by an empty disk."""
        world.ledger.disk_lost(self.name, world.now_ms())
        await self.lose(world, MemoryDisk(world.chance.randrange(1 << 30)))


class suppress_when:
    """Errors of a broker that was lost mean nothing."""

    def __init__(self, is_lost: Callable[[], bool]) -> None:
        self._is_lost = is_lost

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, Exception) and self._is_lost()


@define(eq=False)
class World:
    """The simulation: network, clock, chance, and what was acknowledged."""

    seed: int
    nursery: trio.Nursery
    network: MemoryNetwork
    chance: random.Random
    ledger: Ledger = field(factory=Ledger)
    machines: list[Machine] = field(factory=list)
    ahead_ms: int = 0
    """How far all wall clocks were set forward: hours that nobody simulates."""

    @classmethod
    def of(cls, seed: int, nursery: trio.Nursery) -> World:
        network = MemoryNetwork(seed)
        network.latency = (0.0001, 0.003)
        return cls(seed, nursery, network, random.Random(seed))

    def now_ms(self) -> int:
        """The wall clock of all machines."""
        return START_MS + self.ahead_ms + int(trio.current_time() * 1000)

    def hosts(self) -> list[str]:
        return [machine.name for machine in self.machines] + list(OTHERS)

    def machine(self, broker: dict[str, Any] | None = None, store: dict[str, Any] | None = None) -> Machine:
        """One more machine, not started."""
        name = f"10.0.0.{len(self.machines) + 1}"
        disk = MemoryDisk(self.chance.randrange(1 << 30))
        self.machines.append(Machine(name, disk, broker or {}, store or {}))
        return self.machines[-1]

    def pool(self) -> Pool:
        """Connections of the producers."""
        return Pool(self.network.host(OTHERS[0]), ClientOnlyEndpoint())


@define(eq=False)
class Producers:
    """Load on one broker. `promises` is what an acknowledgement means there."""

    world: World
    machine: Machine
    pool: Pool
    promises: dict[str, Promise]
    kinds: list[str] = field(factory=lambda: ["plain"] * 6 + ["batch", "delayed", "timed"] + ["half"] * 2)
    pauses: list[float] = field(factory=lambda: [0, 0.001, 0.02, 0.3])
    """Seconds between two sends."""
    acknowledged: int = 0
    refusals: list[str] = field(factory=list)
    _number: int = 0

    async def work(self) -> None:
        """Send one after the other until cancelled."""
        while True:
            await trio.sleep(self.world.chance.choice(self.pauses))
            await self.one(self.world.chance.choice(self.kinds))

    async def one(self, kind: str) -> None:
        """Send one message, or one batch, of that kind."""
        chance, queue = self.world.chance, self.world.chance.choice(QUEUES)
        if kind == "batch":
            await self._send(kind, queue, [self._body() for _ in range(chance.randrange(2, 5))])
        else:
            await self._send(kind, queue, [self._body()])

    def _body(self) -> bytes:
        self._number += 1
        return b"%s-%d:" % (self.machine.name.encode(), self._number) + b"x" * self.world.chance.choice(
            [0, 50, 900, 5000]
        )

    async def _send(self, kind: str, queue: Queue, bodies: list[bytes]) -> None:
        ledger, now = self.world.ledger, self.world.now_ms()
        properties, due_ms = self._properties(kind, now)
        for body in bodies:
            ledger.sending(body, queue, due_ms=due_ms, is_half=kind == "half")
        if kind == "batch":
            texts = [f"UNIQ_KEY\x01K{self._number}{n}" for n in range(len(bodies))]
            data = encode_batch((0, body, text) for body, text in zip(bodies, texts, strict=True))
            fields: dict[str, Any] = {"code": RequestCode.SEND_BATCH_MESSAGE, "batch": True}
            request = send(queue[0], data, queue_id=queue[1], properties="WAIT\x01true", **fields)
        else:
            flag = SYS_PREPARED if kind == "half" else 0
            request = send(queue[0], bodies[0], queue_id=queue[1], properties=properties, sys_flag=flag)
        answer = await self._ask(request)
        if answer is None:
            return
        if answer.code:
            # 10, 11 and 12 say that it is stored, but not as safe as wanted.
            self.refusals.append(f"{answer.code} {answer.remark}")
            if answer.code not in (10, 11, 12):
                for body in bodies:
                    ledger.refused(body)
            return
        first = int(answer.ext["queueOffset"]) if kind in ("plain", "batch") else None
        for number, body in enumerate(bodies):
            ledger.acknowledged(body, self.promises, None if first is None else first + number)
        self.acknowledged += len(bodies)
        if kind == "half":
            key = properties.partition("\x02")[0].partition("\x01")[2]
            ledger.sent[bodies[0]].handle = *handle_of(answer), key
            await self._end(ledger.sent[bodies[0]])

    def _properties(self, kind: str, now: int) -> tuple[str, int]:
        """The text, and when it is due at the earliest."""
        chance, text = self.world.chance, f"UNIQ_KEY\x01{self._number:032X}"
        if kind == "delayed":
            level = chance.choice([1, 2])
            return f"{text}\x02DELAY\x01{level}", now + (1000, 5000)[level - 1]
        if kind == "timed":
            due_ms = now + chance.choice([300, 2_000, 9_000])
            return f"{text}\x02TIMER_DELIVER_MS\x01{due_ms}", due_ms
        if kind == "half":
            return f"{text}\x02TRAN_MSG\x01true\x02PGROUP\x01payers", 0
        return text, 0

    async def _end(self, sent: Sent) -> None:
        """Commit, roll back or forget a half message, after a while."""
        decision = self.world.chance.choice(["commit", "commit", "commit", "roll back", "forget"])
        if decision == "forget":
            return
        await trio.sleep(self.world.chance.choice([0, 0.05, 1, 6]))
        begin = self.world.ledger.committing if decision == "commit" else self.world.ledger.rolling_back
        begin(sent.body)
        answer = await self._ask(end_request(sent, SYS_COMMIT if decision == "commit" else SYS_ROLLBACK))
        if answer is None or answer.code:
            return
        if decision == "commit":
            kept = {machine: Promise.WRITTEN for machine in sent.promises if machine == self.machine.name}
            self.world.ledger.committed(sent.body, kept, self.world.now_ms())
        else:
            self.world.ledger.rolled_back(sent.body)

    async def delete(self) -> None:
        """Make topics with some messages and delete them, again and again, until cancelled."""
        while True:
            chance = self.world.chance
            topic = chance.choice(["Gone", "Gone", "Past", "Over"])
            for number in range(chance.randrange(1, 6)):
                answer = await self._ask(send(topic, b"gone %d" % number, queue_id=number % 2))
                if answer is not None and answer.code:
                    self.refusals.append(f"{answer.code} {answer.remark}")
            await trio.sleep(chance.choice([0, 0.4, 3]))
            topic = chance.choice(["Gone", "Gone", "Past", "Over"])
            await self._ask(Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))

    async def consume(self) -> None:
        """Commit the ends of queues as a consumer that reads everything at once, until cancelled."""
        while True:
            await trio.sleep(self.world.chance.choice([0.2, 0.7]))
            topic, queue_id = self.world.chance.choice(QUEUES)
            asked = {"topic": topic, "queueId": str(queue_id)}
            answer = await self._ask(Command.request(RequestCode.GET_MAX_OFFSET, asked))
            if answer is not None and answer.code == 0:
                group = self.world.chance.choice([GROUP, GROUP, "others"])
                header = UpdateConsumerOffsetRequestHeader(group, topic, queue_id, int(answer.ext["offset"]))
                await self._ask(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header))

    async def _ask(self, request: Command) -> Command | None:
        try:
            return await self.pool.call(self.machine.address, request, 10)
        except UNKNOWN:
            await trio.sleep(0.1)
            return None


def handle_of(answer: Command) -> tuple[int, int]:
    """The place of a half message: physical offset, queue offset."""
    return int(answer.ext["msgId"][-16:], 16), int(answer.ext["queueOffset"])


def end_request(sent: Sent, decision: int) -> Command:
    """The request that ends a half message."""
    physical, queue_offset, key = sent.handle
    header = EndTransactionRequestHeader(
        "payers", queue_offset, physical, decision, msg_id=key, transaction_id=key
    )
    return Command.request(RequestCode.END_TRANSACTION, header)


# ---- what is left ----


@define(eq=False)
class Left:
    """A broker, without a service, over what an accident left on a disk. Raises what its start raises."""

    machine: Machine
    disk: MemoryDisk
    now_ms: int
    broker: Broker = field(init=False)
    answers: list[Command] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        config, store_config = self.machine.configs()
        host = host_bytes(self.machine.address)
        store = Store(self.disk, store_config, store_host=host, now_ms=lambda: self.now_ms)
        store.load()
        self.broker = Broker(
            config,
            store,
            address=self.machine.address,
            ha_address=f"{self.machine.name}:10912",
            now_ms=lambda: self.now_ms,
            clock=lambda: self.now_ms / 1000,
            chance=random.Random(1),
        )

    def close(self) -> None:
        self.broker.store.abandon()

    def wait(self, until_ms: int) -> None:
        """Let what is due until then come."""
        while self.now_ms < until_ms:
            at = min(self.broker.steps.schedule(), until_ms)
            self.now_ms = max(at, self.now_ms + 1)
        self.broker.steps.schedule()

    def ask(self, request: Command) -> None:
        """Have a request handled; `answers` are what came of it."""
        wire = SimpleNamespace(
            peer_address="10.0.9.1:1",
            local_address=self.machine.address,
            state={},
            closed=False,
            is_busy=False,
            reply=self.answers.append,
            write=lambda data: None,
            notify=lambda command, frame=b"": None,
        )
        self.broker.handle([request], cast(Any, wire))
        self.broker.on_synced(self.broker.store.flush())

    def read(self) -> dict[Queue, list[tuple[int, bytes]]]:
        """All queues as a consumer reads them."""
        return {queue: list(_messages(self.broker.store, queue)) for queue in QUEUES}


def _messages(store: Store, queue: Queue) -> Iterator[tuple[int, bytes]]:
    offset, end = store.min_offset(*queue), store.max_offset(*queue)
    while offset < end:
        result = store.get(*queue, offset, 32)
        messages = [message for buffer in result.buffers for message in decode_records(buffer)]
        if not messages:
            raise Lost(f"{queue} at {offset} of {end}: {result.status}")
        yield from ((message.queue_offset, message.body) for message in messages)
        offset = messages[-1].queue_offset + 1


def look(world: World, machine: Machine, disk: MemoryDisk, least: Promise, now_ms: int | None = None) -> None:
    """Raise Lost if a disk after an accident lacks a promised message, or the error of a start over this
    disk. `now_ms` is the time of the start."""
    left = Left(machine, disk, world.now_ms() if now_ms is None else now_ms)
    repeats = {body: sent.may_repeat for body, sent in world.ledger.sent.items()}
    world.ledger.interrupted(left.now_ms)  # what was under way may be there twice, on this disk
    try:
        world.ledger.check(machine.name, left.read(), left.now_ms, least=least, is_caught_up=False)
        for topic, queue_id in QUEUES:
            told = left.broker.offsets.get(GROUP, topic, queue_id)
            if told > left.broker.store.max_offset(topic, queue_id):
                raise Lost(f"readers of {topic} {queue_id} would pass over what comes next: {told} is ahead")
        if left.broker.is_slave:
            return
        left.wait(left.now_ms + LONGEST_MS)
        world.ledger.check(machine.name, left.read(), left.now_ms, least=least)
        _check_halves(world, left, least)
    finally:
        for body, repeat in repeats.items():
            world.ledger.sent[body].may_repeat = repeat
        left.close()


def _check_halves(world: World, left: Left, least: Promise) -> None:
    """Half messages that are kept can still be committed."""
    halves = world.ledger.open_halves(left.machine.name, least)
    for sent in halves:
        left.ask(end_request(sent, SYS_COMMIT))
    found = {body for messages in left.read().values() for _, body in messages}
    lost = [sent.body for sent in halves if sent.body not in found]
    if lost:
        codes = sorted({answer.code for answer in left.answers})
        raise Lost(f"{left.machine.name}: committed (answers {codes}) and not there: {lost[:3]!r}")


def keeps(machine: Machine) -> dict[str, Promise]:
    """The promise of an acknowledgement by a machine without slaves."""
    synced = machine.configs()[1].flush_disk_type is FlushDiskType.SYNC_FLUSH
    return {machine.name: Promise.SYNCED if synced else Promise.WRITTEN}
