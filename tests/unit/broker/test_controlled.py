"""Brokers whose role controllers decide: real controllers, brokers and clients in memory, and faults."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve

from rmq.broker import controlled
from rmq.broker.broker import Broker
from rmq.broker.config import BrokerConfig
from rmq.client.client import Client
from rmq.client.producer import Producer
from rmq.controller import service as controller_service
from rmq.controller.config import ControllerConfig
from rmq.errors import ConfigError, RmqError
from rmq.message import Message
from rmq.protocol.codes import CONTROLLER_STATUS
from rmq.protocol.command import Command
from rmq.protocol.record import decode_record
from rmq.remoting.endpoint import RefusingEndpoint
from rmq.remoting.pool import Pool
from rmq.store.config import BrokerRole, FlushDiskType, StoreConfig
from rmq.testing.cluster import STORE, Cluster
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork

CONTROLLERS = [f"10.0.8.{number}:9878" for number in (1, 2, 3)]


class Node:
    """One broker of the set."""

    def __init__(self, number: int) -> None:
        self.host = f"10.0.1.{number}"
        self.disk = MemoryDisk(seed=number)
        self.is_founder = number == 1
        self.stop: trio.Event | None = None
        self.ended = trio.Event()
        self.broker: Broker | None = None

    def opened(self, broker: Broker) -> None:
        self.broker = broker


class Set:
    """A broker set of some replicas, three controllers, a name server."""

    def __init__(
        self, cluster: Cluster, pool: Pool, nursery: trio.Nursery, size: int, **settings: Any
    ) -> None:
        self.cluster, self.pool, self.nursery, self.settings = cluster, pool, nursery, settings
        assert isinstance(cluster.network, MemoryNetwork)
        self.network = cluster.network
        self.nodes = [Node(number) for number in range(1, size + 1)]
        self.acknowledged: list[str] = []
        self.is_controlled = True

    async def start_controllers(self) -> None:
        for number, address in enumerate(CONTROLLERS):
            host = address.partition(":")[0]
            config = ControllerConfig(
                controllers=";".join(CONTROLLERS), bind_address=host, controller_path="/controller"
            )
            await self.nursery.start(
                partial(
                    controller_service.run,
                    config,
                    network=self.network.host(host),
                    disk=MemoryDisk(seed=number),
                    clock=trio.current_time,
                )
            )

    async def start(self, node: Node, **more: Any) -> None:
        node.stop, node.ended = trio.Event(), trio.Event()
        await self.nursery.start(self._live, node, more)

    async def _live(self, node: Node, more: dict[str, Any], task_status: trio.TaskStatus[Any]) -> None:
        config, store_config = self.configs(node)
        ended = node.ended
        await controlled.run(
            config,
            store_config,
            network=self.network.host(node.host),
            disk=node.disk,
            now_ms=self.cluster.now_ms,
            clock=trio.current_time,
            stop=node.stop,
            on_opened=node.opened,
            task_status=task_status,
        )
        ended.set()

    def configs(self, node: Node) -> tuple[BrokerConfig, StoreConfig]:
        config = BrokerConfig(
            broker_name="s",
            broker_ip1=node.host,
            broker_id=0 if node.is_founder else 1,
            namesrv_addr=self.cluster.namesrv_address,
            controller_addr=";".join(CONTROLLERS) if self.is_controlled else "",
            **self.settings,
        )
        role = BrokerRole.SYNC_MASTER if node.is_founder else BrokerRole.SLAVE
        return config, evolve(
            STORE,
            broker_role=role,
            flush_disk_type=FlushDiskType.SYNC_FLUSH,
            ha_send_heartbeat_interval=1000,
            ha_housekeeping_interval=4000,
        )

    async def kill(self, node: Node) -> None:
        """The machine loses power."""
        assert node.stop is not None
        left = node.disk.image(0.5)
        self.cut_off(node)
        node.stop.set()
        await node.ended.wait()
        node.disk, node.stop = left, None

    def cut_off(self, node: Node) -> None:
        self.network.partition(node.host, *self.network._hosts())
        self.network.cut(node.host)

    async def status(self) -> dict[str, Any]:
        with trio.fail_after(30):
            while True:
                for address in CONTROLLERS:
                    found = json.loads(
                        (await self.pool.call(address, Command.request(CONTROLLER_STATUS), 5)).body
                    )
                    if found["leading"] and found["sets"]:
                        sets: dict[str, Any] = found["sets"][0]
                        return sets
                await trio.sleep(0.1)

    async def until(self, **wanted: Any) -> dict[str, Any]:
        with trio.fail_after(60):
            while True:
                found = await self.status()
                if all(found[key] == value for key, value in wanted.items()):
                    return found
                await trio.sleep(0.1)

    async def master(self) -> Node:
        """The node that acts as master, as soon as there is one."""
        with trio.fail_after(60):
            while True:
                for node in self.acting():
                    return node
                await trio.sleep(0.05)

    def acting(self) -> list[Node]:
        return [node for node in self.nodes if self._acts(node)]

    def _acts(self, node: Node) -> bool:
        broker = node.broker
        if node.stop is None or broker is None or broker.is_slave or broker.replica.control is None:
            return False
        return broker.replica.control.may_act()

    async def send(self, producer: Producer, text: str) -> bool:
        try:
            result = await producer.send(Message("T", text.encode()))
        except RmqError:
            return False
        if result.status != "SEND_OK":
            return False
        self.acknowledged.append(text)
        return True

    def stored(self, node: Node) -> list[str]:
        """The bodies that a broker has, in the order of its queues."""
        assert node.broker is not None
        store = node.broker.store
        found = []
        for topic, queue_id in sorted(store.queues()):
            if topic == "T":
                low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
                for offset in range(low, high):
                    record = store.read(store.unit(topic, queue_id, offset)[0])  # type: ignore[index]
                    found.append(bytes(decode_record(bytes(record)).body).decode())  # type: ignore[arg-type]
        return found


@asynccontextmanager
async def controlled_set(size: int, **settings: Any) -> AsyncIterator[tuple[Set, Client]]:
    async with (
        Cluster() as cluster,
        Pool(cluster.network, RefusingEndpoint()) as pool,
        cluster.connect(send_timeout_ms=1000) as client,
        trio.open_nursery() as nursery,
    ):
        found = Set(cluster, pool, nursery, size, **settings)
        await found.start_controllers()
        for node in found.nodes:
            await found.start(node)
        yield found, client
        for node in found.nodes:
            if node.stop is not None:
                node.stop.set()
        for node in found.nodes:
            await node.ended.wait()
        nursery.cancel_scope.cancel()


async def test_a_set_of_two_goes_on_when_its_master_is_killed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        assert await found.master() is first
        await client.admin.create_topic("T", broker="s", queues=1)
        await found.until(inSync=[1, 2])
        async with client.producer("P") as producer:
            for number in range(50):
                assert await found.send(producer, f"a{number}")
            await found.kill(first)
            killed_at = trio.current_time()
            assert await found.master() is second
            while not await found.send(producer, "first after"):
                await trio.sleep(0.1)
            gap = trio.current_time() - killed_at
            assert gap < 10
            assert set(found.acknowledged) <= set(found.stored(second))
            await found.until(master=2, epoch=2, inSync=[2])

            found.network.heal()
            await found.start(first)  # it follows now
            await found.until(master=2, inSync=[1, 2])
            for number in range(20):
                assert await found.send(producer, f"b{number}")
            await trio.sleep(2)
            assert found.stored(first) == found.stored(second)

            await found.kill(second)
            assert await found.master() is first
            while not await found.send(producer, "again"):
                await trio.sleep(0.1)
            assert set(found.acknowledged) <= set(found.stored(first))


async def test_a_master_that_is_cut_off_acknowledges_nothing_and_follows_when_it_is_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(3) as (found, client):
        first = await found.master()
        await client.admin.create_topic("T", broker="s", queues=1)
        await found.until(inSync=[1, 2, 3])
        async with client.producer("P") as producer:
            for number in range(10):
                assert await found.send(producer, f"a{number}")
            # The controllers and the slaves are away for it; the client and the name server are not.
            away = [address.partition(":")[0] for address in CONTROLLERS]
            found.network.partition(first.host, *away, *(one.host for one in found.nodes if one is not first))
            ended_at = trio.current_time() + 20
            while trio.current_time() < ended_at:
                await found.send(producer, f"b{trio.current_time()}")
                assert len(found.acting()) <= 1
                await trio.sleep(0.2)
            second = await found.master()
            assert second is not first
            assert set(found.acknowledged) <= set(found.stored(second))
            extra = set(found.stored(first)) - set(found.stored(second))
            assert extra  # it took what it could not acknowledge
            found.network.heal()
            await found.until(inSync=[1, 2, 3])
            assert await found.send(producer, "after")
            await trio.sleep(2)
            assert found.stored(first) == found.stored(second)


async def test_without_a_slave_in_sync_sends_are_refused_when_two_are_asked_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2, min_in_sync_replicas=2) as (found, client):
        first, second = found.nodes
        await found.master()
        await client.admin.create_topic("T", broker="s", queues=1)
        await found.until(inSync=[1, 2])
        async with client.producer("P") as producer:
            assert await found.send(producer, "a")
            await found.kill(second)
            await found.until(inSync=[1])
            await trio.sleep(1)
            with pytest.raises(RmqError, match="minInSyncReplicas is 2"):
                await producer.send(Message("T", b"refused"))
            found.network.heal()
            await found.start(second)
            await found.until(inSync=[1, 2])
            await trio.sleep(1)
            assert await found.send(producer, "b")
            assert found.stored(first) == found.acknowledged


async def test_sends_go_on_when_a_slave_dies(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(2) as (found, client):
        _first, second = found.nodes
        await found.master()
        await client.admin.create_topic("T", broker="s", queues=1)
        await found.until(inSync=[1, 2])
        async with client.producer("P") as producer:
            assert await found.send(producer, "a")
            await found.kill(second)
            began = trio.current_time()
            while not await found.send(producer, "b"):
                await trio.sleep(0.1)
            assert trio.current_time() - began < 8
            assert (await found.status())["inSync"] == [1]
            assert (await found.status())["epoch"] == 1


async def test_a_new_master_delivers_what_is_delayed_and_serves_groups_from_where_they_were(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.master()
        await client.admin.create_topic("T", broker="s", queues=1)
        await found.until(inSync=[1, 2])
        async with client.producer("P") as producer:
            assert await found.send(producer, "now")
            await producer.send(Message("T", b"delayed", delay_level=4))  # 30 s
            await trio.sleep(3)  # tables are copied each second
            await found.kill(first)
            assert await found.master() is second
            assert found.stored(second) == ["now"]
            await trio.sleep(40)
            assert found.stored(second) == ["now", "delayed"]


async def test_without_controllers_a_master_stops_taking_messages_until_they_are_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        _first, _ = found.nodes
        await found.master()
        await client.admin.create_topic("T", broker="s", queues=1)
        await found.until(inSync=[1, 2])
        async with client.producer("P") as producer:
            assert await found.send(producer, "a")
            away = [address.partition(":")[0] for address in CONTROLLERS]
            for node in found.nodes:
                found.network.partition(node.host, *away)
            await trio.sleep(5)
            with pytest.raises(RmqError, match="no lease"):
                await producer.send(Message("T", b"refused"))
            found.network.heal()
            await found.master()
            while not await found.send(producer, "b"):
                await trio.sleep(0.1)


async def test_a_pair_without_controllers_becomes_a_controlled_set_and_a_pair_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(0) as (found, client):
        first, second = found.nodes = [Node(1), Node(2)]
        found.is_controlled = False
        for node in found.nodes:
            await found.start(node)
        await client.admin.create_topic("T", broker="s", queues=1)
        async with client.producer("P") as producer:
            while not await found.send(producer, "plain"):
                await trio.sleep(0.5)
            found.is_controlled = True
            for node in (second, first):  # slaves first, as any upgrade
                assert node.stop is not None
                node.stop.set()
                await node.ended.wait()
            for node in (first, second):
                await found.start(node)
            await found.until(inSync=[1, 2])
            while not await found.send(producer, "controlled"):
                await trio.sleep(0.2)
            found.is_controlled = False
            for node in (second, first):
                assert node.stop is not None
                node.stop.set()
                await node.ended.wait()
            for node in (first, second):
                await found.start(node)
            while not await found.send(producer, "plain again"):
                await trio.sleep(0.5)
            await trio.sleep(10)
            assert found.stored(first) == found.stored(second)
            assert set(found.acknowledged) <= set(found.stored(first))


@pytest.mark.parametrize(
    ("changes", "store", "words"),
    [
        ({}, {"flush_disk_type": FlushDiskType.ASYNC_FLUSH}, "durability=replicated"),
        ({"listen_port": 0}, {}, "a fixed port"),
        ({"ha_enable": False}, {}, "haEnable"),
        ({"controller_addr": "nonsense"}, {}, "controllerAddr"),
    ],
)
def test_settings_that_do_not_fit_a_controlled_set_are_refused(
    changes: dict[str, Any], store: dict[str, Any], words: str
) -> None:
    config = BrokerConfig(**{"controller_addr": CONTROLLERS[0]} | changes)
    with pytest.raises(ConfigError, match=words):
        controlled.check(config, StoreConfig(**{"flush_disk_type": FlushDiskType.SYNC_FLUSH} | store))
