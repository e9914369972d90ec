"""Replay: messages of an archive or of a range of a topic are sent to a topic again, at a rate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from rmq.errors import ConfigError
from rmq.message import RESERVED_PROPERTIES
from rmq.spark.encoding import KEY_PROPERTY, SHARDING_PROPERTY
from rmq.spark.pipelines.progress import Watch, unwatched
from rmq.spark.pipelines.sending import ROW_KEY, Run, SentAgain, place_key, send_again

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEPT: Final = ("tags", "keys", "properties")
NEW_RUN: Final = Run()


def replay(
    rows: DataFrame,
    options: Mapping[str, str],
    run: Run = NEW_RUN,
    *,
    kept: Collection[str] = KEPT,
    watch: Watch = unwatched,
) -> SentAgain:
    """Send rows to a topic again, each as one message; returns when all are acknowledged.

    `rows` has a message's columns: those of `read_archive`, or of `spark.read.format("rmq")` with
    startingOffsets, startingTimestamp and so on; choose with `where`. `options` are those of the sink:
    nameServer, topic. Of a message its body is kept, and what `kept` names: tags, keys, properties (those of
    the application; the sharding key too, by which messages stay together and in order). It is born and
    stored anew, and a delay is not repeated. The property `rmqSparkKey` says the run and where it comes from.

    A run with an id that is started again sends only what is not there yet (see `Run`); one run of an id at
    a time. Raises ConfigError, and PySparkException with the reason when a message cannot be sent; what was
    sent before is stored.
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
        columns.append(F.col("properties").getItem(SHARDING_PROPERTY).alias("shardingKey"))
    return rows.select(*columns, origin(), place_key().alias(ROW_KEY))


def origin() -> Column:
    """Where a row comes from, to put rows in order by."""
    from pyspark.sql import functions as F

    return F.struct("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp").alias("origin")


def own_properties(*prefixes: str) -> Column:
    """The properties of the application: no names of RocketMQ's own, none that begins with one of these."""
    from pyspark.sql import functions as F

    reserved = sorted({*RESERVED_PROPERTIES, KEY_PROPERTY, SHARDING_PROPERTY})

    def is_own(name: Column, value: Column) -> Column:
        found = ~name.isin(reserved)
        for prefix in prefixes:
            found = found & ~F.startswith(name, F.lit(prefix))
        return found

    return F.map_filter("properties", is_own)
