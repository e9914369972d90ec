"""Mistakes of operators with brokers of a set: folders that are copied, replicas that are removed and come
back; and the metrics and log lines of brokers about them."""

from __future__ import annotations

import logging
import socket
from functools import partial

import pytest
import trio
import trio.testing

from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import failover_service
from rmq.errors import PortInUse
from rmq.server.health import Health
from rmq.store.config import BrokerRole, Durability, FlushDiskType, StoreConfig
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork
from tests.sim.real_brokers.broker_controllers import CONTROLLERS
from tests.sim.real_brokers.brokers import Node, controlled_set
from tests.unit.broker.failover.sets import remove

AWAY = [address.partition(":")[0] for address in CONTROLLERS]


async def test_a_broker_on_a_copied_folder_waits_and_the_one_whose_place_it_took_ends(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with controlled_set(2) as (found, _):
        first, second = found.nodes
        await found.master()
        before = await found.until(inSync=[1, 2])

        third = Node(3)
        third.disk = second.disk.copy()
        found.nodes.append(third)
        found.start_later(third)
        await trio.sleep(20)
        assert third.broker is None
        assert f"replica 2 of s lives at {second.host}:10911" in caplog.text
        assert "remove config/controller.json here" in caplog.text
        found_now = await found.until(inSync=[1, 2])
        assert found_now["replicas"][1]["address"] == before["replicas"][1]["address"]
        assert found.acting() == [first]

        # The one that is copied is away for long: who has its folder is believed to be it, and it ends then.
        found.network.partition(second.host, *AWAY)
        while third.broker is None:
            await trio.sleep(0.1)
        second.has_bad_disk = True  # it may end
        found.network.heal()
        with trio.fail_after(10):
            await second.ended.wait()
        assert found.acting() == [first]


async def test_a_replica_that_was_removed_and_lives_comes_back_as_another(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(3) as (found, _):
        await found.master()
        await found.until(inSync=[1, 2, 3])
        third = found.nodes[2]
        assert "stop it first" in await remove(found, 3)
        found.network.partition(third.host, *AWAY, *(node.host for node in found.nodes[:2]))
        await found.until(inSync=[1, 2])
        assert await remove(found, 3) == ""
        found.network.heal()
        await found.until(inSync=[1, 2, 4])
        assert third.broker is not None
        assert third.broker.settings.broker.broker_id == 4


async def test_a_redirect_to_the_controller_that_leads_is_no_warning(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with controlled_set(2) as (found, client):
        await found.begin(client)
        asked_first = CONTROLLERS[0].partition(":")[0]
        while await found.leading() == asked_first:  # a broker is to ask a follower first
            await found.controllers[0].stop(found.pauses)
            await found.until(inSync=[1, 2])
            await found.controllers[0].start()
            await trio.sleep(5)
        await found.end(found.nodes[1])
        caplog.clear()
        await found.start(found.nodes[1])
        await found.until(inSync=[1, 2])
        assert any("the controllers redirect to" in line for line in caplog.messages)
        said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
        assert not any("controllers" in line for line in said), said


async def test_a_slave_that_is_stopped_in_order_is_waited_for_no_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(3) as (found, client):
        await found.begin(client)
        async with client.producer("P") as producer:
            assert await found.send(producer, "before")
            await found.end(found.nodes[1])
            assert await found.sent(producer, "after") < 1.0  # replicaLagMs is 10 s
            await found.until(inSync=[1, 3])
            await found.start(found.nodes[1])
            await found.until(inSync=[1, 2, 3])
            assert await found.send(producer, "with all")
        await trio.sleep(1)
        assert found.stored(found.nodes[0]) == found.stored(found.nodes[1])


async def test_a_lease_that_ends_is_counted_where_the_master_was(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def figures(node: Node) -> dict[str, object]:
        assert node.broker is not None
        assert node.broker.role.manager is not None
        rows = node.broker.role.manager.metrics()
        return {metric.name: metric.rows[0][1] for metric in rows}

    async with controlled_set(2) as (found, _):
        first = await found.master()
        await found.until(inSync=[1, 2])
        assert (figures(first)["set_fenced"], figures(first)["set_leases_lost"]) == (0, 0)
        found.network.partition(first.host, *AWAY)
        await trio.sleep(5)
        assert (figures(first)["set_fenced"], figures(first)["set_leases_lost"]) == (1, 1)
        await found.until(master=2)
        found.network.heal()
        await found.until(inSync=[1, 2])
        assert (figures(first)["set_fenced"], figures(first)["set_leases_lost"]) == (0, 1)
        second = await found.master()
        assert await found.want(1)
        await found.until(master=1)
        assert figures(second)["set_leases_lost"] == 0  # it handed over, in order


async def test_why_controllers_do_not_take_a_broker_is_said_at_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "rmq.broker")
    async with controlled_set(0) as (found, _):
        slave = Node(2)
        found.nodes = [slave]
        found.start_later(slave)
        await trio.sleep(5)
        assert "the controllers refuse it: s has no master yet: start the one that has" in caplog.text
        assert slave.stop is not None
        slave.stop.set()
        with trio.fail_after(3):
            await slave.ended.wait()


async def test_a_name_server_that_has_just_started_takes_whom_controllers_have_elected(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, _):
        await found.master()
        await found.until(inSync=[1, 2])
        for wanted, epoch in ((2, 2), (1, 3)):
            assert await found.want(wanted)
            await found.until(master=wanted)
            broker = (await found.master()).broker
            assert broker is not None
            assert broker.registration.register().ext["setEpoch"] == str(epoch)
        second = found.nodes[1].broker
        assert second is not None
        assert "setEpoch" not in second.registration.register().ext


async def test_a_broker_that_controllers_do_not_take_says_why_where_it_is_probed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, health, stop = MemoryNetwork(seed=1), Health(store="it is being opened"), trio.Event()
    config = BrokerConfig(
        controller_addr=CONTROLLERS[0], plugins=("metrics",), metrics_address="10.0.1.1", metrics_port=5557
    )
    store_config = StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH, store_path_root_dir="/store")
    host = network.host("10.0.1.1")
    run = partial(
        failover_service.run,
        config,
        store_config,
        network=host,
        disk=MemoryDisk(seed=1),
        health=health,
        stop=stop,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(nursery.start, run)
        await trio.sleep(2)
        stream = await network.host("10.0.1.2").dial("10.0.1.1:5557")
        await stream.send_all(b"GET /ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = b""
        with trio.fail_after(5):
            while b"controllers: cannot connect" not in answer:
                answer += await stream.receive_some()
        assert b" 503 " in answer
        assert b"store" not in answer
        stop.set()


@pytest.mark.parametrize("taken", [0, 1])
async def test_a_slave_that_could_not_listen_as_a_master_becomes_no_replica(taken: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1] - taken
        config = BrokerConfig(
            broker_id=1, listen_port=port, controller_addr="127.0.0.1:9", vip_channel_enabled=False
        )
        store_config = StoreConfig(
            broker_role=BrokerRole.SLAVE, durability=Durability.disk, store_path_root_dir="/store"
        )
        with pytest.raises(PortInUse):
            await failover_service.run(config, store_config, disk=MemoryDisk(seed=1))
