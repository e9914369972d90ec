"""Clusters that are broken on purpose, in memory: each fault is seen, and a cluster that is well has none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve

import rmq
from rmq.broker.admin import metrics_export
from rmq.client.client import Client
from rmq.config import parse_addresses
from rmq.errors import ConnectFailed, Unreachable
from rmq.operate.copies.transfer import read_cluster
from rmq.operate.diagnosis import Facts, Finding, diagnose
from rmq.operate.examination import examine
from rmq.operate.overview import overview
from rmq.store.config import BrokerRole, FlushDiskType
from rmq.testing.cluster import Cluster
from rmq.testing.disk import MemoryDisk
from tests.sim.real_brokers.broker_controllers import CONTROLLERS
from tests.sim.real_brokers.brokers import Set, controlled_set

from ..conftest import consume, send

AWAY = "10.0.0.9:9876"
SLAVE = {"broker_role": BrokerRole.SLAVE}
REPLICATED = {"broker_role": BrokerRole.SYNC_MASTER, "flush_disk_type": FlushDiskType.SYNC_FLUSH}


def connector(cluster: Cluster) -> Callable[[str], AbstractAsyncContextManager[Client]]:
    def connect(addresses: str) -> AbstractAsyncContextManager[Client]:
        if addresses == AWAY:
            raise Unreachable("", {AWAY: ConnectFailed(AWAY, OSError("nobody listens"))})
        client = cluster.connect()
        client._name_servers = parse_addresses(addresses, "-n")
        return client

    return connect


async def facts_of(cluster: Cluster, *more: str, **options: Any) -> Facts:
    servers = [*cluster.namesrv_address.split(";"), *more]
    return await examine(connector(cluster), servers, now_ms=cluster.now_ms, **options)


async def wrong(cluster: Cluster, *more: str, **options: Any) -> list[str]:
    return lines(diagnose(await facts_of(cluster, *more, **options)))


def lines(found: Iterable[Finding], level: str = "wrong") -> list[str]:
    assert all(one.what_to_do for one in found)
    return [f"{one.where}: {one.what}" for one in found if one.level == level]


def one_of(found: list[str], *words: str) -> None:
    """A finding has all these words."""
    assert any(all(word in line for word in words) for line in found), found


@asynccontextmanager
async def pair(**settings: Any) -> AsyncIterator[Cluster]:
    """Broker a with its slave, and broker b."""
    async with Cluster("a", "b", topics={"Orders": 2}, **settings) as cluster:
        await cluster.start("a-1", broker_name="a", broker_id=1, store=SLAVE)
        await cluster.advance(30)
        yield cluster


async def test_a_cluster_that_is_well_has_nothing_wrong() -> None:
    async with pair() as cluster, cluster.connect() as client:
        assert await wrong(cluster) == []
        expected = await read_cluster(client.admin, "", offsets=True)
        assert await wrong(cluster, expected=expected) == []
        assert (await overview(client.admin)).missing == ()


async def test_a_name_server_that_is_away() -> None:
    async with pair() as cluster:
        one_of(await wrong(cluster, AWAY), AWAY, f"does not answer: cannot connect to {AWAY}: nobody listens")


async def test_a_whole_broker_that_was_killed_and_its_topics() -> None:
    async with pair() as cluster, cluster.connect() as client:
        await client.admin.create_topic("OnlyB", broker="b", queues=1)
        await cluster.advance(1)
        cluster.cut("b")  # its connection to the name server ends, as the kernel ends those of a dead process
        found = await wrong(cluster)
        assert found == []  # it registers again
        await cluster.stop("b")
        found = await wrong(cluster)
        one_of(found, "broker b: ", "was stopped without a drain", "producers cannot send there to", "OnlyB")
        seen = await overview(client.admin)
        assert [one.broker_name for one in seen.missing] == ["b"]
        assert await client.admin.forget_missing("b") == {cluster.namesrv_address: 1}
        assert await wrong(cluster) == []
        assert await client.admin.forget_missing("a") == {cluster.namesrv_address: 0}
        assert (await client.admin.topic_route("Orders")).queue_datas[0].perm == 6


async def test_a_broker_that_was_drained_and_stopped_is_not_missed_and_one_that_is_back_neither() -> None:
    async with pair() as cluster, cluster.connect() as client:
        await client.admin.update_broker_config({"brokerPermission": "4"}, broker="b")
        await cluster.advance(60)
        one_of(await wrong(cluster), "broker b: accepts no messages: brokerPermission is 4")
        await cluster.stop("b")
        assert await wrong(cluster) == []
        await cluster.start("b")
        assert await wrong(cluster) == []
        await cluster.stop("b")
        one_of(await wrong(cluster), "broker b: ", "without a drain")
        await cluster.start("b")
        assert await wrong(cluster) == []


async def test_a_plain_pair_without_its_slave_or_its_master() -> None:
    async with pair() as cluster:
        await cluster.stop("a-1")
        found = diagnose(await facts_of(cluster))
        one_of(lines(found, "note"), "broker a (slave 1): ", "was stopped without a drain")
        await cluster.start("a-1", broker_name="a", broker_id=1, store=SLAVE)
        await cluster.stop("a")
        found = diagnose(await facts_of(cluster))
        one_of(lines(found), "broker a: has slaves, but no master")
        one_of(lines(found), "broker a: ", "was stopped without a drain")


async def test_a_broker_at_an_address_that_nobody_reaches() -> None:
    async with pair() as cluster:
        await cluster.stop("b")
        await cluster.start("b", broker_ip1="10.0.7.7", bind_address=cluster["b"].address.partition(":")[0])
        one_of(await wrong(cluster), "broker b: registered as 10.0.7.7:10911, but: ")


async def test_a_slave_that_copies_nothing() -> None:
    async with pair() as cluster:
        assert isinstance(cluster.network, rmq.testing.MemoryNetwork)
        hosts = [cluster[name].address.partition(":")[0] for name in ("a", "a-1")]
        cluster.network.partition(hosts[0], hosts[1])
        cluster.cut("a-1")
        await cluster.advance(60)
        found = await wrong(cluster)
        one_of(found, "broker a (slave 1): it is not connected to its master: it copies nothing")
        one_of(found, "broker a: has 1 registered slave, of which 0 linked to it")


async def test_a_replicated_master_without_a_slave() -> None:
    async with Cluster("a", store=REPLICATED) as cluster:
        one_of(await wrong(cluster), "broker a: ", "sends are answered SLAVE_NOT_AVAILABLE")


async def test_a_second_master_of_a_name() -> None:
    async with pair() as cluster:
        with trio.move_on_after(20):
            await cluster.start("other", broker_name="a")
        one_of(await wrong(cluster), "broker a: name servers refuse 10.0.1.4:10911", "heard")
        await cluster.advance(1)


async def test_a_deleted_store() -> None:
    async with pair() as cluster, cluster.connect() as client:
        await send(client, "Orders", 4)
        files = cluster.disks["a"]._files
        deleted = dict(files)
        files.clear()
        await cluster.advance(2)
        (found,) = (one for one in diagnose(await facts_of(cluster)) if "takes no messages" in one.what)
        assert "was DELETED OR REPLACED" in found.what
        assert found.what_to_do.startswith("let its messages be consumed before you stop it")
        files.update(deleted)
        await cluster.advance(2)
        assert await wrong(cluster) == []


async def test_a_store_that_came_back_empty_is_seen_by_the_exported_offsets() -> None:
    async with pair() as cluster, cluster.connect() as client:
        await send(client, "Orders", 40)
        await consume(client, "billing", "Orders", 40)
        expected = await read_cluster(client.admin, "", offsets=True)
        await cluster.stop("b")
        cluster.disks["b"] = MemoryDisk(seed=1)
        await cluster.start("b")
        await cluster.create_topic("Orders", 2, brokers=["b"])
        found = await wrong(cluster, expected=expected)
        one_of(found, "group billing: queue 0 of Orders on b ends at 0, and it was at ")
        one_of(found, "group billing: ought to be on b, and is not")


async def test_a_full_disk() -> None:
    async with pair() as cluster:
        cluster.disks["b"].capacity = 1
        await cluster.advance(2)
        found = await wrong(cluster)
        one_of(found, "broker b: takes no messages: ")
        one_of(found, "broker b: its disk is 100% full")
        cluster.disks["b"].capacity = None


async def test_a_process_that_may_open_256_files(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as cluster:
        monkeypatch.setattr(metrics_export, "descriptor_limit", lambda: 256)
        one_of(await wrong(cluster), "broker b: it may open 256 files and connections only")
        monkeypatch.setattr(metrics_export, "descriptor_limit", lambda: 4096)
        assert await wrong(cluster) == []


async def test_a_clock_that_is_ahead() -> None:
    async with pair() as cluster:
        facts = await examine(
            connector(cluster), [cluster.namesrv_address], now_ms=lambda: cluster.now_ms() - 60_000
        )
        one_of(lines(diagnose(facts)), "broker b: its clock is ", "ahead of this machine's")


async def test_name_servers_that_know_different_brokers() -> None:
    async with pair(name_servers=2) as cluster:
        first = cluster.name_servers[0].address
        await cluster.stop("b")
        await cluster.start("b", namesrv_addr=first)
        second = cluster.name_servers[1].address
        one_of(await wrong(cluster), f"name server {second}: does not know b, which others know")


async def test_a_group_that_nobody_reads_and_members_that_differ() -> None:
    async with pair() as cluster, cluster.connect() as client, cluster.connect() as other:
        await consume(client, "left", "Orders", 0)
        await client.admin.create_group("left")
        await client.admin.set_offsets("left", {rmq.MessageQueue("Orders", "a", 0): 0})
        await send(client, "Orders", 12)
        async with client.consumer("split", {"Orders": "x"}), other.consumer("split", {"Orders": "y"}):
            found = await wrong(cluster, lag_limit=2)
        one_of(found, "group left: has ", "no member is connected")
        one_of(found, "group split: members subscribe differently")


async def test_what_an_export_had_and_the_cluster_has_not() -> None:
    async with pair() as cluster, cluster.connect() as client:
        await client.admin.create_topic("Bills", queues=4)
        await client.admin.create_group("billing")
        expected = await read_cluster(client.admin, "", offsets=False)
        expected = evolve(expected, accounts={"ops": {}})
        await client.admin.delete_topic("Bills")
        await client.admin.delete_group("billing")
        await client.admin.create_topic("Orders", broker="a", queues=1)
        await cluster.stop("a-1")
        found = await wrong(cluster, expected=expected)
        one_of(found, "topic Bills: ought to be on a, and is not")
        one_of(found, "group billing: ought to be on b, and is not")
        one_of(found, "topic Orders: differs on a: ", "read_queues is 1, was 2")
        one_of(found, "broker a: has 1 of 2 brokers of this name")
        one_of(found, "account ops: is not there")
        await cluster.stop("b")
        found = await wrong(cluster, expected=expected)
        one_of(found, "broker b: is expected, and no name server knows it")
        assert not any("Bills" in line and "on b" in line for line in found)


# --- sets with controllers ---


async def of_set(found: Set, **options: Any) -> list[Finding]:
    return diagnose(await facts_of(found.cluster, controllers=CONTROLLERS, **options))


async def until(found: Set, *words: str) -> list[str]:
    """The faults, once a finding has these words."""
    with trio.fail_after(60):
        while True:
            seen = lines(await of_set(found))
            if any(all(word in line for word in words) for line in seen):
                return seen
            await trio.sleep(1)


async def test_a_set_that_is_well(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(2) as (found, client):
        await found.begin(client)
        await trio.sleep(1)
        facts = await facts_of(found.cluster)  # brokers say who the controllers are
        assert len(facts.controllers) == 3
        assert lines(diagnose(facts)) == []


async def test_a_controller_that_is_dead_and_two(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(2) as (found, client):
        await found.begin(client)
        await found.controllers[2].stop(found.pauses)
        await until(found, f"controller {CONTROLLERS[2]}: does not answer")
        await found.controllers[1].stop(found.pauses)
        await until(found, "controllers: no controller leads: no master can be elected")
        await until(found, "broker s: no controller that leads has answered it for ")


async def test_a_dead_replica_and_a_set_whose_only_replica_in_sync_is_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(3) as (found, client):
        await found.begin(client)
        await found.kill(found.nodes[2])
        seen = await until(found, "broker s: replica 3 at 10.0.1.3:10911 is dead")
        assert not any("is missing" in line for line in seen)  # the controllers know better
        await found.kill(found.nodes[1])
        await until(found, "broker s: no other in-sync replica lives: no failover is possible")


async def test_a_replica_that_runs_and_that_nobody_hears(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(3) as (found, client):
        await found.begin(client)
        away = [address.partition(":")[0] for address in (*CONTROLLERS, found.cluster.namesrv_address)]
        found.network.partition(found.nodes[2].host, *away)
        await until(found, "broker s: replica 3 at 10.0.1.3:10911 runs, but the controllers do not hear it")


async def test_a_set_that_is_dead_where_the_name_servers_know_nobody(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        await found.begin(client)
        for node in found.nodes:
            await found.kill(node)
        seen = await until(found, "broker s: none of its 2 replicas lives")
        one_of(seen, "broker s: ", "is missing (its connection closed)", "producers cannot send there", "T")
        one_of(seen, "cluster: no broker is registered")


async def test_a_set_without_a_replica_in_sync(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(2) as (found, client):
        await found.begin(client)
        await found.kill(found.nodes[1])
        await found.until(inSync=[1])
        await found.kill(found.nodes[0])
        found.network.heal()
        await found.start(found.nodes[1])
        await until(found, "broker s: has no master, since no replica in sync (1) lives")


async def test_a_replica_that_is_left_over(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(2) as (found, client):
        await found.begin(client)
        second = found.nodes[1]
        await found.kill(second, left=type(second.disk)(seed=9))  # a new disk, at the same address
        found.network.heal()
        await found.start(second)
        await until(found, "broker s: replica 2 is left over: its address 10.0.1.2:10911 is replica 3 now")


async def test_a_master_that_refuses_for_want_of_replicas(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(2, min_in_sync_replicas=2) as (found, client):
        await found.begin(client)
        await found.kill(found.nodes[1])
        await until(found, "broker s: takes no messages: ", "minInSyncReplicas is 2")


async def test_a_replica_that_no_name_server_knows(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(2) as (found, client):
        await found.begin(client)
        name_server = found.cluster.name_servers[0].address.partition(":")[0]
        found.network.partition(found.nodes[1].host, name_server)
        found.network.cut(name_server)
        await until(found, "broker s: replica 2 at 10.0.1.2:10911 lives, and no name server knows it")


async def test_leases_that_differ_between_controllers(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(1) as (found, _):
        await found.master()
        facts = await facts_of(found.cluster, controllers=CONTROLLERS)
        states = [evolve(one, lease_ms=3000 + 1000 * at) for at, one in enumerate(facts.controllers)]
        one_of(lines(diagnose(evolve(facts, controllers=states))), "controllers: controllerLeaseMs differs")
