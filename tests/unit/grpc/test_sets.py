"""gRPC where masters change: the door of a slave, and a proxy whose broker has another master now."""

from __future__ import annotations

import anyio
import pytest

pytest.importorskip("h2")

from trio.testing import MockClock

import rmq
from rmq.protocol.codes import PERM_READ, PERM_WRITE
from rmq.store.config import BrokerRole
from rmq.testing.network import MemoryNetwork
from tests.unit.grpc.calls import PORT, client, cluster, message, received, receiving, sending, word
from tests.unit.grpc.floods import hello
from tests.unit.grpc.proxied import ProxiedCluster


async def test_a_slave_ends_a_connection_before_its_first_frame(autojump_clock: MockClock) -> None:
    """Libraries of gRPC try the next address of a client only then."""
    async with cluster() as running:
        slave = {"broker_role": BrokerRole.SLAVE}
        await running.start("slave", store=slave, broker_name="a", broker_id=1)
        assert isinstance(running.network, MemoryNetwork)
        network = running.network.host("10.0.9.9")
        for port in (PORT, None):
            address = running["slave"].address
            if port is not None:
                address = f"{address.partition(':')[0]}:{port}"
            stream = await network.dial(address)
            await stream.send_all(hello())
            with anyio.fail_after(30):
                assert not bytes(await stream.receive_some(65_536))
            await stream.aclose()
        async with client(running) as one:
            assert word(await one.one("SendMessage", sending(message()))) == "OK"


ROUTE_SECONDS = 5.0
"""Until a proxy has noticed another master; it asks for all routes every 30 s."""


@pytest.mark.parametrize("is_missed", [False, True])
async def test_a_proxy_takes_from_a_new_master_as_soon_as_the_old_one_fails(
    autojump_clock: MockClock, is_missed: bool
) -> None:
    """Without a send, which would ask for the route itself."""
    async with (
        ProxiedCluster("a", topics={"Orders": 4}, proxy_settings={}) as running,
        client(running, port=None) as one,
    ):
        assert word(await one.one("SendMessage", sending(message(b"old")))) == "OK"
        assert (await received(one, receiving()))[0] == "OK"
        slave = {"broker_role": BrokerRole.SLAVE}
        await running.start("slave", store=slave, broker_name="a", broker_id=1)
        await running.stop("a")
        for _ in range(2 if is_missed else 0):  # the second one finds a route without a master
            assert (await received(one, receiving()))[0] != "OK"
            await anyio.sleep(2)
        await running.start("other", broker_name="a")
        running["other"].create_topic("Orders", 4, PERM_READ | PERM_WRITE)
        await anyio.sleep(1)  # the name server knows it
        async with running.connect() as ours, ours.producer("p") as producer:
            await producer.send(rmq.Message("Orders", b"new"))
        with anyio.fail_after(ROUTE_SECONDS):
            while (found := await received(one, receiving()))[0] != "OK":
                await anyio.sleep(1)
        assert [each.body for each in found[1]] == [b"new"]
