"""A set of real brokers under controllers and real clients, on disks, network and a clock in memory.

Brokers lose power, are cut off from replicas or from controllers too, stand still for a while, and are
stopped in order; links get slow. A client sends all the time; `broker_traffic` has transactions and delayed
messages beside. At any moment one broker at most may act as master; in the end, when all is healed, all that
was acknowledged is there, at the offset that its sender was told, all logs are the same, and an audit of the
disks finds nothing: no gap in a queue, no doubled offset. The same seed gives the same trace: what is random
by itself (identities, nonces, the order in which trio runs tasks) comes of the seed, too.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import trio
from attrs import evolve

from rmq.broker.broker import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import failover_service
from rmq.client.client import Client
from rmq.client.produce.producer import Producer
from rmq.controller.consensus.raft import NotLeader
from rmq.controller.controller import ElectRequest
from rmq.controller.requests import answer_of, request_of
from rmq.errors import RmqError, StoreError
from rmq.message import Message, StoredMessage
from rmq.protocol.bodies import TopicRouteData
from rmq.protocol.codes import CONTROLLER_STATUS, LANGUAGE, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import GetRouteInfoRequestHeader
from rmq.protocol.record import decode_record
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.pool import Pool
from rmq.server.health import Health
from rmq.store.audit.audit import check as audit
from rmq.store.config import BrokerRole, FlushDiskType, StoreConfig
from rmq.testing.cluster import SELDOM_MS, STORE, Cluster
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork
from tests.sim.pauses import MACHINE, Pauses, pausable
from tests.sim.real_brokers.broker_clocks import LeaseClocks
from tests.sim.real_brokers.broker_commits import Commits
from tests.sim.real_brokers.broker_consumers import Consumers
from tests.sim.real_brokers.broker_controllers import CONTROLLERS, Controller
from tests.sim.real_brokers.broker_faults import Faults
from tests.sim.real_brokers.broker_locks import MEMBERS, Locks
from tests.sim.real_brokers.broker_memory import check_memory, waiting
from tests.sim.real_brokers.broker_reader import Reader
from tests.sim.real_brokers.broker_takes import Takes
from tests.sim.real_brokers.broker_traffic import (
    SCAN_SECONDS,
    Delays,
    Traffic,
    Transactions,
    Violation,
    check_copies,
)
from tests.sim.real_brokers.replica_bytes import check_replicas
from tests.sim.seeded import seeded
from tests.sim.virtual_loop import no_sockets, virtual_clock

HANGS_FROM: Final = 55_200
"""Chosen so that no disk hangs in the seeds at which other planted faults show."""
READS_FROM: Final = 500_000
"""In half of the seeds from here on consumers are told to read at slaves; seeds below go as before."""
HANGS: Final = 0.2
"""How often a disk hangs after another fault, in seeds that have disks that do."""


class Node:
    """One broker of the set."""

    def __init__(self, number: int) -> None:
        self.host = f"10.0.1.{number}"
        self.disk = MemoryDisk(seed=number)
        self.left = self.disk
        """What the last power cut left; it is the disk as soon as the process has ended."""
        self.is_founder = number == 1
        self.stop: trio.Event | None = None
        self.ended = trio.Event()
        self.started_at = 0.0
        self.broker: Broker | None = None
        self.ahead_ms = 0
        """So much later than it is its wall clock says."""
        self.health = Health()
        """What probes of it say, since its last start."""
        self.has_bad_disk = False
        """Its disk fails, so that it may end by itself."""

    def opened(self, broker: Broker) -> None:
        self.broker = broker

    def number(self) -> int:
        """The broker's number in the set; 0 before it has one."""
        manager = None if self.broker is None else getattr(self.broker.role, "manager", None)
        return 0 if manager is None else manager.number

    def has_stepped_down(self) -> bool:
        """True if the broker must act no more in its epoch."""
        manager = None if self.broker is None else getattr(self.broker.role, "manager", None)
        return manager is not None and manager.replica is not None and manager.replica.has_stepped_down

    def epoch_led(self) -> int:
        """The epoch that it leads, or follows."""
        manager = None if self.broker is None else getattr(self.broker.role, "manager", None)
        return 0 if manager is None or manager.replica is None else manager.led()[0]


class Set:
    """A broker set of some replicas, three controllers, a name server."""

    def __init__(
        self,
        cluster: Cluster,
        pool: Pool,
        nursery: trio.Nursery,
        size: int,
        leases: LeaseClocks | None = None,
        **settings: Any,
    ) -> None:
        self.cluster, self.pool, self.nursery, self.settings = cluster, pool, nursery, settings
        self.plugin_settings: dict[str, str] = settings.pop("plugin_settings", {})
        assert isinstance(cluster.network, MemoryNetwork)
        self.network = cluster.network
        self.nodes = [Node(number) for number in range(1, size + 1)]
        self.acknowledged: list[str] = []
        self.places: list[tuple[int, int, str]] = []
        """Of the acknowledged messages: queue, offset, body."""
        self.opened_ms: list[int] = []
        """When masters began."""
        self.is_controlled = True
        self.pauses = Pauses()
        self.controllers: list[Controller] = []
        self.clocks = [(0.0, 0, 0)]
        self.leases = leases or LeaseClocks()
        self.store_config = STORE
        self.have_bad_disks = False
        """Faults are to be of disks, too."""
        self.hangs: random.Random | None = None
        """The chance of disks that hang, if any do: one of its own, so that other seeds go as before."""

    async def start_controllers(self) -> None:
        for number in range(len(CONTROLLERS)):
            self.controllers.append(Controller(number, self.network, self.nursery, self.leases))
            await self.controllers[-1].start()

    async def start(self, node: Node, **more: Any) -> None:
        node.stop, node.ended = trio.Event(), trio.Event()
        await self.nursery.start(self._live, node, more)

    async def _live(self, node: Node, more: dict[str, Any], task_status: trio.TaskStatus[Any]) -> None:
        MACHINE.set(node.host)
        node.started_at, node.health = trio.current_time(), Health()
        config, store_config = self.configs(node)
        ended = node.ended
        try:
            await failover_service.run(
                config,
                store_config,
                network=self.network.host(node.host),
                disk=node.disk,
                now_ms=partial(self.now_ms, node),
                clock=partial(self.clock, node),
                stop=node.stop,
                health=node.health,
                on_opened=partial(self._opened, node),
                plugin_settings=self.plugin_settings,
                task_status=task_status,
            )
        except StoreError as error:
            if not node.has_bad_disk:
                raise Violation(f"{node.host} cannot go on: {error}") from error
            if node.ended is ended:
                node.stop = None
            with suppress(RuntimeError):  # it had started
                task_status.started()
        ended.set()

    def clock(self, node: Node) -> float:
        """The clock of a broker's leases, which goes on while its machine stands still."""
        return self.leases.now(node.host)

    def now_ms(self, node: Node) -> int:
        """The wall clock of a broker's machine."""
        return self.cluster.now_ms() + node.ahead_ms

    def set_clock(self, node: Node, ahead_ms: int) -> None:
        """Set the wall clock of a broker's machine."""
        node.ahead_ms = ahead_ms
        clocks = [one.ahead_ms for one in self.nodes]
        self.clocks.append((trio.current_time(), min(clocks), max(clocks)))

    def clocks_between(self, since: float = 0.0, until: float = math.inf) -> list[tuple[float, int, int]]:
        """Each setting of the wall clocks that held meanwhile: from when on, and by how much they were ahead,
        of all machines at least and at most."""
        ends = [at for at, _, _ in self.clocks[1:]] + [math.inf]
        return [one for one, end in zip(self.clocks, ends, strict=True) if end >= since and one[0] <= until]

    def ahead_ms(self) -> tuple[int, int]:
        """By how much wall clocks were ahead, of all machines: at least, at most."""
        known = self.clocks_between()
        return min(low for _, low, _ in known), max(high for _, _, high in known)

    def _opened(self, node: Node, broker: Broker) -> None:
        node.opened(broker)
        if not broker.is_slave:
            self.opened_ms.append(self.cluster.now_ms())

    def configs(self, node: Node) -> tuple[BrokerConfig, StoreConfig]:
        config = BrokerConfig(
            broker_name="s",
            broker_ip1=node.host,
            broker_id=0 if node.is_founder else 1,
            namesrv_addr=self.cluster.namesrv_address,
            controller_addr=";".join(CONTROLLERS) if self.is_controlled else "",
            **self.settings,
        )
        role = BrokerRole.SYNC_MASTER if node.is_founder else BrokerRole.SLAVE
        return config, evolve(
            self.store_config,
            broker_role=role,
            flush_disk_type=FlushDiskType.SYNC_FLUSH,
            ha_send_heartbeat_interval=1000,
            ha_housekeeping_interval=4000,
        )

    async def kill(self, node: Node, *, silently: bool = False, left: MemoryDisk | None = None) -> None:
        """The machine loses power, or has lost it and is cut off, when its disk was as `left`. Silently:
        nobody hears of it."""
        assert node.stop is not None
        if left is None:
            node.disk.on_change = node.disk.on_sync = None
            left = node.disk.image(0.5)
            self.cut_off(node, silently=silently)
        node.disk.resume()  # nobody waits for a disk without power
        self.pauses.resume(node.host)
        node.stop.set()
        await node.ended.wait()
        node.disk, node.stop = left, None

    async def end(self, node: Node) -> None:
        """A stop in order."""
        assert node.stop is not None
        self.pauses.resume(node.host)
        node.stop.set()
        await node.ended.wait()
        node.stop = None

    def start_later(self, node: Node) -> None:
        """Start a broker, which may take as long as controllers are away."""
        node.stop, node.ended = trio.Event(), trio.Event()
        self.nursery.start_soon(self._live_anyway, node)

    async def _live_anyway(self, node: Node) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._live, node, {})

    def pause(self, node: Node, seconds: float) -> None:
        """The machine stands still from now on, so long or until it is stopped."""
        self.pauses.pause(node.host)
        self.nursery.start_soon(self._go_on, node, seconds, node.stop)

    async def _go_on(self, node: Node, seconds: float, stop: trio.Event | None) -> None:
        try:
            await trio.sleep(seconds)
        finally:  # cancelled, too: tasks that are held could not end
            if node.stop is stop:
                self.pauses.resume(node.host)

    def cut_off(self, node: Node, *, silently: bool = False) -> None:
        self.network.partition(node.host, *self.network._hosts())
        if not silently:
            self.network.cut(node.host)
        self.network.vanish(node.host)

    async def status(self) -> dict[str, Any]:
        with trio.fail_after(30):
            while True:
                for address in CONTROLLERS:
                    try:
                        answer = await self.pool.call(address, Command.request(CONTROLLER_STATUS), 5)
                    except RmqError:
                        continue
                    found = json.loads(answer.body)
                    if found["leading"] and found["sets"]:
                        sets: dict[str, Any] = found["sets"][0]
                        return sets
                await trio.sleep(0.1)

    async def leading(self) -> str:
        """The host of the controller that leads; empty when none says so."""
        for address in CONTROLLERS:
            try:
                answer = await self.pool.call(address, Command.request(CONTROLLER_STATUS), 0.5)
            except RmqError:
                continue
            if json.loads(answer.body)["leading"]:
                return address.partition(":")[0]
        return ""

    async def want(self, number: int) -> bool:
        """Ask for a replica as the next master; whether the controllers take it."""
        for address in CONTROLLERS:
            try:
                response = await self.pool.call(address, request_of(ElectRequest("s", number)), 5)
                return not answer_of(response).refusal
            except (NotLeader, RmqError):
                pass
        return False

    async def until(self, **wanted: Any) -> dict[str, Any]:
        with trio.fail_after(60):
            while True:
                found = await self.status()
                if all(found[key] == value for key, value in wanted.items()):
                    return found
                await trio.sleep(0.1)

    async def master(self) -> Node:
        """The node that acts as master, as soon as there is one."""
        with trio.fail_after(60):
            while True:
                for node in self.acting():
                    return node
                await trio.sleep(0.05)

    async def begin(self, client: Client, *, queues: int = 1, group: str = "") -> Node:
        """Have a topic T, the group if one is named, and all in sync, for a test to begin with; returns the
        master, the first node."""
        first = await self.master()
        assert first is self.nodes[0]
        await client.admin.create_topic("T", broker="s", queues=queues)
        if group:
            await client.admin.create_group(group, broker="s")
        await self.until(inSync=list(range(1, len(self.nodes) + 1)))
        return first

    async def sent(self, producer: Producer, text: str) -> float:
        """Send until it is acknowledged, a minute at most; returns how long that took."""
        began = trio.current_time()
        with trio.fail_after(60):
            while not await self.send(producer, text):
                await trio.sleep(0.05)
        return trio.current_time() - began

    def acting(self) -> list[Node]:
        return [node for node in self.nodes if self._acts(node)]

    def _acts(self, node: Node) -> bool:
        broker = node.broker
        if node.stop is None or broker is None or broker.is_slave or not broker.role.is_in_set:
            return False
        return broker.role.manager.has_lease()

    def routed(self) -> str:
        """The host of the master by the name server's word; empty when it knows none."""
        (front,) = self.cluster.name_servers
        answer = front.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader("T"))
        if answer.code != ResponseCode.SUCCESS:
            return ""
        (known,) = TopicRouteData.from_json(answer.body).broker_datas
        return known.broker_addrs.get(0, "").partition(":")[0]

    async def send(self, producer: Producer, text: str) -> bool:
        try:
            result = await producer.send(Message("T", text.encode()))
        except RmqError:
            return False
        if result.status != "SEND_OK":
            return False
        self.acknowledged.append(text)
        self.places.append((result.message_queue.queue_id, result.queue_offset, text))
        return True

    def stored(self, node: Node) -> list[str]:
        """The bodies that a broker has, in the order of its queues."""
        return [message.body.decode() for message in self.messages(node, "T")]

    def log_digest(self, node: Node) -> str:
        """Of all bytes of a broker's log."""
        assert node.broker is not None
        store, digest = node.broker.store, hashlib.blake2b(digest_size=16)
        at = store.min_physical_offset
        while data := bytes(store.read_raw(at, 1 << 20)):
            digest.update(data)
            at += len(data)
        return f"{at} {digest.hexdigest()}"

    def messages(self, node: Node, topic: str) -> list[StoredMessage]:
        """The messages of a topic at a broker, queue after queue. Raises Violation for a gap."""
        assert node.broker is not None
        store = node.broker.store
        found = []
        for name, queue_id in sorted(store.queues()):
            if name != topic:
                continue
            for offset in range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)):
                unit = store.unit(topic, queue_id, offset)
                record = None if unit is None else store.read(unit[0])
                message = None if record is None else decode_record(bytes(record))
                if message is None or (message.queue_id, message.queue_offset) != (queue_id, offset):
                    raise Violation(f"{node.host}: {topic} queue {queue_id} has another message at {offset}")
                found.append(message)
        return found


@asynccontextmanager
async def controlled_set(
    size: int,
    seed: int = 1,
    *,
    heartbeat_ms: int = SELDOM_MS,
    leases: LeaseClocks | None = None,
    store_config: StoreConfig = STORE,
    **settings: Any,
) -> AsyncIterator[tuple[Set, Client]]:
    async with (
        Cluster(network=MemoryNetwork(seed=seed)) as cluster,
        Pool(cluster.network, ClientOnlyEndpoint()) as pool,
        cluster.connect(send_timeout_ms=1000, heartbeat_interval_ms=heartbeat_ms) as client,
        trio.open_nursery() as nursery,
    ):
        found = Set(cluster, pool, nursery, size, leases, **settings)
        found.store_config = store_config
        await found.start_controllers()
        for node in found.nodes:
            await found.start(node)
        yield found, client
        for node in found.nodes:
            if node.stop is not None:
                node.stop.set()
        for node in found.nodes:
            await node.ended.wait()
        nursery.cancel_scope.cancel()


class BrokerSimulation:
    """One seed: `size` brokers under faults for `seconds` of simulated time, then healed."""

    kind = "brokers"

    def __init__(self, seed: int, *, size: int = 2, seconds: float = 60.0) -> None:
        self.seed = seed
        self.size = size
        self.seconds = seconds
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.accepted = 0
        self.now = 0.0
        self._number = 0
        self._pace = 1.0
        self._commits = Commits()
        self._reader = Reader(random.Random(seed))
        self._locks = Locks(random.Random(seed))
        self._leases = LeaseClocks(seed)
        self._consumers = Consumers(seed)
        self._takes = Takes(seed)
        self._traced = hashlib.blake2b(digest_size=16)

    @classmethod
    def of(cls, seed: int) -> BrokerSimulation:
        """The simulation of a seed."""
        return cls(seed, size=2 + seed % 2)

    @property
    def trace(self) -> str:
        """Of all that was seen: of each broker its role and the end of its log, twenty times a second,
        faults, and what was acknowledged."""
        return self._traced.hexdigest()

    def _saw(self, *what: object) -> None:
        self.now = trio.current_time()
        self._traced.update(repr((self.now, *what)).encode())

    def run(self) -> None:
        """Run the simulation. Raises Violation."""
        with seeded(self.seed), no_sockets(), pausable() as self.pauses:
            self._run_to_end()

    def _run_to_end(self) -> None:
        try:
            trio.run(self._run, clock=virtual_clock())
        except BaseExceptionGroup as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None

    async def _run(self) -> None:
        checks = {"transaction_check_interval": 1_000, "transaction_time_out": 2_000}
        settings: dict[str, Any] = checks | {"transaction_check_max": 1_000}
        if self.seed >= READS_FROM and random.Random(f"{self.seed} reads").random() < 0.5:
            settings["read_at_slaves"] = (LANGUAGE,)
        disks = random.Random(f"{self.seed} disks")
        # A recovery goes by what the checkpoint vouches for: in half of the seeds it is written often.
        often = evolve(STORE, flush_consume_queue_thorough_interval=7_000)
        async with controlled_set(
            self.size,
            self.seed,
            heartbeat_ms=5_000,
            leases=self._leases,
            store_config=disks.choice((STORE, often)),
            **settings,
        ) as (found, client):
            found.have_bad_disks = disks.random() < 0.5
            hangs = random.Random(self.seed + HANGS_FROM)
            found.hangs = hangs if hangs.random() < 0.5 else None
            found.pauses = self.pauses
            await found.master()
            await client.admin.create_topic("T", broker="s", queues=2)
            for topic in ("X", "D"):
                await client.admin.create_topic(topic, broker="s", queues=1)
            await self._consumers.make_topic(client)
            await found.until(inSync=list(range(1, self.size + 1)))
            delays = Delays(self._chance(), found.clocks_between)
            traffic: list[Traffic] = [Transactions(self._chance()), delays]
            async with client.producer("P") as producer, trio.open_nursery() as nursery:
                nursery.start_soon(self._send, found, producer)
                nursery.start_soon(self._commit, found, self._chance())
                nursery.start_soon(self._watch, found, delays)
                nursery.start_soon(self._reader.run, found)
                nursery.start_soon(self._consumers.run, found, client)
                nursery.start_soon(self._takes.run, found)
                for member in MEMBERS:
                    nursery.start_soon(partial(self._locks.run, found, member=member))
                for one in traffic:
                    await nursery.start(one.run, client)
                faults = Faults(found, self.chance, self._commits, self._saw)
                self.counts = faults.counts
                end = trio.current_time() + self.seconds
                while trio.current_time() < end:
                    await faults.happen()
                    if found.hangs is not None and found.hangs.random() < HANGS:
                        await faults.hang(found.hangs)
                    await trio.sleep(self.chance.uniform(0.1, 8.0))
                await faults.heal()
                before = len(found.acknowledged)
                with trio.move_on_after(60) as waiting:
                    while len(found.acknowledged) < before + 3:
                        await trio.sleep(0.1)
                if waiting.cancelled_caught:
                    raise Violation("no message is acknowledged a minute after healing")
                self._pace = 10.0
                for one in traffic:
                    await self._settle(found, one)
                await self._consumers.settle()
                await self._takes.settle(found)
                await self._quiet(found)
                acknowledged = found.acknowledged[:]
                with trio.move_on_after(60):
                    while not self._reader.seen.issuperset(acknowledged):
                        await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
                if skipped := set(acknowledged) - self._reader.seen:
                    raise Violation(f"a minute after healing a consumer has not had {sorted(skipped)[:10]}")
            await self._check(found)
            check_memory(found)
            for one in traffic:
                messages = found.messages(await found.master(), one.topic)
                self._saw(one.topic, [message.body for message in messages])
                one.check(messages)
                check_copies(messages, found.opened_ms, found.ahead_ms())
                self.accepted += len(messages)
            self.accepted += len(found.acknowledged) + len(self._consumers.acknowledged)
            self.accepted += self._commits.answered + self._locks.given + len(self._takes.answered)
        for node in found.nodes:
            report = audit(node.disk, "/store")
            if not report.is_clean:
                raise Violation(f"{node.host}: {report.findings[:5]}")
        check_replicas({node.host: node.disk for node in found.nodes})

    def _chance(self) -> random.Random:
        return random.Random(self.chance.getrandbits(64))

    async def _settle(self, found: Set, traffic: Traffic) -> None:
        """Wait until all of it is delivered."""
        traffic.stop()
        missing = ["?"]
        low, high = found.ahead_ms()  # what was sent with a clock that is ahead waits for longer
        with trio.move_on_after(60 + (high - low) / 1000):
            while missing:
                await trio.sleep(0.5)
                bodies = {one.body.decode() for one in found.messages(await found.master(), traffic.topic)}
                missing = traffic.missing(bodies)
        if missing:
            raise Violation(f"{traffic.topic}: not delivered a minute after healing: {missing[:10]}")

    async def _quiet(self, found: Set) -> None:
        """Wait a minute at most until nothing waits; `check_memory` says what does."""
        with trio.move_on_after(60):
            while (broker := (await found.master()).broker) is None or waiting(broker):
                await trio.sleep(0.01)

    async def _send(self, found: Set, producer: Producer) -> None:
        while True:
            self._number += 1
            self._saw(self._number, await found.send(producer, f"m{self._number}"))
            await trio.sleep(self.chance.uniform(0.0, 0.2) * self._pace)

    async def _commit(self, found: Set, chance: random.Random) -> None:
        while True:
            await trio.sleep(chance.uniform(0.05, 0.5))
            await self._commits.commit(found)
            self._saw("commits", self._commits.answered)

    async def _watch(self, found: Set, delays: Delays) -> None:
        while True:
            acting = found.acting()
            ends = [-1 if one.broker is None else one.broker.store.max_physical_offset for one in found.nodes]
            self._saw([node.host for node in acting], ends)
            if len(acting) > 1:
                raise Violation(f"{len(acting)} brokers act as master")
            for node in acting:
                if node.has_stepped_down():
                    raise Violation(f"{node.host} acts as master after it has resigned")
            self._commits.look(acting)
            self._locks.look(acting)
            delays.look(acting)
            self._consumers.look()
            self._takes.look()
            await trio.sleep(SCAN_SECONDS)

    async def _check(self, found: Set) -> None:
        await trio.sleep(3)
        logs = [found.stored(node) for node in found.nodes]
        self._saw(logs)
        lost = [text for text in found.acknowledged if text not in set(logs[0])]
        if lost:
            raise Violation(f"acknowledged and lost: {lost[:10]}")
        if any(log != logs[0] for log in logs):
            raise Violation(f"logs differ: {[len(log) for log in logs]}")
        if len({found.log_digest(node) for node in found.nodes}) > 1:
            raise Violation("logs have the same messages and other bytes")
        self._check_places(found)

    def _check_places(self, found: Set) -> None:
        """Each acknowledged message is where its sender was told, and those of one sender are in order."""
        there = {(one.queue_id, one.queue_offset): one.body for one in found.messages(found.nodes[0], "T")}
        ends: dict[int, int] = {}
        for queue_id, offset, text in found.places:
            if there.get((queue_id, offset)) != text.encode():
                raise Violation(f"{text} is not at offset {offset} of queue {queue_id}, as was answered")
            if offset <= ends.get(queue_id, -1):
                raise Violation(f"{text} has offset {offset}, and what was sent before {ends[queue_id]}")
            ends[queue_id] = offset
