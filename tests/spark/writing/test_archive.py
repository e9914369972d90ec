"""The archive on real Spark against a real broker: exact after crashes, merged, resumed."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from rmq.errors import ConfigError
from rmq.spark import archive, compact, read_archive
from rmq.spark.pipelines import archive as archive_module
from rmq.spark.pipelines.archive_folder import ArchiveFolder
from rmq.spark.pipelines.progress import JobProgress
from tests.spark.cluster import Pair, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(tmp_path_factory.mktemp("pair")) as started:
        yield started


def places(spark: SparkSession, path: pathlib.Path) -> Counter[tuple[Any, ...]]:
    rows = read_archive(spark, path).select("topic", "brokerName", "queueId", "queueOffset").collect()
    return Counter(tuple(row) for row in rows)


def sent(pair: Pair, topic: str, count: int) -> set[tuple[Any, ...]]:
    """The places of `count` messages, in turn in two queues."""
    return {(topic, pair.broker, number % 2, number // 2) for number in range(count)}


def test_a_topic_is_archived_and_the_next_run_goes_on(
    spark: SparkSession, pair: Pair, tmp_path: pathlib.Path
) -> None:
    for topic in ("Arch", "%DLQ%arch"):
        pair.make_topic(topic, 2)
    pair.send("Arch", 100, tags="t", keys=("k",))
    pair.send("%DLQ%arch", 10)
    seen: list[JobProgress] = []
    options = pair.options("Arch,%DLQ%arch", maxOffsetsPerTrigger=40)
    done = archive(spark, options, tmp_path / "a", watch=seen.append)
    assert (done.rows, done.batches, done.rewritten) == (110, 3, 0)
    assert [(part.topic, part.rows) for part in done.parts] == [("%DLQ%arch", 10), ("Arch", 100)]
    assert {part.date for part in done.parts} <= {datetime.now(UTC).date().isoformat(), done.parts[0].date}
    assert seen[-1] == JobProgress(110, 110, "messages")
    pair.send("Arch", 20, first=100)
    assert archive(spark, options, tmp_path / "a").rows == 20
    assert archive(spark, options, tmp_path / "a").rows == 0
    everything = sent(pair, "Arch", 120) | sent(pair, "%DLQ%arch", 10)
    assert places(spark, tmp_path / "a") == Counter(everything)

    source = spark.read.format("rmq").options(**pair.options("Arch,%DLQ%arch")).load()
    rows = read_archive(spark, tmp_path / "a")
    assert rows.columns == [*source.columns, "date"]
    found = sorted(rows.drop("date").collect(), key=lambda row: row.physicalOffset)
    assert found == sorted(source.collect(), key=lambda row: row.physicalOffset)


def test_files_are_what_other_tools_read(spark: SparkSession, pair: Pair, tmp_path: pathlib.Path) -> None:
    pair.make_topic("Plain", 2)
    pair.send("Plain", 30)
    archive(spark, pair.options("Plain"), tmp_path)
    table = pq.read_table(tmp_path)
    assert table.num_rows == 30
    assert str(table.schema.field("storeTimestamp").type) == "timestamp[us, tz=UTC]"
    assert set(table["topic"].to_pylist()) == {"Plain"}
    stored = {when.date().isoformat() for when in table["storeTimestamp"].to_pylist()}
    assert {str(date) for date in table["date"].to_pylist()} == stored


@pytest.mark.parametrize("moment", ["write_parquet", "publish", "compact_partition"])
def test_a_crash_neither_loses_nor_doubles(
    spark: SparkSession,
    pair: Pair,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    topic = f"Crash-{moment}"
    pair.make_topic(topic, 2)
    pair.send(topic, 60)
    options = pair.options(topic, maxOffsetsPerTrigger=30)
    owner: Any = ArchiveFolder if moment == "publish" else archive_module
    real = getattr(owner, moment)
    calls: list[int] = []

    def crash(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        result = real(*arguments, **more)
        if len(calls) == 2:
            raise RuntimeError("the crash of the test")
        return result

    with monkeypatch.context() as patched:
        patched.setattr(owner, moment, crash)
        with pytest.raises(PySparkException, match="the crash of the test"):
            archive(spark, options, tmp_path, compact_files=3)
    pair.send(topic, 40, first=60)
    archive(spark, options, tmp_path, compact_files=3)
    assert places(spark, tmp_path) == Counter(sent(pair, topic, 100))


def test_small_files_are_merged(spark: SparkSession, pair: Pair, tmp_path: pathlib.Path) -> None:
    pair.make_topic("Small", 2)
    pair.send("Small", 80)
    options = pair.options("Small", maxOffsetsPerTrigger=20)
    running = archive(spark, options, tmp_path, compact_files=4)
    assert running.rewritten >= 4
    pair.send("Small", 20, first=80)
    archive(spark, options, tmp_path, compact_files=0)
    before = places(spark, tmp_path)
    done = compact(spark, tmp_path)
    assert [(part.topic, part.rows, part.files_after) for part in done.parts] == [("Small", 100, 1)]
    assert done.files_before > done.files_after == 1
    assert len(list(tmp_path.glob("date=*/topic=*/*.parquet"))) == 1
    assert places(spark, tmp_path) == before == Counter(sent(pair, "Small", 100))
    assert compact(spark, tmp_path).parts == ()


def test_what_is_no_archive_is_said_so(spark: SparkSession, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="the folder of an archive"):
        read_archive(spark, tmp_path)
