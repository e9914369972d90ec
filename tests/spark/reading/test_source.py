"""The source on real Spark against a real broker: exact rows, restarts, first offsets, loss."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as F

from rmq.client import blocking
from rmq.message import Message, MessageQueue, StoredMessage
from rmq.spark.ranges import FILE_NAME
from tests.ports import free_ports
from tests.spark.cluster import Pair, running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    settings = {"enablePropertyFilter": "true"}
    with running(tmp_path_factory.mktemp("pair"), settings=settings) as started:
        yield started


class Job:
    """A streaming query with its checkpoint, run to the end of what is there, again and again."""

    def __init__(self, spark: SparkSession, folder: pathlib.Path) -> None:
        self.spark = spark
        self.folder = folder
        self.rows: list[Any] = []
        self.progress: list[Any] = []

    def run(self, options: dict[str, str], fail: Callable[[int], bool] = lambda batch_id: False) -> int:
        """Run once; returns how many rows came. A batch that `fail` chooses crashes before it takes any."""
        came: list[Any] = []

        def take(frame: DataFrame, batch_id: int) -> None:
            if fail(batch_id):
                raise RuntimeError("the crash of the test")
            came.extend(frame.select("brokerName", "queueId", "queueOffset", "body").collect())

        stream = self.spark.readStream.format("rmq").options(**options).load().writeStream
        query = stream.option("checkpointLocation", str(self.folder / "checkpoint")).foreachBatch(take)
        started = query.trigger(availableNow=True).start()
        try:
            started.awaitTermination()
        finally:
            self.rows += came
            self.progress = list(started.recentProgress)
        return len(came)

    def bodies(self) -> list[str]:
        return sorted(bytes(row.body).decode() for row in self.rows)


@pytest.fixture
def job(spark: SparkSession, tmp_path: pathlib.Path) -> Job:
    return Job(spark, tmp_path)


def batch(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("rmq").options(**options).load()


def numbers(*ranges: range) -> list[str]:
    return sorted(f"b{number}" for one in ranges for number in one)


def bodies(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


def pulled(pair: Pair, topic: str, queues: int) -> dict[tuple[int, int], StoredMessage]:
    """All messages of a topic as the client reads them."""
    found = {}
    with blocking.connect(pair.names) as client, client.pull_consumer("reference") as puller:
        for number in range(queues):
            offset = 0
            while got := puller.pull(MessageQueue(topic, pair.broker, number), offset):
                if not got.messages:
                    break
                found |= {(number, message.queue_offset): message for message in got.messages}
                offset = got.next_offset
    return found


# --- batches ---


def test_a_batch_is_what_the_client_reads(spark: SparkSession, pair: Pair) -> None:
    pair.make_topic("Columns", 2)
    with blocking.connect(pair.names) as client, client.producer("tests") as producer:
        for number in range(40):
            body = b"z" * 9000 if number % 10 == 0 else b"body %d" % number  # long ones are compressed
            more: dict[str, Any] = {"tags": f"t{number % 3}", "keys": ("k", str(number))}
            producer.send(Message("Columns", body, properties={"ü": f"ä{number}"}, flag=number, **more))
        producer.send(Message("Columns", b"plain"))
    expected = pulled(pair, "Columns", 2)
    frame = batch(spark, pair.options("Columns"))
    rows = frame.collect()

    shown = frame.select("queueOffset", "keys", "body", "storeTimestamp").toPandas()
    assert len(shown) == len(expected)
    assert {*shown["body"]} == {message.body for message in expected.values()}
    assert {(row.queueId, row.queueOffset) for row in rows} == expected.keys()
    assert len(rows) == len(expected) == 41
    for row in rows:
        message = expected[row.queueId, row.queueOffset]
        assert row.asDict() == {
            "topic": "Columns",
            "brokerName": pair.broker,
            "queueId": message.queue_id,
            "queueOffset": message.queue_offset,
            "physicalOffset": message.physical_offset,
            "body": message.body,
            "tags": message.tags,
            "keys": message.properties.get("KEYS"),
            "msgId": message.message_id,
            "properties": message.properties,
            "bornTimestamp": _utc(message.born_timestamp),
            "storeTimestamp": _utc(message.store_timestamp),
            "bornHost": message.born_host,
            "storeHost": message.store_host,
            "reconsumeTimes": 0,
            "sysFlag": message.sys_flag,
            "flag": message.flag,
            "preparedTransactionOffset": 0,
        }


def _utc(timestamp_ms: int) -> datetime:
    # Spark hands out local times without a zone.
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).astimezone().replace(tzinfo=None)


def test_a_range_by_offsets_by_time_and_in_pieces(spark: SparkSession, pair: Pair) -> None:
    pair.make_topic("Ranges", 2)
    pair.send("Ranges", 300)
    options = pair.options("Ranges")
    ends = {name: json.dumps({"Ranges": {pair.broker: at}}) for name, at in _ENDS.items()}
    found = batch(spark, {**options, "startingOffsets": ends["from"], "endingOffsets": ends["to"]})
    assert bodies(found) == numbers(range(20, 120, 2), range(1, 300, 2))
    assert batch(spark, {**options, "minPartitions": "5"}).rdd.getNumPartitions() == 5
    assert bodies(batch(spark, {**options, "maxRecordsPerPartition": "40"})) == numbers(range(300))
    middle = spark.read.format("rmq").options(**options).schema("storeTimestamp timestamp, body binary")
    last = middle.load().agg(F.max(F.unix_millis("storeTimestamp"))).first()
    assert last is not None
    pair.send("Ranges", 10, first=300)
    assert bodies(batch(spark, {**options, "startingTimestamp": str(last[0] + 1)})) == numbers(
        range(300, 310)
    )
    assert bodies(batch(spark, {**options, "endingTimestamp": str(last[0] + 1)})) == numbers(range(300))
    times = json.dumps({"Ranges": {pair.broker: {"0": last[0] + 1, "1": 5}}})
    by_queue = batch(spark, {**options, "startingOffsetsByTimestamp": times})
    assert bodies(by_queue) == numbers(range(1, 300, 2), range(300, 310))
    future = json.dumps({"Ranges": {pair.broker: {"0": 5, "1": last[0] + 10**9}}})
    late = {**options, "startingOffsetsByTimestamp": future}
    assert batch(spark, late).count() in (155, 156), "Java's brokers give the last message for what is later"
    with pytest.raises(PySparkException, match=r"Ranges/.*/1 had a message"):
        batch(spark, {**late, "timestampStrategy": "error"}).count()
    upper = spark.read.format("rmq").options(**options).schema("BODY binary, QUEUEID int").load()
    assert upper.columns == ["BODY", "QUEUEID"]
    assert upper.where("queueid = 1").count() == 155


_ENDS = {"from": {"0": 10, "1": -2}, "to": {"0": 60, "1": 150}}


def test_filters_leave_out_what_they_say(spark: SparkSession, pair: Pair) -> None:
    pair.make_topic("Filters", 2)
    pair.send("Filters", 60, tags="paid", properties={"amount": "5"})
    pair.send("Filters", 40, first=60, tags="refunded", properties={"amount": "50"})
    pair.send("Filters", 30, first=100, tags="AaAa", properties={"amount": "7"})
    pair.send(
        "Filters", 30, first=130, tags="BBBB"
    )  # the same hash as AaAa's: brokers cannot tell them apart
    options = pair.options("Filters")
    assert bodies(batch(spark, {**options, "filter": "paid || AaAa"})) == numbers(range(60), range(100, 130))
    plain = spark.read.format("rmq").options(**options, filter="BBBB").schema("body binary").load()
    assert bodies(plain) == numbers(range(130, 160))
    assert plain.columns == ["body"]
    assert bodies(batch(spark, {**options, "filterSql": "amount > 6"})) == numbers(range(60, 130))
    assert batch(spark, {**options, "filter": "nothing"}).count() == 0


def test_topics_by_pattern_and_single_queues(spark: SparkSession, pair: Pair) -> None:
    for topic in ("Pat1", "Pat2", "OtherPat"):
        pair.make_topic(topic, 2)
        pair.send(topic, 10)
    by_pattern = {"nameServer": pair.names, "topicPattern": "Pat[0-9]"}
    assert {row.topic for row in batch(spark, by_pattern).collect()} == {"Pat1", "Pat2"}
    assigned = {"nameServer": pair.names, "assign": json.dumps({"Pat1": {pair.broker: [1]}})}
    assert bodies(batch(spark, assigned)) == numbers(range(1, 10, 2))
    assert (
        batch(spark, {"nameServer": pair.names, "topicPattern": "None.*", "requireTopics": "false"}).count()
        == 0
    )


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"startOffsets": "earliest"}, "option startOffsets|option startoffsets"),
        ({"startingOffsets": '{"Wrong":{"embedded":{"9":1}}}'}, "all queues of the topics, no others"),
        ({"startingOffsets": "latest"}, "a batch ends there"),
        ({"topic": "NoSuchTopic"}, "NoSuchTopic"),
    ],
)
def test_mistakes_come_out_with_their_reason(
    spark: SparkSession, pair: Pair, more: dict[str, str], says: str
) -> None:
    pair.make_topic("Wrong", 2)
    given = {**pair.options("Wrong"), "accessKey": "reader", "secretKey": "hunter2", **more}
    with pytest.raises(PySparkException, match=says) as caught:
        batch(spark, given).collect()
    assert "hunter2" not in str(caught.value)


def test_columns_that_are_not_there_are_an_error(spark: SparkSession, pair: Pair) -> None:
    read = spark.read.format("rmq").options(**pair.options("Wrong"))
    with pytest.raises(PySparkException, match=r"schema column = .bodies"):
        read.schema("bodies binary").load().collect()


def test_the_secret_is_in_no_plan(
    spark: SparkSession, pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    pair.make_topic("Secret", 2)
    given = {**pair.options("Secret"), "accessKey": "reader", "secretKey": "hunter2"}
    batch(spark, given).explain("extended")
    assert "hunter2" not in capsys.readouterr().out


def test_offsets_beyond_the_queue_are_loss(spark: SparkSession, pair: Pair) -> None:
    pair.make_topic("Beyond", 2)
    pair.send("Beyond", 10)
    ends = json.dumps({"Beyond": {pair.broker: {"0": 5, "1": 9}}})
    options = {**pair.options("Beyond"), "endingOffsets": ends}
    with pytest.raises(PySparkException, match=r"messages are lost.*queue 1.*the broker has 0 to 4"):
        batch(spark, options).collect()
    assert batch(spark, {**options, "failOnDataLoss": "false"}).count() == 10


# --- streams ---


def test_a_stream_that_is_restarted_gives_each_message_once(job: Job, pair: Pair) -> None:
    pair.make_topic("Once", 2)
    pair.send("Once", 100)
    options = pair.options("Once", startingOffsets="earliest", maxOffsetsPerTrigger=30)
    assert job.run(options) == 100
    assert [progress.numInputRows for progress in job.progress] == [30, 30, 30, 10]
    newest = json.loads(job.progress[0].sources[0].latestOffset)
    assert newest == {"v": 1, "topics": {"Once": {pair.broker: {"0": 50, "1": 50}}}}
    pair.send("Once", 41, first=100)
    pair.make_topic("Once", 4)  # two queues join
    pair.send("Once", 40, first=200, queues=4)
    with pytest.raises(StreamingQueryException, match="the crash of the test"):
        job.run(options, fail=lambda batch_id: batch_id == 6)
    assert job.run(options) == 81 - 2 * 30
    assert job.bodies() == numbers(range(141), range(200, 240))
    assert job.run(options) == 0


@pytest.mark.parametrize(
    ("pin", "start"), [("stateLocation", "latest"), ("groupId", "latest"), ("stateLocation", "timestamp")]
)
def test_a_crash_in_the_first_batch_loses_nothing(
    job: Job, pair: Pair, tmp_path: pathlib.Path, pin: str, start: str
) -> None:
    topic = f"First-{pin}-{start}"
    pair.make_topic(topic, 2)
    pair.send(topic, 50)
    first = {"startingOffsets": "latest"} if start == "latest" else {"startingTimestamp": _in_an_hour()}
    kept = {"stateLocation": str(tmp_path / "state")} if pin == "stateLocation" else {"groupId": topic}
    options = {**pair.options(topic), **first, **kept}
    assert job.run(options) == 0  # where it begins is fixed now
    pair.send(topic, 10, first=50)
    with pytest.raises(StreamingQueryException, match="the crash of the test"):
        job.run(options, fail=lambda batch_id: True)
    pair.send(topic, 30, first=60)
    job.run(options)
    assert job.bodies() == numbers(range(50, 90))
    if pin == "stateLocation":
        text = (tmp_path / "state" / FILE_NAME).read_text()
        assert text == f'{{"v":1,"topics":{{"{topic}":{{"{pair.broker}":{{"0":25,"1":25}}}}}}}}'


def _in_an_hour() -> str:
    return str(int(datetime.now(UTC).timestamp() * 1000) + 3_600_000)


def test_the_state_of_another_query_is_refused(job: Job, pair: Pair, tmp_path: pathlib.Path) -> None:
    state = tmp_path / FILE_NAME
    state.write_text('{"v":1,"topics":{"SomeOther":{"a":{"0":1}}}}')
    pair.make_topic("Mine", 2)
    with pytest.raises(StreamingQueryException, match=r"of this query's own.*SomeOther"):
        job.run(pair.options("Mine", stateLocation=tmp_path))


def test_a_group_shows_how_far_a_stream_is(job: Job, pair: Pair) -> None:
    pair.make_topic("Lag", 2)
    pair.send("Lag", 40)
    job.run(pair.options("Lag", groupId="lag", startingOffsets="earliest", maxOffsetsPerTrigger=10))
    with blocking.connect(pair.names) as client, client.pull_consumer("lag") as puller:
        committed = [puller.committed(MessageQueue("Lag", pair.broker, number)) for number in (0, 1)]
    assert committed == [15, 15]  # Spark tells of a batch when it plans the next; of the last, never


def test_a_store_that_was_made_anew_is_loss(job: Job, tmp_path: pathlib.Path) -> None:
    ports = dict(zip(("namesrv_port", "broker_port"), free_ports(2), strict=True))
    with running(tmp_path / "old", **ports) as old:
        old.make_topic("Anew", 2)
        old.send("Anew", 20)
        options = old.options("Anew", startingOffsets="earliest")
        assert job.run(options) == 20
    with running(tmp_path / "new", **ports) as new:
        new.make_topic("Anew", 2)
        new.send("Anew", 6, first=500)
        with pytest.raises(StreamingQueryException, match=r"messages are lost.*was read up to 10"):
            job.run(options)
        assert job.run({**options, "failOnDataLoss": "false"}) == 6, "from the new store's beginning"
        new.send("Anew", 6, first=600)
        assert job.run({**options, "failOnDataLoss": "false"}) == 6
