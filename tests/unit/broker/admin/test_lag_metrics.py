"""The exported lag of a group: a sum over all replicas of a set counts each message once, also while another
master is elected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import trio
import trio.testing

from rmq.broker.admin.metrics_export import metrics_of
from rmq.broker.broker import Broker
from rmq.broker.tables.versioned import run_to_end
from rmq.client.client import Client
from rmq.message import Message, MessageQueue
from rmq.store.config import BrokerRole
from rmq.testing.cluster import Cluster
from tests.sim.real_brokers.brokers import controlled_set

OF_A_SET = {
    "consumer_lag_messages",
    "topic_messages",
    "delay_backlog_messages",
    "timer_messages",
    "transactions_pending",
}
GROUP = "billing"


def sums(brokers: Iterable[Any]) -> Counter[str]:
    """The figures of topic T, or without a topic, summed over these brokers."""
    found: Counter[str] = Counter()
    for broker in brokers:
        assert isinstance(broker, Broker)
        for metric in run_to_end(metrics_of(broker, queues=True)):
            for labels, value in metric.rows:
                if "topic" not in metric.labels or labels[metric.labels.index("topic")] == "T":
                    assert isinstance(value, int | float) or metric.kind == "histogram"
                    found[metric.name] += value if isinstance(value, int | float) else 0
    return found


async def with_lag(client: Client, *brokers: str) -> None:
    """Send 20 messages to a queue of each broker, of which the group has read 3."""
    async with client.producer("p") as producer:
        for broker in brokers:
            for number in range(20):
                await producer.send(Message("T", b"%d" % number), queue=MessageQueue("T", broker, 0))
    await client.admin.create_group(GROUP)
    await client.admin.set_offsets(GROUP, {MessageQueue("T", broker, 0): 3 for broker in brokers})


@pytest.mark.parametrize("slaves", [0, 1, 2])
async def test_slaves_do_not_count_what_their_master_counts(slaves: int) -> None:
    async with Cluster("a", "b", topics={"T": 1}) as cluster, cluster.connect() as client:
        for number in range(1, slaves + 1):
            role = {"broker_role": BrokerRole.SLAVE}
            await cluster.start(f"a-{number}", broker_name="a", broker_id=number, store=role)
        await with_lag(client, "a", "b")
        await cluster.advance(60)
        for front in cluster.brokers.values():  # slaves have all of it
            assert isinstance(front.server, Broker)
            assert front.server.store.max_offset("T", 0) == 20
        found = sums(front.server for front in cluster.brokers.values())
        assert (found["consumer_lag_messages"], found["topic_messages"]) == (34, 40)
        assert found["consumer_lag_queue_messages"] == 34
        assert found["queue_max_offset"] == 20 * (2 + slaves)  # of each broker, to compare them


async def test_the_lag_does_not_jump_at_a_failover(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(3) as (found, client):
        first = await found.begin(client)
        await with_lag(client, "s")
        await trio.sleep(1)

        def lag() -> float:
            living = [node.broker for node in found.nodes if node.stop is not None and node.broker]
            return sums(living)["consumer_lag_messages"]

        assert lag() == 17
        # Cut off from the controllers and its replicas it is scraped all the same.
        away = [controller.host for controller in found.controllers]
        found.network.partition(first.host, *away, *(node.host for node in found.nodes[1:]))
        seen = set()
        with trio.move_on_after(30):
            while True:
                seen.add(lag())
                await trio.sleep(0.1)
        assert await found.master() is not first
        assert seen <= {0, 17}
        assert lag() == 17
        found.network.heal()
        await found.until(inSync=[1, 2, 3])
        assert lag() == 17


async def test_only_figures_of_a_set_are_left_to_its_master() -> None:
    async with Cluster("a", topics={"T": 1}) as cluster:
        await cluster.start("a-1", broker_name="a", broker_id=1, store={"broker_role": BrokerRole.SLAVE})
        master, slave = (names_at(cluster, name) for name in ("a", "a-1"))
        assert master >= OF_A_SET
        assert not OF_A_SET & slave
        assert {"commitlog_bytes", "slaves", "following_master"} <= slave


def names_at(cluster: Cluster, broker: str) -> set[str]:
    server = cluster[broker].server
    assert isinstance(server, Broker)
    return {metric.name for metric in run_to_end(metrics_of(server))}
