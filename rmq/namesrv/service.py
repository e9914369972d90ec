"""The nursery tree of a name server.

    namesrv
    ├── expire       brokers that were silent too long
    ├── saving       files that administrators and registrations change, written in a thread
    ├── controller   a controller's log and messages, where the setting `controllers` asks for one
    ├── lookups      cluster test mode: ask the production name servers
    └── serve        listener, and one nursery for each connection

Expected network errors end one connection; anything else ends the name server. Its clock is the loop's, which
no change of the wall clock moves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from rmq import clock
from rmq.clock import wall_clock_ms
from rmq.config import parse_addresses
from rmq.controller.config import own_address
from rmq.controller.requests import ControllerRequests
from rmq.controller.service import running_member
from rmq.errors import ConnectFailed, ConnectionLost, RemoteProtocolError, RequestTimeout
from rmq.files import read_file, replace_file, settings_saver
from rmq.namesrv import kvconfigs
from rmq.namesrv.config import NamesrvConfig, kv_config_file
from rmq.namesrv.handlers import Lookup, NameServer, no_route, route_response
from rmq.namesrv.host import plugin_host
from rmq.namesrv.kvconfigs import KvConfigs
from rmq.namesrv.masters import Masters
from rmq.plugin import load, named
from rmq.protocol.auth.server_auth import ServerAuth
from rmq.protocol.bodies import TopicRouteData
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import GetRouteInfoRequestHeader
from rmq.remoting.address import join_address
from rmq.remoting.endpoint import ClientOnlyEndpoint, Endpoint
from rmq.remoting.limits import MemoryBudget
from rmq.remoting.loop import Wakeup, current_loop, supervise, unwrap_groups
from rmq.remoting.network import Network, TcpNetwork
from rmq.remoting.pool import Pool
from rmq.remoting.serving.acceptor import Acceptor
from rmq.remoting.serving.server import serve
from rmq.remoting.transports.certificate import ServerCertificate
from rmq.remoting.transports.tls import TlsConfig
from rmq.server.health import Health, Stop
from rmq.server.http import served_pages
from rmq.server.ports import CLIENTS, acceptor, client_limits, plugin_doors, web_socket_access
from rmq.server.profile import applied, cluster_secret
from rmq.server.saving import keep_writing
from rmq.store.files.disk import Disk

LOOKUP_SECONDS = 3.0
WAITING_LOOKUPS = 1_000
RUNNING_LOOKUPS = 64


async def run(
    config: NamesrvConfig,
    *,
    tls: TlsConfig | None = None,
    network: Network | None = None,
    disk: Disk | None = None,
    lease_clock: Callable[[], float] = clock.lease_clock,
    also: dict[str, str] | None = None,
    health: Health | None = None,
    front: Callable[[Endpoint], Endpoint] | None = None,
    stop: Stop | None = None,
    plugin_settings: Mapping[str, str] | None = None,
    task_status: anyio.abc.TaskStatus[list[str]] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Run a name server until `stop` is set, or until cancelled. `started` gets the addresses as bound;
    `also` gets the other listeners. `front` makes the endpoint of connections from the name server, for
    tests. `disk` and `lease_clock` are for its controller. `plugin_settings` are texts for plug-ins.

    Raises PortInUse or OSError when it cannot listen, ConfigError or PluginRefused for unusable settings,
    RemoteProtocolError when the saved key-value configs are damaged. Cancelled: connections are closed, saved
    configs are whole.
    """
    config, tls = applied(config, tls or TlsConfig())
    network = network or TcpNetwork()
    send, receive = anyio.create_memory_object_stream[Lookup](WAITING_LOOKUPS)
    production = parse_addresses(config.product_namesrv_addr, "productNamesrvAddr")
    asks = config.cluster_test and bool(production)
    deadline = Wakeup()
    saving = Wakeup() if isinstance(network, TcpNetwork) else None  # in a simulation files take no time
    certificate = ServerCertificate(tls.tls_cert_path)
    server = _name_server(
        config,
        partial(_take, send) if asks else None,
        acceptor(config),
        saving.set if saving is not None else None,
        deadline.set,
        certificate,
    )
    requests = ControllerRequests(lease_clock, certificate=certificate)
    if config.controllers:
        server.use_controller(requests)
    hooks = load(named(config), plugin_settings or {}, plugin_host(server, wall_clock_ms))
    server.use_plugins(hooks)
    address = join_address(config.bind_address, config.listen_port)
    health = health or Health()
    health.lacks("port", "it does not listen yet")
    stop = anyio.Event() if stop is None else stop
    async with send, receive, served_pages(network, config, health) as served, _nursery() as nursery:
        served.pages.update(hooks.pages())
        nursery.start_soon(_expire, server, deadline)
        if saving is not None:
            nursery.start_soon(keep_writing, server.deferred_saves, saving)
        if tls.tls_cert_path:
            nursery.start_soon(certificate.watch)
        for name, plugin in hooks.tasks:
            nursery.start_soon(supervise, f"plugin {name}", plugin.run)
        if asks:
            nursery.start_soon(_look_up, receive, Pool(network, ClientOnlyEndpoint(), tls=tls), production)
        due = Wakeup()
        doors = await plugin_doors(
            network,
            config,
            hooks,
            "name server",
            acceptors=server.acceptors,
            tls=tls,
            budget=server.budget,
            due=due,
            now_ms=wall_clock_ms,
        )
        addresses = await nursery.start(
            partial(
                serve,
                network,
                [address],
                server if front is None else front(server),
                limits=client_limits(config),
                tls=tls,
                acceptor=server.acceptors[CLIENTS],
                access=web_socket_access(config),
                budget=server.budget,
                doors=doors.server,
            )
        )
        await nursery.start(doors.serve, due)
        if config.controllers:
            port = int(addresses[0].rpartition(":")[2])
            own, known = own_address(config, config.bind_address, port)
            secret = cluster_secret(config.cluster_secret_file)
            member = running_member(
                config, requests, own, known, network=network, tls=tls, secret=secret, disk=disk
            )
            await nursery.start(_entered, member)
        health.has("port")
        if also is not None:
            also |= doors.addresses | served.listens() | hooks.listens()
        task_status.started(addresses)
        await stop.wait()
        doors.stop()
        nursery.cancel_scope.cancel()


async def _entered(
    block: AbstractAsyncContextManager[None],
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    async with block:
        task_status.started()
        await anyio.sleep_forever()


@asynccontextmanager
async def _nursery() -> AsyncIterator[anyio.abc.TaskGroup]:
    with unwrap_groups():
        async with anyio.create_task_group() as nursery:
            yield nursery


def _now_ms() -> int:
    return int(anyio.current_time() * 1000)


def _name_server(
    config: NamesrvConfig,
    on_lookup: Callable[[Lookup], bool] | None,
    clients: Acceptor,
    on_pending: Callable[[], None] | None,
    on_deadline: Callable[[], None],
    certificate: ServerCertificate,
) -> NameServer:
    kv_file = kv_config_file(config)
    secret = cluster_secret(config.cluster_secret_file)
    saved = kvconfigs.load(read_file(kv_file), str(kv_file))
    return NameServer(
        config,
        now_ms=_now_ms,
        kv_configs=KvConfigs(partial(replace_file, kv_file), saved, most=config.max_kv_config_bytes),
        save_settings=settings_saver(config.config_store_path),
        on_lookup=on_lookup,
        cluster=ServerAuth(secret, wall_clock_ms) if secret is not None else None,
        clock=current_loop().now,
        acceptors={CLIENTS: clients},
        budget=MemoryBudget(config.connection_buffer_bytes),
        masters=_masters(config),
        on_pending=on_pending,
        on_deadline=on_deadline,
        certificate=certificate,
    )


def _masters(config: NamesrvConfig) -> Masters:
    if not config.masters_path:
        return Masters(None, None, _now_ms())
    file = Path(config.masters_path).expanduser()
    return Masters(partial(replace_file, file), read_file(file), _now_ms())


async def _expire(server: NameServer, deadline: Wakeup) -> NoReturn:
    while True:
        now_ms = _now_ms()
        delay_ms = server.step(now_ms) - now_ms
        await deadline.wait(anyio.current_time() + delay_ms / 1000)


# Cluster test mode.


def _take(send: MemoryObjectSendStream[Lookup], lookup: Lookup) -> bool:
    try:
        send.send_nowait(lookup)
    except anyio.WouldBlock:
        return False
    return True


async def _look_up(receive: MemoryObjectReceiveStream[Lookup], pool: Pool, addresses: list[str]) -> None:
    running = anyio.Semaphore(RUNNING_LOOKUPS)
    async with anyio.create_task_group() as nursery:
        await nursery.start(pool.run)
        async for lookup in receive:
            await running.acquire()
            nursery.start_soon(_answer, lookup, pool, addresses, running)


async def _answer(lookup: Lookup, pool: Pool, addresses: list[str], running: anyio.Semaphore) -> None:
    try:
        route = await _ask(lookup.topic, pool, addresses)
    finally:
        running.release()
    request = lookup.request
    response = no_route(request, lookup.topic) if route is None else route_response(request, route)
    lookup.connection.reply(response)


async def _ask(topic: str, pool: Pool, addresses: list[str]) -> TopicRouteData | None:
    """The first answer of the production name servers, or None."""
    for address in addresses:
        request = Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic, True))
        try:
            response = await pool.call(address, request, LOOKUP_SECONDS)
            if response.code == ResponseCode.SUCCESS:
                return TopicRouteData.from_json(response.body)
        except (ConnectFailed, ConnectionLost, RequestTimeout, RemoteProtocolError):
            continue
    return None
