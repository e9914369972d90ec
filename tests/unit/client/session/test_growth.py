"""Topics, groups and brokers come and go beside a client that runs for a year: none of its tables grows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

import rmq
from rmq.client.client import Client
from rmq.client.config import ClientConfig
from rmq.client.consume.offsets import files
from rmq.client.consume.offsets.files import LocalOffsets
from rmq.client.observability import metrics
from rmq.client.observability.metrics import ClientMetrics
from rmq.client.session import routes, session
from rmq.message import MessageQueue
from rmq.remoting import pool
from rmq.testing.cluster import Cluster

MINUTE_MS = 60_000
OURS = ("rmq.client", "rmq.remoting.pool", "collections", "builtins")


def tables(root: object) -> Iterator[tuple[str, int]]:
    """The path and the size of each table below an object of the client."""
    seen, waiting = {id(root)}, [("", root)]
    while waiting:
        path, one = waiting.pop()
        if isinstance(one, dict | set | list | tuple) or hasattr(one, "appendleft"):
            yield path, len(one)  # type: ignore[arg-type]
            inside = [(f"{path}[]", value) for value in (one.values() if isinstance(one, dict) else one)]  # type: ignore[attr-defined]
        elif type(one).__module__.startswith("rmq.client") or type(one).__name__ in ("SignedPool", "Pool"):
            names = {*getattr(one, "__dict__", ())} | {
                name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())
            }
            inside = [(f"{path}.{name}", getattr(one, name, None)) for name in sorted(names)]
        else:
            inside = []
        for name, value in inside:
            if id(value) not in seen and value is not None:
                seen.add(id(value))
                waiting.append((name, value))


def sizes(*roots: object) -> dict[str, int]:
    found: dict[str, int] = {}
    for root in roots:
        for path, size in tables(root):
            name = f"{type(root).__name__}{path}"
            found[name] = found.get(name, 0) + size
    return found


async def handle(message: rmq.StoredMessage) -> None:
    """Do nothing."""


async def live_through(cluster: Cluster, client: Client, puller: Any, rounds: Collection[int]) -> None:
    """A broker with a topic comes, is written to and read from, and goes, once for each round."""
    for number in rounds:
        name, topic = f"b{number}", f"T{number}"
        await cluster.start(name)
        await cluster.create_topic(topic, 1, brokers=[name])
        async with client.producer(f"p{number}", idempotent=number % 2 == 0) as producer:
            await producer.send(rmq.Message(topic, b"x"))
        for per_message in (False, True):
            group = f"g{number}{per_message}"
            options: Any = {"per_message": per_message, "consume_from": "first"}
            async with client.consumer(group, {topic: "*"}, **options) as consumer:
                with anyio.move_on_after(5):
                    await consumer.run(handle)
        (queue,) = await puller.message_queues(topic)
        assert (await puller.pull(queue, 0)).messages
        await cluster.stop(name)
        async with client.producer(f"q{number}") as producer:
            with pytest.raises(rmq.RmqError):
                await producer.send(rmq.Message(topic, b"late"), timeout=1)
            with pytest.raises(rmq.RmqError):
                await producer.send(rmq.Message(f"Unknown{number}", b"x"), timeout=1)
        await cluster.advance(200)


async def test_tables_do_not_grow_with_topics_and_brokers_that_come_and_go(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MISSING_MOST", 2)
    monkeypatch.setattr(session, "MISSING_MOST", 2)
    monkeypatch.setattr(routes, "MISSING_SECONDS", 30)
    monkeypatch.setattr(metrics, "ROWS_MOST", 8)
    monkeypatch.setattr(pool, "FORGET_SECONDS", 30)
    config = ClientConfig(poll_name_server_interval_ms=MINUTE_MS, heartbeat_interval_ms=MINUTE_MS)
    figures = ClientMetrics()
    async with (
        Cluster("a", topics={"T": 1}, auto_create_topic_enable=False) as cluster,
        cluster.connect(config=config, plugins=[figures]) as client,
        client.producer("p") as producer,
        client.simple_consumer("stays", {"T": "*"}) as simple,
        client.pull_consumer("reader") as puller,
    ):

        async def look(rounds: Collection[int]) -> dict[str, int]:
            await live_through(cluster, client, puller, rounds)
            await producer.send(rmq.Message("T", b"x"))
            await simple.ack(*await simple.receive())
            return sizes(client._session, producer, simple, puller, figures)

        await look(range(3))
        before, after = await look(range(3, 5)), await look(range(5, 9))
    assert {
        name: (before.get(name, 0), size) for name, size in after.items() if size > before.get(name, 0)
    } == {}


async def test_a_simple_consumer_forgets_brokers_that_are_gone(clock: MockClock) -> None:
    config = ClientConfig(poll_name_server_interval_ms=MINUTE_MS)
    async with (
        Cluster("a", topics={"T": 1}) as cluster,
        cluster.connect(config=config) as client,
        client.simple_consumer("g", {"T": "*"}) as simple,
    ):
        for number in range(3):
            await cluster.start(f"b{number}")
            await cluster.create_topic("T", 1, brokers=[f"b{number}"])
            await cluster.advance(90)
            await simple.receive(wait=1)
            assert {place.broker for place in simple._known} == {"a", f"b{number}"}
            await cluster.stop(f"b{number}")
            await simple.receive(wait=1)
            await cluster.advance(90)
            await simple.receive(wait=1)
            assert {place.broker for place in simple._known} == {"a"}
            assert {place.broker for place in {**simple._paused, **simple._unanswered}} <= {"a"}


def test_the_file_of_a_broadcasting_member_keeps_a_bounded_number_of_queues_that_are_gone(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "OTHERS_MOST", 5)
    offsets = LocalOffsets(tmp_path / "offsets.json")
    stays = [MessageQueue("T", "a", number) for number in range(3)]
    for number in range(20):
        comes = MessageQueue("T", f"b{number}", 0)
        offsets.update(dict.fromkeys([*stays, comes], number), dict.fromkeys([*stays, comes], 1))
        offsets.update({comes: number + 1}, {comes: 1})
        offsets.save()
        assert [offsets.get(queue) for queue in stays] == [number] * 3
        assert offsets.get(comes) == number + 1
    assert len(offsets._offsets) == len(offsets._created_ms) == 9
    assert len(LocalOffsets(tmp_path / "offsets.json")._offsets) == 9
