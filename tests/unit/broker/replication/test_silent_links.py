"""Connections between servers that fall silent without an end: each side notices within the documented time.

`black_hole` lets nothing pass on the open connections, and new ones work: as when NAT forgets them. Brokers
and name servers: tests/unit/client/session/test_silent_servers.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from rmq.controller.consensus.raft import NotLeader
from rmq.errors import RmqError
from rmq.message import Message
from rmq.store.config import BrokerRole
from rmq.testing.cluster import Cluster
from rmq.testing.network import MemoryNetwork
from tests.sim.real_brokers.broker_controllers import CONTROLLERS
from tests.sim.real_brokers.brokers import Set, controlled_set
from tests.unit.controller.services import ADDRESSES, Controllers, controllers, register

PAIR: dict[str, Any] = {"broker_name": "pair"}
CONTROLLER_HOSTS = [address.partition(":")[0] for address in CONTROLLERS]
HOUSEKEEPING_SECONDS = 20
"""haHousekeepingInterval: silence after which the link of a slave ends. A slave dials again 5 s later."""
LEASE_SECONDS = 3
"""controllerLeaseMs."""
LAG_SECONDS = 3
"""replicaLagMs."""


def black_hole(network: MemoryNetwork, host: str, others: list[str]) -> int:
    """Silence the open connections of a host with others; returns how many there were."""
    silenced = 0
    for other in others:
        if other != host:
            silenced += len(network._streams_of(host, other))
            network.black_hole(host, other)
    return silenced


@pytest.mark.parametrize("seed", [0, 2])
async def test_a_master_and_its_slave(autojump_clock: trio.testing.MockClock, seed: int) -> None:
    """Messages and topics reach the slave again when both have heard nothing for haHousekeepingInterval."""
    async with Cluster(network=MemoryNetwork(seed=seed)) as made:
        await made.start("m", store={"broker_role": BrokerRole.SYNC_MASTER}, **PAIR)
        await made.start("s", store={"broker_role": BrokerRole.SLAVE}, broker_id=1, **PAIR)
        hosts = [made[name].address.partition(":")[0] for name in ("m", "s")]
        async with made.connect() as client, client.producer("p") as producer:
            await client.admin.create_topic("T", broker="pair")
            await trio.sleep(30 + seed)

            async def seconds_until_copied() -> float:
                began = trio.current_time()
                while True:
                    try:
                        if (await producer.send(Message("T", b"x"))).status == "SEND_OK":
                            return trio.current_time() - began
                    except RmqError:
                        pass
                    await trio.sleep(0.1)

            assert await seconds_until_copied() < 1
            for _ in range(2):
                assert black_hole(made.network, hosts[0], [hosts[1]]) > 0  # type: ignore[arg-type]
                assert await seconds_until_copied() < HOUSEKEEPING_SECONDS + 6
            black_hole(made.network, hosts[0], [hosts[1]])  # type: ignore[arg-type]
            began = trio.current_time()
            await client.admin.create_topic("Late", broker="pair")
            while "Late" not in await client.admin.topic_configs(made["s"].address):
                await trio.sleep(0.5)
            assert trio.current_time() - began < HOUSEKEEPING_SECONDS + 16


async def test_a_slave_of_a_set_leaves_the_in_sync_replicas_and_comes_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Sends go on after `replicaLagMs`, and no other master is elected."""
    async with controlled_set(2) as (found, client):
        master = await found.begin(client)
        async with client.producer("P") as producer:
            assert await found.sent(producer, "before") < 1
            assert black_hole(found.network, master.host, [found.nodes[1].host]) > 0
            assert await found.sent(producer, "alone") < LAG_SECONDS + 2
            began = trio.current_time()
            await found.until(inSync=[1, 2])
            assert trio.current_time() - began < HOUSEKEEPING_SECONDS + 6
            assert found.acting() == [master]
            await found.sent(producer, "together")
        await trio.sleep(1)
        assert found.stored(found.nodes[0]) == found.stored(found.nodes[1])


async def all_lose_the_controllers(found: Set) -> None:
    for node in found.nodes:
        assert black_hole(found.network, node.host, CONTROLLER_HOSTS) > 0


async def test_the_brokers_of_a_set_and_the_controllers(autojump_clock: trio.testing.MockClock) -> None:
    """A broker asks anew over another connection before the lease of the master ends: nobody is elected."""
    async with controlled_set(3) as (found, client):
        master = await found.begin(client)
        epoch = (await found.status())["epoch"]
        async with client.producer("P") as producer:
            for number in range(2):
                await trio.sleep(7)
                await all_lose_the_controllers(found)
                for _ in range(20):
                    assert await found.sent(producer, f"m{number}") < LEASE_SECONDS
                    await trio.sleep(0.2)
            assert found.acting() == [master]
            state = await found.until(inSync=[1, 2, 3])
            assert state["epoch"] == epoch


async def is_agreed(three: Controllers, name: str) -> bool:
    """True if a new replica was registered."""
    try:
        await three.ask(register(name))
    except (NotLeader, RmqError):
        return False
    return True


async def test_controllers_among_each_other(autojump_clock: trio.testing.MockClock) -> None:
    """A change is agreed on again within 10 s, and all controllers have it."""
    hosts = [address.partition(":")[0] for address in ADDRESSES]
    async with controllers() as three:
        await three.ask(register("a"))
        for number in range(3):
            await trio.sleep(10)
            for host in hosts:
                assert black_hole(three.network, host, hosts) > 0 or host != hosts[0]
            with trio.fail_after(10):
                while not await is_agreed(three, f"b{number}"):
                    await trio.sleep(0.1)
            await trio.sleep(10)
            states = [await three.status(address) for address in ADDRESSES]
            assert len({state["leader"] for state in states}) == 1
            assert [len(state["sets"][0]["replicas"]) for state in states] == [number + 2] * 3
