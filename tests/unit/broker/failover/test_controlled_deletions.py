"""Topics that are deleted while a replica is away: it does not bring them back when it is elected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import trio
import trio.testing

from rmq.client.client import Client
from rmq.errors import RmqError, StoreError
from rmq.message import Message
from rmq.protocol.bodies import (
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicDeletion,
)
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
)
from rmq.store.config import StoreConfig
from rmq.store.store import Store
from tests.sim.real_brokers.broker_controllers import CONTROLLERS
from tests.sim.real_brokers.brokers import Node, Set, controlled_set

from ..rig import Rig, send

FOLDER = "/store"


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


async def deletion_that_one_slave_heard_of(found: Set, client: Client) -> tuple[Node, Node, Node]:
    """A topic with messages; its deletion is told to the second replica only when the master dies."""
    first, second, third = found.nodes
    await found.begin(client)
    await client.admin.create_topic("Gone", broker="s", queues=1)
    async with client.producer("P") as producer:
        for number in range(20):
            await producer.send(Message("Gone", b"%d" % number))
    await found.until(inSync=[1, 2, 3])
    found.network.partition(first.host, third.host)
    address = f"{first.host}:10911"
    request = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader("Gone"))
    answers: list[Command] = []

    async def delete() -> None:
        with suppress(RmqError):
            answers.append(await found.pool.call(address, request, 10))

    found.nursery.start_soon(delete)
    await trio.sleep(0.3)
    assert second.broker is not None
    assert third.broker is not None
    assert "Gone" not in second.broker.topics.table
    assert "Gone" in third.broker.topics.table
    assert answers == [], "not before all in sync have it"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.kill, first)
        nursery.start_soon(found.kill, second)
    return first, second, third


async def test_a_deletion_that_one_slave_heard_of_is_not_answered_and_holds_for_all(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(3) as (found, client):
        first, second, third = await deletion_that_one_slave_heard_of(found, client)
        assert await found.master() is third
        assert third.broker is not None
        assert "Gone" in third.broker.topics.table
        found.network.heal()
        await found.start(second)
        await found.start(first)
        await found.until(inSync=[1, 2, 3])
        await trio.sleep(2)
        for node in found.nodes:
            assert node.broker is not None
            assert "Gone" not in node.broker.topics.table
            assert _ends(node) == _ends(third)
            assert ("Gone", 0) not in _ends(node)


async def test_a_deletion_is_answered_when_all_in_sync_have_it_in_their_files(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(3) as (found, client):
        await found.begin(client)
        await client.admin.create_topic("Gone", broker="s", queues=1)
        await client.admin.create_group("Gone", broker="s")
        await client.admin.delete_topic("Gone")
        await client.admin.delete_group("Gone")
        images = [node.disk.copy() for node in found.nodes]
        for image in images:
            image.crash()
            store = Store(image, StoreConfig(store_path_root_dir=FOLDER), store_host=bytes(8), now_ms=int)
            topics = TopicConfigSerializeWrapper.from_json(store.config_text("topics") or b"")
            assert "Gone" not in topics.topic_config_table
            groups = SubscriptionGroupWrapper.from_json(store.config_text("subscriptionGroup") or b"")
            assert "Gone" not in groups.subscription_group_table


async def test_queues_without_a_topic_leave_a_trace_at_all_replicas_when_they_are_removed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        await client.admin.create_topic("Lost", broker="s", queues=1)
        async with client.producer("P") as producer:
            await producer.send(Message("Lost", b"x"))
        await trio.sleep(1)
        assert first.broker is not None
        first.broker.topics.forget(["Lost"])  # as after the loss of topics.json
        await trio.sleep(1)
        assert ("Lost", 0) in _ends(first)
        request = Command.request(RequestCode.CLEAN_UNUSED_TOPIC)
        assert (await found.pool.call(f"{first.host}:10911", request, 5)).code == 0
        await trio.sleep(1)
        for node in (first, second):
            assert node.broker is not None
            assert ("Lost", 0) not in _ends(node)
            assert node.broker.topics.deletions.get("Lost") is not None


def test_queues_that_were_removed_for_lack_of_a_topic_stay_away_after_a_crash() -> None:
    rig = Rig()
    rig.topics.update(TopicConfig("Lost", 1, 1))
    for number in range(5):
        assert rig.one(send("Lost", body=b"%d" % number)).code == 0
    rig.topics.forget(["Lost"])
    assert rig.call(RequestCode.CLEAN_UNUSED_TOPIC).code == 0
    rig.store.flush()
    disk = rig.disk.copy()
    disk.crash()
    again = Rig(disk=disk)
    assert [topic for topic, _ in again.store.queues() if topic == "Lost"] == []
    again.topics.update(TopicConfig("Lost", 1, 1))
    assert again.one(send("Lost", body=b"anew")).ext["queueOffset"] == "0"


async def test_a_deletion_that_cannot_be_saved_holds_at_all_replicas_and_is_saved_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        await client.admin.create_topic("Gone", broker="s", queues=1)
        async with client.producer("P") as producer:
            await producer.send(Message("Gone", b"x"))
        await trio.sleep(1)
        with _topics_cannot_be_saved(first):
            with pytest.raises(RmqError):
                await client.admin.delete_topic("Gone")
            await trio.sleep(1)
            for node in (first, second):
                assert node.broker is not None
                assert "Gone" not in node.broker.topics.table
        await trio.sleep(10)
        assert _ends(first) == _ends(second)
        assert ("Gone", 0) not in _ends(first)


async def test_a_topic_is_not_made_again_by_a_send_before_its_deletion_is_saved(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Slaves have removed its queues already: as the same topic it would lack messages there."""
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        await client.admin.create_topic("Gone", broker="s", queues=1)
        async with client.producer("P") as producer:
            for number in range(3):
                await producer.send(Message("Gone", b"%d" % number))
            await trio.sleep(1)
            with _topics_cannot_be_saved(first):
                with pytest.raises(RmqError):
                    await client.admin.delete_topic("Gone")
                await trio.sleep(1)
                answer = await found.pool.call(f"{first.host}:10911", send("Gone"), 5)
            await trio.sleep(10)
            assert _bounds(first) == _bounds(second)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "is being deleted" in answer.remark
            assert (await producer.send(Message("Gone", b"anew"))).queue_offset == 0
            await trio.sleep(1)
            assert _bounds(first) == _bounds(second)


@contextmanager
def _topics_cannot_be_saved(node: Node) -> Iterator[None]:
    replace = node.disk.replace

    def fails(path: str, *more: Any, **given: Any) -> None:
        if path.endswith("topics.json"):
            raise StoreError("the disk is full")
        replace(path, *more, **given)

    node.disk.replace = fails  # type: ignore[method-assign]
    try:
        yield
    finally:
        node.disk.replace = replace  # type: ignore[method-assign]


async def test_a_master_without_a_lease_changes_no_topic_and_no_group(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, _ = found.nodes
        await found.begin(client)
        for host in (one.partition(":")[0] for one in CONTROLLERS):
            found.network.partition(first.host, host)
        await trio.sleep(5)
        for code, header in (
            (RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader("T")),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequestHeader("G")),
        ):
            answer = await found.pool.call(f"{first.host}:10911", Command.request(code, header), 5)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "another master takes over" in answer.remark
        assert first.broker is not None
        assert "T" in first.broker.topics.table


async def test_a_deletion_that_is_taken_back_leaves_no_trace_at_the_slave(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        await client.admin.create_topic("Kept", broker="s", queues=1)
        assert first.broker is not None
        undo = first.broker.topics.change("Kept", None)
        first.broker.topics.deletions.note("Kept", TopicDeletion(1 << 40, _created(first, second)))
        await trio.sleep(0.5)
        assert second.broker is not None
        assert "Kept" not in second.broker.topics.table
        undo()
        await trio.sleep(0.5)
        for node in (first, second):
            assert node.broker is not None
            assert "Kept" in node.broker.topics.table
            assert node.broker.topics.deletions.get("Kept") is None


def _created(*nodes: Node) -> int:
    """The creation of the topic that is being deleted, in ms."""
    rows = [node.broker.topics.table.get("Kept") for node in nodes if node.broker is not None]
    (row,) = [row for row in rows if row is not None]
    assert row.creation is not None
    return row.creation.time_ms


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


def _bounds(node: Node) -> dict[tuple[str, int], tuple[int, int]]:
    assert node.broker is not None
    store = node.broker.store
    return {queue: (store.min_offset(*queue), end) for queue, end in _ends(node).items()}
