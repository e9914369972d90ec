"""What it costs to read and write a topic with Spark: the read against a scan of the same store, the write
against a writer of rows.

    python -m benchmarks.spark_broker [ROWS] [FOLDER]

A broker of ours runs beside with its usual settings. CPU seconds are user and system time of Java and the
Python workers; what the broker itself took is shown apart. The ways take turns, and the middle of several
rounds counts. The extra `spark` is needed, and /proc.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from benchmarks.spark_scan import (
    FOUR,
    WARM,
    Action,
    Meter,
    Run,
    cpu_ticks,
    drained,
    peak_mib,
    ratio,
    show,
    take_turns,
)
from rmq.spark import session
from rmq.spark.options import write_options
from rmq.spark.sink import write_rows
from tests.interop.rocketmq import Processes

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


def compare(spark: SparkSession, processes: Processes, folder: Path, rows: int) -> None:
    names = processes.rmq_namesrv()
    broker = processes.rmq_broker(names, folder / "store", **SETTINGS)
    fill(names, rows)
    meter = Meter(spark)
    served: dict[str, list[float]] = {}

    def way(name: str, action: Action) -> Callable[[], Run]:
        def measured() -> Run:
            before = sum(cpu_ticks(broker.pid).values())
            run = meter.run(action)
            ticks = sum(cpu_ticks(broker.pid).values()) - before
            served.setdefault(name, []).append(ticks / os.sysconf("SC_CLK_TCK"))
            return run

        return measured

    read = spark.read.format("rmq").options(nameServer=names, topic="Bench")
    frame = spark.range(WRITTEN).select(
        F.concat(F.lit("0123456789" * 15), F.col("id")).alias("body"),
        F.concat(F.lit("Tag"), F.col("id") % 5).alias("tags"),
        F.concat(F.lit("order-"), F.col("id")).alias("keys"),
    )
    sink = frame.write.format("rmq").options(nameServer=names, topic="Arrow").mode("append")
    by_rows = write_by_rows(names)
    # What the writers add would be read by a scan of the store; so it reads a copy.
    shutil.copytree(folder / "store" / "commitlog", folder / "copy" / "commitlog")
    actions = {
        "rmqstore, 18 columns": drained(spark.read.format("rmqstore").load(str(folder / "copy"))),
        "rmq, 18 columns": drained(read.load()),
        "rmq, 4 columns": drained(read.schema(FOUR).load()),
        "rmq, write": sink.save,
        "writer of rows": lambda: frame.foreachPartition(by_rows),
    }
    runs = take_turns({name: way(name, action) for name, action in actions.items()})
    show(runs, {name: WRITTEN if "write" in name else rows for name in runs})
    for name in list(runs)[1:]:
        spent = statistics.median(served[name][WARM:])
        print(f"the broker's part of {name:18} {spent:6.2f} CPU s")
    scanned, given, _, written, slow = ([run.cpu for run in each] for each in runs.values())
    print(f"broker read / store scan   {ratio(scanned, given):5.2f}   (goal 0.8)")
    print(f"Arrow write / row write    {ratio(slow, written):5.2f}   (goal 2)")
    print(f"peak of a Python process  {peak_mib(meter.pid):6.0f}   MiB (goal 300)")


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    folder = Path(tempfile.mkdtemp(prefix="rmq-spark-", dir=sys.argv[2] if len(sys.argv) > 2 else None))
    try:
        print(f"{rows} messages, load of this machine {os.getloadavg()[0]:.1f}")
        spark = session("benchmark", master="local[2]")
        with Processes(cast(Any, None), folder) as processes:
            compare(spark, processes, folder, rows)
        spark.stop()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
