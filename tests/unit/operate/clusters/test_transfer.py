"""Exports of a cluster."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest
from trio.testing import MockClock

from rmq.errors import RequestTimeout, SystemBusy
from rmq.message import Message
from rmq.operate.copies.manifest import Manifest
from rmq.operate.copies.transfer import accounts, compare, read_cluster
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.store.config import BrokerRole
from rmq.testing.cluster import Cluster
from rmq.testing.front import HANG


async def test_an_export_has_the_topics_of_a_name_without_a_master(autojump_clock: MockClock) -> None:
    """They were left out, and nobody was told."""
    async with Cluster("a", "b", topics={"Orders": 4}) as running, running.connect() as client:
        await running.start("slave", store={"broker_role": BrokerRole.SLAVE}, broker_name="a", broker_id=1)
        await client.admin.create_topic("OnlyA", broker="a", queues=2)
        async with client.producer("PG") as producer:
            await producer.send(Message("OnlyA", b"m"))
        before = await read_cluster(client.admin, "", offsets=True)
        assert set(before.topics["OnlyA"]) == {"a"}
        await anyio.sleep(60)  # the slave copies the tables
        await running.stop("a")
        await anyio.sleep(60)
        after = await read_cluster(client.admin, "", offsets=True)
        assert after.topics == before.topics
        assert after.groups == before.groups
        plan = await compare(client.admin, Manifest({"Orders": after.topics["Orders"]}), "")
        assert plan.changes == [], "a slave is not changed, and the master that is left needs nothing"


async def test_a_server_that_does_not_tell_its_accounts_is_not_one_without_accounts(
    autojump_clock: MockClock,
) -> None:
    """The accounts of the export would all have been called missing."""
    code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG

    def settings(is_on: str) -> Callable[[Command, object], Command]:
        return lambda request, connection: request.reply(body=f"aclEnable={is_on}".encode())

    async with Cluster("a") as running, running.connect() as client:
        address = running["a"].address
        assert await accounts(client.admin, address) == {}, "rmq's broker without access control"
        for answer in (HANG, int(ResponseCode.SYSTEM_BUSY)):
            running["a"].hook(code, answer)
            running["a"].hook(RequestCode.GET_BROKER_CONFIG, settings("true"))
            with pytest.raises((RequestTimeout, SystemBusy)):
                await accounts(client.admin, address)
            running["a"].hook(RequestCode.GET_BROKER_CONFIG, settings("false"))
            assert await accounts(client.admin, address) == {}, "as a broker of RocketMQ without it"
        running["a"].hook(RequestCode.GET_BROKER_CONFIG, HANG)
        with pytest.raises(RequestTimeout):
            await accounts(client.admin, address)


async def test_a_name_server_that_hangs_is_not_one_without_accounts(autojump_clock: MockClock) -> None:
    """A change of an account would have passed it over."""
    async with Cluster("a", name_servers=2) as running, running.connect() as client:
        brokers, (first, second) = [running["a"].address], running.name_servers
        first.hook(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, int(ResponseCode.SUCCESS))
        second.hook(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, HANG)
        there = [*brokers, first.address]
        assert await client.admin.acl_servers() == there, "the second is silent as RocketMQ's are"
        second.hook(RequestCode.GET_BROKER_CLUSTER_INFO, HANG)
        with pytest.raises(RequestTimeout):
            await client.admin.acl_servers()
        assert await client.admin.acl_servers(answering=True) == there
