"""Plain sends of gRPC, read and answered by the compiled engine: beside a broker with the pure engine, nobody
can tell the difference by answers, figures or files."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import anyio
import attrs
import pytest

pytest.importorskip("h2")

from hypothesis import given, settings
from hypothesis import strategies as st
from rmq_grpc.messages import SYSTEM_PROPERTIES, queue_of
from rmq_grpc.plain import PARTS, PlainClient
from trio.testing import MockClock

from rmq.broker.tables.topic_attributes import MESSAGE_TYPE
from rmq.protocol import engine
from rmq.protocol.bodies import TopicConfig
from rmq.protocol.codes import PERM_READ, PERM_WRITE
from tests.compiled import COMPILED, HAS_COMPILED
from tests.stateful.call_engines import Pair, odd_request, plain_request
from tests.stateful.engines import Side
from tests.unit.grpc.calls import client, cluster, message, received, receiving, sending, word

pytestmark = HAS_COMPILED

SEEDS = int(os.environ.get("RMQ_ENGINE_SEEDS", "8"))
FOREVER = 1 << 10


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of sends that were stored in runs."""
    found: list[int] = []
    store = PlainClient.store

    def noted(client: PlainClient) -> Any:
        count = client.count
        outcome = store(client)
        if isinstance(outcome, tuple):
            found.append(count)
        return outcome

    monkeypatch.setattr(PlainClient, "store", noted)
    return found


def topics(side: Side) -> None:
    """Topics of several kinds."""
    table = side.broker.topics
    for name, kind, perm, queues in (
        ("Orders", "", PERM_READ | PERM_WRITE, 4),
        ("Typed", "DELAY", PERM_READ | PERM_WRITE, 2),
        ("Ordered", "FIFO", PERM_READ | PERM_WRITE, 2),
        ("Shut", "", PERM_READ, 4),
        ("Other", "MIXED", PERM_READ | PERM_WRITE, 1),
    ):
        table.update(
            TopicConfig(
                topic_name=name,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=perm,
                attributes={MESSAGE_TYPE: kind} if kind else {},
            )
        )


def pair(**given: Any) -> Pair:
    made = Pair(COMPILED, **{"sizes": {"mapped_file_size_commit_log": 1 << 20}} | given)
    made.both(topics)
    return made


def warm(made: Pair, number: int = 1, count: int = 12) -> None:
    """Sends that open the lanes."""
    client, chance = made.connect(number), Random(count)
    for _ in range(count):
        made.feed(number, client.call("SendMessage", plain_request(chance).SerializeToString()))


def sends(made: Pair, number: int, count: int, chance: Random, odd: float) -> bytes:
    """The bytes of some calls, most of them plain sends."""
    client = made.clients[number]
    data = b""
    for _ in range(count):
        message = odd_request(chance) if chance.random() < odd else plain_request(chance).SerializeToString()
        style = "java"
        if chance.random() < odd:
            style = chance.choice(["node", "node", "pieces", "packed", "short"])
        method = "SendMessage" if chance.random() >= odd / 4 else chance.choice(["AckMessage", "NoMethod"])
        more: dict[str, str] = {}
        if chance.random() < odd / 2:
            name = chance.choice(["x_mq_client_id", "content_type", "grpc_timeout", "authorization"])
            more[name] = chance.choice(["", "client@2", "text/plain", "1S", "MQv2-HMAC-SHA1 x"])
        data += client.call(method, message, style=style, **more)
    return data


def test_plain_sends_are_stored_in_runs(stored: list[int]) -> None:
    made = pair()
    warm(made)
    stored.clear()
    client, chance = made.clients[1], Random(5)
    data = [client.call("SendMessage", plain_request(chance).SerializeToString()) for _ in range(8)]
    made.feed(1, data[0])
    made.feed(1, b"".join(data[1:]))
    assert stored == [1, 7]
    made.compare_files()


@pytest.mark.skipif(engine.NAME != "compiled", reason="the broker has the pure engine")
async def test_a_plain_send_wakes_the_receives_that_wait(
    autojump_clock: MockClock, stored: list[int]
) -> None:
    got: list[tuple[float, bytes]] = []
    async with cluster() as running, client(running, "a") as one, client(running, "b") as other:
        for number in range(20):
            assert word(await one.one("SendMessage", sending(message(message_id=f"M{number}")))) == "OK"
        while (await received(other, receiving(poll=1)))[1]:
            pass
        for number in range(5):  # the group is new: the lanes were closed
            assert word(await one.one("SendMessage", sending(message(message_id=f"N{number}")))) == "OK"
            assert (await received(other, receiving()))[1]
        stored.clear()

        async def receive() -> None:
            _, (found,) = await received(other, receiving(poll=15))
            got.append((anyio.current_time(), found.body))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            await anyio.sleep(1)
            sent_at = anyio.current_time()
            await one.one("SendMessage", sending(message(b"now", message_id="last")))
    assert stored == [1]
    assert got == [(sent_at, b"now")]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_long_traffic_comes_to_the_same(seed: int, stored: list[int]) -> None:
    chance = Random(seed)
    size, plugins = chance.choice([60_000, 1 << 20]), chance.random() < 0.1
    waits = chance.choice(["", "", "", "", "", "topics", "disk", "slave"])
    made = pair(
        seed=seed,
        sizes={"mapped_file_size_commit_log": size},
        waits=waits,
        plugins=plugins,
    )
    for number in (1, 2, 3):
        made.connect(number)
        warm(made, number)
    for _ in range(150):
        number, odd = chance.choice([1, 1, 2, 3]), chance.choice([0, 0, 0.1, 0.5])
        made.connect(number)
        fails = chance.random() < 0.05
        if fails:
            made.both(lambda side: side.disk.fail("write", "commitlog", FOREVER))
        data = sends(made, number, chance.choice([1, 1, 1, 2, 5, 30]), chance, odd)
        cut = chance.randrange(len(data)) if chance.random() < 0.1 else len(data)
        made.feed(number, data[:cut])
        made.both(lambda side: side.disk.heal())
        if number in made.clients:
            made.feed(number, data[cut:])
        change(made, chance)
        if number in made.clients:
            made.compare(number)
    made.compare_files()
    if not plugins and not waits:
        assert stored


def change(made: Pair, chance: Random) -> None:
    """Something else that happens to a broker."""
    match chance.randrange(40):
        case 0:
            made.both(lambda side: _set(side, "Orders", perm=PERM_READ))
        case 1 | 2:
            made.both(lambda side: _set(side, "Orders", perm=PERM_READ | PERM_WRITE))
        case 3:
            count = chance.choice([2, 4, 6])
            made.both(lambda side: _set(side, "Orders", write_queue_nums=count, read_queue_nums=count))
        case 4:
            made.both(lambda side: _set(side, "Orders", attributes={MESSAGE_TYPE: "FIFO"}))
        case 5:
            made.both(lambda side: _set(side, "Orders", attributes={}))
        case 6 | 7 | 8:
            step = chance.choice([1, 50, 5_000, -20])
            made.both(lambda side: _pass(side, step))
        case 9:
            made.both(_sync)
        case 10:
            made.both(lambda side: side.broker.group_commit.save_topics())


def _set(side: Side, topic: str, **values: Any) -> None:
    row = side.broker.topics.get(topic)
    assert row is not None
    side.broker.topics.update(attrs.evolve(row, **values))


def _sync(side: Side) -> None:
    side.store.flush()
    side.broker.on_synced(side.store.max_physical_offset)


def _pass(side: Side, ms: int) -> None:
    side.now_ms += ms


@settings(max_examples=100)
@given(st.lists(st.integers(0, 1 << 32), min_size=1, max_size=20), st.booleans())
def test_any_request_comes_to_the_same(seeds: list[int], together: bool) -> None:
    """Valid, borderline and damaged requests, one by one or in one read."""
    made = pair()
    warm(made)
    requests = [odd_request(Random(seed)) for seed in seeds]
    if together:
        client = made.clients[1]
        made.feed(1, b"".join(client.call("SendMessage", request) for request in requests))
    else:
        for request in requests:
            client = made.connect(1)  # again, after a request that broke the connection
            made.feed(1, client.call("SendMessage", request))
    made.compare_files()


# ---- the reader alone ----


class Queue:
    """A queue, as far as a lane needs one."""

    topic, topic_bytes, next = "Orders", b"\x06Orders", 0

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id


def reader(queues: int = 4) -> tuple[Any, Any]:
    """A reader, and lanes of a topic."""
    assert COMPILED is not None
    lanes = COMPILED.Lanes((), bytes(8), 0, 0, 0)
    for queue_id in range(queues):
        lanes.add(Queue(queue_id), 0)
    lanes.open_topic("Orders", queues)
    return COMPILED.CallSends(lanes, SYSTEM_PROPERTIES), lanes


@given(st.text("abcXYZ-0189 ", min_size=1, max_size=63), st.integers(1, 300))
def test_a_message_group_has_the_queue_that_python_chooses(group: str, queues: int) -> None:
    calls, _ = reader(queues)
    made = plain_request(Random(1))
    made.messages[0].system_properties.message_group = group
    data = made.SerializeToString()
    run = calls.begin(data)
    if calls.take(run, 0, len(data), 1, 0, 1, b"10.0.8.1"):
        assert [queue_id for queue_id, _, _ in run.placed()] == [queue_of(group, queues)]
    else:
        assert group[0] == " "


@pytest.mark.parametrize(("begin", "end"), [(-1, 5), (0, 1_000), (9, 8), (1 << 40, 1 << 41)])
def test_places_outside_of_the_data_are_refused(begin: int, end: int) -> None:
    calls, _ = reader()
    assert calls.take(calls.begin(bytes(20)), begin, end, 1, 0, 1, b"10.0.8.1") is False


@given(st.integers(0, 1 << 32), st.binary(max_size=40), st.binary(max_size=40), st.booleans())
def test_bytes_around_a_request_are_not_read(seed: int, before: bytes, after: bytes, is_odd: bool) -> None:
    """The rest of a cut request, or of another, stands behind it: nobody looks at that."""
    chance = Random(seed)
    data = odd_request(chance) if is_odd else plain_request(chance).SerializeToString()
    whole = taken(data, 0, len(data))
    assert taken(before + data + after, len(before), len(before) + len(data)) == whole
    cut = chance.randrange(len(data) + 1)
    assert taken(data, 0, cut) == taken(data[:cut], 0, cut) == taken(data[:cut] + after, 0, cut)


def taken(data: bytes, begin: int, end: int) -> tuple[bool, int, bytes]:
    """If the bytes between two places are a plain request: its texts, as the answer has them."""
    calls, _ = reader()
    run = calls.begin(data)
    is_plain = calls.take(run, begin, end, 1, 0, 1_795_253_354_000, b"10.0.8.1")
    return is_plain, run.largest, calls.answers(run, PARTS)[0]
