"""What it costs to read and write a topic with Spark: the read against a scan of the same store, the write
against a writer of rows.

    python -m benchmarks.spark_broker [ROWS] [FOLDER]

A broker of ours runs beside, once as it comes (1,024 messages or 1 MiB a pull) and once set up to give more.
CPU seconds are user and system time of Java and the Python workers; the broker's own are shown apart, and of
several runs the cheapest counts. The extra `spark` is needed, and /proc.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from benchmarks.spark_scan import RUNS, cpu_seconds, cpu_ticks, peak_mib
from rmq.spark import session
from rmq.spark.options import write_options
from rmq.spark.sink import write_rows
from tests.interop.rocketmq import Process, Processes

GENEROUS = {
    "maxTransferCountOnMessageInMemory": "4096",
    "maxTransferBytesOnMessageInMemory": str(4 << 20),
}
SETTINGS = {"mappedFileSizeCommitLog": str(512 << 20), "mappedFileSizeConsumeQueue": str(20 * 300_000)}
WRITTEN = 200_000
BLOCK = 10_000


def fill(names: str, rows: int) -> None:
    """Send rows like those of spark_scan: 4 properties, bodies of some 170 bytes."""
    options = write_options({"nameServer": names, "topic": "Bench"})

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, rows, BLOCK):
            numbers = range(first, min(first + BLOCK, rows))
            yield pa.record_batch(
                {
                    "body": [b"%d" % number + b"0123456789" * (10 + number % 14) for number in numbers],
                    "tags": [f"Tag{number % 5}" for number in numbers],
                    "keys": [f"order-{number}" for number in numbers],
                }
            )

    write_rows(options, batches(), "bench/0/0")


def write_by_rows(names: str) -> Callable[[Iterator[Row]], None]:
    """A writer as one would write it by hand: messages one by one, sent in batches of 256."""

    def write(rows: Iterator[Row]) -> None:
        from itertools import islice

        from rmq.client import blocking
        from rmq.message import Message

        with blocking.connect(names) as client, client.producer("rows") as producer:
            while some := list(islice(rows, 256)):
                producer.send_batch(
                    [Message("Rows", row.body.encode(), tags=row.tags, keys=(row.keys,)) for row in some]
                )

    return write


class Meter:
    def __init__(self, spark: SparkSession, broker: Process) -> None:
        self.pid = int(cast(Any, spark)._jvm.java.lang.ProcessHandle.current().pid())
        self.broker = broker

    def measure(self, name: str, action: Callable[[], None], rows: int) -> float:
        """Rows per CPU second of the cheapest run."""
        runs = []
        for _ in range(RUNS):
            before, served = cpu_ticks(self.pid), sum(cpu_ticks(self.broker.pid).values())
            began = time.perf_counter()
            action()
            wall = time.perf_counter() - began
            java, python = cpu_seconds(self.pid, before)
            broker = (sum(cpu_ticks(self.broker.pid).values()) - served) / os.sysconf("SC_CLK_TCK")
            runs.append((java + python, java, python, broker, wall))
        total, java, python, broker, _ = min(runs)
        wall = statistics.median(run[4] for run in runs)
        shown = f"{rows / total / 1e6:11.3f} {java:8.2f} {python:8.2f} {broker:8.2f} {wall:8.2f}"
        print(f"{name:36} {shown}", flush=True)
        return rows / total


def drained(frame: DataFrame) -> Callable[[], None]:
    return lambda: frame.write.format("noop").mode("overwrite").save()


def reads(spark: SparkSession, processes: Processes, folder: Path, rows: int) -> None:
    names = processes.rmq_namesrv()
    broker = processes.rmq_broker(names, folder / "store", **SETTINGS, **GENEROUS)
    fill(names, rows)
    scan = spark.read.format("rmqstore").load(str(folder / "store"))
    read = spark.read.format("rmq").options(nameServer=names, topic="Bench")
    drained(scan)()
    drained(read.load())()  # both warm
    meter = Meter(spark, broker)
    scanned = meter.measure("rmqstore, 18 columns", drained(scan), rows)
    given = meter.measure("rmq, 18 columns, 1024 a pull", drained(read.load()), rows)
    four = read.schema("topic string, queueId int, queueOffset bigint, body binary").load()
    meter.measure("rmq, 4 columns, 1024 a pull", drained(four), rows)
    broker.stop()
    broker = processes.rmq_broker(names, folder / "store", **SETTINGS)
    meter = Meter(spark, broker)
    usual = meter.measure("rmq, 18 columns, 32 a pull", drained(read.load()), rows)
    print(f"broker read / store scan   {given / scanned:5.2f}   (goal 0.8)")
    print(f"the same with 32 a pull    {usual / scanned:5.2f}")
    frame = spark.range(WRITTEN).select(
        F.concat(F.lit("0123456789" * 15), F.col("id")).alias("body"),
        F.concat(F.lit("Tag"), F.col("id") % 5).alias("tags"),
        F.concat(F.lit("order-"), F.col("id")).alias("keys"),
    )
    sink = frame.write.format("rmq").options(nameServer=names, topic="Arrow").mode("append")
    sink.save()
    arrow = meter.measure("rmq, write", sink.save, WRITTEN)
    by_rows = write_by_rows(names)
    slow = meter.measure("writer of rows", lambda: frame.foreachPartition(by_rows), WRITTEN)
    print(f"Arrow write / row write    {arrow / slow:5.2f}   (goal 2)")
    print(f"peak of a Python process  {peak_mib(meter.pid):6.0f}   MiB (goal 300)")


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    folder = Path(tempfile.mkdtemp(prefix="rmq-spark-", dir=sys.argv[2] if len(sys.argv) > 2 else None))
    try:
        print(f"{rows} messages, load of this machine {os.getloadavg()[0]:.1f}")
        print(f"{'':36} {'Mrows/CPU s':>11} {'Java s':>8} {'Python s':>8} {'broker s':>8} {'wall s':>8}")
        spark = session("benchmark", master="local[2]")
        with Processes(cast(Any, None), folder) as processes:
            reads(spark, processes, folder, rows)
        spark.stop()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
