"""A job for spark-submit that copies a topic in three ways: spark_drill_job.py NAMESRV BROKER FOLDER

By foreachBatch into the topic Batches, by a stream's sink into Stream, by Spark's files into FOLDER/rows. The
first attempt of a task of the first batches is slow: half of its rows are sent, so speculation sends them
again. Prints a line for each batch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

SLOW_SECONDS = 20.0


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows as they are, of which the first attempt of the first task has the second half late."""
    context = TaskContext.get()
    assert context is not None
    is_slow = context.partitionId() == 0 and context.attemptNumber() == 0
    for batch in batches:
        half = batch.num_rows // 2
        yield batch.slice(0, half)
        if is_slow:
            time.sleep(SLOW_SECONDS)
            is_slow = False
        yield batch.slice(half)


def main(names: str, broker: str, folder: str) -> None:
    spark = SparkSession.builder.appName("drill").getOrCreate()
    source = {
        "nameServer": names,
        "topic": "In",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "2000",
    }
    sink = {"nameServer": names, "exactlyOnce": "true", "requireBrokers": broker, "sendBatchBytes": "4096"}

    def rows() -> DataFrame:
        return spark.readStream.format("rmq").options(**source).load().select("body")

    def take(frame: DataFrame, batch_id: int) -> None:
        # The last batch meets no fault: in the others the slow task may be on the executor that is lost.
        some = frame.mapInArrow(slow, "body binary") if batch_id in (0, 2, 3) else frame
        some.write.format("rmq").options(**sink, topic="Batches").mode("append").save()
        print(f"batch {batch_id}", flush=True)

    started = [
        rows().writeStream.foreachBatch(take).option("checkpointLocation", f"{folder}/batches"),
        rows()
        .writeStream.format("rmq")
        .options(**sink, topic="Stream", checkpointLocation=f"{folder}/stream"),
        rows()
        .writeStream.format("parquet")
        .options(path=f"{folder}/rows", checkpointLocation=f"{folder}/files"),
    ]
    for query in [one.trigger(availableNow=True).start() for one in started]:
        query.awaitTermination()
    print(f"rows {spark.read.parquet(f'{folder}/rows').count()}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
