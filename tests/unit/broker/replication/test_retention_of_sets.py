"""Limits of topics where slaves copy the log: what was given up does not come back with another master."""

from __future__ import annotations

import trio
import trio.testing
from attrs import evolve

from rmq.protocol.bodies import TopicConfig
from tests.sim.real_brokers.brokers import STORE, Node, Set, controlled_set


def begins(found: Set, node: Node) -> int:
    assert node.broker is not None
    return node.broker.store.min_offset("T", 0)


async def test_after_a_failover_no_message_comes_back(autojump_clock: trio.testing.MockClock) -> None:
    """The clock of the next master is a day behind."""
    config = evolve(STORE, clean_resource_interval=1_000)
    async with controlled_set(2, store_config=config) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        limits = {"retention.ms": "60000"}
        await client.admin.put_topic(TopicConfig("T", 1, 1, attributes=limits), broker="s")
        found.set_clock(second, -86_400_000)
        async with client.producer("P") as producer:
            for number in range(10):
                await found.sent(producer, f"old {number}")
            await trio.sleep(80)
            await found.sent(producer, "young")
            await trio.sleep(5)
            assert (begins(found, first), begins(found, second)) == (10, 10)
            await found.kill(first)
            await found.sent(producer, "by the next master")
            await trio.sleep(5)
            assert begins(found, second) == 10
            found.network.heal()
            await found.start(first)
            await found.until(inSync=[1, 2])
            assert begins(found, first) == 10
            assert found.stored(first) == found.stored(second) == ["young", "by the next master"]
