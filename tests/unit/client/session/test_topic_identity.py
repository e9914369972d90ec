"""Members of topics that are made again, and of topics that get another broker while they are away."""

from __future__ import annotations

from typing import Any

import anyio
import attrs
import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.client.client import Client
from rmq.client.config import ClientConfig
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.headers import TOPIC_CREATED_MS
from rmq.testing.cluster import Cluster
from rmq.testing.network import MemoryNetwork

from ..conftest import Play
from ..consume.consuming import fill, offsets, take
from ..world import World, world

DELETE = RequestCode.DELETE_TOPIC_IN_BROKER
QUERY = RequestCode.QUERY_CONSUMER_OFFSET


def delete(cluster: Cluster) -> None:
    assert cluster["a"].ask(DELETE, {"topic": "T"}).code == 0


@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"broadcasting": True}])
@pytest.mark.parametrize("count", [10, 150])
@pytest.mark.parametrize("seconds", [0, 60])
async def test_members_get_all_of_a_topic_that_is_made_again(
    setting: World, clock: MockClock, count: int, seconds: float, options: dict[str, Any]
) -> None:
    """Fewer messages than they had before, and more: none of them is skipped."""
    cluster = setting.cluster
    fill(cluster, 100, queues=1)
    async with (
        setting.connect(client_id="me") as client,
        client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
    ):
        assert len(await take(consumer, 100)) == 100
        await trio.sleep(6)  # the offset is committed
        delete(cluster)
        await trio.sleep(seconds)
        cluster["a"].create_topic("T", 2)
        fill(cluster, count, queues=1)
        with trio.fail_after(60):
            assert sorted(map(int, await take(consumer, count))) == list(range(count))
        await trio.sleep(6)
    if not options.get("broadcasting"):
        assert offsets(cluster)[0] == count


async def test_what_members_commit_late_does_not_let_others_skip(setting: World, clock: MockClock) -> None:
    """The first keeps its position for as long as it does not hear of the deletion."""
    cluster = setting.cluster
    fill(cluster, 100, queues=1)
    async with (
        setting.connect(client_id="one") as client,
        client.pull_consumer("g") as puller,
    ):
        queue = next(queue for queue in await puller.message_queues("T") if queue.queue_id == 0)
        delete(cluster)
        cluster["a"].create_topic("T", 2)
        fill(cluster, 10, queues=1)
        with pytest.raises(Exception, match="never reached it"):
            await puller.commit(queue, 100)
        assert offsets(cluster) == {}
        assert [message.queue_offset for message in (await puller.pull(queue, 100)).messages] == [*range(10)]


def not_found(request: Any, _: Any) -> Any:
    return request.reply(ResponseCode.QUERY_NOT_FOUND, "Not found")


@pytest.mark.parametrize("broadcasting", [False, True])
async def test_a_group_that_was_away_gets_what_a_new_broker_keeps(
    clock: MockClock, broadcasting: bool
) -> None:
    cluster = Cluster("a", "b")
    async with world(cluster) as setting:
        cluster["a"].create_topic("T", 2)
        await trio.sleep(1)
        fill(cluster, 10)
        for expected, consume_from in ((10, "first"), (38, "last")):
            options: dict[str, Any] = {"broadcasting": broadcasting, "consume_from": consume_from}
            async with (
                setting.connect(client_id="me") as client,
                client.consumer("g", {"T": "*"}, **options) as consumer,
            ):
                with trio.fail_after(60):
                    assert len(await take(consumer, expected)) == expected
            if expected == 10:
                cluster["b"].create_topic("T", 2)
                cluster["b"].hook(QUERY, not_found)  # its queues are not young any more
                fill(cluster, 38, broker="b")
                await trio.sleep(40)


async def test_a_new_group_begins_at_the_end_also_where_it_begins_later(clock: MockClock) -> None:
    """Although it has offsets in the first queues by then."""
    cluster = Cluster("a", "b", topics={"T": 2})
    async with world(cluster) as setting:
        for broker in "ab":
            fill(cluster, 10, broker=broker)
            cluster[broker].hook(QUERY, not_found)
        cluster["b"].script(
            RequestCode.GET_MAX_OFFSET,
            *[lambda request, _: request.reply(ResponseCode.SYSTEM_ERROR, "later")] * 8,
        )
        async with (
            setting.connect(client_id="me") as client,
            client.consumer("g", {"T": "*"}) as consumer,
        ):
            await trio.sleep(1)
            cluster["a"].hook(QUERY, None)
            cluster["a"].put("T", 0, b"of a")
            with trio.fail_after(200):
                assert await take(consumer, 1) == [b"of a"]
                await trio.sleep(60)
                cluster["b"].put("T", 0, b"of b")
                assert await take(consumer, 1) == [b"of b"]


MEMBER = "10.0.9.9"


def connect_member(setting: World) -> Client:
    """A client on a machine of its own."""
    network = setting.network
    assert isinstance(network, MemoryNetwork)
    config = ClientConfig(pull_batch_size=32)
    return rmq.connect(setting.names, client_id="me", network=network.host(MEMBER), config=config)


def make_again_unheard(setting: World, count: int) -> None:
    """Delete the topic and make it again with so many messages, while the member's machine is cut off."""
    network, cluster = setting.network, setting.cluster
    assert isinstance(network, MemoryNetwork)
    network.partition(MEMBER, "10.0.1.1")
    network.cut(MEMBER, "10.0.1.1")
    delete(cluster)
    cluster["a"].create_topic("T", 2)
    fill(cluster, count, queues=1)
    network.heal()


@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"broadcasting": True}])
def test_a_member_that_was_cut_off_gets_all_of_a_topic_that_was_made_again(
    in_memory: Play, cluster: Cluster, options: dict[str, Any]
) -> None:
    """Although its position lies inside the queue of the new topic, and nobody told it of the deletion."""

    async def scenario(setting: World) -> None:
        fill(cluster, 100, queues=1)
        async with (
            connect_member(setting) as client,
            client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
        ):
            assert len(await take(consumer, 100)) == 100
            await anyio.sleep(1)  # the offset is not committed yet: it will be at the new topic
            make_again_unheard(setting, 150)
            with anyio.fail_after(120):
                assert sorted(map(int, await take(consumer, 150))) == list(range(150))
            await anyio.sleep(6)
        if not options.get("broadcasting"):
            assert offsets(cluster)[0] == 150

    in_memory(scenario, cluster)


def test_a_member_that_comes_back_after_another_goes_on_behind_it(in_memory: Play, cluster: Cluster) -> None:
    """The group's offset in the new topic is the new topic's alone."""

    async def scenario(setting: World) -> None:
        fill(cluster, 100, queues=1)
        async with (
            connect_member(setting) as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            assert len(await take(consumer, 100)) == 100
            await anyio.sleep(6)
            make_again_unheard(setting, 150)
            commit = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "120"}
            assert cluster["a"].ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
            with anyio.fail_after(120):
                assert sorted(map(int, await take(consumer, 30))) == list(range(120, 150))

    in_memory(scenario, cluster)


def test_a_pull_consumer_that_was_cut_off_is_sent_to_the_start(in_memory: Play, cluster: Cluster) -> None:
    async def scenario(setting: World) -> None:
        fill(cluster, 100, queues=1)
        async with connect_member(setting) as client, client.pull_consumer("g") as puller:
            queue = next(queue for queue in await puller.message_queues("T") if queue.queue_id == 0)
            at = 0
            while at < 100:
                at = (await puller.pull(queue, at)).next_offset
            make_again_unheard(setting, 150)
            await anyio.sleep(1)  # the client sees that its connection has ended
            with pytest.raises(rmq.ResponseError, match="belongs to another topic of that name"):
                await puller.commit(queue, at)
            page = await puller.pull(queue, at)
            assert page.messages[0].queue_offset == 0
            await puller.commit(queue, page.next_offset)
            assert offsets(cluster)[0] == page.next_offset

    in_memory(scenario, cluster)


def test_a_polling_consumer_that_was_cut_off_gets_all(in_memory: Play, cluster: Cluster) -> None:
    async def scenario(setting: World) -> None:
        fill(cluster, 100, queues=1)
        async with connect_member(setting) as client, client.pull_consumer("g") as puller:
            queue = next(queue for queue in await puller.message_queues("T") if queue.queue_id == 0)
            await puller.assign([queue], consume_from="first")
            for count in (100, 150):
                had: list[int] = []
                with anyio.fail_after(120):
                    while len(had) < count:
                        had += [int(message.body) for message in await puller.poll(timeout=1.0)]
                assert sorted(had) == list(range(count))
                if count == 100:
                    make_again_unheard(setting, 150)

    in_memory(scenario, cluster)


def test_the_file_of_a_broadcasting_member_says_of_which_topic_its_offsets_are(
    in_memory: Play, cluster: Cluster
) -> None:
    """The topic is made again while the member is not running."""

    async def scenario(setting: World) -> None:
        fill(cluster, 100, queues=1)
        for count in (100, 150):
            async with (
                connect_member(setting) as client,
                client.consumer("g", {"T": "*"}, consume_from="first", broadcasting=True) as consumer,
            ):
                with anyio.fail_after(120):
                    assert sorted(map(int, await take(consumer, count))) == list(range(count))
            if count == 100:
                make_again_unheard(setting, 150)

    in_memory(scenario, cluster)


@pytest.mark.parametrize("options", [{}, {"broadcasting": True}])
async def test_a_broker_that_knows_no_creations_is_asked_nothing_more(
    setting: World, clock: MockClock, options: dict[str, Any]
) -> None:
    """RocketMQ's brokers know no creations: pulls and commits stay as they were."""
    cluster = setting.cluster
    cluster["a"].hook(QUERY, not_found)
    fill(cluster, 10, queues=1)
    async with (
        setting.connect(client_id="me") as client,
        client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
    ):
        assert len(await take(consumer, 10)) == 10
        await trio.sleep(6)
    for code in (RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET):
        assert [one for one in cluster["a"].requests(code) if TOPIC_CREATED_MS in one.ext] == []


async def test_a_member_of_a_topic_without_a_creation_gets_all_when_it_is_made_again(
    setting: World, clock: MockClock
) -> None:
    """The topic is from a store that was RocketMQ's."""
    cluster = setting.cluster
    topics = cluster["a"].server.topics
    topics.table["T"] = attrs.evolve(topics.table["T"], creation=None)
    fill(cluster, 100, queues=1)
    async with (
        connect_member(setting) as client,
        client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
    ):
        assert len(await take(consumer, 100)) == 100
        make_again_unheard(setting, 150)
        with trio.fail_after(120):
            assert sorted(map(int, await take(consumer, 150))) == list(range(150))
