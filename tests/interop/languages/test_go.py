"""RocketMQ's client for Go (rocketmq-client-go): batches, transactions, order, pulls, request and reply."""

from __future__ import annotations

import pytest
import trio

import rmq
from tests.interop.sides import (
    Beside,
    by_key,
    check_pulls,
    consuming,
    send,
)

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def language() -> str:
    return "go"


# --- producers ---


@pytest.mark.parametrize("how", ["batch", "oneway"])
async def test_batches_and_one_way_sends(cluster: Beside, client: rmq.Client, how: str) -> None:
    topic = await cluster.topic(f"Go-{how}")
    job = cluster.theirs.do("consume", topic=topic, group=f"go-{how}")
    theirs = [f"g{number}" for number in range(20)]
    options = {"batch": how == "batch", "oneway": how == "oneway"}
    await cluster.theirs.do("send", topic=topic, bodies=theirs, **options).done()
    async with client.producer("ours") as producer:
        messages = [rmq.Message(topic, f"o{number}".encode()) for number in range(20)]
        if how == "batch":
            await producer.send_batch(messages)
        for message in () if how == "batch" else messages:
            await producer.send(message)
    expected = sorted([*theirs, *(f"o{number}" for number in range(20))])
    async with consuming(client, f"ours-{how}", topic) as seen:
        await seen.until(lambda: sorted(seen.bodies) == expected)
        await job.until(lambda: sorted(job.bodies) == expected, "all messages")
    assert {len(message.body) for message in seen.messages} == set(job.told("size")) == {2, 3}
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


async def test_one_group_of_both_languages_shares_the_queues(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("GoShared")
    job = cluster.theirs.do("consume", topic=topic, group="go-shared")
    await job.until(lambda: job.told("started"), "start")
    async with consuming(client, "go-shared", topic) as seen:
        expected: set[str] = set()
        with trio.fail_after(60):
            while not (seen.bodies and job.bodies):
                bodies = [f"m{len(expected) + number}" for number in range(8)]
                expected |= set(bodies)
                await send(client, topic, bodies)
                await trio.sleep(0.5)
        await seen.until(lambda: set(seen.bodies) | set(job.bodies) == expected)
    await job.stop()


async def test_a_go_pull_consumer(cluster: Beside, client: rmq.Client) -> None:
    topic = await cluster.topic("GoPulls")
    await check_pulls(client, cluster.theirs, topic, "go-pulls")


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
