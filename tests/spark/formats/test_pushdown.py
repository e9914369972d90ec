"""Pushed filters: whatever they are, the rows are those of the same query without, and fewer are read."""

from __future__ import annotations

import operator
import pathlib
import pickle
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import datasource as ds

from rmq.errors import ConfigError
from rmq.message import MessageQueue
from rmq.protocol.record import Record
from rmq.spark import ranges, source, store_source
from rmq.spark.formats.pushdown import SPARE_MS, Conditions, Span
from rmq.spark.formats.schema import spark_schema
from rmq.spark.options import read_options, store_options
from rmq.spark.source import BatchReader, PushdownBatchReader
from rmq.spark.store_source import PushdownStoreReader, StoreReader
from rmq.store.files.disk import RealDisk
from tests.spark.cluster import Pair, running
from tests.spark.records import V4
from tests.unit.store.stores import Clock, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONF = "spark.sql.python.filterPushdown.enabled"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START_MS = 1_700_000_000_000
GIVEN = {"requireTopics": "false", "nameServer": "h:1", "topicPattern": ".*", "pushdown": "true"}
Row = dict[str, Any]

COMPARE = {
    ds.EqualTo: operator.eq,
    ds.EqualNullSafe: operator.eq,
    ds.GreaterThan: operator.gt,
    ds.GreaterThanOrEqual: operator.ge,
    ds.LessThan: operator.lt,
    ds.LessThanOrEqual: operator.le,
}


def at(ms: float) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def passes(row: Row, pushed: Any) -> bool:
    """True if a row passes a filter in Spark."""
    if isinstance(pushed, ds.Not):
        return not passes(row, pushed.child)
    value = row[pushed.attribute[0]]
    if isinstance(pushed, ds.IsNotNull):
        return value is not None
    if isinstance(pushed, ds.IsNull):
        return value is None
    if value is None:
        return False
    if isinstance(pushed, ds.In):
        return value in pushed.value
    if isinstance(pushed, ds.StringStartsWith):
        return bool(value.startswith(pushed.value))
    return COMPARE[type(pushed)](value, pushed.value)


def passing(rows: Iterable[Row], filters: Iterable[Any]) -> list[Row]:
    return [row for row in rows if all(passes(row, each) for each in filters)]


# Around and between the times of the messages; some are no whole milliseconds.
times = st.one_of(st.integers(-70_000, 900_000), st.integers(0, 90).map(lambda n: n * 10_000 + 0.5))
values = {
    "topic": st.sampled_from(["A", "B", "C"]),
    "brokerName": st.sampled_from(["x", "y", "z"]),
    "queueId": st.integers(-1, 3),
    "queueOffset": st.integers(-2, 45),
    "physicalOffset": st.integers(-5, 40_000),
    "storeTimestamp": times.map(lambda ms: at(START_MS + ms)),
}


@st.composite
def filters(draw: st.DrawFn, *columns: str) -> Any:
    column = draw(st.sampled_from(columns))
    kind = draw(st.sampled_from([*COMPARE, ds.In, ds.IsNotNull, ds.IsNull, ds.Not, ds.StringStartsWith]))
    if kind in (ds.IsNotNull, ds.IsNull):
        return kind((column,))
    if kind is ds.In:
        return ds.In((column,), draw(st.lists(values[column], max_size=3)))
    if kind is ds.StringStartsWith:
        return kind(("topic",), draw(values["topic"]))
    plain = draw(st.sampled_from(list(COMPARE))) if kind is ds.Not else kind
    found = plain((column,), draw(values[column]))
    return ds.Not(found) if kind is ds.Not else found


# --- conditions ---


def test_times_are_cut_to_whole_milliseconds_on_the_right_side() -> None:
    def span(kind: Any, ms: float) -> Span:
        return Conditions.of([kind(("storeTimestamp",), at(ms))]).span("storeTimestamp")

    assert (span(ds.GreaterThan, 7), span(ds.GreaterThan, 7.5)) == (Span(low=8), Span(low=8))
    assert (span(ds.GreaterThanOrEqual, 7), span(ds.GreaterThanOrEqual, 7.5)) == (Span(low=7), Span(low=8))
    assert (span(ds.LessThan, 7), span(ds.LessThan, 7.5)) == (Span(high=7), Span(high=8))
    assert (span(ds.LessThanOrEqual, 7), span(ds.LessThanOrEqual, 7.5)) == (Span(high=8), Span(high=8))
    assert (span(ds.EqualTo, 7), span(ds.EqualTo, 7.5)) == (Span(7, 8), Span(8, 8))


@pytest.mark.parametrize(
    "strange",
    [
        ds.EqualTo(("queueId",), True),
        ds.EqualTo(("queueId",), 1.5),
        ds.EqualTo(("queueOffset",), None),
        ds.In(("topic",), ("A", None)),
        ds.EqualTo(("properties", "topic"), "A"),
        ds.EqualTo(("keys",), "A"),
        ds.GreaterThan(("storeTimestamp",), datetime(2026, 1, 1)),
        ds.IsNull(("topic",)),
        ds.Not(ds.EqualTo(("queueId",), 1)),
    ],
)
def test_what_is_not_understood_goes_back_to_spark(strange: Any) -> None:
    reader = PushdownBatchReader(read_options(GIVEN, streaming=False), ["body"])
    plain = ds.EqualTo(("queueId",), 1)
    assert list(reader.pushFilters([strange, plain])) == [strange]
    assert Conditions.of([strange]) == Conditions()


# --- rmq, over brokers whose queues are tables ---


class Table:
    """Stands in for a cluster: the store times of each queue's messages, which begin at an offset."""

    def __init__(self, queues: dict[MessageQueue, tuple[int, list[int]]]) -> None:
        self.stored = queues

    def queues(self, expected: Any = (), **_: Any) -> list[MessageQueue]:
        return list(self.stored)

    def left_behind(self) -> frozenset[str]:
        return frozenset()

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        found = {queue: self.stored[queue] for queue in queues}
        return {queue: (first, first + len(stored)) for queue, (first, stored) in found.items()}

    def at_time(self, queues: Iterable[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        return {queue: self._first_since(*self.stored[queue], timestamp_ms) for queue in queues}

    def _first_since(self, first: int, stored: list[int], wanted: int) -> int:
        """Search as the client does: look at the neighbours of the message that a broker has found."""
        at = self._nearest(stored, wanted)
        while at > 0 and stored[at] >= wanted:
            at = max(at - 3, 0)
        while at < len(stored) and stored[at] < wanted:
            at += 1
        return first + at

    def _nearest(self, stored: list[int], wanted: int) -> int:
        """Search as a broker does: a binary search for a message of the time, or else the nearest."""
        low, high = 0, len(stored) - 1
        left = right = None
        while low <= high:
            middle = (low + high) // 2
            if stored[middle] == wanted:
                return middle
            if stored[middle] > wanted:
                high, right = middle - 1, middle
            else:
                low, left = middle + 1, middle
        if left is None or right is None:
            return left or right or 0
        return right if wanted - stored[left] > stored[right] - wanted else left

    def rows(self) -> list[Row]:
        return [
            {
                "topic": queue.topic,
                "brokerName": queue.broker_name,
                "queueId": queue.queue_id,
                "queueOffset": first + number,
                "storeTimestamp": at(time),
            }
            for queue, (first, stored) in self.stored.items()
            for number, time in enumerate(stored)
        ]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Times that go up, but for a clock that was set back by up to a minute."""
    queues = draw(
        st.sets(
            st.builds(MessageQueue, st.sampled_from("AB"), st.sampled_from("xy"), st.integers(0, 2)),
            max_size=5,
        )
    )
    stored = {}
    for queue in sorted(queues, key=str):
        steps = draw(st.lists(st.sampled_from([0, 0, 1, 500, 30_000]), max_size=30))
        back = draw(st.sampled_from([0, 0, 1000, SPARE_MS]))
        now, made = START_MS, []
        for number, step in enumerate(steps):
            now += step
            made.append(now - (back if 3 * number > 2 * len(steps) else 0))
        stored[queue] = (draw(st.integers(0, 10)), made)
    return Table(stored)


@given(
    tables(),
    st.lists(filters("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp"), max_size=4),
)
def test_the_plan_has_the_rows_that_the_filters_let_through(table: Any, pushed: list[Any]) -> None:
    reader = PushdownBatchReader(read_options(GIVEN, streaming=False), ["body"])
    left = list(reader.pushFilters(pushed))
    reader = pickle.loads(pickle.dumps(reader))

    found = source.plan(*reader._bounds(table), table.bounds(table.queues()))
    assert not found.losses
    ranges = {one.queue: range(one.start, one.stop) for one in found.ranges}
    read = [
        row
        for row in table.rows()
        if row["queueOffset"]
        in ranges.get(MessageQueue(row["topic"], row["brokerName"], row["queueId"]), range(0))
    ]
    assert passing(read, left) == passing(table.rows(), pushed)


def test_a_plan_is_cut_by_time_and_offset() -> None:
    queue = MessageQueue("A", "x", 0)
    table: Any = Table({queue: (100, [START_MS + 1000 * number for number in range(1000)])})
    reader = PushdownBatchReader(read_options(GIVEN, streaming=False), ["body"])
    reader.pushFilters([ds.GreaterThanOrEqual(("storeTimestamp",), at(START_MS + 500_000))])
    start, end = reader._bounds(table)
    assert (start[queue], end[queue]) == (100 + 500 - 60, 1100)
    reader.pushFilters([ds.LessThan(("storeTimestamp",), at(START_MS + 500_000))])
    start, end = reader._bounds(table)
    assert (start[queue], end[queue]) == (100, 100 + 500 + 60)
    reader.pushFilters([ds.LessThan(("queueOffset",), 300), ds.GreaterThan(("queueOffset",), 110)])
    assert reader._bounds(table) == ({queue: 111}, {queue: 300})


def test_a_clock_that_was_set_back_loses_nothing() -> None:
    stored = [START_MS + 1000 * n for n in (*range(100), *range(40, 240))]
    table: Any = Table({MessageQueue("A", "x", 0): (0, stored)})
    reader = PushdownBatchReader(read_options(GIVEN, streaming=False), ["body"])
    for time in {each + more for each in stored for more in (-1, 0, 1)}:
        for kind in (ds.GreaterThanOrEqual, ds.LessThanOrEqual, ds.EqualTo):
            pushed = [kind(("storeTimestamp",), at(time))]
            reader.pushFilters(pushed)
            ((start,), (end,)) = (found.values() for found in reader._bounds(table))
            assert passing(table.rows()[start:end], pushed) == passing(table.rows(), pushed)


def test_what_is_lost_is_lost_with_filters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = MessageQueue("A", "x", 0)
    monkeypatch.setattr(ranges, "batch_bounds", lambda *_: ({queue: 3}, {queue: 50}))
    reader = PushdownBatchReader(read_options(GIVEN, streaming=False), ["body"])
    reader.pushFilters([ds.LessThan(("queueOffset",), 20)])
    bounds: Any = {queue: (10, 50)}
    assert "10 to 49" in source.plan(*reader._bounds(Table({})), bounds).losses[0]  # type: ignore[arg-type]
    reader.pushFilters([ds.GreaterThan(("queueOffset",), 20)])
    assert not source.plan(*reader._bounds(Table({})), bounds).losses  # type: ignore[arg-type]


def test_the_option_chooses_the_reader() -> None:
    assert type(source.batch_reader(GIVEN, spark_schema())) is PushdownBatchReader
    plain = source.batch_reader({**GIVEN, "pushdown": "false"}, spark_schema())
    assert type(plain) is BatchReader
    assert type(plain).pushFilters is ds.DataSourceReader.pushFilters
    assert StoreReader.pushFilters is ds.DataSourceReader.pushFilters
    with pytest.raises(ConfigError, match=r"pushdown.*batches only"):
        source.stream_reader({**GIVEN, "startingOffsets": "earliest"}, spark_schema())


# --- rmqstore, over files ---


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """90 messages of A and B in three files, every ten seconds by a clock that was set back twice."""
    root = tmp_path_factory.mktemp("store")
    clock = Clock()
    opened = open_store(RealDisk(), clock, root=str(root), store_host=V4, mapped_file_size_commit_log=16384)
    for number in range(90):
        clock.now_ms = START_MS + number * 10_000 - SPARE_MS * ((number > 34) + (number > 74))
        text = f"UNIQ_KEY\x01{number:02}"
        opened.put(Record("AB"[number % 2], number % 3, bytes(350), text, born_host=V4))
        opened.commit()
    opened.close()
    return root


def rows_of(reader: StoreReader, filters: list[Any] | None = None) -> list[Row]:
    if filters is not None:
        assert list(reader.pushFilters(filters)) == filters
    reader, parts = pickle.loads(pickle.dumps(reader)), reader.partitions()
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


COLUMNS = ["topic", "queueId", "queueOffset", "physicalOffset", "storeTimestamp", "msgId"]
VIAS = [{}, {"topic": "A,B", "via": "consumequeue"}, {"topic": "B", "chunkBytes": "4000"}]


@given(
    st.sampled_from(VIAS),
    st.lists(filters("topic", "queueId", "queueOffset", "physicalOffset", "storeTimestamp"), max_size=3),
)
def test_a_store_has_the_rows_that_the_filters_let_through(
    store: pathlib.Path, via: dict[str, str], pushed: list[Any]
) -> None:
    options, schema = store_options({"path": str(store), **via}), spark_schema(COLUMNS)
    every = rows_of(StoreReader(options, schema))
    found = rows_of(PushdownStoreReader(options, schema), pushed)
    assert passing(found, pushed) == passing(every, pushed)


def test_a_store_by_a_clock_that_was_set_back_loses_nothing(store: pathlib.Path) -> None:
    options, schema = store_options({"path": str(store)}), spark_schema(COLUMNS)
    every = rows_of(StoreReader(options, schema))
    times = [row["storeTimestamp"] for row in every]
    assert times[34] > times[36]  # the first of a file
    assert times[72] > times[75]
    for kind in (ds.EqualTo, ds.GreaterThanOrEqual, ds.LessThanOrEqual):
        for time in times[30:40] + times[70:80]:
            pushed = [kind(("storeTimestamp",), time)]
            found = rows_of(PushdownStoreReader(options, schema), pushed)
            assert passing(found, pushed) == passing(every, pushed)


@pytest.mark.parametrize(
    ("options", "pushed", "read"),
    [
        ({}, ds.EqualTo(("topic",), "A"), 45),
        ({}, ds.EqualTo(("topic",), "C"), 0),
        ({"topic": "A,B"}, ds.GreaterThan(("topic",), "A"), 45),
        ({"topic": "B"}, ds.EqualTo(("topic",), "A"), 0),
        ({}, ds.LessThan(("physicalOffset",), 1), 1),
        ({}, ds.GreaterThanOrEqual(("physicalOffset",), 2 * 16384), 90 - 2 * 36),
        ({}, ds.LessThan(("storeTimestamp",), at(START_MS)), 36),
        ({}, ds.GreaterThan(("storeTimestamp",), at(START_MS + 10_000_000)), 90 - 2 * 36),
        ({"topic": "A", "via": "consumequeue"}, ds.EqualTo(("queueId",), 1), 15),
        ({"topic": "A", "via": "consumequeue"}, ds.LessThan(("queueOffset",), 4), 12),
    ],
)
def test_less_of_a_store_is_read(
    store: pathlib.Path, options: dict[str, str], pushed: Any, read: int
) -> None:
    reader = PushdownStoreReader(store_options({"path": str(store), **options}), spark_schema(COLUMNS))
    assert len(rows_of(reader, [pushed])) == read


def test_rows_that_tell_of_damage_are_left_to_spark(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "commitlog"
    folder.mkdir()
    for file in (store / "commitlog").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    with open(folder / f"{0:020d}", "r+b") as log:
        log.seek(600)
        log.write(bytes(300))
    options = store_options({"path": str(tmp_path), "onCorrupt": "report"})
    schema = spark_schema(COLUMNS, nullable=True)
    every = rows_of(StoreReader(options, schema))
    assert sum(row["topic"] is None for row in every) == 1
    for pushed in (
        ds.IsNull(("topic",)),
        ds.EqualTo(("topic",), "A"),
        ds.GreaterThan(("physicalOffset",), 700),
    ):
        found = rows_of(PushdownStoreReader(options, schema), [pushed])
        assert passing(found, [pushed]) == passing(every, [pushed])


def test_a_file_without_a_first_record_is_read(store: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_source, "parse", lambda *_, **__: None)
    reader = PushdownStoreReader(store_options({"path": str(store)}), spark_schema(COLUMNS))
    assert len(rows_of(reader, [ds.LessThan(("storeTimestamp",), at(START_MS))])) == 90


# --- on Spark ---


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(tmp_path_factory.mktemp("pair")) as started:
        started.make_topic("Pushed", 2)
        started.send("Pushed", 200)
        yield started


@pytest.fixture
def allowed(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(CONF, "true")
    yield
    spark.conf.unset(CONF)


def scanned(frame: DataFrame) -> tuple[list[Any], int]:
    """The rows of a query, and how many its only scan has read."""
    rows = frame.collect()
    (scan,) = iter_java(frame._jdf.queryExecution().executedPlan().collectLeaves())  # type: ignore[operator]
    return sorted(rows, key=str), int(scan.metrics().apply("numOutputRows").value())


def iter_java(found: Any) -> list[Any]:
    return [found.apply(number) for number in range(found.size())]


WHERE = "queueId = 1 and queueOffset >= 40 and queueOffset in (39, 40, 45) and storeTimestamp > '2020-01-01'"


def test_spark_reads_less_of_a_topic(spark: SparkSession, pair: Pair, allowed: None) -> None:
    def query(where: str, **more: object) -> DataFrame:
        frame = spark.read.format("rmq").options(**pair.options("Pushed", **more)).load()
        return frame.where(where).select("queueId", "queueOffset", "body")

    rows, read = scanned(query(WHERE))
    assert ([row.queueOffset for row in rows], read) == ([40, 45], 200)
    assert scanned(query(WHERE, pushdown=True)) == (rows, 6)
    for times in ("< '2020-01-01'", "> '2100-01-01'"):
        assert scanned(query(f"storeTimestamp {times}", pushdown=True)) == ([], 0)


def test_spark_reads_less_of_a_store(spark: SparkSession, store: pathlib.Path, allowed: None) -> None:
    def query(**more: object) -> DataFrame:
        given = {key: str(value) for key, value in more.items()}
        frame = spark.read.format("rmqstore").schema("topic string, physicalOffset bigint").options(**given)
        return frame.load(str(store)).where("topic = 'A' and physicalOffset < 5000")

    rows, read = scanned(query())
    assert (len(rows), read) == (6, 90)
    assert scanned(query(pushdown=True)) == (rows, 6)


def test_spark_says_what_it_needs(spark: SparkSession, store: pathlib.Path) -> None:
    frame = spark.read.format("rmqstore").option("pushdown", "true").load(str(store))
    with pytest.raises(PySparkException, match=f"PushdownStoreReader.*{CONF}"):
        frame.count()


def test_each_query_has_a_load_of_its_own(spark: SparkSession, store: pathlib.Path, allowed: None) -> None:
    def load() -> DataFrame:
        return spark.read.format("rmqstore").schema("topic string").option("pushdown", True).load(str(store))

    assert load().where("topic = 'A'").union(load()).groupBy("topic").count().count() == 2
    shared = load()
    shared.where("topic = 'A'").count()
    # Spark 4.3 keeps the plan that was made last. When it does not any more, docs/spark.md need not warn.
    assert shared.count() == 45
