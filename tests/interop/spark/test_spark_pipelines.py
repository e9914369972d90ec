"""Declarative pipelines (`spark-pipelines run`): a streaming table from a topic, and a view over it."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
from collections import Counter

import pytest

from rmq.spark.runtime import java_home
from tests.interop.spark.spark_cluster import environment_of, unpacked_home
from tests.spark.cluster import running

pytest.importorskip("pyspark.pipelines", reason="Spark 4.1 or later")

COUNT = 300
SPEC = """
name: orders
storage: file://{folder}/storage
libraries:
  - glob: {{include: definitions/**}}
configuration:
  spark.sql.shuffle.partitions: "2"
"""
DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.active()
OPTIONS = {options!r}

@dp.table
def orders():
    rows = spark.readStream.format("rmq").options(**OPTIONS).load()
    return rows.select("queueId", "queueOffset", F.col("body").cast("string").alias("body"))

@dp.materialized_view
def by_queue():
    return spark.read.table("orders").groupBy("queueId").count()
"""


def rows_of(folder: pathlib.Path, table: str) -> list[dict[str, object]]:
    """The rows of a table's files."""
    import pyarrow.parquet as pq

    paths = sorted((folder / "spark-warehouse" / table).glob("*.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


@pytest.mark.interop
@pytest.mark.skipif(importlib.util.find_spec("grpc_status") is None, reason="needs pyspark[connect]")
def test_a_streaming_table_has_each_message_once(tmp_path: pathlib.Path) -> None:
    (tmp_path / "definitions").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    home = unpacked_home(tmp_path)
    with running(tmp_path / "cluster") as cluster, java_home() as java:
        cluster.make_topic("In", 2)
        options = cluster.options("In", startingOffsets="earliest")
        (tmp_path / "definitions" / "orders.py").write_text(DEFINITIONS.format(options=options))
        environment = environment_of(home, java)
        cluster.send("In", COUNT, queues=2)
        done = subprocess.run(
            [str(home / "bin" / "spark-pipelines"), "run"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    bodies = Counter(str(row["body"]) for row in rows_of(tmp_path, "orders"))
    assert bodies == Counter(f"b{n}" for n in range(COUNT))
    counts = {row["queueId"]: row["count"] for row in rows_of(tmp_path, "by_queue")}
    assert counts == {0: COUNT // 2, 1: COUNT // 2}
