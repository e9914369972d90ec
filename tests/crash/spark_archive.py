"""The job that test_spark_kill kills: a topic appended to Parquet. Run as a program:

python -m tests.crash.spark_archive stream FOLDER NAMESRV     until killed
python -m tests.crash.spark_archive finish FOLDER NAMESRV     to the end of what is there, then rows.json
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import TYPE_CHECKING

from rmq.spark import session

from .ledger import TOPIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

ROWS_A_BATCH = 500


def archive(spark: SparkSession, folder: pathlib.Path, namesrv: str, *, to_the_end: bool) -> StreamingQuery:
    options = {
        "nameServer": namesrv,
        "topic": TOPIC,
        "startingOffsets": "latest",
        "stateLocation": str(folder / "state"),
        "maxOffsetsPerTrigger": str(ROWS_A_BATCH),
    }
    frame = spark.readStream.format("rmq").options(**options).load()
    stream = frame.writeStream.format("parquet").option("path", str(folder / "rows"))
    stream = stream.option("checkpointLocation", str(folder / "checkpoint"))
    return (stream.trigger(availableNow=True) if to_the_end else stream).start()


def main(what: str, folder: pathlib.Path, namesrv: str) -> None:
    spark = session("archive", master="local[2]", settings={"spark.driver.memory": "512m"})
    query = archive(spark, folder, namesrv, to_the_end=what == "finish")
    query.awaitTermination()
    columns = ("topic", "brokerName", "queueId", "queueOffset", "body")
    rows = spark.read.parquet(str(folder / "rows")).select(*columns).collect()
    found = [[row.topic, row.brokerName, row.queueId, row.queueOffset, row.body.hex()] for row in rows]
    (folder / "rows.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3])
