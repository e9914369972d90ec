"""What it costs to analyse a million rows of message traces with Spark.

    python -m benchmarks.spark_trace [ROWS]

Trace messages of about ROWS (default 1,000,000) rows are made, written as Parquet, and analysed with two
workers, twice: the second time Java is warm. CPU seconds are those of Java. The extra `spark` is needed, and
/proc.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from rmq.spark import analyse_traces, session
from tests.spark.traces import make_traces, table_of

ROWS_OF_A_MESSAGE = 3.04


def cpu_seconds() -> float:
    """User and system time of the processes below this one."""
    ticks = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(entry)] = int(fields[1])
        used[int(entry)] = (int(fields[11]) + int(fields[12])) / ticks
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return sum(used[pid] for pid in below - {os.getpid()})


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        bodies = make_traces(round(rows / ROWS_OF_A_MESSAGE), random.Random(7))
        pq.write_table(table_of(bodies), f"{folder}/traces.parquet")
        spark = session("benchmark", master="local[2]")
        for run in ("cold", "warm"):
            begun, used = time.monotonic(), cpu_seconds()
            frame = spark.read.parquet(f"{folder}/traces.parquet")
            summary = analyse_traces(spark, frame, f"{folder}/out")
            wall, cpu = time.monotonic() - begun, cpu_seconds() - used
            print(f"{run}: {summary.rows:,} rows in {wall:.1f} s, {cpu:.1f} CPU seconds", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
