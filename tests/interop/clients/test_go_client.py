"""RocketMQ's client for Go (rocketmq-client-go v2) on our servers: go/ tells what it can do."""

from __future__ import annotations

import pathlib
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import trio

import rmq
from tests.interop.rocketmq import Java
from tests.interop.sides import (
    Beside,
    beside,
    by_key,
    client_of,
    consuming,
    only_letter,
    send,
    what_they_send,
)

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def cluster(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    with beside("go", java, tmp_path_factory) as made:
        yield made


@pytest.fixture
async def client(cluster: Beside, tmp_path: pathlib.Path) -> AsyncIterator[rmq.Client]:
    async with client_of(cluster, offsets_dir=str(tmp_path)) as made:
        yield made


# --- producers ---


async def test_what_a_go_producer_sends_is_what_our_consumer_gets(
    cluster: Beside, client: rmq.Client
) -> None:
    topic = await cluster.topic("GoSends")
    for row, message in await what_they_send(cluster, client, topic, "go-sends"):
        assert message.message_id == row["id"]


@pytest.mark.parametrize("how", ["batch", "oneway", "compressed"])
async def test_batches_oneway_and_compression(cluster: Beside, client: rmq.Client, how: str) -> None:
    topic = await cluster.topic(f"Go-{how}")
    size = 5_000 if how == "compressed" else 0
    job = cluster.theirs.do("consume", topic=topic, group=f"go-{how}")
    theirs = [f"g{number}" for number in range(20)]
    options = {"batch": how == "batch", "oneway": how == "oneway", "size": size}
    await cluster.theirs.do("send", topic=topic, bodies=theirs, **options).done()
    async with client.producer("ours") as producer:
        messages = [rmq.Message(topic, f"o{number}".ljust(size).encode()) for number in range(20)]
        if how == "batch":
            await producer.send_batch(messages)
        for message in () if how == "batch" else messages:
            await producer.send(message)
    wanted = sorted([*theirs, *(f"o{number}" for number in range(20))])
    async with consuming(client, f"ours-{how}", topic) as seen:
        await seen.until(lambda: sorted(seen.bodies) == wanted)
        await job.until(lambda: sorted(job.bodies) == wanted, "all messages")
    assert set(job.told("size")) == ({size} if size else {2, 3})
    assert {len(message.body) for message in seen.messages} == set(job.told("size"))
    await job.stop()


async def test_delay_levels(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("GoLevels")
    job = cluster.theirs.do("consume", topic=topic, group="go-levels")
    await job.until(lambda: job.told("started"), "start")
    began = time.time()
    await cluster.theirs.do("send", topic=topic, bodies=["two"], delay=2).done()
    await send(client, topic, ["one"], delay_level=1)
    await job.until(lambda: len(job.bodies) == 2, "two messages")
    late = {row["body"]: row["at"] / 1000 - began for row in job.rows if "body" in row}
    assert late["one"] >= 1
    assert late["two"] >= 2
    await job.stop()


async def test_transactions_and_their_check_back(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("GoHalves")
    decisions = {"yes": "COMMIT_MESSAGE", "no": "ROLLBACK_MESSAGE", "later": "UNKNOW", "refused": "UNKNOW"}
    checks = {"later": "COMMIT_MESSAGE", "refused": "ROLLBACK_MESSAGE"}
    job = cluster.theirs.do("transact", topic=topic, group="go-halves", decisions=decisions, checks=checks)
    await job.done()
    async with consuming(client, "go-reads", topic) as seen:
        await seen.until(lambda: sorted(seen.bodies) == ["later", "yes"])
        await job.until(lambda: sorted(job.told("checked")) == ["later", "refused"], "two check-backs")
        await trio.sleep(2)  # nothing else comes
        assert sorted(seen.bodies) == ["later", "yes"]
    assert sorted(job.told("checked")) == ["later", "refused"]
    await job.stop()


# --- consumers ---


async def test_tags_and_sql(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("GoFilters")
    for number in range(6):
        properties = {"amount": str(number), "region": "hz" if number % 2 else "sh"}
        tags = "even" if number % 2 == 0 else "odd"
        options = {"topic": topic, "bodies": [f"g{number}"], "tags": tags, "properties": properties}
        await cluster.theirs.do("send", **options).done()
        await send(client, topic, [f"o{number}"], tags=tags, properties=properties)
    sql = "amount BETWEEN 2 AND 4 AND region IN ('hz', 'sh')"
    tagged = cluster.theirs.do("consume", topic=topic, group="go-tags", tags="even || other")
    chosen = cluster.theirs.do("consume", topic=topic, group="go-sql", sql=sql)
    async with consuming(client, "ours-sql", topic, wanted=rmq.sql(sql)) as seen:
        wanted = ["g2", "g3", "g4", "o2", "o3", "o4"]
        await chosen.until(lambda: sorted(chosen.bodies) == wanted, "six messages by SQL")
        await seen.until(lambda: sorted(seen.bodies) == wanted)
    even = ["g0", "g2", "g4", "o0", "o2", "o4"]
    await tagged.until(lambda: sorted(tagged.bodies) == even, "six messages by tag")
    await tagged.stop()
    await chosen.stop()


async def test_what_a_go_consumer_gives_up_is_a_dead_letter(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("GoFails")
    failing = cluster.theirs.do("consume", topic=topic, group="go-fails", fail=["bad"], most=2)
    (sent,) = await send(client, topic, ["bad"], tags="t", keys=["k"], properties={"amount": "3"})
    await failing.until(lambda: len(failing.bodies) == 3, "two retries")
    assert failing.told("times") == [0, 1, 2]
    letter = await only_letter(client, "go-fails")
    await failing.stop()
    assert (letter.topic, letter.message_id) == (topic, sent.message_id)
    assert (await client.redrive("go-fails")).sent == 1
    good = cluster.theirs.do("consume", topic=topic, group="go-fails-reads")
    await good.until(lambda: len(good.bodies) == 2, "the message, and the message again")
    (row,) = [row for row in good.rows if "DLQ_REDRIVE_KEY" in row.get("properties", ())]
    assert (row["topic"], row["times"], row["id"]) == (topic, 0, sent.message_id)
    await good.stop()


async def test_a_go_consumer_takes_each_key_in_order(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("GoOrdered")
    keys = [f"k{number}" for number in range(8)]
    job = cluster.theirs.do("consume", topic=topic, group="go-ordered", ordered=True)
    for key in keys:
        await send(client, topic, [f"{key} {step}" for step in range(5)], key=key)
    await job.until(lambda: len(job.bodies) == 40, "40 messages")
    assert by_key(job.bodies) == {key: list(range(5)) for key in keys}
    await job.stop()


async def test_our_consumer_takes_in_order_what_go_sends(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("GoSendsInOrder")
    keys = [f"k{number}" for number in range(8)]
    for key in keys:
        bodies = [f"{key} {step}" for step in range(5)]
        rows = await cluster.theirs.do("send", topic=topic, bodies=bodies, key=key).done()
        assert len({row["queue"] for row in rows if "queue" in row}) == 1
    async with consuming(client, "ours-ordered", topic, ordered=True) as seen:
        await seen.until(lambda: len(seen.bodies) == 40)
    assert by_key(seen.bodies) == {key: list(range(5)) for key in keys}


async def test_an_ordered_message_that_fails_holds_up_its_queue(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("GoOrderedFails")
    job = cluster.theirs.do("consume", topic=topic, group="go-holds", ordered=True, fail=["bad"])
    await send(client, topic, ["bad", "good"], key="k")
    await job.until(lambda: job.bodies.count("bad") > 3, "the message again")
    assert "good" not in job.bodies
    await job.stop()


async def test_members_of_both_languages_get_a_broadcast(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("GoBroadcast")
    job = cluster.theirs.do("consume", topic=topic, group="go-broadcast", broadcasting=True)
    await job.until(lambda: job.told("started"), "start")
    async with consuming(client, "go-broadcast", topic, broadcasting=True) as seen:
        await cluster.theirs.do("send", topic=topic, bodies=["g0", "g1", "g2"]).done()
        await send(client, topic, ["o0", "o1", "o2"])
        wanted = ["g0", "g1", "g2", "o0", "o1", "o2"]
        await seen.until(lambda: sorted(seen.bodies) == wanted)
        await job.until(lambda: sorted(job.bodies) == wanted, "six messages")
    await job.stop()


async def test_one_group_of_both_languages_shares_the_queues(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("GoShared")
    job = cluster.theirs.do("consume", topic=topic, group="go-shared")
    await job.until(lambda: job.told("started"), "start")
    async with consuming(client, "go-shared", topic) as seen:
        wanted: set[str] = set()
        with trio.fail_after(60):
            while not (seen.bodies and job.bodies):
                bodies = [f"m{len(wanted) + number}" for number in range(8)]
                wanted |= set(bodies)
                await send(client, topic, bodies)
                await trio.sleep(0.5)
        await seen.until(lambda: set(seen.bodies) | set(job.bodies) == wanted)
    await job.stop()


async def test_a_go_pull_consumer(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("GoPulls")
    results = await send(client, topic, [f"m{number}" for number in range(40)])
    late = sorted(f"m{number}" for number, result in enumerate(results) if result.queue_offset >= 4)
    job = cluster.theirs.do("lite", topic=topic, group="go-pulls", offset=4, count=len(late))
    await job.done()
    assert sorted(job.bodies) == late


# --- request and reply ---


async def test_go_asks_and_we_answer(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("GoAsks")
    async with client.producer("answers") as producer, trio.open_nursery() as nursery:

        async def answer(message: rmq.StoredMessage) -> None:
            await trio.sleep(1.2)  # Go's client makes itself known a second after it has begun
            await producer.reply(message, b"a" + message.body)

        async with client.consumer("go-answering", {topic: "*"}, consume_from="first") as consumer:
            nursery.start_soon(consumer.run, answer)
            job = cluster.theirs.do("ask", topic=topic, bodies=["q0", "q1"])
            await job.done()
            nursery.cancel_scope.cancel()
    assert job.told("answer") == ["aq0", "aq1"]


async def test_we_ask_and_go_answers(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("WeAskGo")
    job = cluster.theirs.do("consume", topic=topic, group="go-answers", answer=True)
    await job.until(lambda: job.told("started"), "start")
    async with client.producer("asks") as producer:
        answers = [await producer.request(rmq.Message(topic, b"q%d" % n), timeout=30) for n in range(2)]
    assert [one.body for one in answers] == [b"aq0", b"aq1"]
    await job.stop()
