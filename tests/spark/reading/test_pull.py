"""A range read whose pulls bring less than asked for: the rows are exact, or the loss is named."""

from __future__ import annotations

import pathlib
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import trio
from pyspark_rmq import DefaultSource
from trio.testing import MockClock

from rmq.client import blocking
from rmq.client.config import ClientConfig
from rmq.client.reading.pull_consumer import PullConsumer
from rmq.errors import ConnectFailed, CorruptRecord, NoPermission, NoRoute
from rmq.message import Message, MessageQueue, StoredMessage
from rmq.protocol.codes import SYS_COMPRESSED, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.record import Record, decode_records
from rmq.remoting.connection import Connection
from rmq.spark.formats.records import queue_offsets, record_starts
from rmq.spark.formats.schema import asked_schema
from rmq.spark.offsets import DataLoss, QueueRange
from rmq.spark.options import read_options
from rmq.spark.pull import RangeReader, _decoded
from rmq.testing.cluster import Cluster
from rmq.testing.front import CUT, BrokerFront
from tests.spark.cluster import running
from tests.spark.records import V4, encoded
from tests.unit.client.world import World, world

QUEUE = MessageQueue("T", "a", 0)
PULL = RequestCode.PULL_MESSAGE
COUNT = 500


@pytest.fixture
def cluster() -> Cluster:
    """A broker that gives as many messages at once as it is asked for."""
    no_limit = {
        "max_transfer_count_on_message_in_memory": 10_000,
        "max_transfer_bytes_on_message_in_memory": 1 << 30,
    }
    return Cluster("a", topics={"T": 4}, store=no_limit)


@pytest.fixture
def broker(cluster: Cluster) -> BrokerFront:
    return cluster["a"]


@pytest.fixture
async def setting(cluster: Cluster, autojump_clock: MockClock) -> AsyncIterator[World]:
    async with world(cluster) as made:
        for number in range(COUNT):
            cluster["a"].put("T", 0, b"x" * (number % 7 + 1), f"TAGS\x01{'xy'[number % 5 == 0]}")
        yield made


async def read(setting: World, start: int, stop: int, **options: object) -> list[int]:
    """The queue offsets of what a read of the range gives."""
    return [offset for _, offset in await read_all(setting, [QueueRange(QUEUE, start, stop)], **options)]


async def read_all(
    setting: World, wanted: list[QueueRange], *, watch: Callable[[RangeReader], None] = id, **options: object
) -> list[tuple[int, int]]:
    """The queues and queue offsets of what a read of ranges gives; `watch` sees the reader now and then."""
    given = {"nameServer": "fake:1", "topic": "T", **{key: str(value) for key, value in options.items()}}
    found: list[tuple[int, int]] = []
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        reader = RangeReader(puller, wanted, read_options(given, streaming=False))
        async with reader:
            while (records := await reader.next()) is not None:
                data, starts = records
                assert starts.tolist() == record_starts(data).tolist()
                found += [(record.queue_id, record.queue_offset) for record in decode_records(data)]
                assert queue_offsets(data, starts).tolist() == [at for _, at in found[-len(starts) :]]
                await trio.testing.wait_all_tasks_blocked()
                watch(reader)
    return found


def answers(broker: BrokerFront, most: int) -> None:
    """Have the broker give less than is asked for."""

    def pull(request: Command, connection: Connection) -> Command | None:
        asked = min(int(request.ext["maxMsgNums"]), most)
        return broker.answer(request.with_ext({**request.ext, "maxMsgNums": str(asked)}), connection)

    broker.hook(PULL, pull)


Records = list[tuple[StoredMessage, bytes]]


def choosing(broker: BrokerFront, looks_at: int, choose: Callable[[Records, int], Records]) -> None:
    """Have the broker look at so many messages for a pull, and give those that are chosen, of which it is
    asked for so many."""

    def pull(request: Command, connection: Connection) -> Command | None:
        most = int(request.ext["maxMsgNums"])
        all_of_them = {**request.ext, "maxMsgNums": str(looks_at), "subscription": "*"}
        answer = broker.answer(request.with_ext(all_of_them), connection)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return answer
        seen = list(records_of(answer.body))
        fits = choose(seen, most)
        ahead = (fits if len(fits) == most else seen)[-1][0].queue_offset + 1
        code = ResponseCode.SUCCESS if fits else ResponseCode.PULL_RETRY_IMMEDIATELY
        header = {**answer.ext, "nextBeginOffset": str(ahead)}
        return request.reply(code, header=header, body=b"".join(data for _, data in fits))

    broker.hook(PULL, pull)


def records_of(body: bytes) -> Iterator[tuple[StoredMessage, bytes]]:
    """Each message of a pull's answer with its bytes there."""
    at = 0
    for message in decode_records(body):
        yield message, body[at : at + message.size]
        at += message.size


def of_tag_y(seen: Records, most: int) -> Records:
    return [entry for entry in seen if entry[0].tags == "y"][:most]


def without_ten(seen: Records, most: int) -> Records:
    return [entry for entry in seen if not 300 <= entry[0].queue_offset < 310][:most]


@pytest.mark.parametrize("most", [1, 7, 32, 1000])
@pytest.mark.parametrize("options", [{}, {"pullBatch": 50, "pullsInFlight": 3}, {"pullsInFlight": 1}])
async def test_whatever_a_broker_gives_at_once_the_range_comes_out(
    setting: World, broker: BrokerFront, most: int, options: dict[str, object]
) -> None:
    answers(broker, most=most)
    assert await read(setting, 3, 497, batchRows=100, **options) == list(range(3, 497))


async def test_pulls_adapt_to_what_the_broker_gives(setting: World, broker: BrokerFront) -> None:
    answers(broker, most=32)
    assert len(await read(setting, 0, COUNT, pullsInFlight=2)) == COUNT
    assert broker.count(PULL) < 1.5 * COUNT / 32


@pytest.mark.parametrize("options", [{}, {"pullBatch": 7, "pullsInFlight": 3}, {"filter": "y"}])
async def test_queues_of_a_task_come_one_after_the_other(
    setting: World, cluster: Cluster, options: dict[str, object]
) -> None:
    for queue_id in (1, 2, 3):
        for number in range(40):
            cluster["a"].put("T", queue_id, b"x", f"TAGS\x01{'xy'[number % 5 == 0]}")
    marks = [(1, 3, 40), (0, 100, 150), (3, 7, 7), (2, 0, 39)]
    wanted = [QueueRange(MessageQueue("T", "a", queue), low, high) for queue, low, high in marks]
    expected = [(queue, at) for queue, low, high in marks for at in range(low, high)]
    found = await read_all(setting, wanted, batchRows=16, **options)
    assert found == [one for one in expected if not options.get("filter") or one[1] % 5 == 0]


@pytest.mark.parametrize("batch_bytes", [1, 30_000, 200_000])
async def test_what_is_pulled_ahead_is_bounded_by_bytes(
    setting: World, cluster: Cluster, broker: BrokerFront, batch_bytes: int
) -> None:
    """Big bodies: a pull brings one message, and slices were pulled to their ends, of 1024 messages each."""
    size, first, count = 20_000, COUNT, 100
    for _ in range(count):
        cluster["a"].put("T", 0, bytes(size), "TAGS\x01x")
    answers(broker, most=2)
    held: list[int] = []

    def watch(reader: RangeReader) -> None:
        held.append(sum(len(part) for one in reader._slices for part in one.parts))
        assert reader._held == held[-1]

    wanted = [QueueRange(QUEUE, first, first + count)]
    found = await read_all(setting, wanted, batchBytes=batch_bytes, watch=watch)
    assert [at for _, at in found] == list(range(first, first + count))
    assert max(held) <= 4 * batch_bytes + 2 * (size + 200), "and one answer"
    if batch_bytes == 200_000:
        assert max(held) > 8 * size, "and there are pulls ahead"


@pytest.mark.parametrize("looks_at", [3, 40, 1000])
@pytest.mark.parametrize("batch", [1, 4, 100])
async def test_a_filter_may_leave_gaps(
    setting: World, broker: BrokerFront, looks_at: int, batch: int
) -> None:
    choosing(broker, looks_at, of_tag_y)
    found = await read(setting, 2, 483, filter="y", pullBatch=batch)
    assert found == list(range(5, 483, 5))


async def test_a_gap_without_a_filter_is_loss(setting: World, broker: BrokerFront) -> None:
    choosing(broker, COUNT, without_ten)
    with pytest.raises(DataLoss, match="300 to 309"):
        await read(setting, 0, COUNT)
    kept = await read(setting, 0, COUNT, failOnDataLoss=False)
    assert kept == [*range(300), *range(310, COUNT)]


async def test_a_queue_that_ends_before_the_range_is_loss(setting: World) -> None:
    with pytest.raises(DataLoss, match=f"{COUNT} to {COUNT + 9}"):
        await read(setting, 490, COUNT + 10)
    assert await read(setting, 490, COUNT + 10, failOnDataLoss=False) == list(range(490, COUNT))
    assert await read(setting, COUNT + 10, COUNT + 20, failOnDataLoss=False) == []


def _moved(to: int, code: int, status: str) -> Any:
    def answer(request: Command, _: Any) -> Command:
        ext = {"nextBeginOffset": to, "minOffset": to, "maxOffset": COUNT, "suggestWhichBrokerId": 0}
        return request.reply(code, status, header={key: str(value) for key, value in ext.items()})

    return answer


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL"),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING"),
    ],
)
@pytest.mark.parametrize("filter", ["*", "x"])
async def test_what_retention_took_is_loss(
    setting: World, broker: BrokerFront, code: int, status: str, filter: str
) -> None:
    options: dict[str, object] = {"filter": filter, "pullsInFlight": 1, "pullBatch": 100}
    broker.script(PULL, _moved(60, code, status))
    with pytest.raises(DataLoss, match=f"messages 0 to 59 some are gone.*{status}"):
        await read(setting, 0, 100, **options)
    broker.script(PULL, _moved(60, code, status))
    wanted = [number for number in range(60, 100) if filter == "*" or number % 5]
    assert await read(setting, 0, 100, **options, failOnDataLoss=False) == wanted


async def test_a_lost_connection_changes_nothing(setting: World, broker: BrokerFront) -> None:
    broker.script(PULL, CUT, ResponseCode.SYSTEM_BUSY, CUT)
    assert await read(setting, 0, COUNT, pullBatch=20) == list(range(COUNT))


async def test_a_broker_that_stays_away_or_refuses_ends_the_read(setting: World, broker: BrokerFront) -> None:
    broker.script(PULL, ResponseCode.NO_PERMISSION)
    with pytest.raises(NoPermission):
        await read(setting, 0, COUNT, pullsInFlight=1)
    broker.script(PULL, *[CUT] * 1000)
    with pytest.raises(Exception, match=r"10\.0\.1\.1|connection") as caught:
        await read(setting, 0, COUNT, pullTimeoutMs=2000)
    assert isinstance(caught.value, ConnectionError | ConnectFailed)


async def test_a_broker_that_the_name_servers_forgot_is_waited_for(
    setting: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull_raw = PullConsumer.pull_raw
    answers: list[Exception] = [NoRoute("T"), NoRoute("T"), NoRoute("T")]

    async def forgotten(*arguments: Any, **more: Any) -> Any:
        if answers:
            raise answers.pop()
        return await pull_raw(*arguments, **more)

    monkeypatch.setattr(PullConsumer, "pull_raw", forgotten)
    assert await read(setting, 0, COUNT) == list(range(COUNT))
    answers += [NoRoute("T", refused=True)]
    with pytest.raises(NoRoute, match="refused"):
        await read(setting, 0, COUNT)
    assert not answers, "a refusal is not tried again"


@pytest.mark.parametrize("in_order", [True, False])
async def test_the_bounds_of_all_queues_come_in_one_answer(
    setting: World, cluster: Cluster, broker: BrokerFront, in_order: bool
) -> None:
    """Also from a broker that writes its table in another order than Java's."""
    cluster["a"].put("T", 3, b"x", "")
    row = (
        b'{"topic":"T","brokerName":"a","queueId":%d}:{"minOffset":%d,"maxOffset":%d,"lastUpdateTimestamp":1}'
    )

    def stats(request: Command, connection: Connection) -> Command | None:
        body = b'{"offsetTable":{%b}}' % b",".join([row % (0, 0, COUNT), row % (3, 0, 1)])
        return (
            broker.answer(request, connection) if in_order else request.reply(ResponseCode.SUCCESS, body=body)
        )

    broker.hook(RequestCode.GET_TOPIC_STATS_INFO, stats)
    async with setting.connect() as client, client.pull_consumer("g") as puller:
        found = await puller.bounds(QUEUE)
    assert {queue.queue_id: bounds for queue, bounds in found.items() if bounds[1]} == {
        0: (0, COUNT),
        3: (0, 1),
    }
    assert {(queue.topic, queue.broker_name) for queue in found} == {("T", "a")}
    assert broker.count(RequestCode.GET_TOPIC_STATS_INFO) == 1


async def test_an_empty_range_asks_for_nothing(setting: World, broker: BrokerFront) -> None:
    assert await read(setting, 5, 5) == []
    assert broker.count(PULL) == 0


@pytest.mark.parametrize(("how", "body"), [("fail", b""), ("null", None), ("raw", b"not zlib")])
def test_one_bad_body_ends_a_read_only_if_that_is_wanted(how: str, body: bytes | None) -> None:
    """Without this option a single message that claims to be compressed, and is not, would stop a stream for
    good."""
    made = [
        Record("T", 3, b"not zlib" if at == 1 else b"good", sys_flag=SYS_COMPRESSED * (at == 1), born_host=V4)
        for at in range(3)
    ]
    for at, record in enumerate(made):
        record.queue_offset = at
    data, starts = encoded(made, V4)
    given = {"nameServer": "fake:1", "topic": "T", "groupId": "g", "onCorrupt": how}
    options = read_options(given, streaming=True)
    schema = asked_schema(DefaultSource(given).schema(), nullable=options.null_columns)
    batches = _decoded(data, np.array(starts), options, schema, "a")
    if how == "fail":
        with pytest.raises(CorruptRecord, match=r"topic T, queue 3 of a.*offset 1:.*onCorrupt=null or"):
            list(batches)
    else:
        found = [row["body"] for batch in batches for row in batch.to_pylist()]
        assert found == [b"good", body, b"good"]


def test_a_task_over_big_bodies_stays_below_400_mib(tmp_path: pathlib.Path) -> None:
    """In a process of its own. 64 bodies of 3.9 MB were all in memory at once, and twice."""
    body, count = random.Random(1).randbytes(3_900_000), 64
    with running(tmp_path) as pair:
        pair.make_topic("Big", 1)
        config = ClientConfig(compress_over=0)
        with blocking.connect(pair.names, config=config) as client, client.producer("p") as producer:
            for _ in range(count):
                producer.send(Message("Big", body), queue=MessageQueue("Big", pair.broker, 0))
        command = [sys.executable, "-m", "tests.spark.big_read", pair.names, "Big", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows, peak = map(int, done.stdout.split())
    assert rows == count
    assert peak < 400
