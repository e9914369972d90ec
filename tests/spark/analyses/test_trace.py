"""Trace analytics: the rows are those of the slow decoder, percentiles those reckoned one by one."""

from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rmq.errors import RemoteProtocolError
from rmq.protocol.trace import TraceType, decode
from rmq.spark.pipelines.report import Line, bar_chart, line_chart, page, table
from rmq.spark.pipelines.trace import analyse_traces, trace_rows
from tests.spark.traces import make_traces, reference, table_of

MESSAGES = 34_000  # some 100,000 rows
SEED = 20261121
READ = (TraceType.PUB, TraceType.STORE, TraceType.SUB_BEFORE, TraceType.SUB_AFTER)


def rows_by_hand(text: str) -> list[tuple[Any, ...]] | None:
    """The rows of one context as the slow decoder reads it; None when it cannot."""
    try:
        contexts = decode(text)
    except RemoteProtocolError:
        return None
    return [
        (one.type.value, one.timestamp_ms, one.group, bean.message_id, bean.topic, one.cost_ms, one.success)
        for one in contexts
        if one.type in READ
        for bean in one.beans
    ]


def test_rows_are_those_of_the_decoder(spark: SparkSession, golden: Path, tmp_path: Path) -> None:
    """Texts that RocketMQ's encoder made, and texts of older clients that its decoder reads."""
    cases = json.loads((golden / "trace.json").read_text())
    texts = [one["text"] for one in cases["encoded"] + cases["decoded"]]
    contexts = [part + "\x02" for text in texts for part in text.split("\x02") if part]
    by_hand = [rows_by_hand(context) for context in contexts]
    pq.write_table(table_of(contexts), tmp_path / "t.parquet")

    rows = trace_rows(spark.read.parquet(str(tmp_path))).fillna(
        {"at": 0, "group": "", "topic": "", "costMs": 0}
    )
    columns = ("type", "at", "group", "msgId", "topic", "costMs", "success")
    good = [tuple(row) for row in rows.where("readable").select(*columns).collect()]
    assert good == [row for found in by_hand if found for row in found]
    assert rows.where("not readable").count() == by_hand.count(None) == 1


@pytest.fixture(scope="module")
def bodies() -> list[str]:
    return make_traces(MESSAGES, random.Random(SEED))


def test_percentiles_are_exact(spark: SparkSession, bodies: list[str], tmp_path: Path) -> None:
    pq.write_table(table_of([*bodies, "Pub\x01soon\x02", "Other\x011\x02"]), tmp_path / "t.parquet")

    frame = spark.read.parquet(str(tmp_path / "t.parquet"))
    summary = analyse_traces(spark, frame, str(tmp_path / "out"), window_ms=30_000)
    expected = reference(bodies)
    found = {
        (one.kind, one.topic, one.group): (one.count, one.failed, one.p50, one.p90, one.p99, one.max)
        for one in summary.parts
    }
    assert found == expected, f"seed {SEED}"
    assert summary.rows - 1 == sum(body.count("\x02") for body in bodies) > 100_000
    assert summary.unreadable == 1

    windows = spark.read.parquet(str(tmp_path / "out" / "windows"))
    rows = windows.select(
        "kind", "topic", "group", F.unix_millis("begin"), "count", "failed", "p50", "p90", "p99", "max"
    )
    assert {tuple(row)[:4]: tuple(row)[4:] for row in rows.collect()} == reference(bodies, 30_000)
    assert spark.read.parquet(str(tmp_path / "out" / "totals")).count() == len(expected)
    text = (tmp_path / "out" / "report.html").read_text()
    assert text.count("<svg") == 24
    assert "src=" not in text
    assert "://" not in text


def test_no_traces_at_all(spark: SparkSession, tmp_path: Path) -> None:
    summary = analyse_traces(spark, spark.createDataFrame([], "body binary"), str(tmp_path))

    assert (summary.rows, summary.parts) == (0, ())
    text = (tmp_path / "report.html").read_text()
    assert "nothing" in text
    assert "traceTopicEnable=true" in text, "how to switch them on"


def test_a_chart_of_zeros_has_an_axis_and_long_names_do_not_overlap() -> None:
    drawn = line_chart("lag", [Line("a-name-that-is-long", [(0, 0), (1000, 0)]), Line("b", [(0, 0)])], "ms")
    labels = re.findall(r'text-anchor="end">([^<]*)</text>', drawn)
    assert labels[1:6] == ["0", "0.25", "0.50", "0.75", "1"]
    places = [float(x) for x in re.findall(r'<text x="([0-9.]+)" y="22" style', drawn)]
    assert places[1] - places[0] > 7 * len("a-name-that-is-long")


def test_what_others_wrote_is_text_in_the_page() -> None:
    bad = "<script>alert(1)</script>"
    lines = [Line(bad, [(0, 1.0), (1000, 5.0)]), Line("one point", [(0, 3.0)])]
    drawn = [table([{bad: bad, "n": 1.5}]), line_chart(bad, lines, bad), bar_chart(bad, [(bad, 3.0)], "x")]

    text = page(bad, drawn)
    assert "<script" not in text
    ET.fromstring(text.split("\n", 1)[1].replace('<meta charset="utf-8">', ""))
