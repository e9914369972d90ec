"""Topic profile: sizes, rates, keys, tags, queues, properties and forms of bodies in topics."""

from __future__ import annotations

import time
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from attrs import astuple, frozen
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from rmq.spark.pipelines.progress import Watch, unwatched, watched
from rmq.spark.pipelines.report import (
    Line,
    bar_chart,
    begin_of,
    heading,
    line_chart,
    table,
    window_for,
    write_page,
)

COLUMNS: Final = ("topic", "brokerName", "queueId", "body", "tags", "keys", "properties", "storeTimestamp")
"""The columns of messages that are read."""
TOP: Final = 50
"""Tags, queues, keys and names of each topic in the tables, the most frequent ones."""
SAMPLE: Final = 500
"""Bodies of a topic that are compressed, about, and the first SAMPLE_BYTES of each."""
SAMPLE_BYTES: Final = 65_536
CHARTS: Final = 12


@frozen
class TopicProfile:
    """The metrics of a topic. Sizes are of bodies, in bytes; `rate` is in messages a second, from first to
    last. `keyless` messages have no key; `repeated_keys` keys are on several messages. A skew is the share
    of the fullest queue (or most frequent tag) times their number: 1 is even. `form` is the most frequent
    form of bodies; `compressed_to` the share of their size that zlib leaves of a sample.
    """

    topic: str
    messages: int
    bytes: int
    rate: float
    p50_size: int
    p99_size: int
    max_size: int
    keyless: int
    distinct_keys: int
    repeated_keys: int
    queues: int
    queue_skew: float
    tags: int
    tag_skew: float
    form: str
    compressed_to: float


@frozen
class ProfileSummary:
    """Result of a profile: its rows, and the folder of tables and page."""

    messages: int
    bytes: int
    output: str
    seconds: float
    parts: tuple[TopicProfile, ...]


def profile_topics(
    spark: SparkSession, messages: DataFrame, output: str, *, window_ms: int = 0, watch: Watch = unwatched
) -> ProfileSummary:
    """Profile messages, from whatever source; of their columns COLUMNS are read, bodies twice.

    Into the folder `output` go, in place of an earlier profile, the tables `topics`, `rates` (by window),
    `sizes` (by powers of two), `tags`, `queues`, `keys`, `properties` and `forms` as Parquet, and
    `report.html`. `window_ms`: length of a window; 0: chosen by the duration of the messages. Parquet may go
    to any place that Spark can write; the page is written by the driver. Raises OSError.
    """
    begun = time.monotonic()
    with watched(spark, watch):
        rows = profile_rows(messages).persist()
        counted = _overview(rows)
        window = window_ms or window_for(max((one["last"] - one["first"] for one in counted), default=0))
        tables: dict[str, list[Row]] = {}
        for name, frame in profile_tables(rows, window).items():
            tables[name] = frame.collect()
            collected = spark.createDataFrame(tables[name], frame.schema)
            collected.coalesce(1).write.mode("overwrite").parquet(f"{output}/{name}")
        left = _compressed(messages, {one["topic"]: one["messages"] for one in counted})
        parts = tuple(_profile(one, tables, left) for one in counted)
        topics = spark.createDataFrame([astuple(one) for one in parts], _TOPICS)
        topics.coalesce(1).write.mode("overwrite").parquet(f"{output}/topics")
        rows.unpersist()
    write_page(Path(output) / "report.html", "Topics", _page(parts, tables))
    messages_, bytes_ = sum(one.messages for one in parts), sum(one.bytes for one in parts)
    return ProfileSummary(messages_, bytes_, output, time.monotonic() - begun, parts)


# --- tables ---


def profile_rows(messages: DataFrame) -> DataFrame:
    """The small columns that the tables are made of."""
    return messages.select(
        "topic",
        F.concat_ws("/", "brokerName", "queueId").alias("queue"),
        F.octet_length("body").cast("bigint").alias("size"),
        F.unix_millis("storeTimestamp").alias("at"),
        F.col("tags").alias("tag"),
        F.filter(F.split("keys", " "), lambda key: key != "").alias("keys"),
        F.map_keys("properties").alias("names"),
        body_form(F.col("body")).alias("form"),
    )


def body_form(body: Column) -> Column:
    """A guess of a body's form by its first bytes and, for text, the last: empty, gzip, zlib, zstd, lz4,
    java, json, xml, text or binary."""
    begin = F.hex(F.substring(body, 1, 4))
    text = F.ltrim(F.when(F.is_valid_utf8(body.cast("string")), body.cast("string")))
    return (
        F.when(F.octet_length(body) == 0, "empty")
        .when(begin.startswith("1F8B"), "gzip")
        .when(begin.rlike("^78(01|5E|9C|DA)"), "zlib")
        .when(begin == "28B52FFD", "zstd")
        .when(begin == "04224D18", "lz4")
        .when(begin.startswith("ACED"), "java")
        .when(text.rlike(r"(?s)^(\{.*\}|\[.*\])\s*$"), "json")
        .when(text.rlike(r"(?s)^<.*>\s*$"), "xml")
        .when(text.isNotNull() & ~text.rlike(r"[\x00-\x08\x0e-\x1f]"), "text")
        .otherwise("binary")
    )


def profile_tables(rows: DataFrame, window_ms: int) -> dict[str, DataFrame]:
    """Each table by its name; `rows` are those of profile_rows."""
    power = F.when(F.col("size") > 0, F.pow(F.lit(2), F.floor(F.log2("size")))).otherwise(0).cast("bigint")
    keys = rows.select("topic", "size", F.explode("keys").alias("key"))
    names = rows.select("topic", "size", F.explode("names").alias("name"))
    return {
        "rates": _counted(rows, begin_of("at", window_ms)).orderBy("topic", "begin"),
        "sizes": _counted(rows, power.alias("from")).orderBy("topic", "from"),
        "tags": _frequent(_counted(rows, F.col("tag")), "tag"),
        "queues": _frequent(_counted(rows, F.col("queue")), "queue"),
        "forms": _frequent(_counted(rows, F.col("form")), "form"),
        "properties": _frequent(_counted(names, F.col("name")), "name"),
        "keys": _frequent(_counted(keys, F.col("key")).where("messages > 1"), "key"),
    }


def _counted(rows: DataFrame, by: Column) -> DataFrame:
    return rows.groupBy("topic", by).agg(F.count("*").alias("messages"), F.sum("size").alias("bytes"))


def _frequent(counted: DataFrame, name: str) -> DataFrame:
    """The TOP most frequent values of each topic."""
    order = Window.partitionBy("topic").orderBy(F.desc("messages"), name)
    ranked = counted.withColumn("rank", F.row_number().over(order)).where(F.col("rank") <= TOP)
    return ranked.orderBy("topic", "rank").drop("rank")


def _overview(rows: DataFrame) -> list[dict[str, Any]]:
    """The metrics of each topic, a row for each."""
    counted = rows.groupBy("topic").agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.expr("percentile_disc(0.5) WITHIN GROUP (ORDER BY size)").cast("bigint").alias("p50_size"),
        F.expr("percentile_disc(0.99) WITHIN GROUP (ORDER BY size)").cast("bigint").alias("p99_size"),
        F.max("size").alias("max_size"),
        F.count_if(F.coalesce(F.size("keys"), F.lit(0)) <= 0).alias("keyless"),
        F.min("at").alias("first"),
        F.max("at").alias("last"),
    )
    keys = rows.select("topic", F.explode("keys").alias("key")).groupBy("topic", "key").count()
    of_keys = keys.groupBy("topic").agg(
        F.count("*").alias("distinct_keys"), F.count_if(F.col("count") > 1).alias("repeated_keys")
    )
    topics = {row["topic"]: _NONE | row.asDict() for row in counted.orderBy("topic").collect()}
    for frame in (of_keys, _fullest(rows, "queue"), _fullest(rows, "tag")):
        for row in frame.collect():
            topics[row["topic"]].update(row.asDict())
    return list(topics.values())


_NONE: Final = {
    "distinct_keys": 0, "repeated_keys": 0, "queues": 0, "queue_skew": 0.0, "tags": 0, "tag_skew": 0.0
}  # fmt: skip


def _fullest(rows: DataFrame, name: str) -> DataFrame:
    """The number of different values of a column, and their skew."""
    counts = rows.where(F.col(name).isNotNull()).groupBy("topic", name).count()
    skew = F.max("count") * F.count("*") / F.sum("count")
    return counts.groupBy("topic").agg(F.count("*").alias(f"{name}s"), skew.alias(f"{name}_skew"))


def _compressed(messages: DataFrame, counts: dict[str, int]) -> dict[str, float]:
    """The share that zlib leaves of a sample of each topic's bodies."""
    shares = {topic: min(SAMPLE / count, 1.0) for topic, count in counts.items()}
    bodies = messages.select("topic", F.substring("body", 1, SAMPLE_BYTES).alias("body"))
    sizes: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in bodies.sampleBy("topic", shares, seed=7).toLocalIterator():
        sizes[row["topic"]][0] += len(row["body"])
        sizes[row["topic"]][1] += min(len(zlib.compress(row["body"], 5)), len(row["body"]))
    return {topic: after / before for topic, (before, after) in sizes.items() if before}


# --- the page ---

_TOPICS: Final = (
    "topic string, messages bigint, bytes bigint, rate double, p50_size bigint, p99_size bigint,"
    " max_size bigint, keyless bigint, distinct_keys bigint, repeated_keys bigint, queues bigint,"
    " queue_skew double, tags bigint, tag_skew double, form string, compressed_to double"
)


def _profile(counted: dict[str, Any], tables: dict[str, list[Row]], left: dict[str, float]) -> TopicProfile:
    topic, seconds = counted["topic"], (counted.pop("last") - counted.pop("first")) / 1000
    forms = (row["form"] for row in tables["forms"] if row["topic"] == topic)
    return TopicProfile(
        **counted,
        rate=counted["messages"] / seconds if seconds else 0.0,
        form=next(forms, ""),
        compressed_to=left.get(topic, 1.0),
    )


def _page(parts: Sequence[TopicProfile], tables: dict[str, list[Row]]) -> Iterator[str]:
    yield table([_shown(one) for one in parts])
    for one in sorted(parts, key=lambda one: -one.messages)[:CHARTS]:
        mine = {name: [row for row in rows if row["topic"] == one.topic] for name, rows in tables.items()}
        yield heading(one.topic)
        yield line_chart("Messages by time", [Line("messages", _points(mine["rates"]))], "messages")
        yield bar_chart("Size of bodies", _bars(mine["sizes"], "from"), "messages, by bytes from")
        yield bar_chart("Queues", sorted(_bars(mine["queues"], "queue")), "messages")
        yield bar_chart("Tags", _bars(mine["tags"], "tag"), "messages")
        yield bar_chart("Properties", _bars(mine["properties"], "name"), "messages")
        yield bar_chart("Forms of bodies", _bars(mine["forms"], "form"), "messages")
        if mine["keys"]:
            repeated = [{"key": row["key"], "messages": row["messages"]} for row in mine["keys"][:10]]
            yield "<h3>Keys on several messages</h3>" + table(repeated)


def _shown(one: TopicProfile) -> dict[str, Any]:
    names = ("topic", "messages", "bytes", "rate", "p50_size", "p99_size", "queue_skew", "form")
    row = {name.replace("_", " "): getattr(one, name) for name in names}
    return row | {"compressed to": f"{one.compressed_to:.0%}", "keyless": one.keyless}


def _points(rows: Sequence[Row]) -> list[tuple[int, float]]:
    return [(round(row["begin"].timestamp() * 1000), row["messages"]) for row in rows]


def _bars(rows: Sequence[Row], name: str) -> list[tuple[str, float]]:
    return [("none" if row[name] is None else str(row[name]), row["messages"]) for row in rows]
