"""The nursery tree of a broker: this file starts every task of the broker.

    broker
    ├── inner
    │   ├── store
    │   │   ├── flush        one sync at a time, for all sends that wait; also queue files and checkpoint
    │   │   ├── reput        index and queue files, in batches after the replies
    │   │   └── clean        expired files
    │   ├── schedule         delayed messages that are due
    │   ├── check_back       half messages without an end
    │   ├── deadlines        held pulls, sends and requests to clients whose time is over
    │   ├── expire           silent clients, stale locks, samples
    │   ├── persist          offsets, topics, groups, delay progress
    │   ├── rounds           the time in which the loop serves every connection once
    │   ├── new_topics       topics made by a send, which is answered after the save
    │   ├── deferred_saves   files that administrators change: settings, accounts
    │   ├── ha               a master: a link to each slave (replication_loops.py)
    │   └── plugins          one supervised task for each plugin that has run()
    └── outer
        ├── register         one task for each name server
        ├── ha               a slave: the link to its master, copies of its tables (replication_loops.py)
        ├── doors            listeners of plug-ins' protocols, two tasks for each connection
        └── serve            listeners, and one nursery for each connection

A stop goes from the outside in: the broker unregisters from name servers, refuses sends, answers polls,
flushes the log, closes connections with their last answers, saves tables, and closes the store.

An error of a connection ends the connection. An error of a plugin's task restarts the task. Expected network
errors in `register` are retried. A timed loop that fails by an error of ours or of the system continues
later. Any other error, and an error that the flusher cannot mend, ends the broker, because a store that
cannot flush must not go on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from typing import Final, NoReturn, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel

from rmq.broker.broker import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.disk_work import DiskWork, way_to_run
from rmq.broker.produce.admission import FlowControl
from rmq.broker.role import Role
from rmq.broker.runtime.flusher import SYNC, Flusher
from rmq.broker.runtime.registrars import NAME_SERVERS, NOT_TRIED, Registrars, answer_assignments
from rmq.broker.runtime.replication_handshake import Guard
from rmq.broker.runtime.replication_loops import MASTER, Follower, serve_slaves
from rmq.broker.runtime.saver import Saver
from rmq.broker.runtime.startup import (
    DISK_SECONDS,
    STORE,
    Opening,
    Ports,
    StoppedOpening,
    check,
    doors_of,
    guard_of,
    open_broker,
    open_ports,
    own_limits,
    upgrades,
)
from rmq.broker.tables.offsets import log_losses
from rmq.broker.wakeups import Wakeups
from rmq.clock import wall_clock_ms
from rmq.errors import (
    RmqError,
    StoreError,
)
from rmq.metrics import Histogram
from rmq.remoting.endpoint import ClientOnlyEndpoint, Endpoint
from rmq.remoting.loop import Wakeup, current_loop, run_cooperatively, supervise, unwrap_groups
from rmq.remoting.network import Network, TcpNetwork
from rmq.remoting.poller import Poller
from rmq.remoting.pool import Pool
from rmq.remoting.serving.doors import serve_doors
from rmq.remoting.serving.server import serve_listeners
from rmq.remoting.transports.certificate import CERTIFICATE_SECONDS, certificate_end
from rmq.remoting.transports.tls import TlsConfig
from rmq.server.health import Health, Stop
from rmq.server.http import served_pages
from rmq.server.ports import CLIENTS, client_limits, door_addresses, own_ports
from rmq.server.profile import applied
from rmq.store.config import StoreConfig
from rmq.store.files.disk import Disk, RealDisk
from rmq.store.retention import MOST_FILES

SERVICE: Final = "service"
"""The part of a broker's health that is lacking while it stops."""
ROLE_SECONDS: Final = 90.0
"""Like DISK_SECONDS, for a change of role in a controlled set: the broker serves readers meanwhile."""
QUIET_SECONDS: Final = 0.05
"""From the last answer to a pull until connections break: clients have sent then what that made them send."""
FIRST_SYNC_SECONDS: Final = 10.0
"""From the start after a crash to the first sync of queues, whose units wait in memory for some 7 s."""
SYNC_BYTES: Final = 256 << 20
"""Bytes that a start after a kill would read, from which on queues are synced before their time is up: a
broker that takes 400,000 messages a second had 12 million to read, which takes a minute."""
SYNC_LOOK_SECONDS: Final = 5.0
"""Seconds between two looks at these bytes."""
ROUND_SECONDS: Final = 0.1
"""Seconds between two measured rounds of the event loop while none is long."""
REPUT_SECONDS = 0.1
"""For so long records gather before the index gets them."""
REPUT_PAUSES: Final = (1.0, 64.0)
"""Seconds until the next look for deferred work: after new records, and at most."""
REPUT_RECORDS = 500
FILES_SECONDS: Final = 0.004
"""Pause between two pieces of work on thousands of queue files, which are twice as short at most: a request
should not wait for one piece after the other."""
ENDURED = (RmqError, OSError)
"""Errors after which every loop but the flusher's continues: a damaged record, a peer or a full table may
cause it at any time."""

log = logging.getLogger("rmq.broker")

T = TypeVar("T")


async def run(
    config: BrokerConfig,
    store_config: StoreConfig,
    *,
    tls: TlsConfig | None = None,
    network: Network | None = None,
    disk: Disk | None = None,
    now_ms: Callable[[], int] | None = None,
    plugin_settings: Mapping[str, str] | None = None,
    stop: Stop | None = None,
    also: dict[str, str] | None = None,
    health: Health | None = None,
    on_opened: Callable[[Broker], None] = lambda broker: None,
    front: Callable[[Endpoint], Endpoint] | None = None,
    pool: Pool | None = None,
    role: Role | None = None,
    task_status: anyio.abc.TaskStatus[list[str]] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until `stop` is set, or until cancelled; both stop it gracefully.

    `started` gets the addresses as bound, first the address for clients, once a name server knows the broker
    or none could be reached; it gets no address after a stop before that. `also` is filled with the other
    listeners and their addresses. Without `disk` files are real and syncs run in a thread; a simulation gives
    its own disk, and `now_ms`. `on_opened` is given the broker when its store is open. `front` is given the
    broker and makes the endpoint of clients' connections, for tests. `pool` outlives the broker, so that name
    servers do not forget it in between. `role` is the role in a set with controllers; by default the role of
    the settings. Raises ConfigError, PluginRefused, PortInUse, StoreLocked, CorruptRecord before `started`,
    with nothing left running; later CorruptRecord when a broken disk lost the log's end.
    """
    check(config, store_config)
    config, tls = applied(config, tls or TlsConfig())
    guard = guard_of(config, tls)
    network = network or TcpNetwork()
    stop = anyio.Event() if stop is None else stop
    also = {} if also is None else also
    health = health or Health()
    health.lacks(STORE, "it is being opened")  # before anybody can ask
    health.has(SERVICE)  # the service before it, in another role, has stopped
    if config.namesrv_addr:
        health.lacks(NAME_SERVERS, NOT_TRIED)
    async with served_pages(network, config, health) as served:
        ports = await open_ports(network, config, store_config)
        alarms, threads = _Wakeups(), disk is None
        flusher: Flusher  # knows the broker, which knows how to wake it
        try:
            broker = await open_broker(
                config,
                store_config,
                ports,
                disk or RealDisk(),
                now_ms or wall_clock_ms,
                plugin_settings or {},
                wake=alarms.wakeups(lambda: flusher.kick()),
                disk_work=DiskWork(current_loop().now, way_to_run(disk)),
                role=role,
                opening=Opening(health, stop, threads=threads),
                network=network,
            )
        except StoppedOpening:
            task_status.started([])
            return
        try:
            on_opened(broker)
        except BaseException:  # a disk that takes nothing, say
            broker.store.abandon()
            await ports.aclose()
            raise
        flusher = Flusher(
            broker.store,
            on_synced=broker.on_synced,
            awaited=lambda: broker.flush_awaited,
            took=broker.histograms.flush,
            threads=threads,
            disk_work=broker.disk_work,
        )
        service = _Service(
            broker,
            ports,
            alarms,
            flusher,
            endpoint=broker if front is None else front(broker),
            network=network,
            guard=guard,
            threads=threads,
            health=health,
            pool=pool,
        )
        served.pages.update(broker.hooks.pages())
        also |= {} if ports.slaves is None else {"slaves": ports.slaves.address}
        also |= door_addresses(ports.doors)
        also |= served.listens() | broker.hooks.listens()
        with unwrap_groups():
            async with anyio.create_task_group() as nursery:
                addresses = await nursery.start(service.live, stop)
                task_status.started(addresses)
                try:
                    await stop.wait()
                finally:
                    stop.set()


async def _enduring(loop: Callable[[], Awaitable[None]]) -> None:
    """Restart a loop a second after an error of `ENDURED`: a loop begins with the work that is due, whatever
    it did before."""
    what = f"the broker's loop {loop.__name__.strip('_')}"
    await supervise(what, loop, errors=ENDURED, longest_pause=1.0)


async def measure_rounds(flow: FlowControl, lag: Histogram, poller: Poller) -> NoReturn:
    """Report how long rounds of the event loop take, and of the poller, which may take several rounds: at
    intervals, and each round while rounds are long. `lag` gets that time, or the delay with which this task
    itself was woken, if longer."""
    late = 0.0
    while True:
        # Two, since tasks run in any order within a round: this one may be the last of one and the first of
        # the next.
        began = anyio.current_time()
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        took = max((anyio.current_time() - began) / 2, await poller.round_end())
        lag.observe(max(took, late))
        late = 0.0
        if not flow.round_took(took):
            due = anyio.current_time() + ROUND_SECONDS
            await anyio.sleep_until(due)
            late = anyio.current_time() - due


class _Wakeups:
    """The wakeups of a broker's loops."""

    def __init__(self) -> None:
        self.deadlines, self.schedule, self.reput, self.follower = Wakeup(), Wakeup(), Wakeup(), Wakeup()
        self.new_topics, self.sliced_answers, self.clean = Wakeup(), Wakeup(), Wakeup()
        self.routes = Wakeup()
        self.deferred_saves = Wakeup()
        self.register = Wakeup()

    def wakeups(self, flush: Callable[[], None]) -> Wakeups:
        """The wakeups that the broker calls."""
        return Wakeups(
            deadlines=self.deadlines.set,
            schedule=self.schedule.set,
            reput=self.reput.set,
            flush=flush,
            follower=self.follower.set,
            register=self.register.set,
            new_topics=self.new_topics.set,
            sliced_answers=self.sliced_answers.set,
            routes=self.routes.set,
            clean=self.clean.set,
            deferred_saves=self.deferred_saves.set,
        )


class _Service:
    """The loops of one broker over its opened store and its open listeners."""

    def __init__(
        self,
        broker: Broker,
        ports: Ports,
        alarms: _Wakeups,
        flusher: Flusher,
        *,
        endpoint: Endpoint,
        network: Network,
        guard: Guard,
        threads: bool,
        health: Health,
        pool: Pool | None,
    ) -> None:
        self.broker = broker
        self._health = health
        self._endpoint = endpoint
        self.store = broker.store
        self._ports = ports
        self._alarms = alarms
        self._flusher = flusher
        self._network = network
        self._guard = guard
        self._tls = guard.tls.config
        self._pool: AbstractAsyncContextManager[Pool] = (
            nullcontext(pool)
            if pool
            else Pool(network, ClientOnlyEndpoint(), limits=own_limits(broker.config), tls=self._tls)
        )
        self._threads = threads
        self._doors = doors_of(broker, ports, guard.tls)
        self._registrars = Registrars(broker, health, alarms.register)
        self._saver = Saver(broker, self._blocking, self._alarms.new_topics)

    # ---- the tree ----

    async def live(
        self, stop: Stop, *, task_status: anyio.abc.TaskStatus[list[str]] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """The whole run of the broker. Shielded: only `stop` and its own errors end it."""
        with anyio.CancelScope(shield=True), unwrap_groups():
            try:
                await self._grow(stop, task_status)
            except BaseException:
                self.store.abandon()  # without the mark of a clean stop: the next start looks closely
                raise
            await self.broker.disk_work.do(self.store.close, "the closing of the store has been under way")
            log.info("the broker has stopped, its store is closed")

    async def _grow(self, stop: Stop, task_status: anyio.abc.TaskStatus[list[str]]) -> None:
        async with anyio.create_task_group() as inner:
            broker, poller = self.broker, Poller()
            await inner.start(self._flusher.run)
            for loop in (self._sync_queues, self._reput, self._clean, self._schedule, self._check_back):
                inner.start_soon(_enduring, loop)
            for loop in (
                self._deadlines,
                self._expire,
                self._saver.persist,
                self._saver.save_on_request,
                self._sliced_answers,
                self._deferred_saves,
            ):
                inner.start_soon(_enduring, loop)
            if self._threads:  # in a simulation rounds take no time
                inner.start_soon(measure_rounds, broker.flow, broker.histograms.loop_lag, poller)
            inner.start_soon(self._check_certificate)
            for name, plugin in self.broker.hooks.tasks:
                inner.start_soon(supervise, f"plugin {name}", plugin.run)
            async with self._pool as pool, anyio.create_task_group() as outer:
                serving = partial(
                    serve_listeners,
                    self._ports.clients,
                    self._endpoint,
                    limits=client_limits(self.broker.config),
                    tls=self._tls,
                    acceptor=self.broker.acceptors[CLIENTS],
                    access=upgrades(self.broker.config),
                    budget=self.broker.budget,
                    poller=poller,
                    doors=self._doors,
                )
                addresses = await outer.start(serving)
                if self._doors is not None:
                    await outer.start(serve_doors, self._doors, own_ports(self._ports.doors))
                if self._ports.slaves is not None:
                    acceptor = self.broker.acceptors["slaves"]
                    inner.start_soon(
                        serve_slaves, self.broker, self._ports.slaves, self._guard, acceptor, poller
                    )
                self._health.has(MASTER)  # it may have been a slave before
                if self.broker.is_slave:
                    follower = Follower(
                        self.broker,
                        self._network,
                        pool,
                        self._guard,
                        grown=self._alarms.follower,
                        health=self._health,
                        poller=poller,
                    )
                    outer.start_soon(follower.follow)
                    outer.start_soon(follower.copy)
                outer.start_soon(answer_assignments, broker, pool, self._alarms.routes)
                await self._registrars.start(outer, pool)
                task_status.started(addresses)
                await stop.wait()
                await self._stop(pool)
                outer.cancel_scope.cancel()
            await self._saver.save()
            inner.cancel_scope.cancel()

    async def _stop(self, pool: Pool) -> None:
        """Inform name servers and plug-ins, and answer all requests that wait. Connections are still open."""
        broker = self.broker
        self._health.lacks(SERVICE, "it is stopping")
        # New sends are refused first, so that the steps below come to an end. After that waiting requests get
        # the best possible response: a send is acknowledged if the last sync covers it.
        broker.flow.close("this broker is stopping")
        # A sync that hangs cannot be ended. Unsynced messages were not acknowledged.
        broker.disk_work.give_up_in(ROLE_SECONDS if broker.replica.stays else DISK_SECONDS)
        if not broker.replica.stays:
            await self._registrars.leave(pool)
        broker.deliveries.stop()
        broker.group_commit.commit_pending()
        with suppress(StoreError):  # their senders have been told
            await self._saver.save_topics()
        try:
            broker.on_synced(await broker.disk_work.do(self.store.flush, SYNC))
        finally:
            broker.acknowledgement.stop()
            broker.readers.fall_silent()
            broker.clients.notices.fall_silent()
            if broker.acceptors[CLIENTS].open:
                await anyio.sleep(QUIET_SECONDS)
            broker.readers.finish_last()
            if self._doors is not None:
                self._doors.stop("this broker is stopping")

    async def _blocking(self, work: Callable[[], T]) -> T:
        """Run blocking work. Raises StoreError when it blocks too long while the broker is stopping."""
        return await self.broker.disk_work.do(work)

    # ---- store ----

    async def _sync_queues(self) -> None:
        """Sync queue and index files and the checkpoint, so that a recovery has less to look at: once in
        flushConsumeQueueThoroughInterval, and after SYNC_BYTES. After a recovery that happens soon: a broker
        that is killed again and again reads no more records each time.
        """
        recovery = self.store.recovery
        is_first = recovery is not None and not recovery.is_clean
        while True:
            seconds = self.store.config.flush_consume_queue_thorough_interval / 1000
            due = anyio.current_time() + (min(seconds, FIRST_SYNC_SECONDS) if is_first else seconds)
            is_first = False
            while (left := due - anyio.current_time()) > 0:
                await anyio.sleep(min(left, SYNC_LOOK_SECONDS))
                if self.store.recovery_bytes >= SYNC_BYTES:
                    break
            try:
                await self._blocking(self.store.flush_queues)
                await self._blocking(self.store.flush_checkpoint)
            except StoreError as error:
                log.error("cannot sync queue files, a recovery will make them again: %s", error)

    async def _reput(self) -> None:
        first, longest = REPUT_PAUSES
        pause = first
        while True:
            if await self._alarms.reput.wait(anyio.current_time() + pause):
                pause = first
                await anyio.sleep(REPUT_SECONDS)
            else:
                pause = min(2 * pause, longest)
            while self.store.dispatch(REPUT_RECORDS):
                if self.store.is_indexed:
                    await anyio.sleep(FILES_SECONDS)
                else:
                    await anyio.lowlevel.checkpoint()

    async def _clean(self) -> None:
        while True:
            seconds = self.store.config.clean_resource_interval / 1000
            await self._alarms.clean.wait(anyio.current_time() + seconds)
            try:
                by_topic = await run_cooperatively(self.broker.topic_retention.look(self.broker.now_ms()))
                await self._remove_expired(by_topic=by_topic)
            except StoreError as error:
                log.error("expired files cannot be removed: %s", error)
            await run_cooperatively(log_losses(self.broker.offsets, self.store))

    async def _remove_expired(self, *, by_topic: bool) -> None:
        """Remove expired files singly: a GiB takes half a second, and a single file may make enough room.
        Files that are out of use already, as the folder of a deleted topic, go first."""
        retention, store = self.store.retention, self.store
        await self._remove_left()
        for _ in range(MOST_FILES):
            if not retention.take(store.config, self.broker.now_ms(), by_topic=by_topic):
                break
            await self._remove_left()

    async def _remove_left(self) -> None:
        retention = self.store.retention
        while (path := retention.path) is not None:
            await self._blocking(partial(self.store.remove_left, path))
            why = retention.why(path)
            retention.removed(path)
            log.info("%s is removed (%s)", path, why)

    # ---- timed parts: `step` does what is due and says when to come again ----

    async def _deadlines(self) -> None:
        alarm, steps = self._alarms.deadlines, self.broker.steps
        while True:
            with (
                current_loop().scope() as scope
            ):  # for many rounds, until a deadline comes: to make one is work
                while True:
                    scope.deadline = steps.deadlines(anyio.current_time())
                    await alarm.wait()

    async def _schedule(self) -> None:
        await self._repeat(self.broker.steps.schedule, self._alarms.schedule)

    async def _check_back(self) -> None:
        await self._repeat(self.broker.steps.transactions, Wakeup())

    async def _expire(self) -> None:
        await self._repeat(self.broker.steps.expire, Wakeup())

    async def _repeat(self, step: Callable[[], int], alarm: Wakeup) -> None:
        while True:
            next_ms = step()
            seconds = max(0, next_ms - self.broker.now_ms()) / 1000
            # Wall time may be set: look again after a minute in any case.
            await alarm.wait(anyio.current_time() + min(seconds, 60))

    async def _sliced_answers(self) -> None:
        while True:
            await run_cooperatively(self.broker.sliced_answers.finish())
            await self._alarms.sliced_answers.wait()

    async def _deferred_saves(self) -> None:
        while True:
            await self._saver.save_deferred()
            await self._alarms.deferred_saves.wait()

    async def _check_certificate(self) -> None:
        while True:
            end = await self._blocking(partial(certificate_end, self._tls.tls_cert_path))
            self.broker.registration.valid_until(end)
            await anyio.sleep(CERTIFICATE_SECONDS)
