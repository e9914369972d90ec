"""Topics: the list, queues, readers, routes, and changes that are looked at first."""

from __future__ import annotations

from typing import cast

import pytest

import rmq
from rmq.client.admin import Admin
from rmq.errors import (
    ConsumerNotOnline,
    InvalidName,
    NoRoute,
    NotNameServers,
    ResponseError,
    RmqError,
    TopicNotExist,
    Unreachable,
)
from rmq.message import MessageQueue
from rmq.operate import topics
from rmq.protocol.bodies import TopicOffset
from rmq.testing.cluster import Cluster

from .conftest import consume, send


async def test_the_list_has_sums_over_brokers_and_hides_the_systems(
    cluster: Cluster, client: rmq.Client
) -> None:
    await topics.create(client.admin, "OnlyA", broker="a", queues=3, perm=4)
    listed = await topics.topics(client.admin)
    assert [(one.name, one.brokers, one.read_queues, one.perm) for one in listed] == [
        ("OnlyA", ("a",), 3, "r"),
        ("Orders", ("a", "b"), 4, "rw"),
    ]
    everything = {one.name: one.kind for one in await topics.topics(client.admin, everything=True)}
    assert everything["Orders"] == "user"
    assert everything["SCHEDULE_TOPIC_XXXX"] == "system"
    assert [one.name for one in await topics.topics(client.admin, broker="b")] == ["Orders"]


async def test_retry_topics_and_dead_letters_are_kinds_of_their_own(client: rmq.Client) -> None:
    await send(client, "%DLQ%billing", 1)
    kinds = {one.name: one.kind for one in await topics.topics(client.admin, everything=True)}
    assert kinds["%DLQ%billing"] == "dead letters"
    assert topics.kind_of("%RETRY%billing") == "retry"


async def test_queues_have_their_ends(client: rmq.Client) -> None:
    await send(client, "Orders", 8)
    ends = await topics.queues(client.admin, "Orders")
    assert [(one.message_queue.broker_name, one.message_queue.queue_id) for one in ends] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
    ]
    assert sum(one.messages for one in ends) == 8
    assert all(one.last_message_ms > 0 for one in ends)
    assert await topics.messages_kept(client.admin, "Orders") == 8
    assert await topics.messages_kept(client.admin, "Nowhere") == 0


async def test_readers_have_their_lag(client: rmq.Client) -> None:
    await send(client, "Orders", 4)
    await consume(client, "billing", "Orders", 4)
    await send(client, "Orders", 3)
    (one,) = await topics.readers(client.admin, "Orders")
    assert (one.group, one.lag, one.error) == ("billing", 3, "")


async def test_routes_name_addresses(cluster: Cluster, client: rmq.Client) -> None:
    a, b = await topics.routes(client.admin, "Orders")
    assert (a.broker, a.read_queues, a.perm, list(a.addresses)) == ("a", 2, "rw", [0])
    assert b.cluster == "DefaultCluster"
    with pytest.raises(NoRoute):
        await topics.routes(client.admin, "Nowhere")


async def test_a_topic_is_created_once(client: rmq.Client) -> None:
    assert await topics.create(client.admin, "New", queues=1) is not None
    assert await topics.create(client.admin, "New", queues=5) is None
    assert (await topics.topic(client.admin, "New")).read_queues == 2
    with pytest.raises(InvalidName):
        await topics.create(client.admin, "no spaces")


async def test_a_preview_changes_nothing_and_names_brokers_that_get_the_topic(client: rmq.Client) -> None:
    await topics.create(client.admin, "OnlyA", broker="a", queues=2)
    wanted = await topics.preview_change(client.admin, "OnlyA", {"perm": 4})
    assert (len(wanted.before), len(wanted.after)) == (1, 2)
    assert {one.perm for one in wanted.after.values()} == {4}
    assert not wanted.is_empty
    assert (await topics.topic(client.admin, "OnlyA")).brokers == ("a",)

    assert sorted(await topics.change(client.admin, wanted)) == sorted(wanted.after)
    changed = await topics.topic(client.admin, "OnlyA")
    assert (changed.brokers, changed.perm) == (("a", "b"), "r")
    assert (await topics.preview_change(client.admin, "OnlyA", {"perm": 4})).is_empty


async def test_a_preview_counts_unread_messages_that_would_be_hidden(client: rmq.Client) -> None:
    await send(client, "Orders", 8)
    await consume(client, "billing", "Orders", 1)
    wanted = await topics.preview_change(client.admin, "Orders", {"read_queue_nums": 1})
    assert wanted.hidden["billing"] >= 2
    assert "unread messages of group billing in 2 queues" in topics.unread_text(wanted.unread)
    with pytest.raises(ResponseError):
        await topics.change(client.admin, wanted)
    await topics.change(client.admin, wanted, hide_unread=True)
    assert (await topics.topic(client.admin, "Orders")).read_queues == 2


ABSENCES = (
    (NoRoute("Orders"), True),
    (TopicNotExist(None, "no such topic"), True),
    (NoRoute("Orders", refused=True), False),
    (Unreachable("Orders", {}), False),
    (NotNameServers("Orders", ["10.0.0.1:10911"]), False),
    (ConsumerNotOnline(None, "nobody"), False),
)


class Failing:
    """An administrator whose questions all fail."""

    def __init__(self, error: RmqError) -> None:
        self._error = error

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        raise self._error


@pytest.mark.parametrize(("error", "is_absent"), ABSENCES)
async def test_a_topic_is_absent_only_if_name_servers_say_so(error: RmqError, is_absent: bool) -> None:
    assert topics.is_absent(error) == is_absent
    admin = cast(Admin, Failing(error))
    if is_absent:
        assert await topics.messages_kept(admin, "Orders") == 0
    else:
        with pytest.raises(type(error)):
            await topics.messages_kept(admin, "Orders")
