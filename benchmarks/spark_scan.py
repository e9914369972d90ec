"""What it costs to read a store with Spark: against Parquet of the same rows, and against a reader of tuples.

    python -m benchmarks.spark_scan [MIB] [FOLDER]

A store of MIB (default 2048) is made under FOLDER (default: the temporary folder) and removed at the end. CPU
seconds are user and system time of Java and all Python processes below it. The ways to read take turns, so
that a machine that is busy elsewhere is so for all of them; the middle of several rounds counts, after some
that let Java get warm. The extra `spark` is needed, and /proc.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq.protocol.record import Record, encode_record
from rmq.spark import session

HOST = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")
FILE = 1 << 30
BLOCK = 20_000
FOUR = "topic string, queueId int, queueOffset bigint, body binary"
WARM = 2
ROUNDS = 7
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


# --- the store ---


def make_block() -> tuple[Any, Any, Any]:
    """Some records one after the other, where they begin, and where the number in their unique key is."""
    chance = np.random.default_rng(7)
    parts, starts, keys, at = [], [], [], 0
    for number in range(BLOCK):
        text = f"TAGS\x01Tag{number % 5}\x02KEYS\x01order-{number}\x02WAIT\x01true\x02UNIQ_KEY\x01"
        text += "C000020210265FFD2B27690857" + "00000000"
        body = chance.bytes(int(chance.integers(60, 140))) + b"0123456789" * 7
        born = 1_795_253_354_000 + number
        record = Record(
            f"Topic{number % 8}", number % 4, body, text, born_timestamp=born, born_host=HOST,
            queue_offset=number // 8, store_timestamp=born + 1,
        )  # fmt: skip
        parts.append(encode_record(record, HOST))
        starts.append(at)
        at += len(parts[-1])
        keys.append(at - 8)
    return np.frombuffer(b"".join(parts), np.uint8).copy(), np.array(starts), np.array(keys)


def number_block(block: Any, starts: Any, keys: Any, base: int, first: int) -> None:
    """Write the records' own places and unique keys into them."""
    places = (starts + base).astype(">i8").view(np.uint8).reshape(-1, 8)
    block[starts[:, None] + 28 + np.arange(8)] = places
    numbers = first + np.arange(len(starts))
    digits = (numbers[:, None] >> np.arange(28, -4, -4)) & 15
    block[keys[:, None] + np.arange(8)] = _HEX[digits]


def make_store(folder: Path, size: int) -> int:
    """A commit log of about `size` bytes; gives the number of its records."""
    (folder / "commitlog").mkdir(parents=True)
    block, starts, keys = make_block()
    position = count = 0
    while position < size:
        base = position - position % FILE
        with open(folder / "commitlog" / f"{base:020d}", "ab") as file:
            room = base + FILE - position
            if room < len(block) + 8:
                file.write(room.to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(room - 8))
                position = base + FILE
                continue
            number_block(block, starts, keys, position, count)
            file.write(block.data)
        position += len(block)
        count += len(starts)
    return count


# --- the reader of tuples ---


class Tuples(DataSource):
    """The same chunks read record by record into tuples of the 18 columns."""

    @classmethod
    def name(cls) -> str:
        return "tuples"

    def schema(self) -> StructType:
        from rmq.spark.formats.schema import spark_schema

        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(dict(self.options))


class TupleReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        from rmq.spark.formats.schema import spark_schema
        from rmq.spark.options import store_options
        from rmq.spark.store_source import StoreReader

        options = store_options({"path": self.options["path"], "chunkBytes": "64m"})
        return StoreReader(options, spark_schema()).partitions()[: int(self.options["chunks"])]

    def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
        from datetime import UTC, datetime

        from rmq.protocol.record import decode_record
        from rmq.spark.formats.records import Batch
        from rmq.spark.store_files import ChunkScan, give_back

        buffer = partition.file.map()
        scan = ChunkScan(buffer, partition.file.base, len(buffer), Batch(1 << 14, 8 << 20))
        for starts in scan.rows(partition.begin, partition.end, lambda starts: starts):
            give_back(buffer, 0, int(starts[0]))
            for start in starts.tolist():
                m = decode_record(buffer.data, start, check_crc=False)
                yield (
                    m.topic, "", m.queue_id, m.queue_offset, m.physical_offset, m.body, m.tags,
                    m.properties.get("KEYS"), m.message_id, m.properties,
                    datetime.fromtimestamp(m.born_timestamp / 1000, UTC),
                    datetime.fromtimestamp(m.store_timestamp / 1000, UTC),
                    m.born_host, m.store_host, m.reconsume_times, m.sys_flag, m.flag,
                    m.prepared_transaction_offset,
                )  # fmt: skip


# --- measuring ---


def descendants(root: int) -> list[int]:
    """`root` and all processes below it."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            parents[int(name)] = int(text.rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_ticks(root: int) -> dict[int, int]:
    """Process -> its user and system time so far, for `root` and all below; 0: what ended below `root`."""
    ticks = {}
    for pid in descendants(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        ticks[pid] = sum(map(int, fields[11:13]))
        if pid == root:
            ticks[0] = sum(map(int, fields[13:15]))
    return ticks


def cpu_seconds(root: int, before: dict[int, int]) -> tuple[float, float]:
    """(Java's, Python's) since `before`. A process that has ended since then counts as it was."""
    spent = {pid: now - before.get(pid, 0) for pid, now in cpu_ticks(root).items()}
    hertz = os.sysconf("SC_CLK_TCK")
    java = spent.pop(root)
    return java / hertz, sum(spent.values()) / hertz


def peak_mib(root: int) -> float:
    """The most memory that one Python process below has held, MiB."""
    peaks = [0]
    for pid in descendants(root)[1:]:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        peaks += [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    return max(peaks) / 1024


@contextmanager
def on_one_core(root: int) -> Iterator[None]:
    """Bind `root` and all below it, as they are now and what they start, to the first core."""
    cores = os.sched_getaffinity(0)

    def bind(to: set[int]) -> None:
        for pid in descendants(root):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), to)

    bind({min(cores)})
    try:
        yield
    finally:
        bind(cores)


@frozen
class Run:
    """What reading all rows once took: seconds of Java's and of Python's CPU time, and of the clock."""

    java: float
    python: float
    wall: float

    @property
    def cpu(self) -> float:
        return self.java + self.python


Action = Callable[[], None]


class Meter:
    def __init__(self, spark: SparkSession) -> None:
        self.pid = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]

    def run(self, action: Action) -> Run:
        before, began = cpu_ticks(self.pid), time.perf_counter()
        action()
        wall = time.perf_counter() - began
        return Run(*cpu_seconds(self.pid, before), wall)

    def run_on_one_core(self, action: Action) -> Run:
        with on_one_core(self.pid):
            return self.run(action)


def drained(frame: DataFrame) -> Action:
    """Read all rows and drop them."""
    return lambda: frame.write.format("noop").mode("overwrite").save()


def take_turns(ways: Mapping[str, Callable[[], Run]]) -> dict[str, list[Run]]:
    """The runs of each way, in the same order, without those that warm Java up."""
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for number in range(WARM + ROUNDS):
        for name, way in ways.items():
            run = way()
            if number >= WARM:
                runs[name].append(run)
    return runs


def show(runs: Mapping[str, list[Run]], rows: Mapping[str, int]) -> None:
    print(f"{'':34} {'Mrows/CPU s':>11} {'Java s':>6} {'Python s':>8} {'wall s':>7}   CPU s of each")
    for name, each in runs.items():
        java, python, wall, cpu = (
            statistics.median(getattr(run, part) for run in each)
            for part in ("java", "python", "wall", "cpu")
        )
        spread = " ".join(f"{run.cpu:.1f}" for run in each)
        print(f"{name:34} {rows[name] / cpu / 1e6:11.3f} {java:6.2f} {python:8.2f} {wall:7.2f}   {spread}")


def ratio(above: Iterable[float], below: Iterable[float]) -> float:
    """The middle of the rounds' quotients."""
    return statistics.median(x / y for x, y in zip(above, below, strict=True))


def compare(spark: SparkSession, folder: Path, rows: int) -> None:
    store, parquet = str(folder / "store"), str(folder / "parquet")
    meter = Meter(spark)
    log = spark.read.format("rmqstore").load(store)
    log.write.option("compression", "zstd").parquet(parquet)
    four = spark.read.format("rmqstore").schema(FOUR).load(store)
    spark.dataSource.register(Tuples)
    tuples = spark.read.format("tuples").option("path", store).option("chunks", 2).load()
    ways = {
        "Parquet, zstd": partial(meter.run, drained(spark.read.parquet(parquet))),
        "rmqstore, 18 columns": partial(meter.run, drained(log)),
        "rmqstore, 4 columns": partial(meter.run, drained(four)),
        "rmqstore, one task at a time": partial(meter.run, drained(log.coalesce(1))),
        "rmqstore, one task on one core": partial(meter.run_on_one_core, drained(log.coalesce(1))),
        "tuples, 18 columns (two chunks)": partial(meter.run, drained(tuples)),
    }
    counts = dict.fromkeys(ways, rows) | {"tuples, 18 columns (two chunks)": tuples.count()}
    runs = take_turns(ways)
    show(runs, counts)
    archived, scanned, _, alone, lonely, slow = runs.values()
    cost, both = [run.cpu for run in scanned], [run.wall for run in scanned]
    of_tuples = [run.cpu / counts["tuples, 18 columns (two chunks)"] * rows for run in slow]
    print(f"store scan / Parquet      {ratio((run.cpu for run in archived), cost):6.2f}   (goal 0.6)")
    print(f"store scan / tuples       {ratio(of_tuples, cost):6.2f}   (goal 4)")
    # One task keeps a Java thread and a Python process busy, so on two cores it has a part of the second.
    print(f"two tasks / one           {ratio((run.wall for run in alone), both):6.2f}   both on all cores")
    apart = ratio((run.wall for run in lonely), both)
    print(f"two tasks / one           {apart:6.2f}   the one on one core (goal 1.7)")
    print(f"peak of a Python process  {peak_mib(meter.pid):6.0f}   MiB (goal 300)")


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2048
    folder = Path(tempfile.mkdtemp(prefix="rmq-spark-", dir=sys.argv[2] if len(sys.argv) > 2 else None))
    try:
        rows = make_store(folder / "store", size << 20)
        print(f"{rows} records, {size} MiB, load of this machine {os.getloadavg()[0]:.1f}")
        spark = session("benchmark", master="local[2]")
        compare(spark, folder, rows)
        spark.stop()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
