"""The nursery tree of a proxy.

proxy
├── client       connections to name servers and brokers, heartbeats, routes
├── calls        a task for each call that asks a broker
├── look         once in a while: does a name server answer?
├── saving       files that plug-ins change, written in a thread
└── doors        the listener of gRPC, and one nursery for each connection
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NoReturn

import anyio
import anyio.abc

from rmq.client.client import Client
from rmq.client.config import ClientConfig
from rmq.client.session.requests import parse_name_servers
from rmq.client.session.session import Session
from rmq.clock import wall_clock_ms
from rmq.errors import RmqError, Unreachable
from rmq.message import AUTO_CREATE_TOPIC
from rmq.metrics import Metric, connection_metrics
from rmq.plugin import load, named
from rmq.protocol.auth.signature import Credentials
from rmq.proxy.cluster import ProxiedCluster
from rmq.proxy.config import ProxyConfig, account_of_proxy
from rmq.proxy.members import ProxyEndpoint
from rmq.proxy.peer import ProxyPeer
from rmq.remoting.limits import MemoryBudget
from rmq.remoting.loop import Wakeup, supervise, unwrap_groups
from rmq.remoting.network import Network, TcpNetwork
from rmq.remoting.serving.acceptor import Acceptor
from rmq.remoting.transports.tls import TlsConfig
from rmq.server.deferred import DeferredSaves
from rmq.server.health import Health, Stop
from rmq.server.http import served_pages
from rmq.server.plugin_host import NoMessages, PluginHost, at_once
from rmq.server.ports import plugin_doors
from rmq.server.profile import applied
from rmq.server.saving import keep_writing

log = logging.getLogger("rmq.proxy")

LOOK_SECONDS: Final = 10.0
ROUTES_MS: Final = 30_000
SEND_MS: Final = 3_000
CLUSTER: Final = "cluster"
"""The part of a proxy's health that stands for the name servers."""
PORT_KEY: Final = "grpcPort"


class ProxyClient(Client):
    """The client of a proxy."""

    _endpoint = ProxyEndpoint

    @property
    def session(self) -> Session:
        """The session, while the client is open."""
        return self._entered()


class ProxyServer:
    """A proxy, with the parts that its plug-ins use."""

    def __init__(self, config: ProxyConfig, on_pending: Callable[[], None] | None) -> None:
        self.config = config
        self.budget = MemoryBudget(config.connection_buffer_bytes)
        self.acceptors: dict[str, Acceptor] = {}
        self.deferred_saves = DeferredSaves(_nothing_to_answer, _nothing_to_answer, on_pending)
        self.cluster: ProxiedCluster | None = None

    def metrics(self) -> list[Metric]:
        """Figures of calls and connections."""
        own = [] if self.cluster is None else self.cluster.metrics()
        return [*own, *connection_metrics(self.acceptors, self.budget)]


def client_of(
    config: ProxyConfig, tls: TlsConfig, network: Network, credentials: Credentials | None
) -> ProxyClient:
    """The client for requests to brokers and name servers."""
    settings = ClientConfig(
        request_timeout_ms=config.proxy_request_timeout,
        send_timeout_ms=SEND_MS,
        send_queue_ms=SEND_MS,
        poll_name_server_interval_ms=ROUTES_MS,
        compress_over=0,
    )
    names = parse_name_servers(config.namesrv_addr)
    return ProxyClient(names, credentials=credentials, tls=tls, config=settings, network=network)


async def run(
    config: ProxyConfig,
    *,
    tls: TlsConfig | None = None,
    network: Network | None = None,
    client: ProxyClient | None = None,
    now_ms: Callable[[], int] = wall_clock_ms,
    also: dict[str, str] | None = None,
    health: Health | None = None,
    stop: Stop | None = None,
    plugin_settings: Mapping[str, str] | None = None,
    task_status: anyio.abc.TaskStatus[list[str]] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Run a proxy until `stop` is set, or until cancelled. `started` gets the addresses as bound; `also` gets
    the other listeners. `client` and `now_ms` are for tests. `plugin_settings` are texts for plug-ins.

    Raises PortInUse or OSError when it cannot listen, ConfigError or PluginRefused for unusable settings.
    Cancelled: connections are closed; the clients' messages are redelivered at once.
    """
    config, tls = applied(config, tls or TlsConfig())
    network = network or TcpNetwork()
    credentials = account_of_proxy(config)
    client = client or client_of(config, tls, network, credentials)
    stop = anyio.Event() if stop is None else stop
    health = health or Health()
    health.lacks("port", "it does not listen yet")
    saving = Wakeup() if isinstance(network, TcpNetwork) else None  # in a simulation files take no time
    server = ProxyServer(config, None if saving is None else saving.set)
    texts = {**(plugin_settings or {}), PORT_KEY: str(config.listen_port)}
    host = PluginHost(server, NoMessages("proxy"), now_ms=now_ms, metrics=at_once(server.metrics))
    hooks = load(named(config), texts, host)
    secret = credentials.secret_key.encode() if credentials is not None else b""
    with unwrap_groups():
        async with (
            served_pages(network, config, health) as served,
            client,
            anyio.create_task_group() as nursery,
        ):
            served.pages.update(hooks.pages())
            if saving is not None:
                nursery.start_soon(keep_writing, server.deferred_saves, saving)
            for name, plugin in hooks.tasks:
                nursery.start_soon(supervise, f"plugin {name}", plugin.run)
            cluster = server.cluster = ProxiedCluster(config, client.session, nursery, secret)
            due = Wakeup()
            doors = await plugin_doors(
                network,
                config,
                hooks,
                "proxy",
                acceptors=server.acceptors,
                tls=tls,
                budget=server.budget,
                due=due,
                now_ms=now_ms,
                peer=partial(ProxyPeer, cluster),
            )
            health.lacks(CLUSTER, "no name server has answered yet")
            nursery.start_soon(_look, client.session, health)
            await nursery.start(doors.serve, due)
            health.has("port")
            if also is not None:
                also |= served.listens() | hooks.listens()
            task_status.started(list(doors.addresses.values()))
            await stop.wait()
            health.lacks("service", "it is stopping")
            cluster.is_stopping = True
            doors.stop()
            await cluster.finish()
            nursery.cancel_scope.cancel()


async def _look(session: Session, health: Health) -> NoReturn:
    """Check repeatedly whether a name server answers."""
    while True:
        try:
            await session.name_servers.route(AUTO_CREATE_TOPIC, session.brokers.timeout)
            health.has(CLUSTER)
        except Unreachable as error:
            health.lacks(CLUSTER, str(error))
        except RmqError:
            health.has(CLUSTER)  # it has answered that it has no such topic
        await anyio.sleep(LOOK_SECONDS)


def _nothing_to_answer(*given: object) -> NoReturn:
    """Stand-in for the handler of RocketMQ's requests, which a proxy does not serve."""
    raise AssertionError("a proxy answers no requests of RocketMQ's")
