"""The batches of a stream, inside of foreachBatch: read, check, set apart, write, and merge small files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from attrs import define, field

from rmq.errors import RmqError
from rmq.spark.jobs.cdc import ERROR
from rmq.spark.jobs.rows import checked, chosen, counts, is_broken, letters, read_rows
from rmq.spark.jobs.spec import Stream, connection_of
from rmq.spark.jobs.targets import Target, target_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Note = Callable[[str, Mapping[str, int]], object]
"""Called with the name of a stream, and the numbers of a batch's rows that could not be read or do not meet
an expectation."""


def unnoted(name: str, found: Mapping[str, int]) -> None:
    """Do nothing."""


class NotExpected(RmqError):
    """The error for rows of a batch that end the stream."""

    hint = "mend the rows, or have them left out: `dlq`, or `else` of an expectation"


@define
class Batches:
    """Takes the batches of a stream's query. Letters are written before the target: for a repeated batch the
    brokers have them already."""

    spark: SparkSession
    stream: Stream
    note: Note = unnoted
    _target: Target = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._target = target_of(self.spark, self.stream)

    def take(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch. Raises NotExpected, ConfigError, and Spark's errors."""
        stream = self.stream
        rows = frame if ERROR in frame.columns else read_rows(frame, stream)
        rows = checked(rows, stream.expectations)
        judges = bool(stream.decode or stream.cdc or stream.expectations)
        if judges:
            rows = rows.persist()
        try:
            if judges:
                self._judge(rows)
            if stream.dlq:
                self._write_letters(rows)
            good = rows.where(rows[ERROR].isNull() & ~is_broken(stream.expectations, "drop", "dlq"))
            self._target.write(chosen(good, stream), batch_id)
        finally:
            if judges:
                rows.unpersist()
        if stream.compact and (batch_id + 1) % stream.compact == 0:
            self._target.compact(frame)

    def _judge(self, rows: DataFrame) -> None:
        stream = self.stream
        found = counts(rows, stream.expectations)
        self.note(stream.name, found)
        if found["decode"] and not stream.dlq:
            row = (
                rows.where(rows[ERROR].isNotNull())
                .select("topic", "brokerName", "queueId", "queueOffset", ERROR)
                .first()
            )
            assert row is not None
            place = f"message {row.queueOffset} of queue {row.queueId} of {row.brokerName}, topic {row.topic}"
            raise NotExpected(
                f"streams.{stream.name}: {found['decode']} bodies cannot be read, {place}: {row[ERROR]}"
            )
        for one in stream.expectations:
            if one.otherwise == "fail" and found[one.name]:
                place = f"streams.{stream.name}.expectations.{one.name}"
                raise NotExpected(f"{place}: {found[one.name]} rows do not meet {one.that}")

    def _write_letters(self, rows: DataFrame) -> None:
        stream = self.stream
        bad = rows.where(rows[ERROR].isNotNull() | is_broken(stream.expectations, "dlq"))
        options = connection_of(stream.source)
        letters(bad, stream.dlq).write.format("rmq").options(**options).mode("append").save()
