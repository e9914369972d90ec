"""Start of a broker: settings that fit together, ports, peers that may connect, the store, and the broker.

The ports are opened first: a port in use ends the start before the store changes. The ports of doors come
last, since plug-ins are loaded after the store is open; such a port in use ends the start as well. On failure
nothing stays open.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.from_thread
import anyio.to_thread
from attrs import evolve, field, frozen

from rmq.broker.broker import Broker
from rmq.broker.config import VIP_PORT_DISTANCE, BrokerConfig
from rmq.broker.doors import DoorPeer
from rmq.broker.plugin_host import plugin_host
from rmq.broker.runtime.replication_handshake import Guard
from rmq.broker.send_batches import make_broker
from rmq.clock import lease_clock
from rmq.errors import ConfigError, PortInUse, StoreError
from rmq.plugin import load, named
from rmq.protocol.auth.server_auth import ClusterSecret, ServerAuth
from rmq.protocol.codes import MASTER_ID
from rmq.protocol.record import host_bytes
from rmq.remoting.address import is_literal, join_address, split_address
from rmq.remoting.limits import Limits, MemoryBudget
from rmq.remoting.loop import current_loop, unwrap_groups
from rmq.remoting.network import Network
from rmq.remoting.serving.acceptor import Acceptor
from rmq.remoting.serving.doors import DoorServer
from rmq.remoting.serving.server import open_listeners
from rmq.remoting.transports.stream import Listener
from rmq.remoting.transports.tls import TlsConfig, TlsContexts
from rmq.remoting.transports.websocket_policy import WebSocketAccess
from rmq.server.health import Health, Stop
from rmq.server.ports import (
    CLIENTS,
    OpenDoor,
    acceptor,
    client_limits,
    door_acceptors,
    door_server,
    open_doors,
    web_socket_access,
)
from rmq.server.profile import cluster_secret
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.files.disk import Disk
from rmq.store.store import Store

if TYPE_CHECKING:
    from rmq.broker.disk_work import DiskWork
    from rmq.broker.role import Role
    from rmq.broker.wakeups import Wakeups
    from rmq.protocol.command import Command

STORE: Final = "store"
"""The part of a broker's health that this is about."""
PROGRESS_SECONDS: Final = 1.0
"""Between two lines of the log while a store opens."""

log = logging.getLogger("rmq.broker")


def check(config: BrokerConfig, store_config: StoreConfig) -> None:
    """Raises ConfigError for settings that do not fit each other."""
    slave = store_config.broker_role is BrokerRole.SLAVE
    if slave and config.broker_id == MASTER_ID:
        raise ConfigError("brokerId", config.broker_id, "more than 0 for a slave (brokerRole=SLAVE)")
    if not slave and config.broker_id != MASTER_ID:
        raise ConfigError("brokerId", config.broker_id, "0 for a master, or brokerRole=SLAVE")
    if config.enable_d_leger_commit_log:
        raise ConfigError(
            "enableDLegerCommitLog",
            "true",
            "false: DLedger's groups and files are not read here. Set controllerAddr and"
            " durability=replicated at the two or three brokers of a name, and run `python -m rmq.controller`"
            " (docs/failover.md); messages come over by consuming them there and sending them here",
        )
    if store_config.transient_store_pool_enable:
        log.warning(
            "transientStorePoolEnable needs nothing here: messages gather in memory and are written many at a"
            " time, but always before they are acknowledged, so a killed broker loses none of them"
        )


def _addresses(config: BrokerConfig) -> list[str]:
    """Addresses to listen at: the port for clients, and the VIP port if the former is fixed."""
    ports = [config.listen_port]
    if config.vip_channel_enabled and config.listen_port > VIP_PORT_DISTANCE:
        ports.append(config.listen_port - VIP_PORT_DISTANCE)
    return [join_address(config.bind_host, port) for port in ports]


@frozen
class Ports:
    """The listeners for clients and slaves, open from the start on; `slaves` is None without slaves. `doors`
    are the listeners of plug-ins, opened after these are loaded."""

    clients: Sequence[Listener]
    slaves: Listener | None
    doors: list[OpenDoor] = field(factory=list)

    @property
    def main(self) -> int:
        """The port that clients get."""
        return split_address(self.clients[0].address).port

    @property
    def ha(self) -> int:
        """The port for slaves; without a listener for slaves the port that such a listener would have."""
        return self.main + 1 if self.slaves is None else split_address(self.slaves.address).port

    async def aclose(self) -> None:
        """Listen no more. Completes when cancelled."""
        with anyio.CancelScope(shield=True):
            for listener in (*self.clients, self.slaves, *(one.listener for one in self.doors)):
                if listener is not None:
                    await listener.aclose()


async def open_ports(network: Network, config: BrokerConfig, store_config: StoreConfig) -> Ports:
    """Listen for clients and, at the port after theirs, for slaves. Peers are refused until the broker
    serves. On failure nothing stays open."""
    main, *vip = _addresses(config)
    try:
        clients = await open_listeners(network, [main, *vip], held=True)
    except PortInUse as error:
        if error.address in vip:
            why = "for the VIP channel, listenPort - 2; set vipChannelEnabled=false to do without"
            raise PortInUse(error.address, why) from None
        raise
    if not config.ha_enable or store_config.broker_role is BrokerRole.SLAVE:
        return Ports(clients, None)
    port = config.listen_port and config.listen_port + 1
    try:
        (slaves,) = await open_listeners(network, [join_address(config.bind_host, port)], held=True)
    except PortInUse as error:
        await Ports(clients, None).aclose()
        without = "" if config.controller_addr else "; set haEnable=false to do without"
        raise PortInUse(error.address, f"for slaves, listenPort + 1{without}") from None
    except BaseException:
        await Ports(clients, None).aclose()
        raise
    return Ports(clients, slaves)


async def _host_bytes(config: BrokerConfig, port: int) -> bytes:
    """broker_ip1 and the port as records hold them; a name is looked up, once."""
    host = config.broker_ip1
    if not is_literal(host):
        try:
            host = str((await anyio.getaddrinfo(host, port))[0][4][0])
        except OSError as error:
            expected = f"an address of this machine, or a name that can be looked up ({error.strerror})"
            raise ConfigError("brokerIP1", config.broker_ip1, expected) from None
    return host_bytes(join_address(host, port))


async def open_broker(
    config: BrokerConfig,
    store_config: StoreConfig,
    ports: Ports,
    disk: Disk,
    now_ms: Callable[[], int],
    plugin_settings: Mapping[str, str],
    *,
    wake: Wakeups,
    opening: Opening,
    network: Network,
    disk_work: DiskWork | None = None,
    role: Role | None = None,
) -> Broker:
    """Open the store and build the broker; on failure nothing stays open, the ports neither. Raises
    StoppedOpening besides what both raise."""
    store: Store | None = None
    acceptors = _acceptors(config)
    try:
        secret = cluster_secret(config.cluster_secret_file)
        host = await _host_bytes(config, ports.main)
        opened = Store(disk, store_config, store_host=host, now_ms=now_ms, clock=opening.store_clock)
        await opening.load(opened)
        store = opened
        broker = make_broker(
            config,
            store,
            address=join_address(config.broker_ip1, ports.main),
            ha_address=join_address(config.ha_host, ports.ha),
            now_ms=now_ms,
            clock=current_loop().now,
            work_clock=opening.work_clock,
            wake=wake,
            server_auth=None if secret is None else ServerAuth(secret, now_ms),
            sign=None if secret is None else partial(_signed, secret, now_ms),
            acceptors=acceptors,
            budget=MemoryBudget(config.connection_buffer_bytes),
            disk_work=disk_work,
            role=role,
        )
        broker.use_plugins(load(named(config), plugin_settings, plugin_host(broker)))
        own = [*ports.clients, *(() if ports.slaves is None else (ports.slaves,))]
        ports.doors.extend(await open_doors(network, config, broker.hooks.doors(), own))
        acceptors |= door_acceptors(ports.doors)
    except BaseException:
        if store is not None:
            store.close()
        await ports.aclose()
        raise
    return broker


def guard_of(config: BrokerConfig, tls: TlsConfig) -> Guard:
    """The checks for a peer at the HA port. Raises ConfigError for unusable files."""
    own = cluster_secret(config.ha_secret_file, "haSecretFile")
    secret = own or cluster_secret(config.cluster_secret_file)
    contexts = TlsContexts(tls)
    if tls.tls_enable:
        contexts.client()  # unusable files end the start, not the first registration
    return Guard(contexts) if secret is None else Guard(contexts, secret.value, secret.others)


def _signed(secret: ClusterSecret, now_ms: Callable[[], int], command: Command) -> Command:
    """A request to another server of the cluster, signed with the cluster secret."""
    return secret.sign(command, now_ms(), os.urandom(16))


DISK_SECONDS: Final = 20.0
"""Seconds that a stopping broker waits for its disk; less than systemd and Kubernetes allow."""


class StoppedOpening(Exception):
    """The broker was to stop while its store was being opened."""


class Opening:
    """Opens a store, which may take minutes after a crash: in a thread, so that the event loop answers probes
    and can `stop` it. A simulation opens the store in its loop, whose clock rules everything."""

    def __init__(self, health: Health, stop: Stop, *, threads: bool) -> None:
        self._health = health
        self._stop = stop
        self._threads = threads
        self._is_stopped = False
        health.lacks(STORE, "it is being opened")

    @property
    def work_clock(self) -> Callable[[], float] | None:
        """The clock that measures work, if a cheaper clock than the loop's exists."""
        return time.perf_counter if self._threads else None

    @property
    def store_clock(self) -> Callable[[], float]:
        """The store's clock, which cannot be set; the opening thread reads it, too."""
        return lease_clock if self._threads else current_loop().now

    async def load(self, store: Store) -> None:
        """Load the store. Raises StoppedOpening, and as `Store.load`, with the folder unlocked. Cancelled:
        the same."""
        loaded = not self._threads
        if not self._threads:
            store.load(RecoveryProgress(self._health))
        else:
            loading = partial(store.load, RecoveryProgress(self._health, self._check))
            with suppress(StoppedOpening), unwrap_groups():
                async with anyio.create_task_group() as nursery:
                    scope = anyio.CancelScope(shield=True)
                    nursery.start_soon(self._cancel, scope)
                    with scope:
                        await anyio.to_thread.run_sync(loading, abandon_on_cancel=True)
                        loaded = True
                    nursery.cancel_scope.cancel()
            if scope.cancelled_caught:
                raise StoreError("the disk does not answer: gave up opening the store")
        if not loaded:
            log.info("stopped while the store was being opened; the next start opens it from the beginning")
            raise StoppedOpening
        self._health.has(STORE)

    async def _cancel(self, scope: anyio.CancelScope) -> None:
        try:
            await self._stop.wait()
        finally:
            self._is_stopped = True
        await anyio.sleep(DISK_SECONDS)
        scope.cancel()

    def _check(self) -> None:
        if self._is_stopped:
            raise StoppedOpening


class RecoveryProgress:
    """Report the progress of opening a store: a log line for each stage, and one a second. Called in a
    thread, too; `check` raises to end the opening."""

    def __init__(
        self,
        health: Health,
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._health = health
        self._check = check
        self._clock = clock
        self._next = clock() + PROGRESS_SECONDS
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        self._check()
        now = self._clock()
        if now >= self._next:
            self._next = now + PROGRESS_SECONDS
            share = done / max(total, 1)
            text = f"{stage}, {100 * share:.0f} % ({done} of {total})"
            self._health.lacks(STORE, f"it is being opened: {text}")
            log.info("opening the store: %s", text)


CLIENTS_SHARE: Final = 0.7
"""Share of the connections' descriptors for clients: slaves, pages and some files have the rest."""
HA_SHARE: Final = 0.125
"""Share of the connections' descriptors for links to slaves."""


def _acceptors(config: BrokerConfig) -> dict[str, Acceptor]:
    """The acceptors of the ports for clients and for slaves."""
    return {
        CLIENTS: acceptor(config, share=CLIENTS_SHARE),
        "slaves": acceptor(config, config.ha_max_connections, 0, share=HA_SHARE),
    }


def own_limits(config: BrokerConfig) -> Limits:
    """The bounds of the broker's own connections, which are idle between registrations at name servers."""
    idle_seconds = max(Limits().idle_seconds, config.server_channel_max_idle_time_seconds)
    return evolve(client_limits(config), stall_seconds=math.inf, idle_seconds=idle_seconds)


def upgrades(config: BrokerConfig) -> WebSocketAccess:
    """The WebSocket upgrades that the broker takes."""
    return web_socket_access(config, config.broker_ip1, config.broker_ip2)


def doors_of(broker: Broker, ports: Ports, tls: TlsContexts) -> DoorServer | None:
    """The server of a broker's doors; None without any."""
    return door_server(
        ports.doors,
        partial(DoorPeer, broker),
        config=broker.config,
        tls=tls,
        access=upgrades(broker.config),
        budget=broker.budget,
    )
