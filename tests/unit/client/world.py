"""What the client's tests play in: a scripted cluster, a network, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import trio.testing

import rmq
from rmq.client.client import Client
from rmq.client.config import ClientConfig
from rmq.remoting.network import Network, TcpNetwork
from rmq.testing.network import MemoryNetwork

from .cluster import Cluster

HANG_SECONDS = 120
"""On real time a test that takes longer has hung."""


@attrs.define
class World:
    """A cluster that is being served, and how to reach it."""

    cluster: Cluster
    network: Network
    names: str

    def connect(self, **options: Any) -> Client:
        """A client; `options` beside those of `connect` are settings."""
        known = {name: options.pop(name) for name in ("client_id", "credentials") if name in options}
        config = ClientConfig(**{"pull_batch_size": 32} | options)
        return rmq.connect(self.names, network=self.network, config=config, **known)


@asynccontextmanager
async def world(cluster: Cluster, network: Network | None = None) -> AsyncIterator[World]:
    """Serve `cluster`, by default in memory, where each server is a host: 10.0.0.1 on, name servers first."""
    network = network or MemoryNetwork(seed=1)
    place = "127.0.0.1:0" if isinstance(network, TcpNetwork) else "10.0.0.{}:9"
    async with cluster.serve(network, lambda number: place.format(number + 1)) as names:
        yield World(cluster, network, names)


Scenario = Callable[[World], Awaitable[None]]


def play(loop: str, scenario: Scenario, cluster: Cluster) -> None:
    """Run a scenario: on trio in memory and in virtual time, on asyncio over sockets."""

    async def main() -> None:
        with anyio.fail_after(HANG_SECONDS if loop == "asyncio" else 10_000):
            async with world(cluster, TcpNetwork() if loop == "asyncio" else None) as made:
                await scenario(made)

    clock = {"clock": trio.testing.MockClock(autojump_threshold=0)} if loop == "trio" else {}
    anyio.run(main, backend=loop, backend_options=clock)
