"""Settings of brokers, name servers and their key-value configs."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import rmq
from rmq.errors import ConnectFailed
from rmq.operate import brokers, name_servers
from rmq.operate.name_servers import NameServer
from rmq.testing.cluster import Cluster


async def test_settings_say_whether_they_may_change(client: rmq.Client) -> None:
    known = {one.key: one for one in await brokers.settings(client.admin, "a")}
    assert known["brokerPermission"].may_change is True
    assert known["listenPort"].may_change is False
    assert known["listenPort"].help
    assert all(one.may_change is not None for one in known.values())


async def test_a_change_of_settings_is_looked_at_first(client: rmq.Client) -> None:
    wanted = {"brokerPermission": "4", "listenPort": "1", "fileReservedTime": "x", "noSuch": "1"}
    found = {one.key: one for one in await brokers.preview_settings(client.admin, "a", wanted)}
    assert (found["brokerPermission"].before, found["brokerPermission"].error) == ("6", "")
    assert "restart" in found["listenPort"].error
    assert found["fileReservedTime"].error
    assert found["noSuch"].error == "the broker has no such setting"
    await brokers.change_settings(client.admin, {"brokerPermission": "4"}, broker="a")
    assert (await client.admin.broker_config("a"))["brokerPermission"] == "4"


async def test_differences_among_brokers_are_found(client: rmq.Client) -> None:
    await brokers.change_settings(client.admin, {"brokerPermission": "4"}, broker="b")
    found = await brokers.differences(client.admin, {"a": "a", "b": "b"})
    by_key = {one.key: one.values for one in found}
    assert by_key["brokerPermission"] == {"6": ("a",), "4": ("b",)}
    assert by_key["brokerName"] == {"a": ("a",), "b": ("b",)}
    assert "fileReservedTime" not in by_key


async def test_each_metric_has_a_section(client: rmq.Client) -> None:
    metrics = await client.admin.broker_runtime("a")
    found = brokers.sections(metrics)
    assert {name: value for rows in found.values() for name, value in rows.items()} == metrics
    assert "putTps" in found["messages"]
    assert "commitLogDiskRatio" in found["disk"]
    assert brokers.sections({"new": "1"}) == {"other": {"new": "1"}}


async def test_name_servers_are_asked_each_by_itself() -> None:
    async with Cluster("a", name_servers=2) as cluster:
        first, second = cluster.namesrv_address.split(";")

        def connect(address: str) -> AbstractAsyncContextManager[rmq.Client]:
            if address == "away:1":
                raise ConnectFailed("away:1", OSError("nobody listens"))
            return cluster.connect()

        found = await name_servers.name_servers(connect, [first, second, "away:1"])
    one, other, away = found
    assert (one.brokers, other.brokers) == (("a",), ("a",))
    assert one.topics > 0
    assert one.settings
    assert "away:1" in away.error
    assert name_servers.lacking(found) == {}


def test_a_name_server_that_lacks_a_broker_is_named() -> None:
    found = [NameServer("x:1", ("a", "b")), NameServer("y:1", ("a",)), NameServer("z:1", error="away")]
    assert name_servers.lacking(found) == {"y:1": ("b",)}


async def test_key_values_are_put_and_deleted(client: rmq.Client) -> None:
    await name_servers.put(client.admin, "N", "b", "2")
    await name_servers.put(client.admin, "N", "a", "1")
    assert await name_servers.key_values(client.admin, "N") == {"a": "1", "b": "2"}
    await name_servers.delete(client.admin, "N", "a")
    assert await name_servers.key_values(client.admin, "N") == {"b": "2"}
    assert await name_servers.key_values(client.admin) == {}
    await client.admin.create_topic("Ordered", queues=1, order=True)
    assert await name_servers.key_values(client.admin) == {"Ordered": "a:1;b:1"}
