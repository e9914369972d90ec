"""The client of RocketMQ 4 for Node (`ali-ons`) on our servers: node/ tells what it can do.

It has no batches, one-way sends, transactions, ordered consumers, pull consumers, or request and reply.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import AsyncIterator, Iterator

import pytest

import rmq
from tests.interop.rocketmq import Java
from tests.interop.sides import Beside, beside, client_of, consuming, only_letter, send, what_they_send

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def cluster(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    with beside("node", java, tmp_path_factory) as made:
        yield made


@pytest.fixture
async def client(cluster: Beside, tmp_path: pathlib.Path) -> AsyncIterator[rmq.Client]:
    async with client_of(cluster, offsets_dir=str(tmp_path)) as made:
        yield made


async def test_what_a_node_producer_sends_is_what_our_consumer_gets(
    cluster: Beside, client: rmq.Client
) -> None:
    topic = await cluster.topic("NodeSends")
    await what_they_send(cluster, client, topic, "node-sends")


async def test_compressed_bodies(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("NodeCompressed")
    job = cluster.theirs.do("consume", topic=topic, group="node-compressed")
    await cluster.theirs.do("send", topic=topic, bodies=["theirs"], size=5_000).done()
    await send(client, topic, ["ours".ljust(5_000)])
    async with consuming(client, "ours-compressed", topic) as seen:
        await seen.until(lambda: sorted(seen.bodies) == ["ours", "theirs"])
    await job.until(lambda: sorted(job.bodies) == ["ours", "theirs"], "both messages")
    assert set(job.told("size")) == {5_000} == {len(message.body) for message in seen.messages}
    await job.stop()


async def test_delay_levels(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("NodeLevels")
    job = cluster.theirs.do("consume", topic=topic, group="node-levels")
    await job.until(lambda: job.told("started"), "start")
    began = time.time()
    await cluster.theirs.do("send", topic=topic, bodies=["two"], delay=2).done()
    await send(client, topic, ["one"], delay_level=1)
    await job.until(lambda: len(job.bodies) == 2, "two messages")
    late = {row["body"]: row["at"] / 1000 - began for row in job.rows if "body" in row}
    assert late["one"] >= 1
    assert late["two"] >= 2
    await job.stop()


async def test_tags_and_sql(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("NodeFilters")
    for number in range(6):
        tags = "odd" if number % 2 else "even"
        properties = {"amount": str(number)}
        options = {"topic": topic, "bodies": [f"n{number}"], "tags": tags, "properties": properties}
        await cluster.theirs.do("send", **options).done()
        await send(client, topic, [f"o{number}"], tags=tags, properties=properties)
    tagged = cluster.theirs.do("consume", topic=topic, group="node-tags", tags="even || other")
    chosen = cluster.theirs.do("consume", topic=topic, group="node-sql", sql="amount BETWEEN 2 AND 4")
    await chosen.until(
        lambda: sorted(chosen.bodies) == ["n2", "n3", "n4", "o2", "o3", "o4"], "six messages by SQL"
    )
    await tagged.until(
        lambda: sorted(tagged.bodies) == ["n0", "n2", "n4", "o0", "o2", "o4"], "six messages by tag"
    )
    await tagged.stop()
    await chosen.stop()


async def test_what_a_node_consumer_gives_up_is_a_dead_letter(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("NodeFails")
    await client.admin.create_group("node-fails", retry_max_times=2)
    failing = cluster.theirs.do("consume", topic=topic, group="node-fails", fail=["bad"])
    (sent,) = await send(client, topic, ["bad"], tags="t")
    await failing.until(lambda: len(failing.bodies) == 3, "two retries")
    assert failing.told("times") == [0, 1, 2]
    letter = await only_letter(client, "node-fails")
    await failing.stop()
    assert (letter.topic, letter.message_id) == (topic, sent.message_id)


async def test_members_of_both_languages_get_a_broadcast(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("NodeBroadcast")
    job = cluster.theirs.do("consume", topic=topic, group="node-broadcast", broadcasting=True)
    await job.until(lambda: job.told("started"), "start")
    async with consuming(client, "node-broadcast", topic, broadcasting=True) as seen:
        await cluster.theirs.do("send", topic=topic, bodies=["n0", "n1"]).done()
        await send(client, topic, ["o0", "o1"])
        wanted = ["n0", "n1", "o0", "o1"]
        await seen.until(lambda: sorted(seen.bodies) == wanted)
        await job.until(lambda: sorted(job.bodies) == wanted, "four messages")
    await job.stop()
