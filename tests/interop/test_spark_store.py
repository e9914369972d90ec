"""A generated store: Spark's rows are what RocketMQ's own decoder finds in the same files.

RMQ_SPARK_STORE_MIB is its size (64). Both sides print a sum of hashes for each column, whatever the order
of the rows; a hash covers the message's physical offset, so no two values can be exchanged.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest

from tests.interop.rocketmq import Processes

pytest.importorskip("pyspark")

pytestmark = pytest.mark.interop

SIZE = int(os.environ.get("RMQ_SPARK_STORE_MIB", "64")) << 20
MASK = (1 << 64) - 1
COLUMNS = (
    "topic", "queueId", "queueOffset", "physicalOffset", "body", "tags", "keys", "msgId", "properties",
    "bornTimestamp", "storeTimestamp", "bornHost", "storeHost", "reconsumeTimes", "sysFlag", "flag",
    "preparedTransactionOffset",
)  # fmt: skip


def in_java_words(value: Any) -> bytes:
    """The bytes that java/StoreDigest.java takes of a value."""
    if isinstance(value, bytes):
        return value
    if value is None:
        return b"null"
    if isinstance(value, dict):
        return "\x02".join(f"{name}\x01{value[name]}" for name in sorted(value)).encode()
    return str(value).encode()


def digests(rows: Iterator[Any]) -> Iterator[dict[str, int]]:
    """Of a partition's rows: their number and each column's sum."""
    sums = dict.fromkeys(("count", *COLUMNS), 0)
    for row in rows:
        sums["count"] += 1
        place = b"%d " % row["physicalOffset"]
        for name in COLUMNS:
            value = row[name]
            taken = bytes(value) if name == "body" else in_java_words(value)
            sums[name] += int.from_bytes(sha256(place + taken).digest()[:8], "big")
    yield sums


def test_a_generated_store_has_the_rows_that_java_decodes(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    from pyspark.cloudpickle import register_pickle_by_value
    from pyspark.sql import functions

    from benchmarks.spark_scan import make_store
    from rmq.spark import session

    register_pickle_by_value(sys.modules[__name__])  # Spark's workers do not have the tests
    count = make_store(tmp_path / "store", SIZE)
    java = processes.program("StoreDigest", str(tmp_path / "store" / "commitlog"))
    (expected,) = java.finish(seconds=1800)
    spark = session("rmq interop", master="local[2]", settings={"spark.driver.memory": "512m"})
    try:
        frame = spark.read.format("rmqstore").load(str(tmp_path / "store"))
        for name in ("bornTimestamp", "storeTimestamp"):
            frame = frame.withColumn(name, functions.unix_millis(name))
        rows = frame.rdd.mapPartitions(digests).collect()
    finally:
        spark.stop()
    assert sum(row["count"] for row in rows) == expected["count"] == count
    found = {name: f"{sum(row[name] for row in rows) & MASK:x}" for name in COLUMNS}
    assert found == expected["sums"]
