"""Attributes of topics, which an administrator sets and reads; and accounts that 5.x's brokers refuse."""

from __future__ import annotations

import pytest

import rmq
from rmq.errors import for_code
from rmq.protocol.bodies import TopicConfig
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World


def test_attributes_of_a_topic(in_memory: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client:
            for kind in ("DELAY", "FIFO"):
                config = TopicConfig("Typed", 4, 4, 6, attributes={"message.type": kind})
                await client.admin.put_topic(config)
                found = await client.admin.topic_config("Typed")
                assert [one.attributes for one in found.values()] == [{"message.type": kind}]
            await client.admin.put_topic(TopicConfig("Typed", 8, 8, 6))
            found = await client.admin.topic_config("Typed")
            assert [one.attributes for one in found.values()] == [{"message.type": "FIFO"}]

    in_memory(scenario, cluster)


@pytest.mark.parametrize(
    "remark", ["check signature failed.", "User:nobody is not found.", "username cannot be null."]
)
def test_accounts_that_are_refused(remark: str) -> None:
    assert type(for_code(16, remark)) is rmq.AccessDenied
