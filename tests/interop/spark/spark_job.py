"""A job for spark-submit: spark_job.py NAMESRV TOPIC STORE [register]

Reads the topic and the store's files, sends the topic's rows on to TOPICCopy, by a stream to TOPICStream too,
and prints as JSON what it found and what Python and rmq its processes have.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rmq.spark import register


def place(_: object) -> dict[str, Any]:
    """The Python of this process, and where it has rmq from."""
    import importlib
    import os

    module = importlib.import_module("rmq.message")
    return {"python": sys.executable, "rmq": module.__file__, "folder": os.getcwd(), "pid": os.getpid()}


def copy_by_stream(spark: SparkSession, source: dict[str, str], target: dict[str, str]) -> None:
    """Send on what a topic has, by a stream that ends there."""
    rows = spark.readStream.format("rmq").options(**source, startingOffsets="earliest").load()
    with tempfile.TemporaryDirectory() as folder:
        made = rows.select("body").writeStream.format("rmq").options(**target)
        made.option("checkpointLocation", folder).trigger(availableNow=True).start().awaitTermination()


def main(names: str, topic: str, store: str, *more: str) -> None:
    spark = SparkSession.builder.appName("orders").getOrCreate()
    if more:
        register(spark)
    orders = spark.read.format("rmq").options(nameServer=names, topic=topic).load()
    files = spark.read.format("rmqstore").option("topic", topic).load(store)
    copies = {"nameServer": names, "topic": f"{topic}Copy"}
    orders.select("body", "tags").write.format("rmq").options(**copies).mode("append").save()
    stream = {"nameServer": names, "topic": f"{topic}Stream"}
    copy_by_stream(spark, {"nameServer": names, "topic": topic}, stream)
    both = orders.join(files, ["queueId", "queueOffset", "msgId", "body"])
    body = F.col("body").cast("string").alias("body")
    found = {
        "topic": sorted(row.body for row in orders.select(body).collect()),
        "copies": sorted(
            row.body for row in spark.read.format("rmq").options(**copies).load().select(body).collect()
        ),
        "stream": spark.read.format("rmq").options(**stream).load().count(),
        "store": files.count(),
        "both": both.count(),
        "driver": place(None),
        "executor": spark.sparkContext.parallelize([0], 1).map(place).collect()[0],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
