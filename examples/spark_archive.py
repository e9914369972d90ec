"""Archive a topic as Parquet by Spark, and count its content. Needs the extra: pip install 'rmq[spark]'.

python examples/spark_archive.py [name server] [folder of the archive]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

import rmq.spark
from rmq.client import blocking
from rmq.message import Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "ExampleArchive"
STEPS = ("created", "paid", "shipped")


def send(namesrv: str) -> None:
    with blocking.connect(namesrv) as client, client.producer("example-archive") as producer:
        producer.send_batch([Message(TOPIC, b"order %d" % n, tags=STEPS[n % 3]) for n in range(300)])


def archive(spark: SparkSession, namesrv: str, folder: str) -> None:
    options = {"nameServer": namesrv, "topic": TOPIC}
    done = rmq.spark.archive(spark, options, folder)
    print(done.rows, "messages archived in", folder)
    again = rmq.spark.archive(spark, options, folder)  # continues where the last run ended
    print(again.rows, "more")

    rows = rmq.spark.read_archive(spark, folder)
    for row in rows.groupBy("date", "tags").count().orderBy("date", "tags").collect():
        print(row.date, row.tags, row["count"])


def main(arguments: Sequence[str]) -> None:
    namesrv = arguments[0] if arguments else "127.0.0.1:9876"
    folder = arguments[1] if len(arguments) > 1 else tempfile.mkdtemp(prefix="rmq-archive-")
    send(namesrv)
    spark = rmq.spark.session("archive example", master="local[2]")
    archive(spark, namesrv, folder)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
