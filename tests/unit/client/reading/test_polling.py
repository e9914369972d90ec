"""Polling: queues that are subscribed to or assigned, what is committed when, seeking and pausing."""

from __future__ import annotations

import anyio
import pytest
import trio
from trio.testing import MockClock

from rmq.errors import ConfigError, LocalProtocolError
from rmq.message import MessageQueue
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..consume.consuming import fill, offsets
from ..world import World


def test_what_was_polled_is_committed_at_the_end(both: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        fill(cluster, 100)
        got: list[int] = []
        async with world.connect() as client, client.pull_consumer("g") as puller:
            await puller.subscribe({"T": "*"}, consume_from="first")
            assert len(puller.assignment) == 2
            while len(got) < 100:
                messages = await puller.poll(10)
                assert 0 < len(messages) <= 10
                got += [int(message.body) for message in messages]
            assert await puller.poll(timeout=0.01) == []
        assert sorted(got) == list(range(100))
        assert [n for n in got if n % 2] == list(range(1, 100, 2))
        assert offsets(cluster) == {0: 50, 1: 50}
        assert not cluster["a"].members("g")

    both(scenario, cluster)


async def test_polling_locks_no_queue(setting: World, clock: MockClock, cluster: Cluster) -> None:
    fill(cluster, 4)
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        await puller.subscribe({"T": "*"}, consume_from="first")
        assert await puller.poll(4)
    assert cluster["a"].count(RequestCode.LOCK_BATCH_MQ) == 0
    assert cluster["a"].count(RequestCode.UNLOCK_BATCH_MQ) == 0


async def test_what_is_being_consumed_is_not_committed(
    setting: World, clock: MockClock, cluster: Cluster
) -> None:
    fill(cluster, 4, queues=1)

    async def read() -> None:
        async with setting.connect() as client, client.pull_consumer("g") as puller:
            await puller.subscribe({"T": "*"}, consume_from="first")
            await puller.poll(2)
            await trio.sleep(6)
            assert offsets(cluster)[0] == 0
            assert [m.body for m in await puller.poll(1)] == [b"2"]
            await trio.sleep(6)
            assert offsets(cluster)[0] == 2
            raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        await read()
    assert offsets(cluster)[0] == 2


async def test_without_auto_commit_nothing_is_committed_unasked(
    setting: World, clock: MockClock, cluster: Cluster
) -> None:
    fill(cluster, 4, queues=1)
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        await puller.subscribe({"T": "*"}, consume_from="first", auto_commit=False)
        await puller.poll(2)
        await puller.poll(1)
        await trio.sleep(20)
        cluster["a"].put("T", 0, b"makes the waiting pull come again")
        await trio.sleep(1)
        assert offsets(cluster) == {}
        await puller.commit_polled()
        assert offsets(cluster)[0] == 3
        await puller.poll(1)
    assert offsets(cluster)[0] == 3


@pytest.mark.parametrize(("auto_commit", "expected"), [(True, {1: 2}), (False, {})])
async def test_a_queue_that_goes_to_others_is_committed_only_automatically(
    setting: World, clock: MockClock, cluster: Cluster, auto_commit: bool, expected: dict[int, int]
) -> None:
    fill(cluster, 4)
    async with (
        setting.connect(client_id="1") as one,
        setting.connect(client_id="2") as two,
        one.pull_consumer("g") as puller,
    ):
        await puller.subscribe({"T": "*"}, consume_from="first", auto_commit=auto_commit)
        got = 0
        while got < 4:
            got += len(await puller.poll())
        assert await puller.poll(timeout=0.1) == []
        async with two.consumer("g", {"T": "*"}, consume_from="first"):
            await trio.sleep(1)
            assert {queue: at for queue, at in offsets(cluster).items() if queue == 1} == expected


async def test_assigned_queues_are_read_without_joining(
    setting: World, clock: MockClock, cluster: Cluster
) -> None:
    fill(cluster, 6)
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        queue = (await puller.message_queues("T"))[1]
        await puller.assign([queue], consume_from="first")
        assert puller.assignment == [queue]
        assert [m.body for m in await puller.poll()] == [b"1", b"3", b"5"]
        assert not cluster["a"].members("g")
    assert offsets(cluster) == {1: 3}
    pulls = [r for r in cluster["a"].seen if r.code == RequestCode.PULL_MESSAGE]
    assert {(r.ext["subscription"], int(r.ext["sysFlag"]) & 4) for r in pulls} == {("*", 4)}


async def test_seek(setting: World, clock: MockClock, cluster: Cluster) -> None:
    fill(cluster, 5, queues=1)
    queue = MessageQueue("T", "a", 0)
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        await puller.assign([queue], consume_from="first")
        assert len(await puller.poll()) == 5
        puller.seek(queue, 3)
        assert [m.body for m in await puller.poll()] == [b"3", b"4"]
        with pytest.raises(LocalProtocolError, match="not assigned"):
            puller.seek(MessageQueue("T", "a", 1), 0)


@pytest.mark.parametrize("moved", [False, True])
async def test_what_is_read_ahead_is_bounded_from_any_offset(
    setting: World, clock: MockClock, cluster: Cluster, moved: bool
) -> None:
    fill(cluster, 500, queues=1)
    async with (
        setting.connect(total_max_messages=20, pull_batch_size=8) as client,
        client.pull_consumer("g") as puller,
    ):
        await puller.subscribe({"T": "*"}, consume_from="first")
        await puller.poll(1)
        if moved:
            puller.seek(puller.assignment[0], 100)
            await puller.poll(1)
        await trio.sleep(10)
        pulled = [
            r for r in cluster["a"].seen if r.code == RequestCode.PULL_MESSAGE and r.ext["topic"] == "T"
        ]
        furthest = max(int(request.ext["queueOffset"]) for request in pulled)
        assert furthest <= 100 * moved + 40


async def test_pause_and_resume(setting: World, clock: MockClock, cluster: Cluster) -> None:
    fill(cluster, 4)
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        await puller.subscribe({"T": "*"}, consume_from="first")
        await trio.sleep(1)
        first = MessageQueue("T", "a", 0)
        puller.pause(first)
        assert [m.body for m in await puller.poll()] == [b"1", b"3"]
        cluster["a"].put("T", 0, b"4")
        assert await puller.poll(timeout=1) == []
        puller.resume(first)
        assert [m.body for m in await puller.poll()] == [b"0", b"2", b"4"]


async def test_a_cancelled_poll_loses_nothing(setting: World, clock: MockClock, cluster: Cluster) -> None:
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        await puller.subscribe({"T": "*"}, consume_from="first")
        with anyio.move_on_after(1):
            await puller.poll(timeout=60)
        fill(cluster, 2)
        assert sorted(m.body for m in await puller.poll() + await puller.poll(timeout=1)) == [b"0", b"1"]


async def test_wrong_uses(setting: World, clock: MockClock, cluster: Cluster) -> None:
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        with pytest.raises(LocalProtocolError, match="subscribe or assign first"):
            await puller.poll()
        async with client.consumer("g", {"T": "*"}):
            with pytest.raises(ConfigError, match="second client"):
                await puller.subscribe({"T": "*"})
        await puller.subscribe({"T": "*"})
        with pytest.raises(LocalProtocolError, match="already"):
            await puller.assign([])


@pytest.mark.parametrize(
    ("wanted", "first"), [(0, 0), (15, 2), (20, 2), (21, 42), (30, 42), (31, 43), (99, 43)]
)
@pytest.mark.parametrize("named", [0, 1, 20, 41, 42, 43])
async def test_a_search_by_time_finds_the_first_whichever_near_one_the_broker_names(
    setting: World, clock: MockClock, cluster: Cluster, wanted: int, first: int, named: int
) -> None:
    for number, stored_ms in enumerate([5, 10, *[20] * 40, 30]):
        with cluster.at(stored_ms):
            cluster["a"].put("T", 0, b"%d" % number)
    queue = MessageQueue("T", "a", 0)
    cluster["a"].script(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        lambda request, _: request.reply(header={"offset": str(named)}),
    )
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        assert await puller.search_offset(queue, wanted) == first


async def test_a_group_that_begins_at_a_time_misses_nothing_of_that_ms(
    setting: World, clock: MockClock, cluster: Cluster
) -> None:
    for number, stored_ms in enumerate([5, *[20] * 40, 30]):
        with cluster.at(stored_ms):
            cluster["a"].put("T", 0, b"%d" % number)
    cluster["a"].script(RequestCode.QUERY_CONSUMER_OFFSET, *[ResponseCode.QUERY_NOT_FOUND] * 3)
    cluster["a"].script(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        *[lambda request, _: request.reply(header={"offset": "21"})] * 2,
    )
    async with setting.connect() as client, client.consumer("g", {"T": "*"}, consume_from=20) as consumer:
        delivery = await anext(consumer)
        assert delivery.message.body == b"1"
