"""Store audit: each record of a commit log against its queue's unit, joined by Spark.

Faults are those of `rmq store check` (the rules are those of `rmq.store.audit.rules`), for stores of any
size: records and units meet in a full outer join by the physical offset, so the memory needed does not grow
with the store. Index, checkpoint and configuration are not checked.

These are no faults: units of records that retention has removed; records of deleted topics, also when the
topic was created again; PREPARED and ROLLBACK records, which have no unit; and, while a broker runs or after
a kill (a file `abort` exists), missing units at the end of a queue.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
from attrs import frozen
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from rmq.printable import counted
from rmq.spark.pipelines.audit_frames import Log, find_log, record_frame, unit_frame
from rmq.spark.pipelines.progress import Watch, unwatched, watched
from rmq.spark.store_files import log_files, queue_topics
from rmq.store.audit.audit import known_topics
from rmq.store.audit.rules import (
    BAD_CRC,
    DAMAGE,
    EXTRA,
    KINDS,
    MISSING,
    NO_FILE,
    OPEN_NOTE,
    TORN,
    WRONG_CODE,
    WRONG_PLACE,
    WRONG_RECORD,
    WRONG_SIZE,
    differences,
    is_pending,
    is_replaced,
    kept_topics,
)
from rmq.store.config import DELAY_LEVELS, delay_table
from rmq.store.files.disk import ReadOnlyDisk
from rmq.store.files.scan import is_blank

COLUMNS: Final = ("kind", "topic", "queueId", "queueOffset", "physicalOffset", "detail")
_SCHEMA: Final = (
    "kind string, topic string, queueId int, queueOffset bigint, physicalOffset bigint, detail string"
)


@frozen
class FaultCount:
    """Number of findings of a kind."""

    kind: str
    count: int


@frozen
class StoreAudit:
    """Result of an audit. `findings` has the columns COLUMNS; for a damaged place only its physical offset,
    for a missing unit the values of its record, else the values of the unit. `findings` is cached:
    `findings.unpersist()`."""

    path: str
    findings: DataFrame
    faults: tuple[FaultCount, ...]
    records: int
    units: int
    bytes: int
    seconds: float
    notes: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """True if the audit found nothing."""
        return not self.faults


def audit_store(
    spark: SparkSession,
    path: str,
    *,
    commit_log: str = "",
    delay_levels: str = DELAY_LEVELS,
    output: str = "",
    watch: Watch = unwatched,
) -> StoreAudit:
    """Compare log and queues of the store in `path`, rmq's or RocketMQ's; the store is not changed.

    `commit_log`: the log's folder, if outside of the store's; `delay_levels`: messageDelayLevel, if it was
    changed; `output`: write the findings to this folder as Parquet, in place of those of an earlier audit. On
    a cluster every executor must see the same paths. Raises ConfigError without a store, StoreError when a
    file cannot be read.
    """
    begun = time.monotonic()
    log = find_log(log_files(commit_log or path))
    store = _Store(path, log, os.path.exists(os.path.join(path, "abort")))
    delays = delay_table(delay_levels)
    with watched(spark, watch):
        seen = Observation()
        units = unit_frame(spark, path, log)
        suspects = _suspects(record_frame(spark, log, delays), units, seen).persist()
        findings, pending = _judged(store, suspects, units) if suspects.count() else (None, 0)
        whole = _whole_store(spark, store)
        findings = (whole if findings is None else findings.union(whole)).persist()
        counts = {row["kind"]: row["count"] for row in findings.groupBy("kind").count().collect()}
        suspects.unpersist()
        if output:
            findings.write.mode("overwrite").parquet(output)
    return StoreAudit(
        path=path,
        findings=findings,
        faults=tuple(FaultCount(kind, counts[kind]) for kind in KINDS if kind in counts),
        records=seen.get["records"],
        units=seen.get["units"],
        bytes=seen.get["bytes"] or 0,
        seconds=time.monotonic() - begun,
        notes=tuple(_notes(store, pending)),
    )


@frozen
class _Store:
    path: str
    log: Log
    is_open: bool  # a broker runs on it, or was killed


# --- the join ---


def _suspects(records: DataFrame, units: DataFrame, seen: Observation) -> DataFrame:
    """Pairs of record and unit that break a rule, with the first reason: `kinds`."""
    pairs = records.join(units, "place", "full_outer")
    whole = F.col("size").isNotNull() & F.col("damage").isNull()
    pairs = pairs.observe(
        seen,
        F.count_if(whole).alias("records"),
        F.count("unitSize").alias("units"),
        F.sum(F.when(whole, F.col("size"))).alias("bytes"),
    )
    has_unit = F.col("unitSize").isNotNull()
    wants_unit = whole & F.coalesce("hasUnit", F.lit(False))
    same = (
        F.col("topic").eqNullSafe(F.col("unitTopic"))
        & F.col("queueId").eqNullSafe(F.col("unitQueueId"))
        & F.col("queueOffset").eqNullSafe(F.col("unitOffset"))
    )
    both = wants_unit & has_unit
    place, columns = F.col("place"), ("size", "tagsCode", "unitSize", "unitCode")
    size, code, unit_size, unit_code = map(F.col, columns)
    wrong = differences((place, size, code), (place, unit_size, unit_code))
    kinds = {
        DAMAGE: F.col("damage").isNotNull(),
        BAD_CRC: F.coalesce("badCrc", F.lit(False)),
        MISSING: wants_unit & ~has_unit,
        EXTRA: has_unit & ~wants_unit,
        WRONG_RECORD: both & ~same,
        # Not WRONG_PLACE: they are joined by the place. A unit elsewhere is missing at this place, and extra
        # there.
        **{kind: both & same & wrong[kind] for kind in (WRONG_SIZE, WRONG_CODE)},
    }
    found = F.array_compact(F.array(*(F.when(condition, F.lit(kind)) for kind, condition in kinds.items())))
    return pairs.withColumn("kinds", found).where(F.size("kinds") > 0)


def _judged(store: _Store, suspects: DataFrame, units: DataFrame) -> tuple[DataFrame, int]:
    """The findings among suspects, and the number of units that are only not written yet."""
    each = suspects.withColumn("kind", F.explode("kinds")).drop("kinds")
    own = units.select(
        F.col("unitTopic").alias("topic"),
        F.col("unitQueueId").alias("queueId"),
        F.col("unitOffset").alias("queueOffset"),
        "place",
        F.lit(True).alias("served"),
    ).join(F.broadcast(suspects.select("place").distinct()), "place", "left_semi")
    # Does a lone record, or one of a crossed pair, have its right unit elsewhere, or has it one by now?
    each = each.join(own, ["topic", "queueId", "queueOffset", "place"], "left")
    kind, served = F.col("kind"), F.col("served").isNotNull()
    each = each.where((kind != MISSING) | ~served)
    each = each.withColumn("kind", F.when((kind == WRONG_RECORD) & served, EXTRA).otherwise(kind)).persist()
    missing = _real(store, each.where(kind == MISSING), units, suspects).persist()
    pending = missing.where("isPending").count()
    found = _folded(missing.where("not isPending"), each.where(kind != MISSING)).distinct()
    return found, pending


def _real(store: _Store, missing: DataFrame, units: DataFrame, suspects: DataFrame) -> DataFrame:
    """Records without a required unit; `isPending`: the unit may not be written yet."""
    known = known_topics(ReadOnlyDisk(), store.path)
    kept = kept_topics(known.names, queue_topics(store.path))
    if kept is not None:
        missing = missing.where(F.col("topic").isin([*kept]))
    if known.begins:
        begins = missing.sparkSession.createDataFrame([*known.begins.items()], "topic string, begin bigint")
        missing = missing.join(F.broadcast(begins), "topic", "left")
        missing = missing.where(F.col("place") >= F.coalesce("begin", F.lit(0))).drop("begin")
    keys = ["unitTopic", "unitQueueId", "unitOffset"]
    doubtful = suspects.where("unitSize is not null").select(*keys)
    queues = (
        units.join(F.broadcast(doubtful), keys, "left_anti")
        .groupBy(F.col("unitTopic").alias("topic"), F.col("unitQueueId").alias("queueId"))
        .agg(
            F.min("unitOffset").alias("first"),
            F.min_by("place", "unitOffset").alias("firstPlace"),
            F.max("unitOffset").alias("last"),
        )
    )
    # The later record is that of the queue's first unit: earlier records have no unit any more.
    first = F.col("firstPlace"), F.col("first")
    replaced = is_replaced(F.col("place"), F.col("queueOffset"), *first)
    last = F.coalesce("last", F.lit(-1))
    return (
        missing.join(queues, ["topic", "queueId"], "left")
        .where(~F.coalesce(replaced, F.lit(False)))
        .withColumn("isPending", is_pending(F.col("queueOffset"), last, F.lit(store.is_open)))
    )


def _folded(missing: DataFrame, others: DataFrame) -> DataFrame:
    """All findings. A unit that names a wrong place is missing at the right place and extra at the wrong: a
    single fault."""
    names = ("unitTopic", "unitQueueId", "unitOffset", "rightPlace")
    columns = ("topic", "queueId", "queueOffset", "place")
    slots = [F.col(column).alias(name) for column, name in zip(columns, names, strict=True)]
    others = others.withColumn("isCrossed", F.col("kind").isin(EXTRA, WRONG_RECORD))
    lone = missing.select(*slots, F.lit(True).alias("isCrossed"))
    # A unit that hit another record than its own, which is a lone one: if no second unit names that record,
    # the record lacks its unit too. (In longer chains not all links are distinguished.)
    keys = [*names[:3], "isCrossed"]
    strange = others.where(F.col("kind") == WRONG_RECORD)
    hit = strange.join(lone, keys, "left_semi")
    hit = hit.join(strange.join(lone, keys, "left_anti").select("place"), "place", "left_anti")
    lost = lone.union(hit.select(*slots, "isCrossed")).distinct()
    pairs = others.join(lost, keys, "full_outer")
    kind = (
        F.when(F.col("kind").isNull(), MISSING)
        .when(F.col("rightPlace").isNotNull(), WRONG_PLACE)
        .otherwise(F.col("kind"))
    )
    return _described(pairs.withColumn("kind", kind))


def _described(pairs: DataFrame) -> DataFrame:
    details = {
        MISSING: F.lit("the record has no unit"),
        EXTRA: _why_extra(),
        WRONG_PLACE: _text("it names {place}, its record is at {rightPlace}"),
        WRONG_RECORD: _text("the record says {topic}/{queueId} offset {queueOffset}"),
        WRONG_SIZE: _text("the unit says {unitSize} bytes, the record {size}"),
        WRONG_CODE: _text("the unit says {unitCode}, the record's is {tagsCode}"),
        BAD_CRC: F.lit("the body is not the one that was stored"),
        DAMAGE: _text("{size} bytes: {damage}"),
    }
    of_record = F.col("kind").isin(BAD_CRC, DAMAGE)
    return pairs.select(
        "kind",
        F.when(of_record, F.col("topic")).otherwise(F.col("unitTopic")).alias("topic"),
        F.when(of_record, F.col("queueId")).otherwise(F.col("unitQueueId")).alias("queueId"),
        F.when(of_record, F.col("queueOffset")).otherwise(F.col("unitOffset")).alias("queueOffset"),
        F.coalesce("place", "rightPlace").alias("physicalOffset"),
        F.coalesce(*(F.when(F.col("kind") == kind, text) for kind, text in details.items())).alias("detail"),
    )


def _why_extra() -> Column:
    return (
        F.when(F.col("damage").isNotNull(), F.lit("its record is damaged"))
        .when(F.col("size").isNull(), F.lit("no record is there"))
        .when(~F.col("hasUnit"), F.lit("the record is half or rolled back: it has no unit"))
        .otherwise(_text("the record is {topic}/{queueId} offset {queueOffset}, which has its unit"))
    )


def _text(form: str) -> Column:
    """The text with columns in it, in the form of an f-string."""
    pieces = [piece for part in form.split("{") for piece in part.split("}")]
    return F.concat(*(F.col(piece) if at % 2 else F.lit(piece) for at, piece in enumerate(pieces)))


# --- findings without a join ---


def _whole_store(spark: SparkSession, store: _Store) -> DataFrame:
    """Findings about files: missing ones, and bytes after the log's end."""
    rows: list[tuple[Any, ...]] = []
    for before, file in pairwise(store.log.files):
        end = before.base + before.size
        if file.base != end:
            rows.append((NO_FILE, None, None, None, end, f"the next file begins at {file.base}"))
    torn = 0 if store.is_open else _torn_bytes(store.log)
    if torn:
        detail = f"{counted(torn, 'byte')} after the last whole record"
        rows.append((TORN, None, None, None, store.log.end, detail))
    return spark.createDataFrame(rows, _SCHEMA)


def _torn_bytes(log: Log) -> int:
    """Bytes up to the last that is not zero, after the end of the log; the BLANK of a full file does not
    count."""
    for file in log.files:
        at = log.end - file.base
        if 0 <= at < file.size:
            rest = file.map()[at:]
            used = np.flatnonzero(rest)
            return 0 if is_blank(rest[:8].data, len(rest)) or not len(used) else int(used[-1]) + 1
    return 0


def _notes(store: _Store, pending: int) -> Iterator[str]:
    if store.is_open:
        yield OPEN_NOTE
    if pending:
        yield f"{counted(pending, 'unit')} at the ends of queues not written yet"
