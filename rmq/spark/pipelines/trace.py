"""Trace analytics: durations of sends, deliveries and consumption, by topic and group, over time.

The input is the messages of the trace topic, from clients and brokers of rmq and clients of RocketMQ 4.9 (see
`rmq.protocol.trace`). Three times are measured, in ms:

- `send`: the producer's wait for the response.
- `deliver`: from storing to the first delivery to a consumer of the group, by the clocks of both machines.
  The broker's traces (type Store) have the store time; without them the middle of the send is used, as by
  RocketMQ's client. Delayed messages are left out: they wait on purpose.
- `consume`: the consumer's work.

Percentiles are exact (the smallest value that so many of a hundred do not exceed), over successes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from attrs import astuple, frozen
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from rmq.protocol.trace import CONTEXT_END, FIELD_END, TraceMessageType, TraceType
from rmq.spark.pipelines.progress import Watch, unwatched, watched
from rmq.spark.pipelines.report import Line, begin_of, heading, line_chart, table, window_for, write_page

SEND: Final = "send"
DELIVER: Final = "deliver"
CONSUME: Final = "consume"
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
CHARTS: Final = 24
_KEYS: Final = ("kind", "topic", "group")


@frozen
class Latency:
    """The latencies of a topic and group, in ms; None when nothing succeeded.

    `kind`: send, deliver or consume."""

    kind: str
    topic: str | None
    group: str | None
    count: int
    failed: int
    mean: float | None
    p50: int | None
    p90: int | None
    p99: int | None
    max: int | None


@frozen
class TraceSummary:
    """Result of an analysis. `unreadable` rows were ignored; `unmatched` are deliveries and consumptions of
    messages whose sending was not traced (or not yet), so that the topic is unknown."""

    rows: int
    unreadable: int
    unmatched: int
    window_ms: int
    output: str
    seconds: float
    parts: tuple[Latency, ...]


def analyse_traces(
    spark: SparkSession, messages: DataFrame, output: str, *, window_ms: int = 0, watch: Watch = unwatched
) -> TraceSummary:
    """Analyse the messages of a trace topic (their column `body` is read), from whatever source.

    Into the folder `output` go, in place of an earlier analysis: `windows` and `totals` as Parquet, and
    `report.html`. `window_ms`: length of a window; 0: chosen by the duration of the traces. Parquet may go to
    any place that Spark can write; the page is written by the driver. Raises OSError.
    """
    begun = time.monotonic()
    with watched(spark, watch):
        rows = trace_rows(messages).persist()
        measured = measures(rows).persist()
        counts = rows.agg(F.count("*"), F.count_if(~F.col("readable"))).first()
        bounds = measured.agg(F.min("at"), F.max("at"), F.count_if(F.col("topic").isNull())).first()
        assert counts is not None
        assert bounds is not None
        first, last, unmatched = bounds
        window_ms = window_ms or window_for(0 if first is None else last - first)
        windows = latencies(measured, window_ms).persist()
        totals = latencies(measured)
        windows.orderBy(*_KEYS, "begin").coalesce(1).write.mode("overwrite").parquet(f"{output}/windows")
        found = tuple(Latency(**row.asDict()) for row in totals.orderBy(*_KEYS).collect())
        spark.createDataFrame([astuple(one) for one in found], _TOTALS).write.mode("overwrite").parquet(
            f"{output}/totals"
        )
        parts = _report(found, windows)
        for frame in (rows, measured, windows):
            frame.unpersist()
    write_page(Path(output) / "report.html", "Latencies", parts)
    return TraceSummary(counts[0], counts[1], unmatched, window_ms, output, time.monotonic() - begun, found)


# --- rows ---


def trace_rows(messages: DataFrame) -> DataFrame:
    """The rows of trace messages, one for each event of a message. Unknown types are left out; `readable` is
    false for a row that is too short or lacks a number."""
    texts = messages.select(F.explode(F.split(F.col("body").cast("string"), CONTEXT_END)).alias("text"))
    fields = texts.select(F.split("text", FIELD_END).alias("f"))
    sent = _is(TraceType.PUB, TraceType.STORE)
    before, after = _is(TraceType.SUB_BEFORE), _is(TraceType.SUB_AFTER)
    count = F.size("f")
    success = F.when(count > 13, _text(13) == "true").when(count > 12, _text(12) == "true").otherwise(True)
    needed = F.when(sent, (count > 11) & _all(1, 9, 10, 11))
    needed = needed.when(before, (count > 7) & _all(1, 6)).otherwise((count > 5) & _all(3))
    return fields.where(sent | before | after).select(
        _text(0).alias("type"),
        F.when(after, _number(7)).otherwise(_number(1)).alias("at"),
        F.when(after, _text(8)).otherwise(_text(3)).alias("group"),
        F.when(sent, _text(4)).alias("topic"),
        F.when(after, _text(2)).otherwise(_text(5)).alias("msgId"),
        F.when(before, _text(4)).when(after, _text(1)).alias("requestId"),
        F.when(sent, _number(10)).when(after, _number(3)).alias("costMs"),
        F.when(sent, success).when(after, _text(4) == "true").otherwise(True).alias("success"),
        F.when(sent, _number(11) == TraceMessageType.DELAY.value).alias("delayed"),
        needed.alias("readable"),
    )


def _is(*types: TraceType) -> Column:
    return _text(0).isin([one.value for one in types])


def _text(place: int) -> Column:
    return F.get("f", F.lit(place))


def _number(place: int) -> Column:
    return _text(place).try_cast("bigint")


def _all(*places: int) -> Column:
    found = F.lit(True)
    for place in places:
        found &= _number(place).isNotNull()
    return found


# --- measures ---


def measures(rows: DataFrame) -> DataFrame:
    """`kind`, `topic`, `group`, `at` (ms since 1970), `ms`, `success`: a row for each sending, first delivery
    and consumption. Topic, and `ms` of a delivery, are null when no sending of the message was traced."""
    rows = rows.where("readable")
    sendings = rows.where(F.col("type") == TraceType.PUB.value)
    sent = sendings.select(
        F.lit(SEND).alias("kind"), "topic", "group", "at", F.col("costMs").alias("ms"), "success"
    )
    befores = rows.where(F.col("type") == TraceType.SUB_BEFORE.value)
    firsts = befores.groupBy("msgId", "group").agg(F.min("at").alias("at"))
    stored = _stored(rows)
    delivered = (
        firsts.join(stored, "msgId", "left")
        .where(~F.coalesce("delayed", F.lit(False)))
        .select(
            F.lit(DELIVER).alias("kind"),
            "topic",
            "group",
            "at",
            (F.col("at") - F.col("storedAt")).alias("ms"),
            F.lit(True).alias("success"),
        )
    )
    return sent.unionByName(delivered).unionByName(_consumed(rows, befores, stored))


def _stored(rows: DataFrame) -> DataFrame:
    """Topic and time of storing of each message. A batch's trace has the ids of all its messages."""
    store = F.col("type") == TraceType.STORE.value
    good = F.col("topic").isNotNull() & F.col("success")
    each = rows.where(good).withColumn("msgId", F.explode(F.split("msgId", ",")))
    return each.groupBy("msgId").agg(
        F.min("topic").alias("topic"),
        F.coalesce(
            F.min(F.when(store, F.col("at"))), F.min(F.col("at") + F.floor(F.col("costMs") / 2))
        ).alias("storedAt"),
        F.max("delayed").alias("delayed"),
    )


def _consumed(rows: DataFrame, befores: DataFrame, stored: DataFrame) -> DataFrame:
    """The consumption of messages. Old clients leave time and group out after consuming: the values before it
    are used."""
    began = befores.groupBy("requestId", "msgId").agg(
        F.min("at").alias("beganAt"), F.min("group").alias("beganGroup")
    )
    afters = rows.where(F.col("type") == TraceType.SUB_AFTER.value).drop("topic", "delayed")
    return (
        afters.join(began, ["requestId", "msgId"], "left")
        .join(stored, "msgId", "left")
        .select(
            F.lit(CONSUME).alias("kind"),
            "topic",
            F.coalesce("group", "beganGroup").alias("group"),
            F.coalesce("at", F.col("beganAt") + F.col("costMs")).alias("at"),
            F.col("costMs").alias("ms"),
            "success",
        )
    )


# --- percentiles ---


def latencies(measured: DataFrame, window_ms: int = 0) -> DataFrame:
    """Count, failures, mean, percentiles and maximum by kind, topic and group; with `window_ms` also by
    `begin`, the start of the window."""
    keys = [F.col(name) for name in _KEYS]
    if window_ms:
        keys.append(begin_of("at", window_ms))
    good = "CASE WHEN success THEN ms END"
    ranks = [
        F.expr(f"percentile_disc({share}) WITHIN GROUP (ORDER BY {good})").cast("bigint").alias(name)
        for name, share in PERCENTILES.items()
    ]
    return measured.groupBy(*keys).agg(
        F.count("*").alias("count"),
        F.count_if(~F.col("success")).alias("failed"),
        F.avg(F.expr(good)).alias("mean"),
        *ranks,
        F.max(F.expr(good)).alias("max"),
    )


# --- the page ---

_TOTALS: Final = (
    "kind string, topic string, `group` string, count bigint, failed bigint, mean double,"
    " p50 bigint, p90 bigint, p99 bigint, max bigint"
)
_SAID: Final = {
    SEND: ("Sending", "How long producers waited for the answer."),
    DELIVER: ("Delivery", "From storing to the first time that a consumer of the group got the message."),
    CONSUME: ("Consuming", "How long consumers worked at a message."),
}


_NO_TRACES: Final = (
    "The messages that were read have no traces in them. RocketMQ's Java clients write them when they are"
    " made with enableMsgTrace, into a topic that a broker has with traceTopicEnable=true."
)


def _report(found: Sequence[Latency], windows: DataFrame) -> list[str]:
    """The page: the most frequent topics and groups get charts, all are in the tables."""
    charted = sorted((one for one in found if one.topic and one.group), key=lambda one: -one.count)[:CHARTS]
    windows_of = _collected(windows, charted)
    parts: list[str] = []
    if not found:
        parts.append(heading("No traces", _NO_TRACES))
    for kind, (title, note) in _SAID.items():
        parts.append(heading(title, f"{note} Milliseconds; percentiles of what succeeded."))
        rows = [_shown(one) for one in found if one.kind == kind]
        parts.append(table(rows))
        parts += [_chart(one, windows_of[astuple(one)[:3]]) for one in charted if one.kind == kind]
    return parts


def _collected(windows: DataFrame, charted: Sequence[Latency]) -> dict[Any, list[Row]]:
    """The windows of these topics and groups in their order."""
    found: dict[Any, list[Row]] = {astuple(one)[:3]: [] for one in charted}
    selected = F.struct(*_KEYS).isin([F.struct(*map(F.lit, key)) for key in found])
    at = F.unix_millis("begin").alias("at")
    rows = windows.where(selected).orderBy("begin").select(*_KEYS, at, *PERCENTILES) if found else None
    for row in rows.collect() if rows is not None else ():
        found[row["kind"], row["topic"], row["group"]].append(row)
    return found


def _shown(one: Latency) -> dict[str, Any]:
    row = {name: getattr(one, name) for name in ("topic", "group", "count", "failed", *PERCENTILES, "max")}
    return row | {"mean": None if one.mean is None else round(one.mean, 2)}


def _chart(one: Latency, rows: Sequence[Row]) -> str:
    lines = [
        Line(name, [(row["at"], row[name]) for row in rows if row[name] is not None]) for name in PERCENTILES
    ]
    return line_chart(f"{one.topic}, group {one.group}", lines, "ms")
