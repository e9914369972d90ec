"""The clients of RocketMQ 4 for Go and Node on our servers: sends, filters, delays, retries, broadcasts.

The folders go/ and node/ have their programs. Node's client (`ali-ons`) has no batches, one-way sends,
transactions, ordered consumers, pull consumers, or request and reply.
"""

from __future__ import annotations

import time

import pytest

import rmq
from tests.interop.sides import (
    Beside,
    caught_up,
    check_broadcast,
    consuming,
    only_letter,
    send,
    what_they_send,
)

pytestmark = pytest.mark.interop


async def test_our_consumer_gets_what_their_producer_sends(
    cluster: Beside, client: rmq.Client, language: str
) -> None:
    topic = await cluster.topic(f"{language}-sends")
    for row, message in await what_they_send(cluster, client, topic, f"{language}-sends"):
        if language == "go":  # ali-ons returns the id of the broker
            assert message.message_id == row["id"]


async def test_compressed_bodies(cluster: Beside, client: rmq.Client, language: str) -> None:
    topic = await cluster.topic(f"{language}-compressed")
    job = cluster.theirs.do("consume", topic=topic, group=f"{language}-compressed")
    await cluster.theirs.do("send", topic=topic, bodies=["theirs"], size=5_000).done()
    await send(client, topic, ["ours".ljust(5_000)])
    async with consuming(client, "ours-compressed", topic) as seen:
        await seen.until(lambda: sorted(seen.bodies) == ["ours", "theirs"])
    await job.until(lambda: sorted(job.bodies) == ["ours", "theirs"], "both messages")
    assert set(job.told("size")) == {5_000} == {len(message.body) for message in seen.messages}
    await job.stop()


async def test_delay_levels(cluster: Beside, client: rmq.Client, language: str) -> None:
    topic = await cluster.topic(f"{language}-levels")
    job = cluster.theirs.do("consume", topic=topic, group=f"{language}-levels")
    await job.until(lambda: job.told("started"), "start")
    began = time.time()
    await cluster.theirs.do("send", topic=topic, bodies=["two"], delay=2).done()
    await send(client, topic, ["one"], delay_level=1)
    await job.until(lambda: len(job.bodies) == 2, "two messages")
    late = {row["body"]: row["at"] / 1000 - began for row in job.rows if "body" in row}
    assert late["one"] >= 1
    assert late["two"] >= 2
    await job.stop()


async def test_tags_and_sql(cluster: Beside, client: rmq.Client, language: str) -> None:
    topic = await cluster.topic(f"{language}-filters")
    for number in range(6):
        properties = {"amount": str(number), "region": "hz" if number % 2 else "sh"}
        tags = "odd" if number % 2 else "even"
        options = {"topic": topic, "bodies": [f"t{number}"], "tags": tags, "properties": properties}
        await cluster.theirs.do("send", **options).done()
        await send(client, topic, [f"o{number}"], tags=tags, properties=properties)
    sql = "amount BETWEEN 2 AND 4 AND region IN ('hz', 'sh')"
    tagged = cluster.theirs.do("consume", topic=topic, group=f"{language}-tags", tags="even || other")
    chosen = cluster.theirs.do("consume", topic=topic, group=f"{language}-sql", sql=sql)
    async with consuming(client, "ours-sql", topic, wanted=rmq.sql(sql)) as seen:
        expected = ["o2", "o3", "o4", "t2", "t3", "t4"]
        await chosen.until(lambda: sorted(chosen.bodies) == expected, "six messages by SQL")
        await seen.until(lambda: sorted(seen.bodies) == expected)
    even = ["o0", "o2", "o4", "t0", "t2", "t4"]
    await tagged.until(lambda: sorted(tagged.bodies) == even, "six messages by tag")
    await tagged.stop()
    await chosen.stop()


async def test_a_message_that_their_consumer_gives_up_is_a_dead_letter(
    cluster: Beside, client: rmq.Client, language: str
) -> None:
    topic, group = await cluster.topic(f"{language}-fails"), f"{language}-fails"
    await client.admin.create_group(group, retry_max_times=2)
    failing = cluster.theirs.do("consume", topic=topic, group=group, fail=["bad"], most=2)
    (sent,) = await send(client, topic, ["bad"], tags="t", keys=["k"], properties={"amount": "3"})
    await failing.until(lambda: len(failing.bodies) == 3, "two retries")
    assert failing.told("times") == [0, 1, 2]
    letter = await only_letter(client, group)
    await caught_up(client, group)
    await failing.stop()
    assert (letter.topic, letter.message_id) == (topic, sent.message_id)
    assert (await client.redrive(group)).sent == 1
    good = cluster.theirs.do("consume", topic=topic, group=f"{group}-reads")
    await good.until(lambda: len(good.bodies) == 2, "the message, and the message again")
    (row,) = [row for row in good.rows if "DLQ_REDRIVE_KEY" in row.get("properties", ())]
    assert (row["topic"], row["times"]) == (topic, 0)
    if language == "go":  # ali-ons returns the id of the broker
        assert row["id"] == sent.message_id
    await good.stop()


async def test_members_of_both_languages_get_a_broadcast(
    cluster: Beside, client: rmq.Client, language: str
) -> None:
    topic, group = await cluster.topic(f"{language}-broadcast"), f"{language}-broadcast"
    job = cluster.theirs.do("consume", topic=topic, group=group, broadcasting=True)
    await job.until(lambda: job.told("started"), "start")
    async with consuming(client, group, topic, broadcasting=True) as seen:
        await check_broadcast(client, cluster.theirs, topic, seen, job)
    await job.stop()
