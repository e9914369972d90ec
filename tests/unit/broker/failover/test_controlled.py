"""Brokers whose role controllers decide: real controllers, brokers and clients in memory, and faults."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing

from rmq.broker.config import BrokerConfig
from rmq.broker.replication.table_replication import OFFSETS_SECONDS
from rmq.broker.runtime import failover_service
from rmq.errors import ConfigError, RmqError
from rmq.message import Message
from rmq.store.config import FlushDiskType, StoreConfig
from tests.sim.real_brokers.broker_controllers import CONTROLLERS
from tests.sim.real_brokers.brokers import BrokerSimulation, Node, controlled_set

LEASE_SECONDS = 3.0


async def test_a_set_of_two_goes_on_when_its_master_is_killed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            for number in range(50):
                assert await found.send(producer, f"a{number}")
            await found.kill(first)
            killed_at = trio.current_time()
            assert await found.master() is second
            await found.sent(producer, "first after")
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
            await found.sent(producer, "again")
            assert set(found.acknowledged) <= set(found.stored(first))


async def test_a_replica_is_ready_again_after_each_change_of_its_role(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Probes would take a new master out of service that says what it said when it stopped as a slave."""
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        for wanted in (2, 1):
            assert await found.want(wanted)
            await found.until(master=wanted, inSync=[1, 2])
            await trio.sleep(5)
            assert [node.health.lacking for node in (first, second)] == [{}, {}]


async def test_a_master_that_is_cut_off_acknowledges_nothing_and_follows_when_it_is_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(3) as (found, client):
        first = await found.begin(client)
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
            assert "cannot connect" in first.health.lacking["controllers"]
            assert second.health.is_ready
            found.network.heal()
            await found.until(inSync=[1, 2, 3])
            assert first.health.is_ready
            assert await found.send(producer, "after")
            await trio.sleep(2)
            assert found.stored(first) == found.stored(second)


async def test_a_master_hands_over_without_a_failed_send_and_before_its_lease_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def figures(node: Node) -> dict[str, float]:
        assert node.broker is not None
        manager = node.broker.role.manager
        assert manager is not None
        return {metric.name: metric.rows[0][1] for metric in manager.metrics()}

    async with controlled_set(2) as (found, client):
        first = await found.begin(client)
        async with client.producer("P") as producer:
            slowest, number = 0.0, 0
            for wanted in (2, 1):
                assert await found.want(wanted)
                asked_at = trio.current_time()
                while (status := await found.status())[
                    "master"
                ] != wanted or trio.current_time() < asked_at + 5:
                    assert len(found.acting()) <= 1
                    began, number = trio.current_time(), number + 1
                    assert await found.send(producer, f"m{number}"), "a send failed"
                    slowest = max(slowest, trio.current_time() - began)
                    await trio.sleep(0.05)
                assert status["epoch"] == {2: 2, 1: 3}[wanted]
                await found.until(inSync=[1, 2])
            assert slowest < LEASE_SECONDS / 2
            for node in found.nodes:
                silent = figures(node)["set_controllers_silent_seconds"]
                handed_on = figures(node)["set_relayed"]
                assert 0 <= silent < 1
                assert figures(node) == {
                    "set_epoch": 3,
                    "set_replicas": 2,
                    "set_in_sync": 2,
                    "set_refusing": 0,
                    "set_fenced": 0,
                    "set_leases_lost": 0,
                    "set_controllers_silent_seconds": pytest.approx(silent, abs=0.01),
                    "set_relayed": handed_on,
                    "set_relay_refused": figures(node)["set_relay_refused"],
                    "set_pulls_answered": 0,
                }
            assert await found.master() is first
            await trio.sleep(2)
            assert set(found.acknowledged) <= set(found.stored(first))
            assert found.stored(found.nodes[0]) == found.stored(found.nodes[1])


async def test_a_handover_that_is_given_up_leaves_the_master_as_it_was(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2, replica_lag_ms=60_000) as (found, client):
        await found.begin(client)
        async with client.producer("P") as producer:
            assert await found.send(producer, "a")
            found.network.partition(found.nodes[1].host, found.nodes[0].host)
            assert await found.want(2)
            producer_sends = await found.send(producer, "b")  # it cannot be in sync
            await found.end(found.nodes[1])
            found.network.heal()
            await found.start(found.nodes[1])
            status = await found.until(inSync=[1, 2])
            assert await found.send(producer, "c")
            await trio.sleep(2)
            logs = [found.stored(node) for node in found.nodes]
            assert logs[0] == logs[1]
            assert {"a", "c"} <= set(logs[0])
            assert status["master"] in (1, 2)
            assert not producer_sends or "b" in logs[0]


@pytest.mark.parametrize("size", [2, 3])
async def test_after_a_stop_in_order_another_is_master_at_once(
    autojump_clock: trio.testing.MockClock, size: int
) -> None:
    async with controlled_set(size) as (found, client):
        first = await found.master()
        await client.admin.create_topic("T", broker="s", queues=1)
        everybody = list(range(1, size + 1))
        await found.until(inSync=everybody)
        async with client.producer("P") as producer:
            assert await found.send(producer, "a")
            began = trio.current_time()
            await found.end(first)
            status = await found.until(master=2)
            assert trio.current_time() - began < LEASE_SECONDS / 2
            assert status["inSync"] == everybody[1:], "nobody waits for the one that has stopped"
            assert await found.send(producer, "b")
            assert trio.current_time() - began < LEASE_SECONDS
            await found.start(first)
            await found.until(inSync=everybody)
            await trio.sleep(2)
            assert found.stored(first) == found.stored(await found.master()) == ["a", "b"]


async def test_without_a_slave_in_sync_sends_are_refused_when_two_are_asked_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2, min_in_sync_replicas=2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
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
        await found.begin(client)
        async with client.producer("P") as producer:
            assert await found.send(producer, "a")
            await found.kill(second)
            began = trio.current_time()
            await found.sent(producer, "b")
            assert trio.current_time() - began < 8
            assert (await found.status())["inSync"] == [1]
            assert (await found.status())["epoch"] == 1


async def test_a_new_master_delivers_what_is_delayed_and_serves_groups_from_where_they_were(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            assert await found.send(producer, "now")
            await producer.send(Message("T", b"delayed", delay_level=4))  # 30 s
            await found.kill(first)
            assert await found.master() is second
            assert found.stored(second) == ["now"]
            await trio.sleep(40)
            assert found.stored(second) == ["now", "delayed"]


async def test_a_new_master_has_what_was_made_and_deleted_just_before(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.master()
        for name in ("T", "Gone"):
            await client.admin.create_topic(name, broker="s", queues=1)
            await client.admin.create_group(f"of-{name}", broker="s")
        await found.until(inSync=[1, 2])
        async with client.producer("P") as producer, client.pull_consumer("of-T") as consumer:
            await producer.send(Message("Gone", b"x"))
            (queue,) = await consumer.message_queues("T")
            await trio.sleep(5)
            await client.admin.create_topic("New", broker="s", queues=3)
            await client.admin.delete_topic("Gone")
            await client.admin.delete_group("of-Gone")
            await client.admin.create_group("New", broker="s", retry_max_times=3)
            assert await found.send(producer, "now")
            await consumer.commit(queue, 1)
            await trio.sleep(OFFSETS_SECONDS + 0.1)
            await found.kill(first)
            assert await found.master() is second
            broker = second.broker
            assert broker is not None
            assert broker.topics.table["New"].write_queue_nums == 3
            assert "Gone" not in broker.topics.table
            assert broker.groups.table["New"].retry_max_times == 3
            assert "of-Gone" not in broker.groups.table
            assert broker.offsets.of("of-T", "T") == {0: 1}


async def test_without_controllers_a_master_stops_taking_messages_until_they_are_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        _first, _ = found.nodes
        await found.begin(client)
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
            await found.sent(producer, "b")


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
            await found.sent(producer, "plain")
            found.is_controlled = True
            for node in (second, first):  # slaves first, as any upgrade
                assert node.stop is not None
                node.stop.set()
                await node.ended.wait()
            for node in (first, second):
                await found.start(node)
            await found.until(inSync=[1, 2])
            await found.sent(producer, "controlled")
            found.is_controlled = False
            for node in (second, first):
                assert node.stop is not None
                node.stop.set()
                await node.ended.wait()
            for node in (first, second):
                await found.start(node)
            await found.sent(producer, "plain again")
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
        failover_service.check(config, StoreConfig(**{"flush_disk_type": FlushDiskType.SYNC_FLUSH} | store))


@pytest.mark.parametrize("seed", range(4))
def test_what_was_acknowledged_outlives_any_faults(seed: int) -> None:
    simulation = BrokerSimulation.of(seed)
    simulation.run()
    assert simulation.accepted > 0


@pytest.mark.parametrize("kind", ["write", "sync", "full"])
async def test_a_master_whose_disk_takes_nothing_gives_way(
    autojump_clock: trio.testing.MockClock, kind: str
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            for number in range(10):
                assert await found.send(producer, f"a{number}")
            first.has_bad_disk = True
            if kind == "full":
                first.disk.capacity = first.disk.used
            else:
                first.disk.fail(kind, "commitlog", math.inf)
            broken_at = trio.current_time()
            while await found.master() is first:  # some more may fit a page that is full else
                await found.send(producer, f"b{trio.current_time()}")
                assert trio.current_time() - broken_at < 10
            await found.sent(producer, "first after")
            assert trio.current_time() - broken_at < 10
            assert await found.master() is second
            assert set(found.acknowledged) <= set(found.stored(second))
            first.disk.heal()
            first.disk.capacity = None
            if first.stop is None:  # it ended, and is started again
                await found.start(first)
            await found.until(master=2, inSync=[1, 2])
            assert await found.send(producer, "both")
        await trio.sleep(2)
        assert found.stored(first) == found.stored(second)


async def test_a_replica_whose_disk_is_full_asks_seldom_and_says_it_once_a_minute(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with controlled_set(2, replica_lag_ms=1000) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            assert await found.send(producer, "a")
            second.has_bad_disk = True
            second.disk.capacity = second.disk.used
            for number in range(40):
                await found.sent(producer, f"b{number}" + "x" * 1000)
            await found.until(inSync=[1])
            caplog.clear()
            await trio.sleep(120)
            said = [line.getMessage() for line in caplog.records if line.name == "rmq.ha"]
            assert 1 <= sum("the link to master" in text for text in said) <= 3, said
            assert sum("following master" in text for text in said) <= 30, said
            second.disk.capacity = None
            await found.until(inSync=[1, 2])
        await trio.sleep(2)
        assert found.stored(first) == found.stored(second)


async def test_a_master_that_is_alone_stays_though_its_disk_takes_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2, replica_lag_ms=1000) as (found, client):
        first, second = found.nodes
        assert await found.master() is first
        await client.admin.create_topic("T", broker="s", queues=1)
        await found.kill(second)
        await found.until(inSync=[1])
        first.disk.fail("write", "commitlog", math.inf)
        async with client.producer("P") as producer:
            for _ in range(10):
                assert not await found.send(producer, "refused")
                await trio.sleep(1)
            assert (await found.status())["epoch"] == 1
            first.disk.heal()
            await found.sent(producer, "taken")
