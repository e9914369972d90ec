"""Rows that cannot be messages: named, left out, or written as letters."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from rmq.errors import MessageIllegal
from rmq.spark import dead_letters
from rmq.spark.formats.bad_rows import reasons
from rmq.spark.options import write_options
from rmq.spark.sink import Sent, write_rows
from tests.spark.cluster import Pair, running
from tests.spark.writing.keeping import KEEPS, bodies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST = 1000
ROWS: list[dict[str, Any]] = [
    {"body": b"one", "keys": "k1", "properties": [("a", "b")], "topic": None},
    {"body": None, "keys": "k2", "properties": None, "topic": None},
    {"body": b"", "keys": None, "properties": None, "topic": None},
    {"body": b"x" * (MOST + 1), "keys": "k4", "properties": None, "topic": None},
    {"body": b"five", "keys": "k\x01", "properties": None, "topic": None},
    {"body": b"six", "keys": "k6", "properties": [("TAGS", "t")], "topic": None},
    {"body": b"seven", "keys": "k7", "properties": [("a", "y" * 40_000)], "topic": None},
    {"body": b"eight", "keys": "k8", "properties": [("a", "\x02")], "topic": None},
    {"body": b"nine", "keys": "k9", "properties": None, "topic": "no topic"},
    {"body": b"ten", "keys": None, "properties": [], "topic": None},
]
SCHEMA = pa.schema(
    {
        "body": pa.binary(),
        "keys": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()),
        "topic": pa.string(),
    }
)


def batch() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(ROWS, SCHEMA)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(tmp_path_factory.mktemp("pair"), settings=KEEPS) as started:
        yield started


def write(pair: Pair, topic: str, **more: object) -> Sent:
    options = write_options(pair.options(topic, maxMessageBytes=MOST, **more))
    return write_rows(options, iter([batch()]), "run/0/0")


def test_each_reason_is_found() -> None:
    found = reasons(batch(), "Orders", MOST)
    assert [reason is None for reason in found] == [True, *[False] * 8, True]
    for reason, part in zip(
        found[1:-1],
        ["null", "empty", "more than 1000 bytes", "its keys", "TAGS", "32767", "a property", "its topic"],
        strict=True,
    ):
        assert part in str(reason)


def test_an_error_names_topic_key_and_reason_and_the_log_says_nothing_false(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.make_topic("Strict", 1)
    with pytest.raises(MessageIllegal, match=r"topic Strict, key k2: its body is null, and 7 more.*onBadRow"):
        write(pair, "Strict")
    small = {"body": [b"y" * 5_000_000], "keys": ["big"]}
    options = write_options(pair.options("Strict", maxMessageBytes=10_000_000))
    with pytest.raises(MessageIllegal, match="5000104 bytes, 4259840 are the most"):
        write_rows(options, iter([pa.record_batch(small)]), "run/1/0")
    assert "rows may be there twice" not in caplog.text


def test_bad_rows_are_left_out_with_a_warning(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.make_topic("Skipped", 1)
    with caplog.at_level(logging.WARNING):
        sent = write(pair, "Skipped", onBadRow="skip")
    assert (sent.rows, sent.bad) == (2, 8)
    assert "onBadRow=skip): topic Skipped, key k2: its body is null" in caplog.text
    assert sorted(bodies(pair.names, "Skipped")) == ["one", "ten"]


def test_bad_rows_become_letters_once(spark: SparkSession, pair: Pair) -> None:
    for topic in ("Lettered", "%DLQ%writers"):
        pair.make_topic(topic, 1)
    for _ in range(2):  # the task runs again
        assert write(pair, "Lettered", onBadRow="dlq", deadLetterGroup="writers").bad == 8
    assert sorted(bodies(pair.names, "Lettered")) == ["one", "ten"]
    letters = dead_letters(spark, {"nameServer": pair.names}, ["writers"]).collect()
    found = {row["keys"]: (row.originTopic, row.reason, len(row.body)) for row in letters}
    assert len(letters) == 8
    assert found["k2"] == ("Lettered", "its body is null", len("its body is null"))
    assert found["k4"][2] == MOST
    assert found["k9"][0] == "no topic"
    frame = spark.createDataFrame([(b"good",), (None,), (b"",)], "body binary")
    writer = frame.write.format("rmq").mode("append")
    with pytest.raises(PySparkException, match=r"topic Lettered, key \S+: its body is (null|empty)"):
        writer.options(**pair.options("Lettered")).save()
    writer.options(**pair.options("Lettered", onBadRow="dlq", deadLetterGroup="writers")).save()
    assert bodies(pair.names, "Lettered").count("good") in (1, 2)
    assert len(bodies(pair.names, "%DLQ%writers")) == 10
