"""Facts that an examination collects."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import anyio
import pytest

import rmq
from rmq.errors import ConnectFailed, ConsumerNotOnline, NoPermission, RequestTimeout, for_code
from rmq.operate.copies.manifest import Manifest
from rmq.operate.diagnosis import diagnose
from rmq.operate.examination import PARTS, dead_letter_count, examine, facts_of
from rmq.operate.overview import Broker, Overview, overview
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster

from ..conftest import consume, send


async def test_an_examination_sees_servers_topics_and_groups(cluster: Cluster, client: rmq.Client) -> None:
    await client.admin.create_topic("OnlyA", broker="a", queues=1)
    await send(client, "Orders", 4)
    await consume(client, "billing", "Orders", 4)
    await send(client, "Orders", 3)
    await send(client, "%DLQ%billing", 2)
    done: list[int] = []

    def connect(addresses: str) -> AbstractAsyncContextManager[rmq.Client]:
        if addresses == "away:1":
            raise ConnectFailed("away:1", OSError("nobody listens"))
        return cluster.connect()

    facts = await examine(connect, [cluster.namesrv_address, "away:1"], lag_limit=2, step=done.append)

    assert sum(done) == PARTS
    assert facts.name_servers[cluster.namesrv_address] == ["a", "b"]
    assert "away:1" in str(facts.name_servers["away:1"])
    assert [(one.name, one.error) for one in facts.brokers] == [("a", ""), ("b", "")]
    assert all(one.config["brokerName"] == one.name for one in facts.brokers)
    assert facts.topics == {"OnlyA": ["a"], "Orders": ["a", "b"]}
    (billing,) = facts.groups
    assert (billing.lag, billing.dead_letters, billing.members) == (3, 2, 0)
    subjects = {finding.subject for finding in diagnose(facts)}
    assert {("name server", "away:1"), ("topic", "OnlyA"), ("group", "billing")} <= subjects
    assert await dead_letter_count(client.admin, "nobody") == 0


async def test_a_server_that_alone_refuses_the_account_is_a_finding(cluster: Cluster) -> None:
    """The clock of this server is wrong. The examination goes on with the other servers; if all refuse, the
    account is no administrator."""

    def refusal(request: Command, connection: Connection) -> Command:
        return request.reply(ResponseCode.NO_PERMISSION, "compare the clocks")

    def connect(addresses: str) -> AbstractAsyncContextManager[rmq.Client]:
        if addresses == "wrong:1":
            raise for_code(ResponseCode.NO_PERMISSION, "compare the clocks", address="wrong:1")
        return cluster.connect()

    cluster["a"].hook(RequestCode.GET_BROKER_RUNTIME_INFO, refusal)
    facts = await examine(connect, [cluster.namesrv_address, "wrong:1"])
    assert [(one.name, one.error) for one in facts.brokers] == [
        ("a", "refuses this account: compare the clocks"),
        ("b", ""),
    ]
    found = {one.subject: one.what for one in diagnose(facts)}
    assert found["name server", "wrong:1"] == "refuses this account: compare the clocks"
    assert "compare the clocks" in found["broker", "a"]
    cluster["b"].hook(RequestCode.GET_BROKER_RUNTIME_INFO, refusal)
    with pytest.raises(NoPermission, match="compare the clocks"):
        await examine(connect, [cluster.namesrv_address])


async def test_a_group_that_takes_messages_one_by_one_has_members(
    cluster: Cluster, client: rmq.Client
) -> None:
    await send(client, "Orders", 4)
    async with client.simple_consumer("takers", {"Orders": "*"}, consume_from="first") as consumer:
        found = [await consumer.receive(1, wait=5) for _ in range(4)]
        await consumer.ack(*found[0])
        with anyio.fail_after(60):
            while True:  # the heartbeat is on its way
                try:
                    members = await client.admin.consumer_connection("takers")
                    break
                except ConsumerNotOnline:
                    await anyio.sleep(0.01)
        assert [one.client_id for one in members.connection_set] == [client.client_id]
        facts = await examine(lambda _: cluster.connect(), [cluster.namesrv_address])
        (group,) = [one for one in facts.groups if one.name == "takers"]
        assert group.members == 1
        assert 1 <= group.taken <= 2  # of the broker that has more of the three
    with pytest.raises(ConsumerNotOnline):
        await client.admin.consumer_connection("takers")


async def test_members_that_subscribe_differently_are_a_finding(cluster: Cluster, client: rmq.Client) -> None:
    async with (
        cluster.connect() as other,
        client.consumer("billing", {"Orders": "*"}),
        other.consumer("billing", {"Orders": "a"}),
    ):
        facts = await examine(lambda _: cluster.connect(), [cluster.namesrv_address])
    (billing,) = facts.groups
    assert billing.members == 2
    whats = [finding.what for finding in diagnose(facts) if finding.subject == ("group", "billing")]
    assert any("subscribe differently" in what for what in whats)


async def test_an_overview_alone_is_enough_for_findings(client: rmq.Client) -> None:
    seen = await overview(client.admin)
    facts = facts_of(seen, {"billing": 11, "audit": 10}, asked_at=0, lag_limit=10)
    found = [(finding.subject, finding.level) for finding in diagnose(facts)]
    assert (("group", "billing"), "wrong") in found
    assert not any(subject == ("group", "audit") for subject, _ in found)


def test_findings_of_slaves_name_their_broker() -> None:
    slave = Broker("C", "a", 1, "h:1", runtime={"replication": "not connected"})
    found = diagnose(facts_of(Overview((slave,), ("n:1",)), {}, asked_at=0))
    assert {finding.subject for finding in found} == {("broker", "a")}


async def test_a_broker_that_falls_silent_during_the_examination_is_a_finding(cluster: Cluster) -> None:
    def refusal(request: Command, connection: Connection) -> Command:
        return request.reply(ResponseCode.SYSTEM_BUSY, "stops")

    cluster["a"].hook(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, refusal)
    facts = await examine(lambda addresses: cluster.connect(), [cluster.namesrv_address])
    (first, second) = facts.brokers
    assert "its topics and groups are not known" in first.error
    assert second.error == ""
    assert ("broker", "a") in {one.subject for one in diagnose(facts) if one.level == "wrong"}


async def test_a_group_whose_leases_could_not_be_asked_for_is_not_looked_at_in_full(
    cluster: Cluster, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(client, "Orders", 1)
    await consume(client, "billing", "Orders", 1)

    async def silent(admin: object, address: str, group: str) -> None:
        raise RequestTimeout(address, 1, 3.0)

    monkeypatch.setattr(type(client.admin), "delivery_figures", silent)
    facts = await examine(lambda addresses: cluster.connect(), [cluster.namesrv_address])
    (billing,) = facts.groups
    assert "within 3" in billing.error or "3 s" in billing.error
    (found,) = [one for one in diagnose(facts) if "not checked in full" in one.what]
    assert found.level == "wrong", "what is not known ends the command with a failure"


async def test_parts_of_an_expected_cluster_that_do_not_answer_are_not_checked(cluster: Cluster) -> None:
    """They do not end the examination, and are not missing, either."""

    def busy(request: Command, connection: Connection) -> Command:
        return request.reply(ResponseCode.SYSTEM_BUSY, "busy")

    def settings(request: Command, connection: Connection) -> Command:
        return request.reply(body=b"aclEnable=true")

    for name in ("a", "b"):
        cluster[name].hook(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, busy)
        cluster[name].hook(RequestCode.GET_TOPIC_STATS_INFO, busy)
        cluster[name].hook(RequestCode.GET_BROKER_CONFIG, settings)
    expected = Manifest(accounts={"ops": {}}, offsets={"billing": {"Orders": {"a": {0: 1}}}})
    facts = await examine(lambda addresses: cluster.connect(), [cluster.namesrv_address], expected=expected)
    found = {one.subject: (one.level, one.what) for one in diagnose(facts)}
    for subject in (("accounts", ""), ("topic", "Orders")):
        level, what = found[subject]
        assert level == "wrong"
        assert "checked" in what
        assert "busy" in what
    assert ("account", "ops") not in found
