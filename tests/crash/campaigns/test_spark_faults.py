"""Streams of Spark from a topic into Parquet, Iceberg, a topic, and by foreachBatch into a topic and dead
letters, under faults in random turn: `nox -s spark_faults`. RMQ_SPARK_FAULTS says how many (20),
RMQ_KILL_SEED their order.

In the end the source has the truth: what was acknowledged is in it, and each of its messages is in each
target once. Without RMQ_LAKEHOUSE, which names the jar of Iceberg, there is no Iceberg among them.
"""

from __future__ import annotations

import os
import pathlib
import random
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.crash.spark.faults import (
    LETTERS,
    Brokers,
    Difference,
    Faults,
    Job,
    difference,
    is_good,
    make_topics,
    writers,
)
from tests.crash.spark.job import EACH, IN, OUT, TABLE
from tests.crash.spark.stream import stored
from tests.interop.rocketmq import Processes

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.crash

FORM, _, JAR = os.environ.get("RMQ_LAKEHOUSE", "").partition(":")
FAULTS = int(os.environ.get("RMQ_SPARK_FAULTS", "20"))
SEED = int(os.environ.get("RMQ_KILL_SEED", "1"))
NONE = Difference(0, 0)
CHECK_MEMORY, EXAMPLES = "3g", 5
Places = Mapping[tuple[str, int, int], bytes]


@pytest.fixture
def processes(tmp_path: pathlib.Path) -> Iterator[Processes]:
    with Processes(cast(Any, None), tmp_path) as started:
        yield started


def iceberg_settings(folder: pathlib.Path) -> dict[str, str]:
    return {
        "spark.jars" if JAR.endswith(".jar") else "spark.jars.packages": JAR,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(folder / "lake"),
    }


def counted(values: Iterable[Hashable]) -> Counter[Hashable]:
    return Counter(values)


def in_tables(job: Job, folder: pathlib.Path) -> dict[str, Counter[Hashable]]:
    """(place, body) of each row of the tables, as read by Spark."""
    from rmq.spark import read_table, session

    def rows(frame: DataFrame) -> Counter[Hashable]:
        found = frame.select("brokerName", "queueId", "queueOffset", "body").toLocalIterator()
        return counted(((row[0], row[1], row[2]), bytes(row[3])) for row in found)

    settings = {**job.settings, "spark.driver.memory": CHECK_MEMORY}
    spark = session("check", master="local[2]", settings=settings)
    try:
        tables = {"parquet": rows(read_table(spark, f"{folder}/parquet", to="parquet"))}
        if FORM == "iceberg":
            tables["iceberg"] = rows(read_table(spark, TABLE, to="iceberg"))
        return tables
    finally:
        spark.stop()


def test_each_message_is_in_each_target_once_whatever_fails(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    streams = ["parquet", "sink", "each", *(["iceberg"] if FORM == "iceberg" else [])]
    settings = iceberg_settings(tmp_path) if FORM == "iceberg" else {}
    brokers = Brokers(processes, tmp_path)
    make_topics(brokers.namesrv)
    with writers(brokers.namesrv) as sent:
        job = Job(processes, tmp_path, brokers.namesrv, streams, settings)
        faults = Faults(brokers, job, random.Random(SEED))
        faults.make(FAULTS)
    job.finish()

    truth: Places = stored(brokers.namesrv, IN)
    bodies = counted(truth.values())
    there = {topic: counted(stored(brokers.namesrv, topic).values()) for topic in (OUT, EACH, LETTERS)}
    expected = {
        OUT: bodies,
        EACH: counted(each for each in truth.values() if is_good(each)),
        LETTERS: counted(each for each in truth.values() if not is_good(each)),
    }
    tables = in_tables(job, tmp_path)
    there |= tables
    expected |= {name: counted(truth.items()) for name in tables}
    found = {name: difference(expected[name], there[name]) for name in there}
    lost = len(set(sent.acknowledged) - set(truth.values()))
    print(
        f"seed {SEED}: {FAULTS} faults {dict(faults.made)}, {len(sent.acknowledged)} messages acknowledged,"
        f" {sent.refused} batches refused, {len(truth)} stored; the slave lacked {faults.behind};"
        f" {len(job.ended)} streams failed and were started again"
    )
    for name, one in found.items():
        print(f"{name}: {there[name].total()} rows, {one.lost} lost, {one.doubled} doubled")
        for kind, some in ("lost", expected[name] - there[name]), ("doubled", there[name] - expected[name]):
            for example in list(some)[:EXAMPLES]:
                print(f"  {kind}: {str(example)[:200]}")
    assert lost == 0
    assert len(truth) > 20 * FAULTS
    assert found == dict.fromkeys(found, NONE)
    assert faults.behind > 0 or not any("slave" in kind for kind in faults.made)
