"""The Spark data source `rmqstore`: the files of a RocketMQ store as rows, without a broker.

Spark imports every module named pyspark_* and takes its DefaultSource; so nothing heavy is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from rmq.spark.store_source import StoreReader


class DefaultSource(DataSource):
    """`spark.read.format("rmqstore").option(...).load(folder)`. Options and columns: docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "rmqstore"

    def schema(self) -> StructType:
        from rmq.spark.formats.schema import spark_schema
        from rmq.spark.options import store_options

        return spark_schema(nullable=store_options(self.options).may_be_null)

    def reader(self, schema: StructType) -> StoreReader:
        from rmq.spark.options import store_options
        from rmq.spark.store_source import PushdownStoreReader, StoreReader

        options = store_options(self.options)
        return PushdownStoreReader(options, schema) if options.pushdown else StoreReader(options, schema)
