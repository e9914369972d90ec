"""A cluster while it is served, and scenarios that are played against it on both event loops."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import anyio
import attrs
import trio
import trio.testing

import rmq
from rmq.client.client import Client
from rmq.client.config import ClientConfig
from rmq.remoting.network import Network, TcpNetwork
from rmq.testing.cluster import Cluster, at_once
from rmq.testing.network import MemoryNetwork

HANG_SECONDS = 20
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
        client = rmq.connect(self.names, network=self.network, config=config, **known)
        if isinstance(self.network, MemoryNetwork):
            client._in_thread = at_once
        return client


@asynccontextmanager
async def world(cluster: Cluster) -> AsyncIterator[World]:
    """Serve `cluster` in memory, where each server is a host: 10.0.0.1 on, brokers from 10.0.1.1."""
    async with cluster:
        yield World(cluster, cluster.network, cluster.namesrv_address)


@contextmanager
def served_in_a_thread(cluster: Cluster) -> Iterator[World]:
    """Serve `cluster` over sockets, on a trio loop of its own; what is sent back comes again at once."""
    cluster.network = TcpNetwork()
    cluster.store["message_delay_level"] = "0s 0s 0s"
    running: Future[tuple[trio.lowlevel.TrioToken, trio.Event]] = Future()

    async def serve() -> None:
        token, own, end = trio.lowlevel.current_trio_token(), threading.get_ident(), trio.Event()

        def call(work: Callable[[], Any]) -> Any:
            here = threading.get_ident() == own
            return work() if here else trio.from_thread.run_sync(work, trio_token=token)

        for front in (*cluster.name_servers, *cluster.brokers.values()):
            front.call = call
        async with cluster:
            running.set_result((token, end))
            await end.wait()

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(trio.run, serve)
        wait((running, done), HANG_SECONDS, FIRST_COMPLETED)
        if running.done():
            token, end = running.result()
            try:
                yield World(cluster, cluster.network, cluster.namesrv_address)
            finally:
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(end.set)
        done.result(HANG_SECONDS)


Scenario = Callable[[World], Awaitable[None]]


def play(loop: str, scenario: Scenario, cluster: Cluster) -> None:
    """Run a scenario: on trio in memory and in virtual time, on asyncio over sockets."""
    if loop == "trio":

        async def in_memory() -> None:
            with trio.fail_after(10_000):
                async with world(cluster) as made:
                    await scenario(made)

        trio.run(in_memory, clock=trio.testing.MockClock(autojump_threshold=0))
        return

    async def over_sockets(made: World) -> None:
        with anyio.fail_after(HANG_SECONDS):
            await scenario(made)

    with served_in_a_thread(cluster) as made:
        anyio.run(over_sockets, made, backend="asyncio", backend_options={"use_uvloop": loop == "uvloop"})


def play_in_memory(loop: str, scenario: Scenario, cluster: Cluster) -> None:
    """Run a scenario in memory and in virtual time, on asyncio too."""

    async def in_memory() -> None:
        async with world(cluster) as made:
            with anyio.fail_after(1_000_000):
                await scenario(made)

    anyio.run(in_memory, backend=loop)
