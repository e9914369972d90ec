"""The Spark data source `rmq`. Spark imports every module named `pyspark_*` when it looks for a source and
takes its `DefaultSource`: so this module imports almost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from rmq.spark.sink import BatchSink, StreamSink
    from rmq.spark.source import BatchReader, StreamReader

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """`spark.read.format("rmq")`, and the same with `readStream`, `write` and `writeStream`.

    Raises ConfigError for options and columns that are unknown or wrong."""

    @classmethod
    def name(cls) -> str:
        return "rmq"

    def schema(self) -> StructType:
        from rmq.spark.formats.schema import spark_schema
        from rmq.spark.options import columns, null_columns

        return spark_schema(columns(self.options), nullable=null_columns(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        from rmq.spark.source import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        from rmq.spark.source import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        from rmq.spark.sink import batch_sink

        return batch_sink(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        from rmq.spark.sink import stream_sink

        return stream_sink(self.options, schema)
