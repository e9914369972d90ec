"""Topics that are deleted while a replica is away: it does not bring them back when it is elected."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from rmq.message import Message
from tests.sim.brokers import Node, controlled_set


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_a_replica_that_was_away_does_not_bring_a_deleted_topic_back(
    autojump_clock: trio.testing.MockClock, is_made_again: bool
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        await client.admin.create_topic("Gone", broker="s", queues=1)
        async with client.producer("P") as producer, client.pull_consumer("G") as consumer:
            for number in range(50):
                await producer.send(Message("Gone", b"%d" % number))
            (queue,) = await consumer.message_queues("Gone")
            await consumer.commit(queue, 20)
            await trio.sleep(6)
            await found.kill(second)
            await found.until(inSync=[1])
            await client.admin.delete_topic("Gone")
            if is_made_again:
                await client.admin.create_topic("Gone", broker="s", queues=1)
            assert await found.send(producer, "meanwhile")
            found.network.heal()
            await found.start(second)
            await found.until(inSync=[1, 2])
            await trio.sleep(6)
            assert _ends(second) == _ends(first)
            await found.kill(first)
            assert await found.master() is second
            await trio.sleep(2)
            broker = second.broker
            assert broker is not None
            assert ("Gone" in broker.topics.table) is is_made_again
            assert broker.offsets.of("G", "Gone") == {}
            await client.admin.create_topic("Gone", broker="s", queues=1)
            receipt = await producer.send(Message("Gone", b"anew"))
            assert receipt.queue_offset == 0
            assert broker.store.min_offset("Gone", 0) == 0


def _ends(node: Node) -> dict[tuple[str, int], int]:
    assert node.broker is not None
    store = node.broker.store
    return {queue: store.max_offset(*queue) for queue in store.queues()}
