"""Reads the first queue of a topic as a task does, and says how many rows came and this process's peak (MiB):
`python -m tests.spark.big_read NAME_SERVER TOPIC COUNT [BATCH_BYTES]`."""

from __future__ import annotations

import sys
from pathlib import Path

from rmq.message import MessageQueue
from rmq.spark.formats.schema import arrow_schema
from rmq.spark.offsets import QueueRange
from rmq.spark.options import read_options
from rmq.spark.pull import read_ranges


def main(names: str, topic: str, count: int) -> None:
    options = read_options({"nameServer": names, "topic": topic}, streaming=False)
    wanted = [QueueRange(MessageQueue(topic, "embedded", 0), 0, count)]
    rows = sum(batch.num_rows for batch in read_ranges(options, wanted, arrow_schema(["body"])))
    lines = Path("/proc/self/status").read_text().splitlines()
    print(rows, next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
