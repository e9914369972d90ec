"""Pulling by hand: offsets, positions, filters, and what a pull does when there is nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.errors import LocalProtocolError, NoPermission, NoRoute
from rmq.message import MessageQueue
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.testing.cluster import Cluster
from rmq.testing.network import MemoryNetwork

from ..conftest import Play
from ..world import World, world

QUEUE = MessageQueue("T", "a", 0)
PULL = RequestCode.PULL_MESSAGE


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", topics={"T": 2})


def fill(cluster: Cluster) -> None:
    """Seventy messages in queue 0, one each ms from the 1000th on."""
    for number in range(70):
        with cluster.at(1000 + number):
            cluster["a"].put("T", 0, b"%d" % number, f"TAGS\x01{'xy'[number % 2]}")


@pytest.fixture
async def setting(cluster: Cluster) -> AsyncIterator[World]:
    async with world(cluster) as made:
        fill(cluster)
        yield made


def test_a_replay_from_a_time_on(both: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        fill(cluster)
        bodies = []
        async with world.connect() as client, client.pull_consumer("replay") as puller:
            for queue in await puller.message_queues("T"):
                offset = await puller.search_offset(queue, 1010)
                while (batch := await puller.pull(queue, offset, max_messages=32)).messages:
                    bodies += [message.body for message in batch.messages]
                    offset = batch.next_offset
                await puller.commit(queue, offset)
        assert bodies == [b"%d" % number for number in range(10, 70)]
        assert cluster["a"].offsets("replay", "T") == {0: 70, 1: 0}

    both(scenario, cluster)


async def test_offsets_of_a_queue_and_of_the_group(setting: World, clock: MockClock) -> None:
    setting.cluster["a"].script(RequestCode.QUERY_CONSUMER_OFFSET, ResponseCode.QUERY_NOT_FOUND)
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        assert await puller.message_queues("T") == [QUEUE, MessageQueue("T", "a", 1)]
        assert (await puller.min_offset(QUEUE), await puller.max_offset(QUEUE)) == (0, 70)
        assert await puller.committed(QUEUE) is None
        await puller.commit(QUEUE, 12)
        assert await puller.committed(QUEUE) == 12


async def test_without_an_offset_it_goes_on_where_it_was(setting: World, clock: MockClock) -> None:
    setting.cluster["a"].commit("g", "T", 0, 5)
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        assert (await puller.pull(QUEUE, max_messages=2)).next_offset == 7
        assert (await puller.pull(QUEUE, max_messages=1)).messages[0].body == b"7"
        puller.seek(QUEUE, 60)
        assert await puller.position(QUEUE) == 60
        batch = await puller.pull(QUEUE)
        assert [message.queue_offset for message in batch.messages] == list(range(60, 70))
        assert (batch.min_offset, batch.max_offset) == (0, 70)
        assert (await puller.pull(QUEUE)).messages == []


async def test_a_group_that_has_nothing_begins_at_the_oldest(setting: World, clock: MockClock) -> None:
    async with setting.connect() as client, client.pull_consumer("new") as puller:
        assert (await puller.pull(QUEUE, max_messages=1)).messages[0].body == b"0"


async def test_pulls_say_what_they_want_of_the_topic(setting: World, clock: MockClock) -> None:
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        batch = await puller.pull(QUEUE, 0, expression="x")
        assert {message.tags for message in batch.messages} == {"x"}
        await puller.pull(QUEUE, 0, expression=rmq.sql("a > 1"))
    tags, *_, sql = [request.ext for request in setting.cluster["a"].seen if request.code == PULL]
    assert (tags["subscription"], tags["expressionType"], tags["sysFlag"]) == ("x", "TAG", "4")
    assert (sql["subscription"], sql["expressionType"]) == ("a > 1", "SQL92")


async def test_it_waits_only_when_told_to(setting: World, clock: MockClock) -> None:
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        began = trio.current_time()
        assert (await puller.pull(QUEUE, 70)).messages == []
        assert trio.current_time() == began
        async with trio.open_nursery() as nursery:
            nursery.start_soon(put_later, setting, 3)
            batch = await puller.pull(QUEUE, 70, wait=10)
        assert batch.messages[0].body == b"late"
        assert trio.current_time() == pytest.approx(began + 3)
        waits = [one.ext["suspendTimeoutMillis"] for one in setting.cluster["a"].seen if one.code == PULL]
        assert waits == ["0", "10000"], "the broker holds the answer: it is not asked again and again"


async def put_later(setting: World, seconds: float) -> None:
    await trio.sleep(seconds)
    setting.cluster["a"].put("T", 0, b"late")


async def test_an_offset_outside_is_corrected(setting: World, clock: MockClock) -> None:
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        batch = await puller.pull(QUEUE, 1000)
        assert batch.messages[0].queue_offset == 0  # the queue never reached the other


async def test_what_did_not_match_is_passed_over(setting: World, clock: MockClock) -> None:
    ext = {"nextBeginOffset": "40", "minOffset": "0", "maxOffset": "70", "suggestWhichBrokerId": "0"}
    setting.cluster["a"].script(PULL, lambda request, _: request.reply(20, header=ext))
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        assert (await puller.pull(QUEUE, 0)).messages[0].queue_offset == 40


async def test_an_answer_that_leads_nowhere_is_asked_for_again_a_moment_later(
    setting: World, clock: MockClock
) -> None:
    def scripted(*offsets: int) -> None:
        for offset in offsets:
            ext = {"nextBeginOffset": str(offset), "minOffset": "0", "maxOffset": "70"}
            ext["suggestWhichBrokerId"] = "0"
            setting.cluster["a"].script(PULL, lambda request, _, ext=ext: request.reply(20, header=ext))

    async with setting.connect() as client, client.pull_consumer("g") as puller:
        for offsets, wanted in (((40, 50), 0.0), ((0, 0), 0.2)):
            scripted(*offsets)
            began = trio.current_time()
            assert (await puller.pull(QUEUE, 0)).messages[0].queue_offset == offsets[-1]
            assert trio.current_time() - began == pytest.approx(wanted)


async def test_name_servers_that_are_gone_are_an_error_and_no_empty_list(clock: MockClock) -> None:
    network = MemoryNetwork(seed=1)
    async with (
        rmq.connect("10.0.0.1:9876", network=network) as client,
        client.pull_consumer("g") as puller,
    ):
        with pytest.raises(NoRoute, match="list of topics"):
            await puller.topics()


async def test_refusals_come_out(setting: World, clock: MockClock) -> None:
    setting.cluster["a"].script(PULL, ResponseCode.NO_PERMISSION)
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        with pytest.raises(NoPermission, match="as scripted"):
            await puller.pull(QUEUE, 0)
        with pytest.raises(NoRoute, match="'Missing'"):
            await puller.message_queues("Missing")
    with pytest.raises(LocalProtocolError, match="pull consumer of g is not open"):
        await puller.pull(QUEUE, 0)
