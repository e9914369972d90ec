"""A cluster in memory: real name servers and brokers over a `MemoryNetwork`, each broker on a `MemoryDisk`.

    async with Cluster("a", "b", topics={"Orders": 2}) as cluster, cluster.connect() as client:
        ...

The cluster runs in the caller's loop, asyncio or trio, without threads. Time is virtual: two hours pass as
soon as no task has anything to do before. `cluster["a"]` is the front of broker a: its received requests, and
its scripted responses.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Unpack

import anyio
import anyio.abc
from attrs import evolve

from rmq.broker.broker import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import failover_service
from rmq.client.client import Client, ConnectOptions, connect
from rmq.client.config import ClientConfig
from rmq.clock import wall_clock_ms
from rmq.message import StoredMessage
from rmq.namesrv import service as namesrv_service
from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.handlers import NameServer
from rmq.protocol.bodies import TopicRouteData
from rmq.protocol.codes import PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from rmq.protocol.headers import GetRouteInfoRequestHeader
from rmq.remoting.limits import Limits
from rmq.remoting.loop import TaskGroupScope, current_loop
from rmq.remoting.network import Network
from rmq.store.config import StoreConfig
from rmq.testing.clock import virtual_time
from rmq.testing.disk import MemoryDisk
from rmq.testing.front import BrokerFront, Front
from rmq.testing.network import MemoryNetwork

START_MS: Final = 1_700_000_000_000
"""Wall time in ms when trio's clock stands at 0."""
WAIT_SECONDS: Final = 30.0
"""Seconds for a topic to become known, or for a broker to stop."""
STORE: Final = StoreConfig(
    store_path_root_dir="/store",
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=6000,
    max_hash_slot_num=1000,
    max_index_num=4000,
    flush_interval_commit_log=600_000,
    flush_consume_queue_thorough_interval=600_000,
    clean_resource_interval=600_000,
)
"""Small files, and loops with rare turns: each turn costs CPU time when hours pass at once."""
SETTLE_SECONDS: Final = 0.001
"""Seconds of virtual time after which all due work is done."""
SELDOM_MS: Final = 600_000
"""Time between brokers' writes of data that only a crash would lose, and between clients' heartbeats."""
SILENT_MS: Final = 2 * SELDOM_MS
"""Silence after which a broker drops a member of a group, a name server drops a broker, and either
ends a connection: ten times the usual values, as heartbeats are ten times rarer."""
CLIENTS: Final = ClientConfig(
    pull_suspend_ms=SELDOM_MS,
    pull_timeout_ms=SELDOM_MS + 30_000,
    rebalance_interval_ms=SELDOM_MS,
    heartbeat_interval_ms=SELDOM_MS,
    poll_name_server_interval_ms=SELDOM_MS,
)
"""Settings of clients: periodic work is rare. Events are still reported at once: messages, new members, lost
connections."""
BROKERS: Final = {
    "enable_property_filter": True,
    "flush_consumer_offset_interval": SELDOM_MS,
    "register_name_server_period": 60_000,
    "server_channel_max_idle_time_seconds": SILENT_MS // 1000,
    "max_suspend_time_mills": CLIENTS.pull_suspend_ms,
    "broker_fast_failure_enable": False,
}
"""Settings of brokers, of the same kind. Sends are not refused when the machine is busy: no client repeats
such a send where there is no other broker."""


async def at_once(work: Callable[[], None]) -> None:
    """Run a function here: a thread would let virtual time run on."""
    work()


class Cluster:
    """Name servers and brokers, which run while the block lasts.

    The loop is in virtual time during the block, unless `real_time` is set, which uvloop needs. Wall time, as
    stamped on messages, begins with the machine's and goes with the loop's clock. (Under a mock clock of
    trio, or on another network, it is `START_MS` when that clock stands at 0.)

    `topics` are names with their numbers of queues on each broker. `network` is a MemoryNetwork of the
    caller, or another network, on which all servers listen on loopback. `store` are settings of all stores,
    and the rest are settings of all brokers; `plugin_settings` are the texts of a configuration file for
    plug-ins.
    """

    def __init__(
        self,
        *brokers: str,
        name_servers: int = 1,
        topics: Mapping[str, int] | None = None,
        network: Network | None = None,
        store: Mapping[str, Any] | None = None,
        real_time: bool = False,
        plugin_settings: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.network: Network = MemoryNetwork(seed=1) if network is None else network
        self.name_servers = [Front() for _ in range(name_servers)]
        self.brokers = {name: BrokerFront(name) for name in brokers}
        self.disks: dict[str, MemoryDisk] = {}
        self.topics = dict(topics or {})
        self.store, self.settings = dict(store or {}), settings
        self._stops: dict[str, tuple[anyio.Event, anyio.Event]] = {}
        self._is_real_time = real_time
        self._plugin_settings = dict(plugin_settings or {})
        self._wall_ms: int | None = None
        self._epoch_ms = START_MS
        self._now: Callable[[], float] = anyio.current_time
        self._has_own_time = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._scope = TaskGroupScope()

    def __getitem__(self, broker: str) -> BrokerFront:
        return self.brokers[broker]

    async def __aenter__(self) -> Cluster:
        """Start all servers; afterwards the name servers know the brokers and the topics. Raises as the
        services of both."""
        self._folder = tempfile.TemporaryDirectory(prefix="rmq-")
        self._scope = TaskGroupScope()
        self._time = ExitStack()
        is_memory = isinstance(self.network, MemoryNetwork) and not self._is_real_time
        self._has_own_time = self._is_real_time or (is_memory and self._time.enter_context(virtual_time()))
        self._now = current_loop().now
        if self._has_own_time:
            self._epoch_ms = wall_clock_ms() - int(self._now() * 1000)
        await self._scope.__aenter__()
        try:
            for number, front in enumerate(self.name_servers, 1):
                await self._start_name_server(number, front, self._folder.name)
            for name in self.brokers:
                await self.start(name)
            for topic, queues in self.topics.items():
                await self.create_topic(topic, queues)
        except BaseException as error:
            await self._leave(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop all servers, also when cancelled. A server's error is raised, unless the block raised an
        error."""
        try:
            with anyio.CancelScope(shield=True):
                for name in self.brokers:
                    await self.stop(name)
        finally:
            await self._leave(kind, error, trace)

    async def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._scope.__aexit__(kind, error, trace)
        finally:
            self._time.close()
            assert self._folder is not None
            self._folder.cleanup()

    # ---- servers ----

    @property
    def namesrv_address(self) -> str:
        """The addresses of the name servers, in the form for clients."""
        return ";".join(front.address for front in self.name_servers)

    def now_ms(self) -> int:
        """Wall time in ms, as the brokers' clock."""
        return self._wall_ms or self._epoch_ms + int(self._now() * 1000)

    @contextmanager
    def at(self, wall_ms: int) -> Iterator[None]:
        """Let brokers stamp messages of the block, which must not wait, with this time."""
        self._wall_ms = wall_ms
        try:
            yield
        finally:
            self._wall_ms = None

    async def start(self, broker: str, *, store: Mapping[str, Any] | None = None, **settings: Any) -> None:
        """Start a broker: a new broker, or a stopped broker on its former disk. These settings take
        precedence over the cluster's. When the function returns the name servers know the broker. Raises as
        the broker's service."""
        front = self.brokers.setdefault(broker, BrokerFront(broker))
        disk = self.disks.setdefault(broker, MemoryDisk(seed=1))
        network, host, port = self._place(f"10.0.1.{1 + list(self.disks).index(broker)}", 10911)
        own: dict[str, Any] = {
            "namesrv_addr": self.namesrv_address,
            "broker_name": broker,
            "broker_ip1": host,
            "listen_port": port,
        }
        stop, stopped = self._stops[broker] = anyio.Event(), anyio.Event()
        run = partial(
            failover_service.run,
            BrokerConfig(**BROKERS | own | self.settings | settings),
            evolve(STORE, **self.store | dict(store or {})),
            network=network,
            disk=disk,
            now_ms=self.now_ms,
            clock=anyio.current_time,
            stop=stop,
            front=front.before,
            plugin_settings=self._plugin_settings,
        )
        addresses = await self._scope.tasks.start(_until_stopped, run, stopped)
        front.address = addresses[0]
        if isinstance(front.server, Broker):
            front.server.clients.silent_ms = SILENT_MS
            front.server.registration.period = SELDOM_MS / 1000

    async def stop(self, broker: str) -> None:
        """Stop a broker as SIGTERM does, and wait until it has."""
        stop, stopped = self._stops[broker]
        stop.set()
        with anyio.fail_after(WAIT_SECONDS):
            await stopped.wait()

    async def create_topic(
        self,
        topic: str,
        queues: int = 4,
        *,
        brokers: Sequence[str] = (),
        perm: int = PERM_READ | PERM_WRITE,
    ) -> None:
        """Create a topic on these brokers (default: all), or change it; when the function returns the name
        servers know the topic. Raises ResponseError."""
        counts = dict.fromkeys(brokers or self.brokers, queues)
        for name in counts:
            self[name].create_topic(topic, queues, perm)
        with anyio.fail_after(WAIT_SECONDS):
            while not all(self._knows(front, topic, perm, counts) for front in self.name_servers):
                await anyio.sleep(0.001)

    def _knows(self, front: Front, topic: str, perm: int, counts: Mapping[str, int]) -> bool:
        answer = front.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic))
        if answer.code != ResponseCode.SUCCESS:
            return False
        queues = TopicRouteData.from_json(answer.body).queue_datas
        known = {one.broker_name: one.read_queue_nums for one in queues if one.perm == perm}
        return counts.items() <= known.items()

    async def _start_name_server(self, number: int, front: Front, folder: str) -> None:
        network, host, port = self._place(f"10.0.0.{number}", 9876)
        config = NamesrvConfig(
            bind_address=host,
            listen_port=port,
            server_channel_max_idle_time_seconds=SILENT_MS // 1000,
            kv_config_path=f"{folder}/kvConfig-{number}.json",
            config_store_path=f"{folder}/namesrv-{number}.properties",
        )
        run = partial(namesrv_service.run, config, network=network, front=front.before)
        (front.address,) = await self._scope.tasks.start(run)
        if isinstance(front.server, NameServer):
            front.server.routes.expiry_ms = SILENT_MS

    def _place(self, host: str, port: int) -> tuple[Network, str, int]:
        if isinstance(self.network, MemoryNetwork):
            return self.network.host(host), host, port
        return self.network, "127.0.0.1", 0

    # ---- clients, time and faults ----

    def connect(self, **options: Unpack[ConnectOptions]) -> Client:
        """A client; `options` are those of `rmq.connect`. Missing settings are those of the cluster."""
        network = self.network.host("10.0.9.1") if isinstance(self.network, MemoryNetwork) else self.network
        given: ConnectOptions = {"network": network, "config": CLIENTS, **options}
        client = connect(self.namesrv_address, **given)
        if self._has_own_time:
            client._now_ms = self.now_ms
        client._limits = Limits(stall_seconds=math.inf, idle_seconds=SILENT_MS / 1000)
        client._in_thread = at_once
        return client

    def sent(self, topic: str) -> list[StoredMessage]:
        """The messages of a topic on the brokers, in the order of their storage."""
        found = [message for front in self.brokers.values() for message in front.messages(topic)]
        return sorted(found, key=lambda one: (one.store_timestamp, one.physical_offset))

    async def advance(self, seconds: float) -> None:
        """Let time pass, and let all work that is due happen: in virtual time both take no real time."""
        await anyio.sleep(seconds)
        await anyio.sleep(SETTLE_SECONDS)  # ends when no task has work any more

    def slow(self, seconds: float) -> None:
        """Delay all bytes by so many seconds from now on; 0: no delay."""
        self._memory.latency = (seconds, seconds)

    def cut(self, broker: str | None = None) -> None:
        """Break the connections of a broker, or all: both ends see a reset."""
        self._memory.cut(None if broker is None else self[broker].address.partition(":")[0])

    def black_hole(self, broker: str | None = None) -> None:
        """Stop all bytes on the open connections of a broker, or on all, as when NAT forgets them: neither
        end notices, and new connections work."""
        self._memory.black_hole(None if broker is None else self[broker].address.partition(":")[0])

    @property
    def _memory(self) -> MemoryNetwork:
        assert isinstance(self.network, MemoryNetwork), "only a network in memory has faults"
        return self.network


async def _until_stopped(
    run: Callable[..., Any],
    stopped: anyio.Event,
    *,
    task_status: anyio.abc.TaskStatus[list[str]] = anyio.TASK_STATUS_IGNORED,
) -> None:
    await run(task_status=task_status)
    stopped.set()
