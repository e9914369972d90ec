"""Consumer groups: the list, lag, stalled queues, and offsets that are set after a look."""

from __future__ import annotations

from typing import Any

import pytest

import rmq
from rmq.errors import ConfigError, ConsumerNotOnline, InvalidName
from rmq.message import MessageQueue
from rmq.operate import groups
from rmq.protocol.bodies import ClusterInfo
from rmq.testing.cluster import Cluster

from .conftest import consume, send


async def test_the_list_has_lag_and_members(client: rmq.Client) -> None:
    await client.admin.create_group("idle", broker="a", retry_max_times=3)
    await send(client, "Orders", 6)
    await consume(client, "billing", "Orders", 6)
    async with client.consumer("billing", {"Orders": "*"}):
        rows = {one.name: one for one in await groups.groups(client.admin)}
        assert (rows["billing"].members, rows["billing"].brokers) == (1, ("a", "b"))
        assert "Orders" in rows["billing"].topics
        assert (rows["idle"].members, rows["idle"].brokers, rows["idle"].retry_max) == (0, ("a",), 3)
    assert "TOOLS_CONSUMER" not in rows
    names = {one.name for one in await groups.groups(client.admin, everything=True, members=False)}
    assert "TOOLS_CONSUMER" in names


async def test_progress_names_the_owner_of_each_queue(client: rmq.Client) -> None:
    await send(client, "Orders", 4)
    await consume(client, "billing", "Orders", 4)
    await send(client, "Orders", 2)
    found = await groups.progress(client.admin, "billing")
    assert (found.lag, found.topics["Orders"]) == (2, 2)
    async with client.consumer("billing", {"Orders": "*"}) as consumer:
        async with await anext(consumer):
            pass
        owned = await groups.progress_with_owners(client.admin, "billing", "Orders")
    assert {one.owner for one in owned.queues} == {client.client_id}
    with pytest.raises(ConsumerNotOnline):
        await groups.progress(client.admin, "nobody")


async def test_a_stalled_queue_has_its_oldest_unread_message(cluster: Cluster, client: rmq.Client) -> None:
    await send(client, "Orders", 4)
    await consume(client, "billing", "Orders", 4)
    async with client.producer("p") as producer:
        await producer.send(rmq.Message("Orders", b"stuck"), queue=MessageQueue("Orders", "a", 1))
        await cluster.advance(120)
        await producer.send(rmq.Message("Orders", b"young"), queue=MessageQueue("Orders", "b", 0))
    (one,) = await groups.stalled(client, "billing", now_ms=cluster.now_ms())
    assert one.message is not None
    assert (one.message.body, one.queue.message_queue) == (b"stuck", MessageQueue("Orders", "a", 1))
    assert one.waits_ms is not None
    assert 120_000 <= one.waits_ms < 130_000


async def test_a_reset_is_looked_at_before_it_is_made(cluster: Cluster, client: rmq.Client) -> None:
    await send(client, "Orders", 4)
    await consume(client, "billing", "Orders", 4)
    await cluster.advance(60)
    middle = cluster.now_ms()
    await send(client, "Orders", 4)
    back = await groups.preview_reset(client, "billing", "Orders", groups.EARLIEST)
    ahead = await groups.preview_reset(client, "billing", "Orders", groups.TO_THE_END)
    there = await groups.preview_reset(client, "billing", "Orders", middle)
    new = await groups.preview_reset(client, "unknown", "Orders", groups.TO_THE_END)
    assert (back.again, back.skipped, back.members) == (4, 0, ())
    assert (ahead.again, ahead.skipped) == (0, 4)
    assert (there.again, there.skipped) == (0, 0)
    assert (new.again, new.skipped) == (0, 8)
    assert (await groups.progress(client.admin, "billing")).lag == 4

    await groups.reset(client.admin, "billing", "Orders", groups.EARLIEST)
    assert (await groups.progress(client.admin, "billing")).lag == 8


async def test_why_nothing_is_known_of_a_group(cluster: Cluster, client: rmq.Client) -> None:
    assert "no broker knows group nobody" in await groups.why_unknown(client.admin, "nobody")
    await client.admin.create_group("made", broker="a")
    assert await groups.why_unknown(client.admin, "made") == ""
    with pytest.raises(InvalidName):
        await groups.why_unknown(client.admin, "a b")


async def test_why_nothing_is_known_of_a_group_before_any_broker_is_there() -> None:
    class NoBrokers:
        async def group_config(self, group: str) -> dict[str, object]:
            return {}

        async def cluster_info(self) -> ClusterInfo:
            return ClusterInfo()

    admin: Any = NoBrokers()
    assert "no broker is registered" in await groups.why_unknown(admin, "nobody")


async def test_a_group_that_was_made_is_set_to_a_place_before_it_consumes(client: rmq.Client) -> None:
    await send(client, "Orders", 4)
    await client.admin.create_group("made")
    await groups.reset(client.admin, "made", "Orders", groups.TO_THE_END)
    await send(client, "Orders", 3)
    assert (await groups.progress(client.admin, "made")).lag == 3


async def test_a_clone_of_a_group_without_offsets_sets_nothing_and_says_so(client: rmq.Client) -> None:
    await client.admin.create_group("made")
    for source in ("made", "nobody"):
        with pytest.raises(ConsumerNotOnline, match="nothing was set"):
            await groups.clone(client.admin, source, "copy")


async def test_offsets_outside_a_queue_are_refused(client: rmq.Client) -> None:
    await send(client, "Orders", 4)
    queue = MessageQueue("Orders", "a", 0)
    seen = await groups.preview_offset(client.admin, "billing", {queue: 1})
    assert (seen.steps[0].before, seen.steps[0].after, seen.skipped) == (0, 1, 1)
    with pytest.raises(ConfigError, match="a number from 0 to 1"):
        await groups.preview_offset(client.admin, "billing", {queue: 9})
    with pytest.raises(ConfigError, match="a queue of topic Orders"):
        await groups.preview_offset(client.admin, "billing", {MessageQueue("Orders", "a", 7): 0})
    with pytest.raises(ConfigError, match="queues of one topic"):
        await groups.preview_offset(client.admin, "billing", {})


async def test_offsets_are_cloned_after_a_look(client: rmq.Client) -> None:
    await send(client, "Orders", 4)
    await consume(client, "billing", "Orders", 4)
    seen = await groups.preview_clone(client.admin, "billing", "copy")
    assert {queue.topic for queue, _, _ in seen.queues} == {"Orders"}
    assert {(before, after) for _, before, after in seen.queues} == {(None, 1)}
    await groups.clone(client.admin, "billing", "copy")
    assert (await groups.progress(client.admin, "copy", "Orders")).lag == 0
    with pytest.raises(InvalidName):
        await groups.clone(client.admin, "billing", "no spaces")
