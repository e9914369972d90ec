"""A client over WebSocket, on both event loops."""

from __future__ import annotations

import pytest

import rmq
from rmq.client.client import connect
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World


@pytest.mark.parametrize("size", [1, 300_000])
def test_messages_go_and_come(both: Play, cluster: Cluster, size: int) -> None:
    async def scenario(world: World) -> None:
        addresses = ";".join(f"ws://{address}" for address in world.names.split(";"))
        async with (
            connect(addresses, network=world.network, compress_over=0) as client,
            client.producer("p") as producer,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            for number in range(5):
                await producer.send(rmq.Message("T", b"%d" % number * size))
            bodies = set()
            while len(bodies) < 5:
                async with await anext(consumer) as message:
                    bodies.add(message.body)
            assert bodies == {b"%d" % number * size for number in range(5)}

    both(scenario, cluster)
