"""The nursery tree of a controller.

    controller
    ├── member       steps the log, sends its messages; starts again from the journal when a write has failed
    │   └── sender   one for each other controller
    ├── saving       files that plug-ins change, written in a thread
    └── serve        listener, and one nursery for each connection (only when it is a program of its own)

Time is that of `rmq.clock.lease_clock`. The journal is synced in this loop: each change of the table of
broker sets waits for the disk, and all other work of this loop waits as well; changes are few.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NoReturn

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from rmq.clock import lease_clock, wall_clock_ms
from rmq.controller.config import ControllerConfig, ControllerSettings, own_address
from rmq.controller.consensus.journal import Journal
from rmq.controller.consensus.raft import Raft, Timing
from rmq.controller.controller import Controller
from rmq.controller.elections import Elections
from rmq.controller.endpoint import ControllerEndpoint
from rmq.controller.requests import ControllerRequests
from rmq.controller.sets import BrokerSets
from rmq.errors import (
    ConnectFailed,
    ConnectionLost,
    RemoteProtocolError,
    RequestTimeout,
    StoreError,
)
from rmq.plugin import load, named
from rmq.protocol.auth.server_auth import ClusterSecret, ServerAuth
from rmq.protocol.codes import CONTROLLER_MESSAGE
from rmq.protocol.command import Command
from rmq.remoting.address import join_address
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.limits import MemoryBudget
from rmq.remoting.loop import Wakeup, supervise, unwrap_groups
from rmq.remoting.network import Network, TcpNetwork
from rmq.remoting.pool import Pool
from rmq.remoting.serving.server import serve
from rmq.remoting.transports.certificate import ServerCertificate
from rmq.remoting.transports.tls import TlsConfig
from rmq.server.health import Health, Stop
from rmq.server.http import served_pages
from rmq.server.ports import CLIENTS, acceptor, client_limits, plugin_doors, web_socket_access
from rmq.server.profile import applied, cluster_secret
from rmq.server.saving import keep_writing
from rmq.store.files.disk import Disk, RealDisk

log = logging.getLogger("rmq.controller")

RESTART_SECONDS: Final = 1.0
"""Seconds between a failed write and the next start from the journal."""
LONGEST_WAIT_SECONDS: Final = 1.0
"""Seconds between two looks at the clock of leases, which goes on while the machine sleeps; trio's clock does
not."""
LOG: Final = "log"
"""The part of a controller's health that stands for its log."""
QUEUED_MESSAGES: Final = 64
"""Messages to one controller that wait; further messages are dropped, as a network would."""
RECEIVERS_MAX: Final = 32
"""Addresses that have a sending task: messages name the address for their answers."""


# ---- the member: the log, its time and its messages ----


class Member:
    """A controller's log, journal and messages, for `requests` to answer from. `own` is its address and its
    name in the log, `known` are all members at the first start."""

    def __init__(
        self,
        config: ControllerSettings,
        requests: ControllerRequests,
        own: str,
        known: Sequence[str],
        *,
        pool: Pool,
        disk: Disk | None = None,
        secret: ClusterSecret | None = None,
        chance: random.Random | None = None,
        health: Health | None = None,
    ) -> None:
        self._config = config
        self._requests = requests
        self._own = own
        self._known = tuple(known)
        self._pool = pool
        self._disk = disk or RealDisk()
        self._secret = secret
        self._chance = chance or random.Random()
        self._health = health or Health()
        self._folder = os.path.expanduser(config.controller_path)
        self._changed = Wakeup()
        self._queues: dict[str, MemoryObjectSendStream[bytes]] = {}
        self._timing = Timing(election_s=config.controller_election_ms / 1000)

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> NoReturn:
        """Run a member until cancelled. `health` lacks LOG while the member has stopped (`Raft.stopped`).

        Raises StoreError for a journal that cannot be opened at the start, LaterFormat when a later version
        wrote the journal, and StoreLocked when another process has it. Later errors are logged, and the
        journal is opened again.
        """
        lock = self._disk.lock(f"{self._folder}/lock")
        self._requests.watch(self._changed.set)
        try:
            async with anyio.create_task_group() as nursery:
                journal = self._start()
                task_status.started()
                while True:
                    try:
                        await self._live(nursery)
                    except Exception as error:  # also a bug: memory and disk may differ from now on
                        log.error("this controller starts again from its journal: %s", error, exc_info=error)
                    finally:
                        self._requests.stop()
                        journal.close()
                    journal = await self._start_again()
        finally:
            for queue in self._queues.values():
                queue.close()
            lock.release()
        raise AssertionError("unreachable: the task above ends only by an error or by cancellation")

    def _start(self) -> Journal:
        founders = () if self._config.controller_joins else self._known
        journal = Journal(self._disk, self._folder, {one: one for one in founders})
        sets, now = BrokerSets(), self._requests.clock()
        raft = Raft(self._own, self._own, journal, sets, now=now, chance=self._chance, timing=self._timing)
        if not raft.members:
            log.warning("%s joins: `rmq controller add %s` makes it one of the controllers", *2 * [self._own])
        elif self._own not in raft.members:
            log.error(
                "%s is none of the controllers that the journal knows (%s): it never leads",
                self._own,
                ", ".join(raft.members),
            )
        lease_s = self._config.controller_lease_ms / 1000
        gather_s = self._config.controller_gather_ms / 1000
        elections = Elections(lease_s, is_unclean=self._config.unclean_election, gather_s=gather_s)
        self._requests.start(Controller(raft, sets, elections))
        return journal

    async def _start_again(self) -> Journal:
        while True:
            await anyio.sleep(RESTART_SECONDS)
            try:
                return self._start()
            except StoreError as error:
                log.error("the journal of this controller cannot be opened: %s", error)

    async def _live(self, nursery: anyio.abc.TaskGroup) -> NoReturn:
        requests = self._requests
        while True:
            due = requests.step()
            assert requests.controller is not None, "step says when there is none"
            raft = requests.controller.raft
            if raft.stopped:
                self._health.lacks(LOG, f"it has stopped, because it cannot read {raft.stopped}")
            else:
                self._health.has(LOG)
            for address, data in raft.take_messages():
                self._send(address, data, nursery)
            wait = min(max(0.0, due - requests.clock()), LONGEST_WAIT_SECONDS)
            await self._changed.wait(anyio.current_time() + wait)

    def _send(self, address: str, data: bytes, nursery: anyio.abc.TaskGroup) -> None:
        queue = self._queues.pop(address, None)
        if queue is None:
            if len(self._queues) >= RECEIVERS_MAX:
                self._let_go(next(iter(self._queues)))
            queue, receive = anyio.create_memory_object_stream[bytes](QUEUED_MESSAGES)
            nursery.start_soon(self._deliver, address, receive)
        self._queues[address] = queue  # behind the others: the address with the oldest message makes room
        try:
            queue.send_nowait(data)
        except anyio.WouldBlock:
            log.debug("a message to %s is dropped: %d wait", address, QUEUED_MESSAGES)

    def _let_go(self, address: str) -> None:
        """Close the sender of an address that is no longer a member's."""
        self._queues.pop(address).close()
        self._pool.close(address)

    async def _deliver(self, address: str, receive: MemoryObjectReceiveStream[bytes]) -> None:
        async with receive:
            async for data in receive:
                request = Command.request(CONTROLLER_MESSAGE, body=data)
                if self._secret is not None:
                    request = self._secret.sign(request, wall_clock_ms(), os.urandom(16))
                try:
                    # The message is answered, so that a dead connection is noticed and replaced.
                    response = await self._pool.call(address, request, self._timing.election_s)
                    if response.code:
                        log.warning("controller %s refuses a message: %s", address, response.remark)
                except RequestTimeout:
                    self._pool.close(address)
                except (ConnectFailed, ConnectionLost, RemoteProtocolError) as error:
                    log.debug("no message to controller %s: %s", address, error)


@asynccontextmanager
async def running_member(
    config: ControllerSettings,
    requests: ControllerRequests,
    own: str,
    known: Sequence[str],
    *,
    network: Network,
    tls: TlsConfig,
    secret: ClusterSecret | None,
    disk: Disk | None = None,
    health: Health | None = None,
) -> AsyncIterator[None]:
    """A `Member` that runs while the block does. Raises as `Member.run`."""
    with unwrap_groups():
        async with Pool(network, ClientOnlyEndpoint(), tls=tls) as pool, anyio.create_task_group() as nursery:
            member = Member(config, requests, own, known, pool=pool, disk=disk, secret=secret, health=health)
            await nursery.start(member.run)
            yield
            nursery.cancel_scope.cancel()


# ---- a process of its own ----


async def run(
    config: ControllerConfig,
    *,
    tls: TlsConfig | None = None,
    network: Network | None = None,
    disk: Disk | None = None,
    clock: Callable[[], float] = lease_clock,
    also: dict[str, str] | None = None,
    health: Health | None = None,
    stop: Stop | None = None,
    plugin_settings: Mapping[str, str] | None = None,
    task_status: anyio.abc.TaskStatus[list[str]] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Run a controller until `stop` is set, or until cancelled. `started` gets the addresses as bound; `also`
    gets the other listeners. `plugin_settings` are texts for plug-ins.

    Raises PortInUse or OSError when it cannot listen, ConfigError or PluginRefused for unusable settings,
    StoreError for a journal that cannot be read, StoreLocked when another process has the journal. Cancelled:
    connections are closed, and the journal has every promise.
    """
    config, tls = applied(config, tls or TlsConfig())
    network = network or TcpNetwork()
    secret = cluster_secret(config.cluster_secret_file)
    certificate = ServerCertificate(tls.tls_cert_path)
    requests = ControllerRequests(clock, certificate=certificate)
    saving = Wakeup() if isinstance(network, TcpNetwork) else None  # in a simulation files take no time
    stop = anyio.Event() if stop is None else stop
    endpoint = ControllerEndpoint(
        config,
        requests,
        cluster=ServerAuth(secret, wall_clock_ms) if secret is not None else None,
        acceptors={CLIENTS: acceptor(config)},
        budget=MemoryBudget(config.connection_buffer_bytes),
        on_pending=None if saving is None else saving.set,
    )
    hooks = load(named(config), plugin_settings or {}, endpoint.host(wall_clock_ms))
    endpoint.use_plugins(hooks)
    health = health or Health()
    health.lacks("port", "it does not listen yet")
    address = join_address(config.bind_address, config.listen_port)
    with unwrap_groups():
        async with served_pages(network, config, health) as served, anyio.create_task_group() as nursery:
            served.pages.update(hooks.pages())
            if saving is not None:
                nursery.start_soon(keep_writing, endpoint.deferred_saves, saving)
            if tls.tls_cert_path:
                nursery.start_soon(certificate.watch)
            for name, plugin in hooks.tasks:
                nursery.start_soon(supervise, f"plugin {name}", plugin.run)
            due = Wakeup()
            doors = await plugin_doors(
                network,
                config,
                hooks,
                "controller",
                acceptors=endpoint.acceptors,
                tls=tls,
                budget=endpoint.budget,
                due=due,
                now_ms=wall_clock_ms,
            )
            addresses = await nursery.start(
                partial(
                    serve,
                    network,
                    [address],
                    endpoint,
                    limits=client_limits(config),
                    tls=tls,
                    acceptor=endpoint.acceptors[CLIENTS],
                    access=web_socket_access(config),
                    budget=endpoint.budget,
                    doors=doors.server,
                )
            )
            await nursery.start(doors.serve, due)
            port = int(addresses[0].rpartition(":")[2])
            own, known = own_address(config, config.bind_address, port)
            async with running_member(
                config,
                requests,
                own,
                known,
                network=network,
                tls=tls,
                secret=secret,
                disk=disk,
                health=health,
            ):
                health.has("port")
                if also is not None:
                    also |= doors.addresses | served.listens() | hooks.listens()
                task_status.started(addresses)
                await stop.wait()
                doors.stop()
            nursery.cancel_scope.cancel()
