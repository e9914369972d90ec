"""The streams of a file: what the file may say, when one is started again, and `rmq spark run` itself."""

from __future__ import annotations

import itertools
import json
import pathlib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from rmq.client import blocking
from rmq.errors import ConfigError
from rmq.spark import read_jobs, run_once, run_streams
from rmq.spark.jobs.run import LONGEST_PAUSE_SECONDS, Kept
from rmq.spark.jobs.spec import Stream, names_of
from tests.spark.cluster import Pair, counting, running
from tests.spark.reading.streams import file_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 120


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(tmp_path_factory.mktemp("pair")) as started:
        yield started


def tree(**stream: Any) -> dict[str, Any]:
    """A file with one stream."""
    given = {
        "source": {"topic": "Orders", "startingOffsets": "earliest"},
        "to": {"format": "parquet", "path": "/data/rows"},
        "checkpoint": "/data/checkpoint",
    }
    return {"source": {"nameServer": "127.0.0.1:9876"}, "streams": {"orders": given | stream}}


# --- the file ---


def test_a_file_is_read() -> None:
    text = """
    source:
      {nameServer: "10.0.0.1:9876", accessKey: shop, secretKeyFile: /etc/secret, startingOffsets: earliest}
    spark: {spark.sql.shuffle.partitions: 4, spark.jars.packages: "a:b:1"}
    serve: {host: 0.0.0.0, port: 9464}
    streams:
      lake:
        source: {topic: Orders, maxOffsetsPerTrigger: 1000, decompress: false}
        where: tags = 'paid'
        select: [topic, "cast(body as string) as text"]
        to: {format: iceberg, table: lake.shop.orders, fanout-enabled: true}
        checkpoint: s3a://lake/checkpoint
        every: 30s
      copies:
        source: {topic: Orders, nameServer: "10.0.0.2:9876"}
        to: {format: rmq, topic: Copies}
        checkpoint: /data/copies
    """
    jobs = read_jobs(yaml.safe_load(text))
    lake, copies = jobs.streams
    assert (jobs.host, jobs.port, dict(jobs.spark)["spark.sql.shuffle.partitions"]) == ("0.0.0.0", 9464, "4")
    assert (lake.source["nameServer"], lake.source["decompress"]) == ("10.0.0.1:9876", "false")
    assert (lake.where, lake.select[1], lake.every_ms) == (
        "tags = 'paid'",
        "cast(body as string) as text",
        30_000,
    )
    assert lake.to == {"format": "iceberg", "table": "lake.shop.orders", "fanout-enabled": "true"}
    assert copies.source["nameServer"] == "10.0.0.2:9876"
    # A sink `rmq` has the connection of all, and nothing that is for sources only.
    account = {"nameServer": "10.0.0.1:9876", "accessKey": "shop", "secretKeyFile": "/etc/secret"}
    assert copies.to == {"format": "rmq", "topic": "Copies", **account}
    assert [row["to"] for row in names_of(jobs)] == ["iceberg lake.shop.orders", "rmq Copies"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"more": 1}, r"streams\.orders\.more.*one of source, decode"),
        ({"to": {"path": "/x"}}, r"streams\.orders\.to\.format"),
        ({"to": {"format": "rmq", "topics": "T"}}, r"streams\.orders\.to: option topics"),
        ({"checkpoint": ""}, r"streams\.orders\.checkpoint"),
        ({"every": "soon"}, r"streams\.orders\.every.*500ms, 10s"),
        ({"select": "body"}, r"streams\.orders\.select.*a list"),
        ({"source": {}}, r"streams\.orders\.source: topic, topicPattern or assign"),
        ({"source": {"topic": "T", "pullBatsh": 3}}, r"streams\.orders\.source: option pullBatsh.*pullBatch"),
        ({"source": {"topic": None}}, r"streams\.orders\.source\.topic.*a value"),
        ({"source": ["T"]}, r"streams\.orders\.source.*names with values"),
    ],
)
def test_what_a_stream_cannot_be_is_said(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_jobs(tree(**change))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "the file"),
        ([1], "the file"),
        ({"stream": {}}, r"the file\.stream"),
        ({"streams": {}}, "at least one"),
        (tree() | {"serve": {"port": 70_000}}, r"serve\.port"),
        ({"streams": {"a b": {}}}, "a name of letters"),
        (
            tree() | {"streams": dict.fromkeys("ab", tree()["streams"]["orders"])},
            "a folder of each stream's own",
        ),
    ],
)
def test_what_a_file_cannot_be_is_said(given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_jobs(given)


def test_the_file_of_the_page_is_one() -> None:
    page = (pathlib.Path(__file__).parents[3] / "docs" / "spark_jobs.md").read_text("utf-8")
    first = page.split("```yaml\n")[1].split("```")[0]
    orders, copies = read_jobs(yaml.safe_load(first)).streams
    assert (orders.every_ms, orders.to["path"], copies.to["topic"]) == (30_000, "/data/orders", "Copies")


# --- again and again ---


class Query:
    """A query that ends when told."""

    def __init__(self) -> None:
        self.isActive = True
        self.lastProgress: Any = None
        self._error: Exception | None = None

    def batch(self, number: int) -> None:
        self.lastProgress = type("Progress", (), {"batchId": number})()

    def fail(self, text: str) -> None:
        self.isActive, self._error = False, RuntimeError(text)

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        self.isActive = False


class Starts:
    """Starts queries, or fails to, as told; what was said is in `told`."""

    def __init__(self) -> None:
        self.queries: list[Query] = []
        self.told: list[str] = []
        self.failure: Exception | None = None
        self.calls = 0
        stream = Stream(name="orders", source={}, checkpoint="/c", to={"format": "parquet"})
        self.kept = Kept(stream, self.start, self.told.append)

    def start(self, stream: Stream) -> Any:
        self.calls += 1
        if self.failure is not None:
            raise self.failure
        self.queries.append(Query())
        return self.queries[-1]


def test_a_stream_that_fails_is_started_again_after_pauses_that_grow() -> None:
    starts = Starts()
    starts.failure = ConfigError("topic", "Orders", "a topic")
    kept, times, now = starts.kept, [], 1000.0
    while len(times) < 12:
        calls = starts.calls
        kept.step(now)
        if starts.calls > calls:
            times.append(now)
        now += 0.5
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]
    assert "orders: ended, again in 2 s: topic = 'Orders'" in starts.told[1]
    starts.failure = None
    kept.step(now + 300)
    assert (kept.error, starts.told[-1]) == ("", "orders: started")


def test_a_batch_makes_the_pauses_short_again_and_a_failure_without_one_does_not() -> None:
    starts = Starts()
    kept, now = starts.kept, 0.0
    for wanted in (1.0, 2.0, 4.0):
        kept.step(now)
        starts.queries[-1].fail("Traceback\n  x\nrmq.errors.NoRoute: no broker")
        kept.step(now)
        assert kept.retry_at == now + wanted
        now = kept.retry_at
    assert starts.told[-1] == "orders: ended, again in 4 s: rmq.errors.NoRoute: no broker"
    kept.step(now)
    starts.queries[-1].batch(7)
    kept.step(now)
    starts.queries[-1].fail("later")
    kept.step(now)
    assert kept.retry_at == now + 1
    kept.step(now + 1)
    starts.queries[-1].batch(8)
    starts.queries[-1].fail("between two looks")
    kept.step(now + 2)
    assert kept.retry_at == now + 3
    assert len(starts.queries) == 5


def test_a_stream_is_stopped_and_one_that_does_not_run_too() -> None:
    starts = Starts()
    starts.kept.stop()
    starts.kept.step(0)
    starts.kept.stop()
    assert not starts.queries[0].isActive


# --- on Spark ---


@pytest.fixture
def count(pair: Pair) -> Iterator[Callable[[str], int]]:
    with counting(pair) as count:
        yield count


def health(port: int) -> tuple[int, dict[str, str]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_streams_run_once(
    spark: SparkSession, pair: Pair, count: Callable[[str], int], tmp_path: pathlib.Path
) -> None:
    for topic in ("RunFiles", "RunIn", "RunOut"):
        pair.make_topic(topic, 1)
    pair.send("RunFiles", 30, queues=1)
    pair.send("RunIn", 15, queues=1)
    given = file_of(pair, tmp_path)
    given["streams"]["files"]["source"]["groupId"] = "once"
    jobs = read_jobs(given)
    told: list[str] = []
    ran = run_once(spark, jobs, tell=told.append)
    assert (ran.streams, ran.rows, dict(ran.errors)) == (2, 45, {})
    assert sorted(told) == ["copies: 15 rows", "files: 30 rows"]
    assert (spark.read.parquet(str(tmp_path / "rows")).count(), count("RunOut")) == (20, 15)
    with blocking.connect(pair.names) as client, client.pull_consumer("once") as consumer:
        assert [consumer.committed(queue) for queue in consumer.message_queues("RunFiles")] == [30]
    assert run_once(spark, jobs, tell=told.append).rows == 0
    broken = file_of(pair, tmp_path)
    broken["streams"]["files"]["source"] = {"topic": "RunNone", "pullTimeoutMs": 500}
    pair.send("RunIn", 5, first=15, queues=1)
    ran = run_once(spark, read_jobs(broken), tell=told.append)
    assert (ran.rows, list(ran.errors)) == (5, ["files"])


def test_streams_run_and_are_started_again_and_say_how_they_are(
    spark: SparkSession, pair: Pair, count: Callable[[str], int], tmp_path: pathlib.Path
) -> None:
    for topic in ("RunIn", "RunOut"):
        pair.make_topic(topic, 1)
    before = count("RunOut")
    given = file_of(pair, tmp_path, port=0)
    del given["streams"]["copies"]
    given["streams"]["late"] = {
        "source": {"topic": "RunLate", "pullTimeoutMs": 200},
        "to": {"format": "rmq", "topic": "RunOut"},
        "select": ["body"],
        "checkpoint": str(tmp_path / "late"),
        "every": "100ms",
    }
    pair.make_topic("RunFiles", 1)
    told: list[str] = []
    seen: list[tuple[int, dict[str, str]]] = []
    is_made = threading.Event()
    began = time.monotonic()

    def look(seconds: float) -> None:
        """Check the work beside the streams, between two of their steps."""
        assert time.monotonic() < began + SECONDS, told
        port = int(told[0].split(":")[2].split("/")[0])
        seen.append(health(port))
        states = seen[-1][1]
        has_failed = any("late: ended" in line for line in told) and states["late"] != "running"
        if has_failed and states["files"] == "running" and not is_made.is_set():
            is_made.set()
            pair.make_topic("RunLate", 1)
            pair.send("RunLate", 9, queues=1)
        elif count("RunOut") == before + 9:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                seen.append((answer.status, {"metrics": answer.read().decode()}))
            raise KeyboardInterrupt

    run_streams(spark, read_jobs(given), tell=told.append, sleep=look)
    status, metrics = seen.pop()
    assert (status, 'rmq_spark_failures_total{query="late"}' in metrics["metrics"]) == (200, True)
    sick = [states for status, states in seen if status == 503]
    assert any("RunLate" in states["late"] for states in sick)
    assert (200, {"files": "running", "late": "running"}) in seen
    assert told[-1] == "stopping"
    assert not [query for query in spark.streams.active if query.name in ("files", "late")]
