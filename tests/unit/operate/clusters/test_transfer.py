"""Exports of a cluster."""

from __future__ import annotations

import anyio
from trio.testing import MockClock

from rmq.message import Message
from rmq.operate.copies.manifest import Manifest
from rmq.operate.copies.transfer import compare, read_cluster
from rmq.store.config import BrokerRole
from rmq.testing.cluster import Cluster


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
