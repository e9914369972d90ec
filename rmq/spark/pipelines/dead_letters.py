"""Dead letters: messages that groups have given up: counts, and another send of chosen letters.

rmq's brokers record origin, reason and times in properties; RocketMQ 4.9's dead letters have the topic, the
id and the number of deliveries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from attrs import evolve

from rmq.message import PROPERTY_RETRY_TOPIC, dlq_topic
from rmq.protocol.properties import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    DLQ_REASON,
    DLQ_RECONSUME_TIMES,
    DLQ_REDRIVE_KEY,
    PROPERTY_SHARDING_KEY,
)
from rmq.spark.cluster import Cluster
from rmq.spark.options import read_options
from rmq.spark.pipelines.progress import Watch, unwatched
from rmq.spark.pipelines.replay import (
    NEW_RUN,
    ROW_KEY,
    Run,
    SentAgain,
    origin,
    own_properties,
    place_key,
    send_again,
    target_options,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ALL_GROUPS: Final = "%DLQ%.*"
GROUPED: Final = ("group", "originTopic", "tags", "reason", "times")
_PREFIX: Final = len(dlq_topic(""))

Bucket = Literal["minute", "hour", "day"]


def dead_letters(spark: SparkSession, options: Mapping[str, str], groups: Iterable[str] = ()) -> DataFrame:
    """The dead letters of these groups, or of all: the columns of a message, and `group`; `originTopic`, the
    original topic, and `originId`, its producer's id; `reason`, the last consumer's reason, or empty;
    `times`, the number of deliveries; `diedAt`.

    `options` are those of the source `rmq` without a topic. Choose with `where`.
    """
    from pyspark.sql import functions as F

    topics = ",".join(map(dlq_topic, groups))
    chosen = {"topic": topics} if topics else {"topicPattern": ALL_GROUPS, "requireTopics": "false"}
    rows = spark.read.format("rmq").options(**{**options, **chosen}).load()
    times = F.coalesce(F.expr(f"try_cast(properties['{DLQ_RECONSUME_TIMES}'] AS int)"), "reconsumeTimes")
    return rows.select(
        "*",
        F.expr(f"substring(topic, {_PREFIX + 1})").alias("group"),
        F.coalesce(_word(DLQ_ORIGIN_TOPIC), _word(PROPERTY_RETRY_TOPIC)).alias("originTopic"),
        F.coalesce(_word(DLQ_ORIGIN_MESSAGE_ID), "msgId").alias("originId"),
        F.coalesce(_word(DLQ_REASON), F.lit("")).alias("reason"),
        times.alias("times"),
        F.col("storeTimestamp").alias("diedAt"),
    )


def _word(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col("properties").getItem(name)


def count_letters(letters: DataFrame, bucket: Bucket = "hour") -> DataFrame:
    """The number of dead letters for each group, topic, tag, reason, number of deliveries and hour (or minute
    or day) of their death, most first; with the times of the first and the last."""
    from pyspark.sql import functions as F

    grouped = letters.groupBy(*GROUPED, F.date_trunc(bucket, "diedAt").alias("died"))
    counted = grouped.agg(
        F.count("*").alias("letters"), F.min("diedAt").alias("first"), F.max("diedAt").alias("last")
    )
    return counted.orderBy(F.desc("letters"), *GROUPED, "died")


def resend(
    letters: DataFrame,
    options: Mapping[str, str],
    run: Run = NEW_RUN,
    *,
    to: str = "",
    watch: Watch = unwatched,
) -> SentAgain:
    """Send dead letters to their original topics again, or all to `to`; once for each run.

    `letters` is the result of `dead_letters`, or a part of it. A message keeps its id, tags, keys and
    properties, and has the id of its letter as a property (DLQ_REDRIVE_KEY), as with `rmq dlq redrive`. Dead
    letters whose topic is unknown or deleted are left out and counted. The letters stay in the dead letter
    topics. `options`, `run` and errors are those of `replay`.
    """
    from pyspark.sql import functions as F

    target: Any = F.lit(to) if to else F.col("originTopic")
    rows = letters.withColumn("target", target)
    asked = {row.target: row["count"] for row in rows.groupBy("target").count().collect()}
    there = _there(options, filter(None, asked))
    left_out = sum(count for topic, count in asked.items() if topic not in there)
    if not there:
        return SentAgain(run.id, 0, 0, left_out, 0.0)
    done = send_again(_outgoing(rows.where(F.col("target").isin(there))), options, there, run, watch)
    return evolve(done, left_out=left_out)


def _there(options: Mapping[str, str], topics: Iterable[str]) -> list[str]:
    """The topics, of these, that the name servers know."""
    names = sorted(topics)
    if not names:
        return []
    with Cluster(read_options(target_options(options, names), streaming=False)) as cluster:
        return sorted({queue.topic for queue in cluster.queues()})


def _outgoing(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    marks = F.create_map(
        F.lit(DLQ_ORIGIN_TOPIC),
        F.coalesce("originTopic", F.lit("")),
        F.lit(DLQ_ORIGIN_MESSAGE_ID),
        "originId",
        F.lit(DLQ_REDRIVE_KEY),
        place_key(),
    )
    marks = F.map_filter(marks, lambda name, value: value != "")
    return rows.select(
        "body",
        "tags",
        "keys",
        F.map_concat(own_properties("DLQ_", "TIMER_", "__"), marks).alias("properties"),
        _word(PROPERTY_SHARDING_KEY).alias("shardingKey"),
        F.col("target").alias("topic"),
        origin(),
        place_key().alias(ROW_KEY),
        F.col("originId").alias("msgId"),
    )
