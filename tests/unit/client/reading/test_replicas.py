"""Retention, slaves and slow readers: our client on our own brokers, in memory and in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmq.message import Message, MessageQueue
from rmq.protocol.codes import ResponseCode
from rmq.store.config import BrokerRole
from rmq.testing.cluster import Cluster

from ..traffic import fill, take

HOUR = 3600
SMALL = {
    "mapped_file_size_commit_log": 20_000,
    "mapped_file_size_consume_queue": 400,
    "file_reserved_time": 1,
    "delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
    "disk_min_free_bytes": 1,
}
SLAVE = {"broker_role": BrokerRole.SLAVE}
EVERYTHING: dict[str, Any] = {"topics": {"Orders": "*"}, "consume_from": "first"}
PAIR: dict[str, Any] = {"broker_name": "pair", "slave_read_enable": True}


async def send(made: Cluster, first: int, count: int) -> None:
    """Send numbers to one queue, one after the other."""
    async with made.connect() as client, client.producer("p") as producer:
        for number in range(first, first + count):
            await producer.send(Message("Orders", b"%d" % number, keys=["all"]), sharding_key="one")


async def queue_of(made: Cluster) -> tuple[MessageQueue, int, int]:
    """The queue that has the messages, its first offset and its end."""
    async with made.connect() as client, client.pull_consumer("lookers") as puller:
        for queue in await puller.message_queues("Orders"):
            if await puller.max_offset(queue):
                return queue, await puller.min_offset(queue), await puller.max_offset(queue)
    raise AssertionError("there are no messages")


@pytest.mark.parametrize("reset", ["nearest", "first", "last"])
async def test_a_reader_that_is_slower_than_retention_goes_on_where_it_is_configured(
    clock: MockClock, reset: str
) -> None:
    async with Cluster() as made:
        await made.start("a", store=SMALL)
        await send(made, 0, 10)
        async with made.connect() as client, client.consumer("slow", {"Orders": "*"}) as consumer:
            assert await take(consumer, 10) == list(range(10))
        await send(made, 10, 300)
        await trio.sleep(2 * HOUR)
        await send(made, 310, 5)
        await trio.sleep(60)
        queue, first, end = await queue_of(made)
        assert 10 < first <= 310
        assert end == 315
        names = made.disks["a"].list("/store/commitlog")
        assert names[0] != "00000000000000000000"
        assert made.disks["a"].list(f"/store/consumequeue/Orders/{queue.queue_id}")[0] != f"{0:020d}"

        async with made.connect() as client:
            async with client.pull_consumer("slow") as puller:
                answer = await puller.pull_raw(queue, 10)
                assert (answer.code, answer.next_offset) == (ResponseCode.PULL_OFFSET_MOVED, first)
            found = await client.admin.query_message("Orders", "all", max_messages=64)
            assert min(message.queue_offset for message in found.messages) >= first
        async with (
            made.connect(offset_reset=reset) as client,
            client.consumer("slow", {"Orders": "*"}) as consumer,
        ):
            if reset == "last":
                await trio.sleep(30)
                await send(made, 315, 1)
                assert await take(consumer, 1) == [315]
            else:
                assert await take(consumer, 315 - first) == list(range(first, 315))


async def test_several_slaves_follow_and_serve_reads_when_the_master_is_down(clock: MockClock) -> None:
    async with Cluster() as made:
        await made.start("m", store={"broker_role": BrokerRole.SYNC_MASTER}, **PAIR)
        for number in (1, 2):
            await made.start(f"s{number}", store=SLAVE, broker_id=number, **PAIR)
        await trio.sleep(15)
        await fill(made, "Orders", 100)
        await trio.sleep(15)  # the slaves copy topics and offsets every ten seconds
        async with made.connect() as client, client.consumer("g", **EVERYTHING) as some:
            assert len(await take(some, 30)) == 30
        await trio.sleep(15)
        assert made.disks["s1"].load("/store/commitlog/" + "0" * 20) == made.disks["m"].load(
            "/store/commitlog/" + "0" * 20
        )
        await made.stop("m")
        await trio.sleep(15)

        async with made.connect() as client:
            async with client.consumer("g", **EVERYTHING) as others:
                assert len(set(await take(others, 70))) == 70
            async with client.pull_consumer("g") as puller:
                queues = await puller.message_queues("Orders")
                assert sum([await puller.max_offset(queue) for queue in queues]) == 100

        await made.stop("s1")
        await trio.sleep(15)
        async with made.connect() as client, client.consumer("h", **EVERYTHING) as consumer:
            assert sorted(await take(consumer, 100)) == list(range(100))


async def test_an_idle_link_stays_however_short_the_silence_that_ends_it(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each end took the other for silent, when heartbeats came as seldom as that."""
    caplog.set_level("INFO")
    times = {"ha_send_heartbeat_interval": 5000, "ha_housekeeping_interval": 5000}
    async with Cluster() as made:
        await made.start("m", store=times, **PAIR)
        await made.start("s1", store=SLAVE | times, broker_id=1, **PAIR)
        await trio.sleep(120)
    assert caplog.text.count("following master") == 1
    assert "silent" not in caplog.text


async def test_a_loaded_master_points_old_reads_at_its_slave(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.store.store.physical_memory", lambda: 1000)  # nearly all is old
    async with Cluster() as made:
        await made.start("m", **PAIR)
        await made.start("s1", store=SLAVE, broker_id=1, **PAIR)
        await fill(made, "Orders", 200)
        await trio.sleep(20)
        async with made.connect() as client, client.pull_consumer("readers") as puller:
            queue, *_ = await puller.message_queues("Orders")
            assert (await puller.pull_raw(queue, 0, max_messages=8)).broker_id == 1
        async with (
            made.connect() as client,
            client.consumer("g", {"Orders": "*"}, consume_from="first") as consumer,
        ):
            assert sorted(await take(consumer, 200)) == list(range(200))
