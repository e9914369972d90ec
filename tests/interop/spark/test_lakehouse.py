"""Topics into Iceberg and Delta: append, MERGE, a batch that comes again; `nox -s iceberg` and `nox -s delta`
bring the Spark and the jar that fit each other."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.cluster import Pair, running

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop

PACKAGES = os.environ.get("RMQ_LAKEHOUSE", "")
"""``iceberg`` or ``delta``, a colon, and the Maven coordinates or the path of its jar."""
FORM, _, JAR = PACKAGES.partition(":")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from rmq.spark import session

    if FORM not in ("iceberg", "delta"):
        pytest.skip("RMQ_LAKEHOUSE names no jar")
    settings = {
        "spark.jars" if JAR.endswith(".jar") else "spark.jars.packages": JAR,
        "spark.sql.shuffle.partitions": "2",
    }
    if FORM == "iceberg":
        settings |= {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(tmp_path_factory.mktemp("lake")),
        }
    else:
        settings |= {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    started = session("lakehouse", master="local[2]", settings=settings)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(tmp_path_factory.mktemp("broker")) as opened:
        yield opened


def test_a_topic_becomes_a_table_each_message_once(
    spark: SparkSession, pair: Pair, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq.spark import archive_table, compact_table, read_table
    from rmq.spark.pipelines import tables

    print(f"Spark {spark.version}, {JAR}")
    pair.make_topic("Lake", 2)
    target = "lake.shop.orders" if FORM == "iceberg" else str(tmp_path / "orders")

    def run(**more: str) -> Any:
        return archive_table(
            spark,
            pair.options("Lake", **more),
            target,
            to=FORM,
            checkpoint=str(tmp_path / "checkpoint"),  # type: ignore[arg-type]
        )

    def bodies() -> list[str]:
        rows = read_table(spark, target, to=FORM).select("body").collect()  # type: ignore[arg-type]
        return sorted(bytes(row.body).decode() for row in rows)

    pair.send("Lake", 40)
    assert run().rows == 40
    take = tables.TableJob.take

    def die_after_writing(job: Any, frame: Any, batch_id: int) -> None:
        take(job, frame, batch_id)
        raise RuntimeError("killed before Spark knows")

    pair.send("Lake", 10, first=40)
    with monkeypatch.context() as patched:
        patched.setattr(tables.TableJob, "take", die_after_writing)
        with pytest.raises(Exception, match="killed before Spark knows"):
            run()
    again = run()
    assert (again.skipped, again.batches, again.rows) == (1, 0, 0)
    assert bodies() == sorted(f"b{number}" for number in range(50))
    # Where the history has forgotten it, Delta's log of transactions passes over it.
    pair.send("Lake", 5, first=50)
    with monkeypatch.context() as patched:
        patched.setattr(tables.TableJob, "take", die_after_writing)
        with pytest.raises(Exception, match="killed before Spark knows"):
            run()
    with monkeypatch.context() as patched:
        patched.setattr(tables, "_COMMITS", 0 if FORM == "delta" else tables._COMMITS)
        again = run()
    assert (again.skipped, again.rows) == (1, 0)
    assert bodies() == sorted(f"b{number}" for number in range(55))
    assert compact_table(spark, target, to=FORM) > 0  # type: ignore[arg-type]
    assert bodies() == sorted(f"b{number}" for number in range(55))
    # What comes a second time by another way is merged by the message's place.
    rows = spark.read.format("rmq").options(**pair.options("Lake")).load()
    rows.selectExpr("*", f"{tables.DATE_UTC} AS date").createOrReplaceTempView("coming")
    pair.send("Lake", 6, first=55)
    name = target if FORM == "iceberg" else f"delta.`{target}`"
    same = " AND ".join(f"t.{c} = s.{c}" for c in ("topic", "brokerName", "queueId", "queueOffset"))
    if FORM == "iceberg":
        spark.catalog.refreshTable(target)
    spark.sql(f"MERGE INTO {name} t USING coming s ON {same} WHEN NOT MATCHED THEN INSERT *")
    assert bodies() == sorted(f"b{number}" for number in range(61))


def test_changes_are_merged_with_deletes_and_new_columns(
    spark: SparkSession, pair: Pair, tmp_path: pathlib.Path
) -> None:
    from tests.spark.job_files import FORMS, maxwell, run_file, send

    name = "lake.shop.customers" if FORM == "iceberg" else f"delta.`{tmp_path}/customers`"
    to = {"table": name} if FORM == "iceberg" else {"path": f"{tmp_path}/customers"}

    def run(schema: str = "id int, name string", **more: Any) -> Any:
        stream = {
            "source": pair.options("Merged", startingOffsets="earliest"),
            "cdc": {"form": "maxwell", "schema": schema},
            "key": ["id"],
            "dlq": "merged",
            "to": {"format": FORM, **to},
            "checkpoint": str(tmp_path / "cp"),
            "compact": 2,
            **more,
        }
        return run_file(spark, {"streams": {"customers": stream}})

    def rows(*columns: str) -> list[tuple[Any, ...]]:
        if FORM == "iceberg":
            spark.catalog.refreshTable(name)
        found = spark.table(name).where("not rmq_deleted").select(*columns).collect()
        return sorted(tuple(row) for row in found)

    pair.make_topic("%DLQ%merged", 1)
    first, second = FORMS["maxwell"]
    send(pair, "Merged", *first)
    assert not run().errors
    assert rows("id", "name") == [(1, "a2"), (2, "b")]
    send(pair, "Merged", *second)
    assert not run().errors
    assert rows("id", "name") == [(1, "a2"), (3, "c")]
    send(pair, "Merged", maxwell("insert", 60, {"id": 4, "name": "d", "city": "Ulm"}))
    failed = run("id bigint, name string, city string")
    assert "evolve" in failed.errors["customers"]
    ran = run("id bigint, name string, city string", evolve="widen")
    assert not ran.errors
    assert rows("id", "city") == [(1, None), (3, None), (4, "Ulm")]
    removes = {
        "cdc": {"form": "maxwell", "schema": "id bigint, name string, city string", "deletes": "remove"}
    }
    send(pair, "Merged", maxwell("delete", 70, {"id": 4}))
    assert not run(**removes, evolve="widen").errors
    assert rows("id") == [(1,), (3,)]
    assert spark.table(name).where("id = 4").count() == 0
