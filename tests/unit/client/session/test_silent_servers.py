"""Connections between servers that fall silent without an end: each is cut, and made again."""

from __future__ import annotations

import anyio
import pytest

import rmq
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World


@pytest.mark.parametrize("name_servers", [1, 2])
def test_brokers_and_name_servers(in_memory: Play, name_servers: int) -> None:
    """The registration of a broker goes on over a new connection, before a name server forgets the broker."""
    cluster = Cluster("a", "b", topics={"T": 1}, name_servers=name_servers)

    async def scenario(world: World) -> None:
        for _ in range(3):
            await anyio.sleep(300)
            for front in cluster.name_servers:
                cluster.network.black_hole(front.address.partition(":")[0])  # type: ignore[attr-defined]
            await anyio.sleep(1800)
            async with world.connect() as client, client.producer("p") as producer:
                results = [await producer.send(rmq.Message("T", b"x")) for _ in range(4)]
                assert {one.message_queue.broker_name for one in results} == {"a", "b"}
                assert len(await client.admin.broker_addresses()) == 2

    in_memory(scenario, cluster)
