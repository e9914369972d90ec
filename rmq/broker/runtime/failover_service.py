"""Failover service: a broker whose role the controllers decide. It registers, sends heartbeats, and is master
or slave in turn.

    failover service
    ├── talk             registration, heartbeats, changes of the in-sync set
    ├── relay            a slave's connection to its master, for forwarded requests (request_forwarding.py)
    └── broker           the service (service.py) as a slave or as a master, again when the role changes

A change of the role ends the service in order, as a stop does, and starts the service again in the same
process: so a new master delivers delayed messages, checks back, and registers, by the same way as at any
start. Another master to follow ends only the link to the former master.
"""

from __future__ import annotations

import logging
import math
import os
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, Final

import anyio
import anyio.abc
from attrs import evolve

from rmq.broker.broker import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.membership.members import ConsumerGroup
from rmq.broker.replication.failover.replica_manager import ReplicaIdentity, ReplicaManager, forget_epochs
from rmq.broker.replication.failover.role import FailoverReplica
from rmq.broker.replication.plugin_state import PluginState
from rmq.broker.runtime import service
from rmq.broker.runtime.request_forwarding import AGAIN_SECONDS as HELD_SECONDS
from rmq.broker.runtime.request_forwarding import RequestForwarder
from rmq.broker.runtime.startup import DISK_SECONDS, STORE, open_ports
from rmq.clock import lease_clock, wall_clock_ms
from rmq.config import parse_addresses
from rmq.controller.consensus.raft import NotLeader
from rmq.controller.controller import Answer, Request
from rmq.controller.requests import answer_of, request_of
from rmq.errors import (
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    CorruptRecord,
    RemoteProtocolError,
    RequestTimeout,
    ResponseError,
    StoreError,
)
from rmq.protocol.codes import MASTER_ID
from rmq.remoting.address import join_address
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.loop import Wakeup, unwrap_groups
from rmq.remoting.network import Network, TcpNetwork
from rmq.remoting.pool import Pool
from rmq.remoting.transports.tls import TlsConfig
from rmq.server.health import Health, Stop
from rmq.server.http import served_pages
from rmq.server.port_handover import KeptPorts
from rmq.server.profile import applied, cluster_secret
from rmq.store.aside import give_up
from rmq.store.config import BrokerRole, Durability, FlushDiskType, StoreConfig
from rmq.store.files.disk import Disk, RealDisk

log = logging.getLogger("rmq.broker")

CONTROLLERS: Final = "controllers"
"""The part of a broker's health that its registration there is."""
BEAT_SECONDS: Final = 0.3
"""Between two heartbeats."""
HAND_OVER_SECONDS: Final = 0.02
"""The same while a master hands over: its messages wait for the next one."""
ASK_SECONDS: Final = 1.0
LEAVE_SECONDS: Final = 1.0
"""For so long a broker that stops tries to tell controllers: else a master's lease must end, and a slave is
waited for."""
ASKING_ERRORS: Final = (
    NotLeader,
    ResponseError,
    RemoteProtocolError,
    ConnectFailed,
    ConnectionLost,
    RequestTimeout,
)
"""Errors of a question after which it is asked again."""
WARNING_SECONDS: Final = 10.0
DISK_FAILURE_GRACE_SECONDS: Final = 2.0
"""A master whose disk takes nothing for so long gives way."""
OPENING_SECONDS: Final = 5.0
"""A replica that has been opening its store for longer is not elected."""
AGAIN_SECONDS: Final = 30.0
"""Between two times that it does."""
LINK_SECONDS: Final = 1.0
"""Seconds between a slave's looks at the connection to its master, and its longest wait for one."""


async def run(
    config: BrokerConfig,
    store_config: StoreConfig,
    *,
    tls: TlsConfig | None = None,
    network: Network | None = None,
    disk: Disk | None = None,
    now_ms: Callable[[], int] | None = None,
    clock: Callable[[], float] = lease_clock,
    stop: Stop | None = None,
    health: Health | None = None,
    on_opened: Callable[[Broker], None] = lambda broker: None,
    task_status: anyio.abc.TaskStatus[list[str]] = anyio.TASK_STATUS_IGNORED,
    **rest: Any,
) -> None:
    """Run a broker as `runtime.service.run` does; with controllers in the settings they decide the role, at
    any time.

    `started` gets the addresses when the broker serves for the first time, after the controllers have taken
    its registration. `on_opened` is called at each start. Raises the same errors, and ConfigError for
    settings that do not fit a set with controllers.
    """
    stop, health = anyio.Event() if stop is None else stop, health or Health()
    wire = network or TcpNetwork()
    # Clients and peers of doors wait for the next service; slaves and probes are refused in between.
    ports = KeptPorts(wire, (config.listen_port + 1, config.metrics_port))
    beneath: Callable[..., Any] = partial(
        service.run,
        tls=tls,
        network=ports if config.controller_addr else network,
        disk=disk,
        now_ms=now_ms,
        health=health,
        **rest,
    )
    folder = store_config.store_path_root_dir
    if not config.controller_addr:
        forget_epochs(disk or RealDisk(), folder)
        await beneath(config, store_config, stop=stop, on_opened=on_opened, task_status=task_status)
        return
    check(config, store_config)
    _, wire_tls = applied(config, tls or TlsConfig())
    lock = (disk or RealDisk()).lock(f"{folder}/controller.lock")
    try:
        if network is None:
            # A broker that cannot listen, as slave or as master, must not become a replica without
            # connections.
            role = BrokerRole.SYNC_MASTER
            as_master = evolve(store_config, broker_role=role, durability=Durability.replicated)
            await (await open_ports(wire, config, as_master)).aclose()
        file = ReplicaIdentity(disk or RealDisk(), folder, random.Random())
        file.begin()
        manager = ReplicaManager(
            config,
            file,
            address=join_address(config.broker_ip1, config.listen_port),
            ha_address=join_address(config.ha_host, config.listen_port + 1),
            is_founder=store_config.broker_role is not BrokerRole.SLAVE and config.broker_id == MASTER_ID,
            clock=clock,
        )
        with unwrap_groups():
            async with Pool(wire, ClientOnlyEndpoint(), tls=wire_tls) as pool:
                controlled = FailoverService(
                    config, store_config, manager, pool, beneath, on_opened, now_ms, health
                )
                pages, links = partial(served_pages, wire, config, health), partial(Pool, wire, tls=wire_tls)
                await controlled.live(stop, task_status, pages, links)
    except CorruptRecord as error:
        if controlled.has_opened:
            raise
        raise _given_up(error, disk or RealDisk(), store_config, manager, file) from error
    finally:
        await ports.aclose()
        lock.release()


def _given_up(
    error: CorruptRecord,
    disk: Disk,
    store_config: StoreConfig,
    manager: ReplicaManager,
    file: ReplicaIdentity,
) -> StoreError:
    """Set the log of a replica aside whose store cannot be opened, so that the broker comes back as a new
    replica and copies its master's log. Keep everything when no other replica in sync has the log. Return the
    error that ends the broker."""
    others = [number for number in manager.in_sync if number != manager.number]
    if not others:
        log.error("no other replica is in sync, so this log may be the only copy and stays: %s", error)
        return error
    try:
        folder = give_up(disk, store_config.store_path_root_dir, store_config.commit_log_path)
        file.renew(())
    except StoreError as failure:
        return StoreError(f"{error}. Its log cannot be set aside: {failure}")
    text = (
        f"{error}. Its log lies in {folder} now, nothing of it is deleted; also in sync are {others}."
        " From its next start on this broker is a new replica, which copies the log of its master"
    )
    log.error("%s", text)
    return StoreError(text)


def check(config: BrokerConfig, store_config: StoreConfig) -> None:
    """Raises ConfigError for settings that do not fit a controlled set."""
    parse_addresses(config.controller_addr, "controllerAddr")
    if store_config.flush_disk_type is not FlushDiskType.SYNC_FLUSH:
        raise ConfigError(
            "controllerAddr",
            config.controller_addr,
            "durability=replicated (slaves: flushDiskType=SYNC_FLUSH): an elected replica must have every"
            " acknowledged message on disk",
        )
    if config.listen_port == 0:
        raise ConfigError(
            "listenPort", 0, "a fixed port with controllerAddr: the other brokers of the set dial it"
        )
    if not config.ha_enable:
        raise ConfigError("haEnable", "false", "true with controllerAddr")


class FailoverService:
    """A broker of a set with controllers; `beneath` runs its service."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        manager: ReplicaManager,
        pool: Pool,
        beneath: Callable[..., Any],
        on_opened: Callable[[Broker], None],
        now_ms: Callable[[], int] | None,
        health: Health,
    ) -> None:
        self._config = config
        self._store_config = store_config
        self._manager = manager
        self._pool = pool
        self._inner_run = beneath
        self._on_opened = on_opened
        self._now_ms = now_ms or wall_clock_ms
        self._health = health
        self._secret = cluster_secret(config.cluster_secret_file)
        self._given = parse_addresses(config.controller_addr, "controllerAddr")
        self._addresses = self._given
        self._leader = self._addresses[0]
        self._broker: Broker | None = None
        self.has_opened = False
        """The store was open in the role that ran last."""
        self._opening_at = 0.0
        self._led = 0  # the epoch that the running service leads; 0: it is a slave
        self._ending: anyio.Event | None = None  # ends the running service
        self._is_stopping = False
        self._known, self._beat, self._set_changed = Wakeup(), Wakeup(), Wakeup()
        self._next_warning_at = self._next_disk_warning_at = 0.0
        self._refused = ""
        self._disk_failing_since, self._gave_up_at = math.inf, -math.inf
        self._locks: dict[str, str] = {}  # of ordered consumers, as the last service knew them
        self._announced: dict[str, ConsumerGroup] = {}  # by consumers, to the last service
        self._linked = Wakeup()
        self._relay = RequestForwarder(manager, self._link_to, self._linked.set)
        self._links: Pool | None = None

    async def live(
        self,
        stop: Stop,
        task_status: anyio.abc.TaskStatus[list[str]],
        pages: Callable[[], AbstractAsyncContextManager[object]],
        links: Callable[..., Pool],
    ) -> None:
        """Run until `stop` is set. `pages` serves the health pages while the service does not; `links` makes
        the pool of connections to masters."""
        is_first = True
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(self._until, stop)
            nursery.start_soon(self._talk)
            nursery.start_soon(self._save_set)
            if self._config.relay_sends:
                nursery.start_soon(self._keep_link, links)
            while not self._is_stopping:
                if not self._manager.number:
                    await self._wait(pages)
                    continue
                addresses = await self._serve(task_status if is_first else None)
                is_first = is_first and not addresses
            if is_first:
                task_status.started([])
            if self._manager.number:
                await self._leave()
            nursery.cancel_scope.cancel()

    async def _wait(self, pages: Callable[[], AbstractAsyncContextManager[object]]) -> None:
        """Wait until the controllers have given this replica its number, or until the stop."""
        self._health.lacks(CONTROLLERS, "they have not answered yet")
        self._health.has(STORE)  # no broker opens it yet
        async with pages():
            await self._known.wait()
        self._health.lacks(STORE, "it is being opened")
        self._health.has(CONTROLLERS)

    async def _until(self, stop: Stop) -> None:
        try:
            await stop.wait()
        finally:
            self._is_stopping = True
            self._manager.stay(False)
            if self._broker is not None:  # it may wait for its disk already, to have another role
                self._broker.disk_work.give_up_in(DISK_SECONDS)
            self._end()
            self._known.set()

    def _end(self) -> None:
        self._relay.end(answers=not self._manager.stays)
        if self._broker is not None and self._ending is not None and not self._ending.is_set():
            self._announced = self._broker.clients.known_subscriptions.all() or self._announced
        if self._ending is not None:
            self._ending.set()

    # ---- a slave's connection to its master ----

    def _link_to(self, address: str) -> Connection | None:
        return None if self._links is None else self._links.ready(address)

    async def _keep_link(self, links: Callable[..., Pool]) -> None:
        """Keep a connection to the master while this broker is a slave, and send held requests over it."""
        linked, is_holding = "", False
        async with links(endpoint=self._relay) as self._links:
            while True:
                pause = HELD_SECONDS if is_holding else LINK_SECONDS
                await self._linked.wait(anyio.current_time() + pause)
                master = None if self._broker is None else self._manager.master
                address = "" if master is None else master.address
                if linked != address:
                    self._links.close(linked)
                    linked = address
                if address:
                    with suppress(ConnectFailed):
                        await self._links.connection(address, LINK_SECONDS)
                is_holding = self._relay.step()

    # ---- the service ----

    async def _serve(self, task_status: anyio.abc.TaskStatus[list[str]] | None) -> list[str]:
        """Run the service in the role that the set gives, until another is wanted; returns its addresses."""
        manager, self._ending, self._opening_at = self._manager, anyio.Event(), anyio.current_time()
        is_master, epoch = manager.is_elected, manager.epoch
        self._led = epoch if is_master else 0
        self._relay.forget()
        manager.stay(False)
        config = evolve(self._config, broker_id=0 if is_master else manager.number)
        store_config = evolve(
            self._store_config,
            broker_role=BrokerRole.SYNC_MASTER if is_master else BrokerRole.SLAVE,
            durability=Durability.replicated if is_master else Durability.disk,
        )
        self.has_opened = False
        role = "master" if is_master else "slave"
        log.warning("%s: replica %d is a %s in epoch %d", config.broker_name, manager.number, role, epoch)
        running = partial(
            self._inner_run,
            config,
            store_config,
            stop=self._ending,
            on_opened=partial(self._opened, epoch),
            pool=self._pool,
            role=FailoverReplica(manager, self._led),
        )
        try:
            async with anyio.create_task_group() as nursery:
                addresses: list[str] = await nursery.start(running)
                if task_status is not None and addresses:
                    task_status.started(addresses)
        finally:
            broker, self._broker, self._ending = self._broker, None, None
            if broker is not None:
                self._locks = broker.locks.held()
                manager.closed(broker.store.flushed_offset)
                # Settings that were changed while the broker ran stay changed.
                self._config = evolve(broker.settings.broker, broker_id=self._config.broker_id)
                self._store_config = broker.settings.store
        return addresses

    def _opened(self, epoch: int, broker: Broker) -> None:
        """The store is open, and the broker does not serve clients yet."""
        self.has_opened = True
        manager, store = self._manager, broker.store
        manager.opened(lambda: store.flushed_offset, broker.readers.read_on)
        broker.clients.known_subscriptions.restore(self._announced)
        if self._led:
            store.flush()
            if manager.is_elected and manager.epoch == epoch:
                manager.lead(store.max_physical_offset, start=store.min_physical_offset)
            # As a slave the broker may have sent name servers this version; they accept no topics of slaves.
            broker.topics.renew()
            broker.locks.take_over(self._locks)
        else:
            broker.locks.apply_delta(self._locks, None, None)  # until its master tells of others
            if self._config.relay_sends:
                self._relay.begin(broker)
                self._linked.set()
        if self._secret is not None:
            plugins, name = broker.hooks.plugins, self._config.broker_name
            broker.followed.share(PluginState(plugins, self._secret, name, lambda: manager.led()[0]))
        self._broker = broker
        self._look()
        self._beat.set()
        self._on_opened(broker)

    # ---- the controllers ----

    async def _talk(self) -> None:
        while True:
            try:
                if not self._manager.number:
                    await self._register()
                else:
                    await self._send_heartbeat()
            except NotLeader as error:
                if error.leader:  # the next request goes there
                    log.info("%s: the controllers redirect to %s", self._config.broker_name, error.leader)
                else:
                    self._complain(str(error))
            except ASKING_ERRORS as error:
                self._complain(str(error))
            if self._broker is not None:
                self._broker.pull.check_preference()
                self._broker.acknowledgement.replicas.answer_for_lagging()
            self._set_changed.set()
            pause = (
                HAND_OVER_SECONDS if self._manager.number and self._manager.stepping_down else BEAT_SECONDS
            )
            await self._beat.wait(anyio.current_time() + pause)

    async def _save_set(self) -> None:
        """Save the latest version of the set, apart from heartbeats, which a hanging disk must not stop."""
        while True:
            await self._set_changed.wait()
            broker, save = self._broker, self._manager.pending_save() if self._manager.number else None
            if broker is None or save is None:
                continue
            try:
                await broker.disk_work.do(save)
            except StoreError as error:
                log.warning("cannot save the latest state of the set: %s", error)

    async def _register(self) -> None:
        before = self._manager.number
        refusal = self._manager.registered(await self._ask(self._manager.register()))
        if refusal:
            self._complain(refusal, is_refusal=True)
            return
        if before not in (0, self._manager.number):
            # It was removed, and is another replica now: name servers and its master know it as the former.
            self._manager.stay(not self._is_stopping)
            self._end()
        self._known.set()

    async def _send_heartbeat(self) -> None:
        manager = self._manager
        if self._broker is None:  # its store is being opened
            manager.disk_hangs(anyio.current_time() > self._opening_at + OPENING_SECONDS)
        else:
            # Without its tables it must not lead, no more than without its disk.
            manager.disk_hangs(bool(self._broker.disk_work.hangs() or self._broker.files.awaited))
            if self._led:
                self._check_disk(self._broker)
        asked_at = manager.now()
        answer = await self._ask(manager.heartbeat())
        if answer.is_behind and (adopt := manager.adopt()) is not None:
            adopted = await self._ask(adopt)
            if adopted.refusal:
                self._complain(adopted.refusal, is_refusal=True)
            else:
                manager.altered(adopted)
                return
        if answer.refusal:
            self._complain(answer.refusal, is_refusal=True)
            await self._register()
            return
        # Controllers come and go while brokers run: those that are now are asked too when others are silent.
        self._addresses = [*self._given, *(one for one in answer.controllers if one not in self._given)]
        manager.heard(answer, asked_at)
        if self._broker is not None:
            self._health.has(CONTROLLERS)
        self._look()
        if self._led and self._broker is not None:
            if manager.stepping_down:
                self._hand_over(self._broker)
                return
            self._relay.go_on()
            change = manager.change()
            if change is not None:
                manager.altered(await self._ask(change))
                self._look()

    async def _leave(self) -> None:
        """Report the stop of this broker: if it was the master, another may be elected at once; if it was a
        slave, the master need not wait for it."""
        if self._led:
            self._manager.step_down()
        self._manager.leave()
        failure: Exception | None = None
        with anyio.move_on_after(LEAVE_SECONDS, shield=True):
            while True:
                try:
                    await self._ask(self._manager.heartbeat())
                except ASKING_ERRORS as error:
                    failure = error
                    await anyio.sleep(BEAT_SECONDS / 3)
                else:
                    return
        log.info("%s: cannot report the stop to the controllers: %s", self._config.broker_name, failure)

    def _check_disk(self, broker: Broker) -> None:
        """Step down when this master cannot write and another replica can be elected. This happens seldom at
        most, since with all disks full each master would step down. A hanging disk only counts once it has
        hung for as long beyond the usual time."""
        manager, why, now = self._manager, broker.store.ails, anyio.current_time()
        self._disk_failing_since = min(self._disk_failing_since, now) if why else math.inf
        hangs = broker.disk_work.hangs()
        if not hangs and now < self._disk_failing_since + DISK_FAILURE_GRACE_SECONDS:
            return
        if not manager.has_lease():
            return
        if len(manager.in_sync) < 2:
            if now >= self._next_disk_warning_at:
                self._next_disk_warning_at = now + WARNING_SECONDS
                text = "%s: NO MESSAGES ARE TAKEN, and no other replica is in sync to be master: %s"
                log.error(text, self._config.broker_name, hangs or why)
        elif now >= self._gave_up_at + AGAIN_SECONDS:
            self._gave_up_at = now
            log.error("%s: another replica takes over as master: %s", self._config.broker_name, hangs or why)
            manager.step_down()

    def _hand_over(self, broker: Broker) -> None:
        """Step down once every taken message is in sync and acknowledged; otherwise the lease ends this
        mastership. New messages are refused from the request on, and commits of offsets from the time at
        which only the last commits remain to be replicated. Messages that come are held, for clients that
        look for no other master: when the connections end, the clients send them again."""
        broker.flow.look_again()
        if self._config.relay_sends:
            self._relay.pause(broker)
        manager, replicas = self._manager, broker.acknowledgement.replicas
        if manager.has_lease() and manager.ack_limit() >= broker.store.max_physical_offset:
            replicas.acknowledged()
            if manager.is_closed and replicas.have_tables(manager.in_sync):
                manager.step_down()
            manager.close()

    def _look(self) -> None:
        """Act on the present set."""
        manager, broker = self._manager, self._broker
        if broker is None:
            return
        expected = manager.epoch if manager.is_elected else 0
        if expected != self._led:
            manager.stay(not self._is_stopping)
            self._end()
        elif self._led:
            broker.acknowledgement.replicas.acknowledged()

    async def _ask(self, question: Request) -> Answer:
        """Send a request to the leader of the controllers. Raises NotLeader, ResponseError and network
        errors; the next request goes to another controller after an error."""
        request = request_of(question)
        if self._secret is not None:
            request = self._secret.sign(request, self._now_ms(), os.urandom(16))
        try:
            return answer_of(await self._pool.call(self._leader, request, ASK_SECONDS))
        except NotLeader as error:
            self._leader = error.leader or self._next()
            raise
        except RequestTimeout:
            # All connections may be silent for the same reason. Over new connections a controller answers
            # before the lease ends.
            for address in {self._leader, *self._addresses}:
                self._pool.close(address)
            self._leader = self._next()
            raise
        except Exception:
            self._leader = self._next()
            raise

    def _next(self) -> str:
        known = self._addresses
        return known[(known.index(self._leader) + 1) % len(known)] if self._leader in known else known[0]

    def _complain(self, reason: str, *, is_refusal: bool = False) -> None:
        """Log an error of the controllers, at intervals. A refusal is logged at once, since an operator must
        act on it."""
        if CONTROLLERS in self._health.lacking or (self._led and not self._manager.has_lease()):
            self._health.lacks(CONTROLLERS, reason)  # a master without a lease takes no messages
        now = anyio.current_time()
        if now >= self._next_warning_at or (is_refusal and reason != self._refused):
            self._next_warning_at, self._refused = now + WARNING_SECONDS, reason if is_refusal else ""
            what = "refuse it" if is_refusal else "give no valid response"
            log.warning("%s: the controllers %s: %s", self._config.broker_name, what, reason)
