"""Members of topics that are made again, and of topics that get another broker while they are away."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.testing.cluster import Cluster

from .test_consumer import fill, offsets, take
from .world import World, world

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
