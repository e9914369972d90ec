"""Topics that are deleted while a replica is away: it does not bring them back when it is elected."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from rmq.message import Message
from rmq.protocol.bodies import TopicConfig
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import DeleteTopicRequestHeader
from tests.sim.brokers import Node, controlled_set

from .rig import Rig, send


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


@pytest.mark.parametrize("sent", [0, 3])
def test_a_crash_does_not_bring_back_the_messages_of_a_topic_that_was_made_again(sent: int) -> None:
    rig = Rig()
    rig.topics.update(TopicConfig("Gone", 1, 1))
    for number in range(5):
        assert rig.one(send("Gone", body=b"%d" % number)).code == 0
    delete = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader("Gone"))
    assert rig.one(delete).code == 0
    rig.topics.update(TopicConfig("Gone", 1, 1))
    expected = [b"anew %d" % number for number in range(sent)]
    for body in expected:
        assert rig.one(send("Gone", body=body)).code == 0
    rig.store.flush()
    disk = rig.disk.copy()
    disk.crash()

    again = Rig(disk=disk)
    assert again.store.recovery is not None
    assert not again.store.recovery.is_clean
    assert again.bodies("Gone") == expected
    assert again.one(send("Gone", body=b"next")).code == 0
    assert again.bodies("Gone") == [*expected, b"next"]
    assert again.store.min_offset("Gone", 0) == 0


def _ends(node: Node) -> dict[tuple[str, int], int]:
    assert node.broker is not None
    store = node.broker.store
    return {queue: store.max_offset(*queue) for queue in store.queues()}
