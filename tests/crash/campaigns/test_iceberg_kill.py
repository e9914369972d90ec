"""A stream from two brokers into an Iceberg table, killed by SIGKILL again and again, while the brokers are
killed and started again in turn: `nox -s iceberg_kill`. RMQ_SPARK_KILLS says how often (20).

Driver, Java and workers die at once, at any moment of a batch. The topic has the truth in the end: each of
its messages is in the table, and none twice.
"""

from __future__ import annotations

import os
import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.crash.spark.stream import Stream, campaign, stored
from tests.interop.rocketmq import Processes

pytest.importorskip("pyspark")

pytestmark = pytest.mark.crash

FORM, _, JAR = os.environ.get("RMQ_LAKEHOUSE", "").partition(":")
KILLS = int(os.environ.get("RMQ_SPARK_KILLS", "20"))
SEED = int(os.environ.get("RMQ_KILL_SEED", "1"))
TABLE = "lake.shop.orders"

JOB = """
import json, sys
from rmq.spark import archive_table, session

given = json.loads(sys.argv[1])
spark = session("killed", master="local[2]", settings=given["settings"])
archive_table(spark, given["options"], "lake.shop.orders", to="iceberg", checkpoint=given["checkpoint"],
              every_seconds=given["every"])
spark.stop()
"""


@pytest.fixture
def processes(tmp_path: pathlib.Path) -> Iterator[Processes]:
    with Processes(cast(Any, None), tmp_path) as started:
        yield started


def test_a_stream_into_iceberg_that_is_killed_again_and_again_has_every_message_once(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    if FORM != "iceberg":
        pytest.skip("RMQ_LAKEHOUSE names no jar of Iceberg")
    settings = {
        "spark.jars" if JAR.endswith(".jar") else "spark.jars.packages": JAR,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(tmp_path / "lake"),
    }
    stream = Stream(processes, tmp_path, JOB, settings=settings)
    writers = campaign(stream, KILLS, SEED)

    from rmq.spark import read_table, session

    spark = session("check", master="local[2]", settings=stream.settings)
    rows = (
        read_table(spark, TABLE, to="iceberg")
        .select("brokerName", "queueId", "queueOffset", "body")
        .collect()
    )
    spark.stop()
    expected = stored(stream.namesrv)
    found = Counter((row.brokerName, row.queueId, row.queueOffset) for row in rows)
    lost = len(expected.keys() - found.keys())
    doubled = sum(count - 1 for count in found.values())
    print(
        f"seed {SEED}: {KILLS} kills, {len(expected)} messages ({len(writers.acknowledged)} acknowledged,"
        f" {writers.refused} batches refused), {len(rows)} rows, {lost} lost, {doubled} doubled"
    )
    assert len(expected) > 100 * KILLS
    assert (lost, doubled) == (0, 0)
    assert {(row.brokerName, row.queueId, row.queueOffset): bytes(row.body) for row in rows} == expected
    assert set(writers.acknowledged) <= set(expected.values())
