"""Steps on the rows of a stream: bodies become values, unreadable and unexpected rows are set apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rmq.errors import ConfigError
from rmq.message import dlq_topic
from rmq.protocol.properties import DLQ_ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, DLQ_REASON
from rmq.spark.decode import decoded
from rmq.spark.jobs.cdc import DELETED, ERROR, ORDER, changes
from rmq.spark.jobs.spec import Expectation, Stream
from rmq.spark.pipelines.replay import own_properties

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

BROKEN: Final = "_broken"
"""The column with the names of expectations that a row does not meet."""
PLACE: Final = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp")
"""Columns of a message that decoded rows keep without `select`."""
LETTER: Final = ("body", "tags", "keys", "properties", "msgId")
"""Further columns for dead letters."""


def read_rows(frame: DataFrame, stream: Stream) -> DataFrame:
    """The messages with the columns that `select` and conditions may use: `value` with the decoded body, its
    fields under their own names too unless a column of a message has the name, and `decodeError`."""
    from pyspark.sql import functions as F

    if stream.cdc is not None:
        return _with_fields(changes(frame, stream.cdc))
    if stream.decode is None:
        return frame.withColumn(ERROR, F.lit(None).cast("string"))
    text = stream.decode.schema
    schema = _inferred(frame) if text == "infer" else text
    form, message = stream.decode.form, stream.decode.message
    rows = decoded(frame, schema, form=form, bad="dlq", message=message, framed=stream.decode.framed)  # type: ignore[arg-type]
    return _with_fields(rows)


def _inferred(frame: DataFrame) -> StructType:
    """The schema of the JSON objects in the bodies, inferred by Spark."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    texts = frame.select(F.col("body").cast("string").alias("value"))
    found = frame.sparkSession.read.option("mode", "DROPMALFORMED").json(texts.rdd.map(lambda row: row.value))
    return found.schema if found.schema.fields else StructType([StructField("_none", StringType())])


def _with_fields(rows: DataFrame) -> DataFrame:
    from pyspark.sql.types import StructType

    kind = rows.schema["value"].dataType
    if not isinstance(kind, StructType):
        return rows
    new = [name for name in kind.fieldNames() if name not in rows.columns]
    return rows.select("*", *[rows["value"][name].alias(name) for name in new])


def checked(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """The rows with `_broken`, the names of the expectations that a row does not meet. A condition that is
    null is not met; rows that could not be read are not checked."""
    from pyspark.sql import functions as F

    names = [F.when(~F.coalesce(F.expr(one.that), F.lit(False)), F.lit(one.name)) for one in expectations]
    broken = F.array_compact(F.array(*names)) if names else F.array().cast("array<string>")
    readable = F.col(ERROR).isNull()
    return rows.withColumn(BROKEN, F.when(readable, broken).otherwise(F.array().cast("array<string>")))


def is_broken(expectations: Sequence[Expectation], *otherwise: str) -> Column:
    """True for a row that does not meet an expectation with any of these consequences."""
    from pyspark.sql import functions as F

    names = [one.name for one in expectations if one.otherwise in otherwise]
    return F.arrays_overlap(BROKEN, F.array(*map(F.lit, names))) if names else F.lit(False)


def chosen(rows: DataFrame, stream: Stream) -> DataFrame:
    """The rows and columns of the target: `where` and `select`; without `select` the value's fields and the
    place of the message, or, without decoding, the message's own columns."""
    if stream.where:
        rows = rows.where(stream.where)
    own = [name for name in (ORDER, DELETED) if name in rows.columns]
    if stream.select:
        kept = [name for name in own if name not in stream.select]
        return rows.selectExpr(*stream.select, *kept)
    if stream.cdc is not None:
        return rows.select("value.*", *own)
    if stream.decode is None:
        return rows.drop(ERROR, BROKEN)
    fields = rows.select("value.*").columns
    return rows.select("value.*", *[name for name in PLACE if name not in fields])


def letters(rows: DataFrame, group: str) -> DataFrame:
    """Dead letters of the rows, with the reason: an unreadable body, or the expectations not met."""
    from pyspark.sql import functions as F

    broken = F.concat(F.lit("does not meet "), F.array_join(BROKEN, ", "))
    marks = F.create_map(
        F.lit(DLQ_ORIGIN_TOPIC), "topic", F.lit(DLQ_ORIGIN_MESSAGE_ID), "msgId",
        F.lit(DLQ_REASON), F.coalesce(ERROR, broken),
    )  # fmt: skip
    place = F.format_string("undecoded/%s@%s-%d@%d", "topic", "brokerName", "queueId", "queueOffset")
    found = rows.select(
        "body",
        "tags",
        "keys",
        F.map_concat(own_properties("DLQ_"), marks).alias("properties"),
        F.lit(dlq_topic(group)).alias("topic"),
        place.alias("rowKey"),
        "msgId",
    )
    # A message with several changes is one letter; sorted, because brokers recognize repeated letters by
    # order.
    return found.dropDuplicates(["rowKey"]).sortWithinPartitions("rowKey") if ORDER in rows.columns else found


def counts(rows: DataFrame, expectations: Sequence[Expectation]) -> dict[str, int]:
    """The number of rows that could not be read (`decode`), and the number that do not meet each
    expectation."""
    from pyspark.sql import functions as F

    columns = [F.count_if(F.col(ERROR).isNotNull()).alias("0")]
    columns += [
        F.count_if(F.array_contains(BROKEN, one.name)).alias(str(at))
        for at, one in enumerate(expectations, 1)
    ]
    (row,) = rows.agg(*columns).collect()
    return {
        name: int(row[str(at)]) for at, name in enumerate(["decode", *(one.name for one in expectations)])
    }


def with_watermark(rows: DataFrame, stream: Stream) -> DataFrame:
    """The rows without repetitions of the `dedup` columns within the watermark. Unreadable rows stay: their
    key is their place in the topic."""
    from pyspark.sql import functions as F

    assert stream.watermark is not None
    if stream.watermark.column not in rows.columns:
        raise ConfigError("watermark.column", stream.watermark.column, f"one of {', '.join(rows.columns)}")
    time = F.coalesce(F.col(stream.watermark.column).cast("timestamp"), F.col("storeTimestamp"))
    found = rows.withColumn("_time", time).withWatermark("_time", f"{stream.watermark.delay_ms} milliseconds")
    if stream.dedup:
        place = F.format_string("%s@%s-%d@%d", "topic", "brokerName", "queueId", "queueOffset")
        found = found.withColumn("_bad", F.when(F.col(ERROR).isNotNull(), place).otherwise(F.lit("")))
        found = found.dropDuplicatesWithinWatermark([*stream.dedup, "_bad"]).drop("_bad")
    return found.drop("_time")
