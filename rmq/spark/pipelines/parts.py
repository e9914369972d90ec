"""Frames of what a function reads, part by part, as Arrow batches.

That is what `mapInArrow` is for, but it asks for pandas; a data source of our own does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from attrs import define
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

P = TypeVar("P")


@define(slots=False)
class Number(InputPartition):
    """Which of the parts."""

    value: int


def frame_of_parts(
    spark: SparkSession, parts: Sequence[P], read: Callable[[P], Iterator[pa.RecordBatch]], columns: str
) -> DataFrame:
    """A frame of what `read` gives of each part: a task for each. Parts and function must pickle.

    `columns` is a schema as Spark writes it; the batches must have the same columns in the same order.
    """
    if not parts:
        return spark.createDataFrame([], columns)

    class Reader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [Number(number) for number in range(len(parts))]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            assert isinstance(partition, Number)
            return read(parts[partition.value])

    class Parts(DataSource):
        @classmethod
        def name(cls) -> str:
            return "rmq-parts"

        def schema(self) -> str:
            return columns

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Parts)  # in the place of the last one: a frame keeps its own
    return spark.read.format(Parts.name()).load()
