"""Members of groups, their conflicts, and the clients of a broker."""

from __future__ import annotations

import pytest

import rmq
from rmq.errors import ConsumerNotOnline
from rmq.operate import members
from rmq.operate.members import Member
from rmq.operate.several import ask_each
from rmq.protocol.bodies import ConsumerRunningInfo, ProcessQueueInfo, SubscriptionData
from rmq.testing.cluster import Cluster

from .conftest import send

QUEUE = rmq.MessageQueue("Orders", "a", 0)


async def test_members_say_what_they_have(client: rmq.Client) -> None:
    await send(client, "Orders", 4)
    async with client.consumer("billing", {"Orders": "a || b"}, consume_from="first"):
        (one,) = await members.members(client.admin, "billing", stack=True)
        assert one.client_id == client.client_id
        assert one.subscriptions is not None
        assert one.subscriptions["Orders"] == "a || b"
        assert one.stack
        assert one.error == ""
        (unasked,) = await members.members(client.admin, "billing", ask=False)
        assert unasked.queues is None
    with pytest.raises(ConsumerNotOnline):
        await members.members(client.admin, "billing")


def member(name: str, **wanted: str) -> Member:
    data = [SubscriptionData(topic, text) for topic, text in wanted.items()]
    data.append(SubscriptionData("%RETRY%billing", "*"))
    info = ConsumerRunningInfo(subscription_set=data)
    return Member(name, "h:1", "JAVA", "V4_9_7", "CONSUME_PASSIVELY", "CLUSTERING", info)


def test_conflicts_name_topic_expression_and_members() -> None:
    assert members.conflicts([member("x", Orders="*"), member("y", Orders="*")]) == []
    (one,) = members.conflicts([member("x", Orders="*"), member("y", Orders="a"), member("z", Orders="*")])
    assert (one.topic, one.expressions) == ("Orders", {"*": ("x", "z"), "a": ("y",)})
    (lacking,) = members.conflicts([member("x", Orders="*", Other="*"), member("y", Orders="*")])
    assert (lacking.topic, lacking.expressions) == ("Other", {"*": ("x",), "": ("y",)})


@pytest.mark.parametrize(
    ("ordered", "window", "reason"),
    [
        (True, ProcessQueueInfo(locked=False, last_lock_timestamp=1000), "lock"),
        (True, ProcessQueueInfo(locked=True, droped=True, try_unlock_times=3), "unlock"),
        (False, ProcessQueueInfo(cached_msg_count=1, last_consume_timestamp=1000), "consume"),
        (False, ProcessQueueInfo(cached_msg_count=1, last_consume_timestamp=200_000), ""),
        (False, ProcessQueueInfo(), ""),
    ],
)
def test_queues_that_a_member_does_not_read_on(ordered: bool, window: ProcessQueueInfo, reason: str) -> None:
    settings = {
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CONSUMEORDERLY": "true" if ordered else "false",
    }
    info = ConsumerRunningInfo(settings, mq_table={QUEUE: window})
    assert [one.reason for one in members.stuck_queues(info, 201_000)] == ([reason] if reason else [])


async def test_clients_of_a_broker_by_language_and_version(cluster: Cluster, client: rmq.Client) -> None:
    await send(client, "Orders", 2)
    async with client.producer("p") as producer, client.consumer("billing", {"Orders": "*"}):
        await producer.send(rmq.Message("Orders", b"x"), queue=QUEUE)
        found = await members.connections(client.admin, "a")
    assert ("consumer", "billing", client.client_id) in {
        (one.kind, one.group, one.client_id) for one in found
    }
    counts = members.by_version(found)
    assert sum(counts.values()) == 1


async def test_requests_at_once_are_bounded_and_their_first_error_is_bare() -> None:
    import trio

    running = longest = 0

    async def ask(number: int) -> int:
        nonlocal running, longest
        running += 1
        longest = max(longest, running)
        await trio.lowlevel.checkpoint()
        running -= 1
        if number == 50:
            raise ValueError("fifty")
        return number * 2

    assert await ask_each([3, 1, 2, 1], ask) == {3: 6, 1: 2, 2: 4}
    await ask_each(range(40), ask, at_once=5)
    assert longest <= 5
    with pytest.raises(ValueError, match="fifty"):
        await ask_each(range(100), ask)
    assert await ask_each([], ask) == {}
