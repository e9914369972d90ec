"""Servers of one kind, and consumers of ours that note what they get: for tests beside other clients."""

from __future__ import annotations

import pathlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio

import rmq
from tests.interop.conftest import Servers, program
from tests.interop.driver import Driver, Job
from tests.interop.rocketmq import Java, Process, Processes

SETTINGS = {
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "messageDelayLevel": "1s 2s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionCheckMax": "3",
}


class Cluster:
    """Servers of one kind, and the broker's process."""

    def __init__(self, servers: Servers, folder: pathlib.Path) -> None:
        self.servers = servers
        self.kind = servers.kind
        self.names = servers.namesrv
        # 5.x notes that a transaction has ended in batches, one every 3 s: later than it checks here.
        more: dict[str, str] = {}
        if servers.processes.java.version >= "5":
            is_theirs = servers.kind == "java"
            more = {"transactionOpBatchInterval": "100"} if is_theirs else {"regionInMessages": "true"}
        self.broker: Process = servers.broker(folder / "store", **SETTINGS, **more)

    async def topic(self, name: str) -> str:
        """A new topic with four queues."""
        async with rmq.connect(self.names) as client:
            await client.admin.create_topic(name, queues=4)
        return name


class Beside(Cluster):
    """Our servers, and a process of clients in another language: `theirs`."""

    def __init__(self, servers: Servers, folder: pathlib.Path, language: str) -> None:
        super().__init__(servers, folder)
        self.theirs = Driver(servers.processes, self.names, language)


@contextmanager
def beside(language: str, java: Java, factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """Start the clients of a language; if its tools are missing, skip the test with the reason."""
    program(language, java)
    folder = factory.mktemp(language)
    with Processes(java, folder) as processes:
        yield Beside(Servers.chosen(processes), folder, language)


@asynccontextmanager
async def client_of(cluster: Cluster, **settings: Any) -> AsyncIterator[rmq.Client]:
    """A client of ours that is quick to give queues up and to commit."""
    config = rmq.ClientConfig(suspend_queue_ms=200, commit_interval_ms=500, **settings)
    async with rmq.connect(cluster.names, config=config) as made:
        yield made


class Seen:
    """A consumer of ours that notes what it gets, and fails where it is told to."""

    def __init__(self) -> None:
        self.messages: list[rmq.StoredMessage] = []
        self.failing: set[str] = set()

    @property
    def bodies(self) -> list[str]:
        return [message.body.decode().strip() for message in self.messages]

    async def __call__(self, message: rmq.StoredMessage) -> None:
        self.messages.append(message)
        if message.body.decode() in self.failing:
            raise ValueError("no such customer")

    async def until(self, condition: Callable[[], object], seconds: float = 60) -> None:
        with trio.move_on_after(seconds):
            while not condition():
                await trio.sleep(0.02)
            return
        raise AssertionError(f"it got {self.bodies}")


@asynccontextmanager
async def consuming(client: rmq.Client, group: str, topic: str, **options: Any) -> AsyncIterator[Seen]:
    seen = Seen()
    wanted = options.pop("wanted", "*")
    seen.failing = set(options.pop("fail", ()))
    async with (
        client.consumer(group, {topic: wanted}, consume_from="first", **options) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(consumer.run, seen)
        yield seen
        nursery.cancel_scope.cancel()


async def send(client: rmq.Client, topic: str, bodies: list[str], **options: Any) -> list[rmq.SendResult]:
    key = options.pop("key", None)
    async with client.producer("ours") as producer:
        return [
            await producer.send(rmq.Message(topic, body.encode(), **options), sharding_key=key)
            for body in bodies
        ]


async def what_they_send(
    cluster: Beside, client: rmq.Client, topic: str, group: str
) -> list[tuple[dict[str, Any], rmq.StoredMessage]]:
    """Their producer sends 20 messages, and a consumer of ours gets them as they were sent: of each what
    their producer was told, and the message."""
    bodies = [f"m{number}" for number in range(20)]
    options = {"tags": "t", "properties": {"amount": "3", "name": "à"}}
    rows = await cluster.theirs.do("send", topic=topic, bodies=bodies, **options).done()
    sent = {row["sent"]: row for row in rows if "sent" in row}
    assert [row["status"] for row in sent.values()] == ["SEND_OK"] * 20
    async with consuming(client, group, topic) as seen:
        await seen.until(lambda: len(seen.bodies) == 20)
    found = [(sent[message.body.decode()], message) for message in seen.messages]
    for row, message in found:
        assert (message.queue_id, message.queue_offset) == (row["queue"], row["offset"])
        assert message.tags == "t"
        assert message.keys == (message.body.decode(),)
        assert message.properties["amount"] == "3"
        assert message.properties["name"] == "à"
    return found


async def only_letter(client: rmq.Client, group: str) -> rmq.DeadLetter:
    with trio.fail_after(30):
        while not (letters := await client.dead_letters(group)):
            await trio.sleep(0.2)
    (letter,) = letters
    return letter


async def caught_up(client: rmq.Client, group: str) -> None:
    """Wait until a group has committed all of its messages. A consumer of another language whose request to
    give a message up is not answered yet when it is stopped gives the message up once more."""
    with trio.fail_after(30):
        while (await client.admin.consume_stats(group)).lag:
            await trio.sleep(0.2)


async def check_pulls(client: rmq.Client, theirs: Driver, topic: str, group: str) -> None:
    """A pull consumer of another language reads each queue from offset 4 on."""
    results = await send(client, topic, [f"m{number}" for number in range(40)])
    late = sorted(f"m{number}" for number, result in enumerate(results) if result.queue_offset >= 4)
    job = theirs.do("lite", topic=topic, group=group, offset=4, count=len(late))
    await job.done()
    assert sorted(job.bodies) == late


async def check_broadcast(client: rmq.Client, theirs: Driver, topic: str, seen: Seen, job: Job) -> None:
    """Members of both languages, `seen` and `job`, get what both languages send."""
    await theirs.do("send", topic=topic, bodies=["t0", "t1", "t2"]).done()
    await send(client, topic, ["o0", "o1", "o2"])
    expected = ["o0", "o1", "o2", "t0", "t1", "t2"]
    await seen.until(lambda: sorted(seen.bodies) == expected)
    await job.until(lambda: sorted(job.bodies) == expected, "six messages")


def by_key(bodies: list[str]) -> dict[str, list[int]]:
    """Of bodies "KEY NUMBER", the numbers of each key in their order."""
    found: dict[str, list[int]] = defaultdict(list)
    for body in bodies:
        key, _, step = body.partition(" ")
        found[key].append(int(step))
    return found
