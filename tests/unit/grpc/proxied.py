"""Clusters with a proxy in memory, for tests."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import attrs

from rmq.proxy import service
from rmq.proxy.config import ProxyConfig, account_of_proxy
from rmq.remoting.limits import Limits
from rmq.remoting.transports.tls import TlsConfig
from rmq.server.health import Health
from rmq.testing.cluster import SILENT_MS, Cluster
from rmq.testing.network import MemoryNetwork
from tests.unit.grpc.channel import Channel, channel

HOST = "10.0.2.1"
PORT = 8081


@attrs.define
class Proxy:
    """A running proxy."""

    address: str
    health: Health
    stop: anyio.Event


@asynccontextmanager
async def proxy(
    running: Cluster, host: str = HOST, plugin_settings: Mapping[str, str] | None = None, **settings: Any
) -> AsyncIterator[Proxy]:
    """A proxy before a running cluster, for the length of the block."""
    assert isinstance(running.network, MemoryNetwork)
    network = running.network.host(host)
    given: dict[str, Any] = {
        "bind_address": host,
        "listen_port": PORT,
        "namesrv_addr": running.namesrv_address,
        "server_channel_max_idle_time_seconds": SILENT_MS // 1000,
    }
    config = ProxyConfig(**given | settings)
    client = service.client_of(config, TlsConfig(), network, account_of_proxy(config))
    client._now_ms = running.now_ms
    client._limits = Limits(stall_seconds=math.inf, idle_seconds=SILENT_MS / 1000)
    health, stop = Health(), anyio.Event()
    run = partial(
        service.run,
        config,
        network=network,
        client=client,
        now_ms=running.now_ms,
        health=health,
        stop=stop,
        plugin_settings=plugin_settings,
    )
    async with anyio.create_task_group() as tasks:
        (address,) = await tasks.start(run)
        try:
            yield Proxy(address, health, stop)
        finally:
            stop.set()


class ProxiedCluster(Cluster):
    """A cluster with a proxy; `settings` are the proxy's."""

    def __init__(self, *brokers: str, proxy_settings: Mapping[str, Any], **settings: Any) -> None:
        super().__init__(*brokers, **settings)
        self._proxy_settings = dict(proxy_settings)
        self._running: Any = None
        self.proxy: Proxy

    async def __aenter__(self) -> ProxiedCluster:
        await super().__aenter__()
        try:
            self._running = proxy(self, **self._proxy_settings)
            self.proxy = await self._running.__aenter__()
        except BaseException as error:
            await super().__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await self._running.__aexit__(*raised)
        finally:
            await super().__aexit__(*raised)


@asynccontextmanager
async def client(
    running: ProxiedCluster, client_id: str = "client@1", host: str = "10.0.8.1"
) -> AsyncIterator[Channel]:
    """A gRPC client of the proxy of a running cluster."""
    assert isinstance(running.network, MemoryNetwork)
    async with channel(running.network.host(host), running.proxy.address, client_id) as one:
        yield one
