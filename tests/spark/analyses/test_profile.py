"""Topic profiles: every figure against what was made."""

from __future__ import annotations

import gzip
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rmq.spark.formats.schema import spark_schema
from rmq.spark.pipelines.profile import body_form, profile_topics

BEGIN = datetime(2026, 11, 21, tzinfo=UTC)
FORMS = {
    b"": "empty",
    b' {"a": 1}\n': "json",
    b"[1, 2]": "json",
    b"{not closed": "text",
    b"<order/>": "xml",
    "Größe".encode(): "text",
    "Größe".encode("latin-1"): "binary",
    b"\x00\x01": "binary",
    gzip.compress(b"x"): "gzip",
    zlib.compress(b"x"): "zlib",
    b"\x28\xb5\x2f\xfd\x00": "zstd",
    b"\x04\x22\x4d\x18\x00": "lz4",
    b"\xac\xed\x00\x05": "java",
}


def test_forms_of_bodies(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(bytearray(body), form) for body, form in FORMS.items()], "body binary, form string"
    )

    found = frame.withColumn("found", body_form(F.col("body")))
    assert [row["body"] for row in found.where("found != form").collect()] == []


def message(number: int, body: bytes, **more: Any) -> dict[str, Any]:
    tags = more.get("tags")
    properties = {"WAIT": "true"} | ({"TAGS": tags} if tags else {})
    row = {
        "topic": "Orders", "brokerName": "b", "queueId": 0, "body": bytearray(body), "keys": None,
        "tags": None, "properties": properties, "storeTimestamp": BEGIN + timedelta(seconds=number),
    }  # fmt: skip
    return row | more


def test_every_figure(spark: SparkSession, tmp_path: Path) -> None:
    made = [
        message(number, b"a" * (number + 1), queueId=int(number > 5), tags="t" if number < 8 else None)
        for number in range(10)
    ]
    made += [message(10, b"{}", keys="k1 k2"), message(20, b"{}", keys="k1", topic="Other")]
    made += [message(19, b"a" * 1000, keys=" k1  k3")]
    schema = spark_schema([*made[0]])

    frame = spark.createDataFrame([tuple(row.values()) for row in made], schema)
    summary = profile_topics(spark, frame, str(tmp_path), window_ms=10_000)
    orders, other = summary.parts
    assert (summary.messages, summary.bytes) == (13, 55 + 2 + 1000 + 2)
    assert (orders.topic, orders.messages, orders.bytes) == ("Orders", 12, 1057)
    assert orders.rate == pytest.approx(12 / 19)
    assert (orders.p50_size, orders.p99_size, orders.max_size) == (5, 1000, 1000)
    assert (orders.keyless, orders.distinct_keys, orders.repeated_keys) == (10, 3, 1)
    assert (orders.queues, orders.queue_skew) == (2, pytest.approx(2 * 8 / 12))
    assert (orders.tags, orders.tag_skew, orders.form) == (1, 1.0, "text")
    assert 0 < orders.compressed_to < 0.2
    assert (other.messages, other.rate, other.form, other.compressed_to) == (1, 0.0, "json", 1.0)

    def read(name: str, column: str) -> list[tuple[Any, ...]]:
        rows = spark.read.parquet(str(tmp_path / name)).where("topic = 'Orders'").select(column, "messages")
        return [tuple(row) for row in rows.collect()]

    assert read("sizes", "from") == [(1, 1), (2, 3), (4, 4), (8, 3), (512, 1)]
    assert read("tags", "tag") == [("t", 8), (None, 4)]
    assert read("queues", "queue") == [("b/0", 8), ("b/1", 4)]
    assert read("keys", "key") == [("k1", 2)]
    assert read("properties", "name") == [("WAIT", 12), ("TAGS", 8)]
    assert read("forms", "form") == [("text", 11), ("json", 1)]
    assert [count for _, count in read("rates", "begin")] == [10, 2]
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 12
    assert "://" not in page


def test_nothing(spark: SparkSession, tmp_path: Path) -> None:
    summary = profile_topics(spark, spark.createDataFrame([], spark_schema()), str(tmp_path))

    assert (summary.messages, summary.parts) == (0, ())
