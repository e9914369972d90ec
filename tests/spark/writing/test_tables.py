"""Archives as tables: each batch once, on Hadoop's file systems; `tests/interop` has Iceberg and Delta."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from rmq.errors import ConfigError
from rmq.spark import archive_table, compact_table, read_table
from rmq.spark.pipelines import tables
from tests.spark.cluster import Pair, running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(tmp_path_factory.mktemp("broker")) as opened:
        yield opened


def bodies(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


def numbers(count: int) -> list[str]:
    return sorted(f"b{number}" for number in range(count))


def test_batches_on_a_hadoop_path_are_there_once_and_merged(
    spark: SparkSession, pair: Pair, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.make_topic("Tabled", 2)
    target, checkpoint = (tmp_path / "table").as_uri(), (tmp_path / "checkpoint").as_uri()

    def run(**more: str) -> tables.ArchivedTable:
        options = pair.options("Tabled", **more)
        return archive_table(spark, options, target, to="parquet", checkpoint=checkpoint)

    pair.send("Tabled", 40)
    assert (run(maxOffsetsPerTrigger="20").rows, len(list((tmp_path / "table").glob("batch=*")))) == (40, 2)
    take = tables.TableJob.take

    def die_after_writing(job: Any, frame: DataFrame, batch_id: int) -> None:
        take(job, frame, batch_id)
        raise RuntimeError("killed before Spark knows")

    pair.send("Tabled", 10, first=40)
    with monkeypatch.context() as patched:
        patched.setattr(tables.TableJob, "take", die_after_writing)
        with pytest.raises(Exception, match="killed before Spark knows"):
            run()
    again = run()
    assert (again.rows, again.batches, again.skipped) == (0, 0, 1)
    found = read_table(spark, target, to="parquet")
    assert bodies(found) == numbers(50)
    assert {(row.topic, str(row.date)[:2]) for row in found.select("topic", "date").collect()} == {
        ("Tabled", "20")
    }

    # A batch whose writing was cut off has no mark, and is written anew.
    (newest,) = (tmp_path / "table").glob("batch=*-0000000002")
    (newest / "_SUCCESS").unlink()
    assert bodies(read_table(spark, target, to="parquet")) == numbers(40), "what is not whole is not read"
    (newest / "_SUCCESS").touch()

    # Killed while merged: the list is there, the old ones are not deleted yet.
    with monkeypatch.context() as patched:
        patched.setattr(tables._Folder, "delete_replaced", lambda folder: None)
        assert compact_table(spark, target, to="parquet") == 2
    assert len(list((tmp_path / "table").glob("batch=*"))) == 4
    assert bodies(read_table(spark, target, to="parquet")) == numbers(50)
    assert compact_table(spark, target, to="parquet") == 0, "Spark may bring the newest batch again"
    assert len(list((tmp_path / "table").glob("batch=*"))) == 2
    assert bodies(read_table(spark, target, to="parquet")) == numbers(50)


def test_wrong_words_are_refused(spark: SparkSession, pair: Pair, tmp_path: pathlib.Path) -> None:
    given = pair.options("Tabled")
    with pytest.raises(ConfigError, match=r"to = 'orc'.*parquet, delta, iceberg"):
        archive_table(spark, given, str(tmp_path / "t"), to="orc", checkpoint=str(tmp_path / "c"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"partition = 'day'.*expected some of topic"):
        archive_table(
            spark, given, str(tmp_path / "t"), to="parquet", checkpoint=str(tmp_path / "c"), partition=["day"]
        )
