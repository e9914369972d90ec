"""State for each key: the time that orders take from one step to the next, and orders without progress.

    python examples/spark_state.py 127.0.0.1:9876 /data/steps

Reads the topic Shop, whose bodies are JSON with `order` and `step`. A row of the result has the time of an
order in a step; an order that stays in a step for longer than an hour gives a row without a next step. Spark
keeps the state of each order in RocksDB, in the checkpoint. Needs the extra `spark`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from rmq.spark import decoded, session

STUCK_MS = 3_600_000
RESULT = "order string, step string, next string, seconds double"
STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Steps(StatefulProcessor):
    """The last step of an order and its time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._last = handle.getValueState("last", "step string, at long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self._last.get() if self._last.exists() else None
        for row in sorted(rows, key=lambda row: row.at):
            if before is not None:
                yield Row(order=key[0], step=before[0], next=row.step, seconds=(row.at - before[1]) / 1000)
            before = row.step, row.at
        self._last.update(before)
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        if before is not None:
            self._handle.registerTimer(before[1] + STUCK_MS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        step = self._last.get()[0]
        yield Row(order=key[0], step=step, next=None, seconds=STUCK_MS / 1000)

    def close(self) -> None:
        pass


def steps(rows: DataFrame) -> DataFrame:
    """The times of orders in their steps, from the messages of the topic Shop."""
    values = decoded(rows, "order string, step string").where("value is not null")
    at = F.unix_millis("storeTimestamp").alias("at")
    given = values.select("value.order", "value.step", at, "storeTimestamp")
    given = given.withWatermark("storeTimestamp", "10 minutes")
    return given.groupBy("order").transformWithState(
        statefulProcessor=Steps(), outputStructType=RESULT, outputMode="Append", timeMode="EventTime"
    )


def run(spark: SparkSession, names: str, folder: str) -> int:
    """Process the present messages; return the number of rows in the result."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STORE)
    given = {"nameServer": names, "topic": "Shop", "startingOffsets": "earliest"}
    rows = spark.readStream.format("rmq").options(**given).load()
    writer = steps(rows).writeStream.format("parquet").option("path", f"{folder}/rows")
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    return spark.read.parquet(f"{folder}/rows").count()


if __name__ == "__main__":
    print(run(session("steps"), sys.argv[1], sys.argv[2]), "steps")
