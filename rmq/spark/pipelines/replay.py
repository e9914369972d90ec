"""Replay: send messages of an archive or of a range of a topic to a topic again, at a rate.

A sent message has the key ``run/topic@broker-queue-offset`` of its row, as property `rmqSparkKey`, and an id
made from it. A repeated run first looks for its keys in the target: so stored messages are not sent twice,
even without an acknowledgement. Messages that are sent twice nevertheless (a task that Spark ran again, a
send that was in the network when its process died) have the same key, so that readers can drop duplicates.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import fields, frozen

from rmq.config import java_key
from rmq.errors import ConfigError
from rmq.message import RESERVED_PROPERTIES, MessageQueue
from rmq.protocol.properties import PROPERTY_SHARDING_KEY
from rmq.spark.cluster import Cluster
from rmq.spark.formats.encoding import KEY_PROPERTY
from rmq.spark.offsets import Offsets, keep, offsets_text, read_kept
from rmq.spark.options import ConnectOptions, ReadOptions, read_options
from rmq.spark.pipelines.progress import POLL_SECONDS, JobProgress, Watch, beside, unwatched

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


ROW_KEY: Final = "rowKey"

_RUN_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CONNECTION: Final = {java_key(one).lower() for one in fields(ConnectOptions)} | {"namesrvaddr"}

KEPT: Final = ("tags", "keys", "properties")


@frozen
class Run:
    """A run of a replay. `id` names the run: the same id continues the same run; empty: a new run.

    `state` is a folder for the ends of the target topics at the begin of the run. Without it a run with an id
    searches the whole target. `rate`: messages a second at most (0: no limit); with a rate a single task
    sends, in the order in which the rows were stored.
    """

    id: str = ""
    state: str | Path | None = None
    rate: int = 0

    def __attrs_post_init__(self) -> None:
        if self.id and not _RUN_ID.fullmatch(self.id):
            raise ConfigError("run id", self.id, "1 to 64 letters, digits and . _ -")
        if self.rate < 0:
            raise ConfigError("rate", self.rate, "messages a second, or 0 for no limit")


@frozen
class SentAgain:
    """Result of a run. `already` counts its messages that existed before, `left_out` the rows without an
    existing topic."""

    run_id: str
    sent: int
    already: int
    left_out: int
    seconds: float


NEW_RUN: Final = Run()


def replay(
    rows: DataFrame,
    options: Mapping[str, str],
    run: Run = NEW_RUN,
    *,
    kept: Collection[str] = KEPT,
    watch: Watch = unwatched,
) -> SentAgain:
    """Send rows to a topic again, each as a message; return when all are acknowledged.

    `rows` has a message's columns: those of `read_archive`, or of `spark.read.format("rmq")` with
    startingOffsets, startingTimestamp and so on; choose with `where`. `options` are those of the sink:
    nameServer, topic. A sent message has the body, and the parts that `kept` names: tags, keys, properties
    (those of the application; the sharding key too, by which messages stay together and in order). Birth and
    store times are new, and a delay is not repeated. The property `rmqSparkKey` names the run and the origin.

    A repeated run with an id sends only missing messages (see `Run`); only a single run of an id at a time.
    Raises ConfigError, and PySparkException with the reason when a message cannot be sent; earlier messages
    are stored.
    """
    topic = options.get("topic", "")
    if not topic:
        raise ConfigError("topic", "", "an option topic: where to send the rows")
    unknown = set(kept) - set(KEPT)
    if unknown:
        raise ConfigError("kept", ", ".join(sorted(unknown)), f"some of {', '.join(KEPT)}")
    return send_again(_outgoing(rows, kept), options, [topic], run, watch)


def _outgoing(rows: DataFrame, kept: Collection[str]) -> DataFrame:
    from pyspark.sql import functions as F

    columns = [F.col("body"), *(F.col(name) for name in ("tags", "keys") if name in kept)]
    if "properties" in kept:
        columns.append(own_properties().alias("properties"))
        columns.append(F.col("properties").getItem(PROPERTY_SHARDING_KEY).alias("shardingKey"))
    return rows.select(*columns, origin(), place_key().alias(ROW_KEY))


def origin() -> Column:
    """The origin of a row, for ordering."""
    from pyspark.sql import functions as F

    return F.struct("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp").alias("origin")


def own_properties(*prefixes: str) -> Column:
    """The properties of the application: no names of RocketMQ's own, no names with one of these prefixes."""
    from pyspark.sql import functions as F

    reserved = sorted({*RESERVED_PROPERTIES, KEY_PROPERTY, PROPERTY_SHARDING_KEY})

    def is_own(name: Column, value: Column) -> Column:
        found = ~name.isin(reserved)
        for prefix in prefixes:
            found = found & ~F.startswith(name, F.lit(prefix))
        return found

    return F.map_filter("properties", is_own)


# --- sending rows again, once for each run ---


def place_key() -> Column:
    """``topic@broker-queue-offset`` of a row."""
    from pyspark.sql import functions as F

    return F.concat("topic", F.lit("@"), "brokerName", F.lit("-"), "queueId", F.lit("-"), "queueOffset")


def send_again(
    rows: DataFrame, options: Mapping[str, str], topics: Iterable[str], run: Run, watch: Watch = unwatched
) -> SentAgain:
    """Send rows to `topics`, the complete list of their topics. `options` are those of the sink. Beside the
    sink's columns, including `rowKey` (without the run), the rows have `origin`, the place and time by which
    they are ordered."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    began = time.monotonic()
    look = _Target(options, topics)
    run_id = run.id or uuid.uuid4().hex
    rows = rows.withColumn(ROW_KEY, F.concat(F.lit(f"{run_id}/"), ROW_KEY))
    keys = look.keys(rows, run_id, run)
    already = 0 if keys is None else keys.count()
    if keys is not None and already:
        rows = rows.join(keys, ROW_KEY, "left_anti")
    counted = Observation()
    rows = _in_order(rows, run.rate).observe(counted, F.count(F.lit(1)).alias("sent"))
    with look.watched(watch):
        rows.write.format("rmq").options(**options, runId=run_id, rate=run.rate).mode("append").save()
    if keys is not None:
        keys.unpersist()
    return SentAgain(run_id, counted.get["sent"], already, 0, time.monotonic() - began)


def _in_order(rows: DataFrame, rate: int) -> DataFrame:
    """The rows of a queue in one task and in their order; with a rate, all rows in the order of their store
    times."""
    places = [f"origin.{name}" for name in ("topic", "brokerName", "queueId")]
    if not rate:
        rows = rows.repartition(*places).sortWithinPartitions(*places, "origin.queueOffset")
    else:
        rows = rows.orderBy("origin.storeTimestamp", *places, "origin.queueOffset").coalesce(1)
    return rows.drop("origin")


# --- messages that exist already ---


class _Target:
    """The topics that a run sends to."""

    def __init__(self, options: Mapping[str, str], topics: Iterable[str]) -> None:
        self._names = sorted(topics)
        self._connection = options
        self._ends: Offsets = {}

    def keys(self, rows: DataFrame, run_id: str, run: Run) -> DataFrame | None:
        """The keys of the run that the topics have; None for a new run."""
        from pyspark.sql import functions as F

        path = None if run.state is None else Path(run.state) / f"{run_id}.json"
        kept = None if path is None else read_kept(path)
        # The kept file names the brokers that may have messages of the run: without one of them these would
        # be sent again.
        with Cluster(self._options()) as cluster:
            bounds = cluster.bounds(cluster.queues(kept or ()))
        self._ends = {queue: most for queue, (_, most) in bounds.items()}
        begin = {queue: (kept or {}).get(queue, least) for queue, (least, _) in bounds.items()}
        if not run.id or not begin:
            _keep(path, self._ends)
            return None
        options = target_options(self._connection, sorted({queue.topic for queue in begin}))
        options["startingOffsets"] = offsets_text(begin)
        reader = rows.sparkSession.read.format("rmq").options(**options)
        key = F.col("properties").getItem(KEY_PROPERTY)
        found = reader.schema("properties map<string,string>").load().select(key.alias(ROW_KEY))
        found = found.where(F.startswith(ROW_KEY, F.lit(f"{run_id}/"))).distinct().cache()
        if kept is None:
            _keep(path, self._ends if found.isEmpty() else begin)
        return found

    @contextmanager
    def watched(self, watch: Watch) -> Iterator[None]:
        """Report the growth of the topics during the block, by any sender, to `watch`."""
        if watch is unwatched:
            yield
            return
        with beside(lambda done: self._watch(watch, done)):
            yield

    def _watch(self, watch: Watch, done: threading.Event) -> None:
        with Cluster(self._options()) as cluster:
            while not done.wait(POLL_SECONDS):
                bounds = cluster.bounds(self._ends)
                grown = sum(most - self._ends[queue] for queue, (_, most) in bounds.items())
                watch(JobProgress(grown, None, "messages"))

    def _options(self) -> ReadOptions:
        return read_options(target_options(self._connection, self._names), streaming=False)


def target_options(options: Mapping[str, str], topics: Iterable[str]) -> dict[str, str]:
    """Options to read the existing topics, from a sink's options."""
    found = {name: text for name, text in options.items() if name.lower() in _CONNECTION}
    return {**found, "topicPattern": "|".join(map(re.escape, topics)), "requireTopics": "false"}


def _keep(path: Path | None, offsets: Mapping[MessageQueue, int]) -> None:
    if path is not None and offsets:
        path.parent.mkdir(parents=True, exist_ok=True)
        keep(path, dict(offsets))
