"""Lag over time: consumer offsets of groups beside the ends of their queues, sampled, kept as Parquet, shown
as a page.

FOLDER/samples/*.parquet a file for each sample: all queues of all groups at one moment FOLDER/lag by group,
topic and moment, made of all samples FOLDER/report.html
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from attrs import astuple, frozen
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rmq.client.client import Client
from rmq.clock import wall_clock_ms
from rmq.errors import ConfigError, ConsumerNotOnline
from rmq.spark.cluster import Loop, client_of, with_brokers
from rmq.spark.options import read_options
from rmq.spark.pipelines.progress import Watch, unwatched, watched
from rmq.spark.pipelines.report import Line, heading, line_chart, table, write_page

CHARTS: Final = 24
_SCHEMA: Final = pa.schema(
    [
        ("at", pa.int64()),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("brokerOffset", pa.int64()),
        ("consumerOffset", pa.int64()),
        ("lastTimestamp", pa.int64()),
    ]
)


@frozen
class LagSample:
    """A group in a queue at a moment (`at`, ms since 1970): the queue's end, the group's consumer offset, and
    the store time of the last consumed message (ms; 0: unknown)."""

    at: int
    group: str
    topic: str
    broker: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    last_timestamp: int


@frozen
class GroupLag:
    """A group in a topic: its lag in messages at the last sample and the highest; messages a second that
    arrived and that it consumed, from first to last sample."""

    group: str
    topic: str
    samples: int
    lag: int
    max_lag: int
    stored_rate: float
    consumed_rate: float


@frozen
class LagSummary:
    """Result of all samples in a folder."""

    output: str
    seconds: float
    parts: tuple[GroupLag, ...]


def record_lag(
    options: Mapping[str, str],
    folder: str | Path,
    groups: Sequence[str] = (),
    *,
    times: int = 1,
    every_seconds: float = 10.0,
    pause: Callable[[float], object] = time.sleep,
) -> int:
    """Add `times` samples to `folder`, of these groups or all; return the number of their rows.

    `options` are those of the source `rmq` without a topic. A group that has never consumed has no rows. The
    call waits up to `pullTimeoutMs` for a broker of `requireBrokers`, or of an earlier sample: the sums would
    be too small without its queues. Each sample is written whole or not at all; an interruption keeps earlier
    samples. Raises ConfigError, BrokersAway, and the client's errors when the cluster does not answer.
    """
    rows = 0
    found = read_options({**options, "topicPattern": ".*"}, streaming=False)
    brokers = found.required_brokers
    with Loop() as loop:
        client = loop.enter(client_of(found))
        for number in range(times):
            if number:
                pause(every_seconds)
            take = partial(sample_lag, loop, client, groups)
            samples = with_brokers(loop, client, brokers, found.pull_timeout_ms / 1000, take)
            brokers |= {one.broker for one in samples}
            write_samples(samples, folder)
            rows += len(samples)
    return rows


def sample_lag(loop: Loop, client: Client, groups: Sequence[str]) -> list[LagSample]:
    """Query the queues of these groups, or all, once."""
    now_ms = wall_clock_ms()
    found: list[LagSample] = []
    for group in groups or loop.call(client.admin.groups):
        try:
            rows = loop.call(client.admin.consumer_progress, group)
        except ConsumerNotOnline:
            continue
        for row in rows:
            queue = row.message_queue
            place = queue.topic, queue.broker_name, queue.queue_id
            offsets = row.broker_offset, row.consumer_offset, row.last_timestamp
            found.append(LagSample(now_ms, group, *place, *offsets))
    return found


def write_samples(samples: Sequence[LagSample], folder: str | Path) -> None:
    """Add samples to a folder as one file, all or none. Raises OSError."""
    place = Path(folder) / "samples"
    place.mkdir(parents=True, exist_ok=True)
    columns = zip(*map(astuple, samples), strict=True) if samples else [[] for _ in _SCHEMA]
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    name = f"{uuid.uuid4().hex}.parquet"
    pq.write_table(pa.Table.from_arrays(arrays, schema=_SCHEMA), place / f"_{name}")
    os.replace(place / f"_{name}", place / name)  # Spark ignores names that begin with _


def report_lag(spark: SparkSession, folder: str | Path, *, watch: Watch = unwatched) -> LagSummary:
    """Make table and page of all samples in a folder, in place of earlier ones. Raises ConfigError without
    samples."""
    begun = time.monotonic()
    samples = Path(folder) / "samples"
    if not samples.is_dir():
        raise ConfigError("folder", str(folder), "a folder with samples: rmq spark lag makes it")
    with watched(spark, watch):
        by_time = lag_by_time(spark.read.parquet(str(samples))).persist()
        by_time.orderBy("group", "topic", "at").coalesce(1).write.mode("overwrite").parquet(f"{folder}/lag")
        parts = tuple(GroupLag(**row.asDict()) for row in _totals(by_time).collect())
        page = list(_page(parts, by_time))
        by_time.unpersist()
    write_page(Path(folder) / "report.html", "Lag", page)
    return LagSummary(str(folder), time.monotonic() - begun, parts)


def lag_by_time(samples: DataFrame) -> DataFrame:
    """The sums over queues: `group`, `topic`, `at`, `queues`, `stored`, `consumed` (offsets) and `lag`."""
    return samples.groupBy("group", "topic", "at").agg(
        F.count("*").alias("queues"),
        F.sum("brokerOffset").alias("stored"),
        F.sum("consumerOffset").alias("consumed"),
        # A broker reads both offsets one after the other, and a group's offset may lie beyond the end.
        F.sum(F.greatest(F.col("brokerOffset") - F.col("consumerOffset"), F.lit(0))).alias("lag"),
    )


def _totals(by_time: DataFrame) -> DataFrame:
    seconds = (F.max("at") - F.min("at")) / 1000

    def rate(name: str) -> Any:
        grown = F.max_by(name, "at") - F.min_by(name, "at")
        return F.coalesce(F.try_divide(grown, seconds), F.lit(0.0))

    found = by_time.groupBy("group", "topic").agg(
        F.count("*").alias("samples"),
        F.max_by("lag", "at").alias("lag"),
        F.max("lag").alias("max_lag"),
        rate("stored").alias("stored_rate"),
        rate("consumed").alias("consumed_rate"),
    )
    return found.orderBy(F.desc("lag"), "group", "topic")


def _page(parts: Sequence[GroupLag], by_time: DataFrame) -> Iterator[str]:
    yield heading("Groups", "Messages that are left, and messages a second.")
    yield table([_shown(one) for one in parts])
    points: dict[Any, list[tuple[int, float]]] = {(one.group, one.topic): [] for one in parts[:CHARTS]}
    for row in by_time.orderBy("at").collect() if parts else ():
        if (key := (row["group"], row["topic"])) in points:
            points[key].append((row["at"], row["lag"]))
    for (group, topic), line in points.items():
        yield line_chart(f"{group}, {topic}", [Line("lag", line)], "messages")


def _shown(one: GroupLag) -> dict[str, Any]:
    names = ("group", "topic", "samples", "lag", "max_lag", "stored_rate", "consumed_rate")
    return {name.replace("_", " "): getattr(one, name) for name in names}
