"""Delayed messages: those of levels, those with a time of their own, and recalls."""

from __future__ import annotations

import pytest

import rmq
from rmq.errors import ConfigError, LocalProtocolError, ResponseError
from rmq.operate.messages import delayed
from rmq.protocol.bodies import TopicOffset
from rmq.testing.cluster import Cluster


async def test_levels_have_their_delays_and_waiting_messages(cluster: Cluster, client: rmq.Client) -> None:
    async with client.producer("p") as producer:
        sent = [await producer.send(rmq.Message("Orders", b"x", delay_level=5)) for _ in range(3)]
    levels = await delayed.delay_levels(client.admin)
    assert {one.delay_ms for one in levels if one.level == 5} == {60_000}
    assert len(levels) == 2 * 18
    waiting = [one for one in levels if one.waiting]
    assert sum(one.waiting for one in waiting) == 3
    assert {one.level for one in waiting} == {5}
    found = [row for one in waiting for row in await delayed.waiting_at_level(client, one)]
    assert {row.message.message_id for row in found} == {one.message_id for one in sent}
    assert {(row.topic, row.level, row.handle) for row in found} == {("Orders", 5, None)}
    assert all(abs(row.due_ms - cluster.now_ms() - 60_000) < 1000 for row in found)

    await cluster.advance(120)
    assert not any(one.waiting for one in await delayed.delay_levels(client.admin))


async def test_a_message_with_a_time_of_its_own_is_seen_and_recalled(
    cluster: Cluster, client: rmq.Client
) -> None:
    assert (await delayed.waiting_for_a_time(client, now_ms=cluster.now_ms())).messages == []
    due = cluster.now_ms() + 3_600_000
    async with client.producer("p") as producer:
        for number in range(3):
            await producer.send(rmq.Message("Orders", b"%d" % number, deliver_at_ms=due + number * 1000))
            await cluster.advance(1)
    page = await delayed.waiting_for_a_time(client, now_ms=cluster.now_ms())
    assert [one.message.body for one in page.messages] == [b"2", b"1", b"0"]
    two, one, _ = page.messages
    assert (one.topic, one.level) == ("Orders", 0)
    assert one.handle
    assert 0 <= one.due_ms - due - 1000 < 1000

    assert await delayed.recall(client, one.handle) == one.message.message_id
    await cluster.advance(1)
    left = await delayed.waiting_for_a_time(client, now_ms=cluster.now_ms())
    assert [row.message.body for row in left.messages] == [b"2", b"0"]
    seen: list[bytes] = []
    cursor: str | None = None
    for _ in range(9):  # the recall is on another page than its message
        some = await delayed.waiting_for_a_time(client, now_ms=cluster.now_ms(), count=1, cursor=cursor)
        seen += [row.message.body for row in some.messages]
        cursor = some.cursor
        if cursor is None:
            break
    assert seen == [b"2", b"0"]

    await cluster.advance(4000)
    assert {message.body for message in cluster.sent("Orders")} == {b"0", b"2"}
    assert two.handle
    with pytest.raises(ResponseError):
        await delayed.recall(client, two.handle)
    with pytest.raises(LocalProtocolError):
        await delayed.recall(client, "no handle")
    with pytest.raises(ConfigError):
        await delayed.recall(client, "")


def test_delays_are_read_as_a_broker_writes_them() -> None:
    assert delayed.delays_of("1s 5m 2h 1d x") == {1: 1000, 2: 300_000, 3: 7_200_000, 4: 86_400_000, 5: 0}


def test_a_level_without_progress_begins_at_its_first_message() -> None:
    queue = rmq.MessageQueue("SCHEDULE_TOPIC_XXXX", "broker-a", 17)
    ends = {
        queue: TopicOffset(3, 5, 0),
        rmq.MessageQueue("SCHEDULE_TOPIC_XXXX", "other", 17): TopicOffset(0, 9, 0),
    }
    (one,) = delayed.levels_of("broker-a", {}, {18: 7_200_000}, ends)
    assert (one.level, one.offset, one.waiting) == (18, 3, 2)
    (told,) = delayed.levels_of("broker-a", {"scheduleMessageOffset_18": "4,6"}, {18: 7_200_000}, ends)
    assert (told.offset, told.waiting) == (4, 2)


def test_javas_metrics_have_the_same_levels() -> None:
    metrics = {"scheduleMessageOffset_3": "10,12", "scheduleMessageOffset_x": "1,2", "putTps": "1"}
    (one,) = delayed.levels_of("broker-a", metrics, {3: 10_000})
    assert (one.level, one.waiting, one.delay_ms) == (3, 2, 10_000)
    assert one.queue == rmq.MessageQueue("SCHEDULE_TOPIC_XXXX", "broker-a", 2)
