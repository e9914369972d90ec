"""Readiness of a slave: not before it has followed its master once since its start."""

from __future__ import annotations

import pathlib
from functools import partial

import anyio
import pytest
from attrs import evolve

from rmq.broker.broker import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import failover_service
from rmq.namesrv.handlers import NameServer
from rmq.namesrv.host import metrics_of
from rmq.server.health import Health
from rmq.server.ports import CLIENTS
from rmq.store.config import BrokerRole
from rmq.testing.cluster import BROKERS, STORE, Cluster
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork

HOST = "10.0.1.9"


async def test_a_slave_is_ready_when_it_has_followed_and_stays_so_without_its_master() -> None:
    async with Cluster("a", topics={"T": 1}) as cluster, anyio.create_task_group() as tasks:
        assert isinstance(cluster.network, MemoryNetwork)
        master = cluster["a"].address.partition(":")[0]
        cluster.network.partition(HOST, master)
        health, stop = Health(), anyio.Event()
        settings = {"broker_name": "a", "broker_id": 1, "broker_ip1": HOST}
        run = partial(
            failover_service.run,
            BrokerConfig(**BROKERS | settings | {"namesrv_addr": cluster.namesrv_address}),
            evolve(STORE, broker_role=BrokerRole.SLAVE),
            network=cluster.network.host(HOST),
            disk=MemoryDisk(seed=2),
            now_ms=cluster.now_ms,
            clock=anyio.current_time,
            stop=stop,
            health=health,
        )
        await tasks.start(run)
        await cluster.advance(60)
        assert list(health.lacking) == ["master"]
        assert "has not followed its master since its start: the link to" in health.text()
        cluster.network.heal()
        await cluster.advance(60)
        assert health.is_ready
        cluster.network.partition(HOST, master)
        cluster.cut("a")
        await cluster.advance(60)
        assert health.is_ready, "it serves what it has"
        stop.set()


async def test_name_servers_count_missing_and_refused_brokers() -> None:
    async with Cluster("a", "b", topics={"T": 1}) as cluster:
        server = cluster.name_servers[0].server
        assert isinstance(server, NameServer)

        def count(name: str) -> dict[tuple[str, ...], object]:
            return {labels: n for one in metrics_of(server) if one.name == name for labels, n in one.rows}

        assert (count("namesrv_missing"), count("namesrv_refused")) == ({}, {})
        with anyio.move_on_after(10):
            await cluster.start("other", broker_name="a")
        await cluster.stop("b")
        assert count("namesrv_missing") == {("DefaultCluster", "b"): 1}
        assert count("namesrv_refused") == {("DefaultCluster", "a"): 1}


@pytest.mark.parametrize("data", [b"GET / HTTP/1.0\r\n\r\n", b"\x00\x00\x00\x09nonsense"])
async def test_connections_that_prove_nothing_are_counted(data: bytes) -> None:
    async with Cluster("a") as cluster:
        server = cluster["a"].server
        assert isinstance(server, Broker)
        acceptor = server.acceptors[CLIENTS]
        before = acceptor.failed
        assert isinstance(cluster.network, MemoryNetwork)
        stream = await cluster.network.host("10.0.8.8").dial(cluster["a"].address)
        await stream.send_all(data)
        await stream.aclose()
        await cluster.advance(1)
        assert acceptor.failed == before + 1


@pytest.mark.parametrize("secret", ["", "s" * 24])
async def test_slaves_that_prove_nothing_are_counted(tmp_path: pathlib.Path, secret: str) -> None:
    settings = {}
    if secret:
        (file := tmp_path / "secret").write_text(secret)
        file.chmod(0o600)
        settings["ha_secret_file"] = str(file)
    async with Cluster("a", **settings) as cluster:
        server = cluster["a"].server
        assert isinstance(server, Broker)
        assert isinstance(cluster.network, MemoryNetwork)
        host, _, port = cluster["a"].address.partition(":")
        for data in (b"nonsense of another protocol" * 4, b""):
            stream = await cluster.network.host("10.0.8.8").dial(f"{host}:{int(port) + 1}")
            if data:
                await stream.send_all(data)
            await stream.aclose()
            await cluster.advance(60)
            assert server.acceptors["slaves"].failed == 1, "a silent connection has failed at nothing"
