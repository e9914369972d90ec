"""What it costs to read and write a topic with Spark, by our source and by Spark's Kafka connector: the same
rows, each on its own broker, in turns; and what Parquet files of the same rows cost.

    python -m benchmarks.spark_kafka --kafka FOLDER [--connector VERSION | --jars A.jar,B.jar] [--rows N]

FOLDER holds the jars of org.apache.kafka:kafka_2.13 and what it needs. The connector comes from Maven Central
in Spark's version, unless another is named (there is none for each Spark) or its jars are given. CPU µs a row
are user and system time of Java and the Python workers, and after the plus of the broker; the middle of
several rounds counts, and of the quotients to Kafka's or Parquet's in the same round. A stream is a query
that reads all of a topic in a batch, and ends; one of 1,000 rows tells what it costs by itself, and its
figures are ms a run. Needs the extra `spark`, and /proc.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Any, cast

import pyspark
from attrs import frozen
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.client.beside import KAFKA_PORT, kafka
from benchmarks.spark_broker import SETTINGS
from benchmarks.spark_scan import Action, Meter, Run, cpu_ticks, drained
from rmq.spark import session
from tests.interop.rocketmq import Processes

WARM, ROUNDS = 2, 7
KEEPS = {"idempotentSendKeepTime": "3600000"}
WRITTEN, SMALL = 200_000, 1000
SEVEN = (
    "keys string, body binary, topic string, queueId int, queueOffset bigint, storeTimestamp timestamp,"
    " sysFlag int"
)
"""As Kafka's connector without headers: key, value, topic, partition, offset, timestamp and its type."""


@frozen
class Way:
    """Something to measure: whose broker works for it, how many rows it has, and what it is compared with."""

    action: Action
    broker: int
    rows: int
    beside: str = ""


def made(spark: SparkSession, rows: int) -> DataFrame:
    """Bodies of some 160 bytes, a key, two properties or headers."""
    return spark.range(rows).select(
        F.concat(F.lit("0123456789" * 15), F.col("id")).alias("body"),
        F.concat(F.lit("order-"), F.col("id")).alias("keys"),
        F.create_map(F.lit("step"), F.lit("paid"), F.lit("shop"), F.col("id").cast("string")).alias(
            "properties"
        ),
    )


def as_kafka(frame: DataFrame) -> DataFrame:
    headers = F.transform(
        F.map_entries("properties"),
        lambda one: F.struct(one["key"].alias("key"), one["value"].cast("binary").alias("value")),
    )
    return frame.select(F.col("keys").alias("key"), F.col("body").alias("value"), headers.alias("headers"))


def streamed(frame: Callable[[], DataFrame], folder: pathlib.Path) -> Action:
    """Reads all by a stream that ends, each time by a new one."""

    def run() -> None:
        writer = frame().writeStream.format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", str(folder / uuid.uuid4().hex)).start().awaitTermination()

    return run


def stream_ways(
    spark: SparkSession, names: str, address: str, brokers: tuple[int, int], rows: int, folder: pathlib.Path
) -> dict[str, Way]:
    """Streams over the whole topic and over one of SMALL rows."""

    def ours(topic: str) -> DataFrame:
        given = {"nameServer": names, "topic": topic, "startingOffsets": "earliest"}
        return spark.readStream.format("rmq").options(**given).schema(SEVEN).load()

    def theirs(topic: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest"}
        return spark.readStream.format("kafka").options(**given).load()

    return {
        "Kafka, stream": Way(streamed(lambda: theirs("Bench"), folder), brokers[1], rows),
        "rmq, stream": Way(streamed(lambda: ours("Bench"), folder), brokers[0], rows, "Kafka, stream"),
        "Kafka, small stream, ms": Way(streamed(lambda: theirs("Small"), folder), brokers[1], SMALL),
        "rmq, small stream, ms": Way(
            streamed(lambda: ours("Small"), folder), brokers[0], SMALL, "Kafka, small stream, ms"
        ),
    }


def parquet_ways(
    spark: SparkSession, names: str, broker: int, rows: int, folder: pathlib.Path
) -> dict[str, Way]:
    """Parquet of the same rows, with all columns and with seven, against our reads of a topic."""
    read = spark.read.format("rmq").options(nameServer=names, topic="Bench")
    read.load().write.option("compression", "zstd").parquet(str(folder / "parquet"))
    seven = [field.name for field in read.schema(SEVEN).load().schema.fields]
    whole = spark.read.parquet(str(folder / "parquet"))
    all_again = spark.read.format("rmq").options(nameServer=names, topic="Bench")
    return {
        "Parquet, 7 columns": Way(drained(whole.select(seven)), broker, rows),
        "rmq, the same 7": Way(drained(read.schema(SEVEN).load()), broker, rows, "Parquet, 7 columns"),
        "Parquet, 18 columns": Way(drained(whole), broker, rows),
        "rmq, the same 18": Way(drained(all_again.load()), broker, rows, "Parquet, 18 columns"),
    }


def ways(
    spark: SparkSession, names: str, address: str, brokers: tuple[int, int], rows: int
) -> dict[str, Way]:
    ours, theirs = brokers
    read = spark.read.format("rmq").options(nameServer=names, topic="Bench")
    other = spark.read.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", "Bench")
    frame = made(spark, WRITTEN)
    kafka_sink = as_kafka(frame).write.format("kafka").option("kafka.bootstrap.servers", address)
    sink = frame.write.format("rmq").options(nameServer=names, topic="Written", exactlyOnce="false")
    once = frame.write.format("rmq").options(nameServer=names, topic="Written", exactlyOnce="auto")
    whole = spark.read.format("rmq").options(nameServer=names, topic="Bench")
    bodiless = spark.read.format("rmq").options(nameServer=names, topic="Bench", columns="queueOffset")
    plain, headed = other.load(), other.option("includeHeaders", "true").load()
    return {
        "Kafka, 7 columns": Way(drained(plain), theirs, rows),
        "rmq, 7 columns": Way(drained(read.schema(SEVEN).load()), ours, rows, "Kafka, 7 columns"),
        "Kafka, with headers": Way(drained(headed), theirs, rows),
        "rmq, with properties": Way(
            drained(read.schema(f"{SEVEN}, properties map<string,string>").load()),
            ours,
            rows,
            "Kafka, with headers",
        ),
        "rmq, 18 columns": Way(drained(whole.load()), ours, rows, "Kafka, with headers"),
        "Kafka, count()": Way(lambda: counted(plain, rows), theirs, rows),
        "rmq, count()": Way(lambda: counted(bodiless.load(), rows), ours, rows, "Kafka, count()"),
        "rmq, count(), no columns named": Way(
            lambda: counted(whole.load(), rows), ours, rows, "Kafka, count()"
        ),
        "Kafka, write": Way(kafka_sink.option("topic", "Written").save, theirs, WRITTEN),
        "rmq, write": Way(sink.mode("append").save, ours, WRITTEN, "Kafka, write"),
        "rmq, write once": Way(once.mode("append").save, ours, WRITTEN, "Kafka, write"),
    }


def counted(frame: DataFrame, rows: int) -> None:
    assert frame.count() == rows


def measured(meter: Meter, way: Way) -> tuple[Run, float]:
    """A run, and the CPU seconds of the broker for it."""
    before = sum(cpu_ticks(way.broker).values())
    run = meter.run(way.action)
    return run, (sum(cpu_ticks(way.broker).values()) - before) / os.sysconf("SC_CLK_TCK")


def show(found: dict[str, list[tuple[float, float]]], all_ways: dict[str, Way]) -> None:
    """CPU µs a row of client and broker, and of the client how many times that of the way beside."""
    for name, rounds in found.items():
        client, broker = (statistics.median(each) for each in zip(*rounds, strict=True))
        beside = all_ways[name].beside
        pairs = zip(rounds, found[beside], strict=True) if beside in found else ()
        quotients = [mine[0] / theirs[0] for mine, theirs in pairs]
        times = f"{statistics.median(quotients):5.2f} of {beside.split(',')[0]}'s" if quotients else ""
        print(f"{name:26} {client:6.2f} + {broker:5.2f}   {times}", flush=True)


def listener(port: int) -> int:
    """The process that listens on a port of this machine."""
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    rows += [line.split() for line in pathlib.Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        for file in process.glob("fd/*"):
            try:
                if os.readlink(file) in inodes:
                    return int(process.name)
            except OSError:
                continue
    raise RuntimeError(f"nobody listens on {port}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", type=pathlib.Path, required=True)
    parser.add_argument("--connector", default=pyspark.__version__)
    parser.add_argument("--jars", default="")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--minutes", type=float, default=600, help="begin no further round after that time")
    parser.add_argument(
        "--only", default="", help="ways with one of these texts, separated by |, in their names"
    )
    given = parser.parse_args()
    package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{given.connector}"
    settings = {"spark.jars": given.jars} if given.jars else {"spark.jars.packages": package}
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rmq-spark-"))
    try:
        with kafka(given.kafka) as address, Processes(cast(Any, None), folder) as processes:
            names = processes.rmq_namesrv()
            broker = processes.rmq_broker(names, folder / "store", **SETTINGS, **KEEPS)
            spark = session("beside Kafka", master="local[2]", settings=settings)
            load = os.getloadavg()[0]
            print(f"Spark {spark.version}, {given.rows} rows, load of this machine {load:.1f}", flush=True)
            for topic, rows in (("Bench", given.rows), ("Small", SMALL)):
                frame = made(spark, rows)
                frame.write.format("rmq").options(nameServer=names, topic=topic).mode("append").save()
                out = as_kafka(frame).write.format("kafka").option("kafka.bootstrap.servers", address)
                out.option("topic", topic).save()
            brokers = broker.pid, listener(KAFKA_PORT)
            all_ways = ways(spark, names, address, brokers, given.rows)
            all_ways |= stream_ways(spark, names, address, brokers, given.rows, folder)
            all_ways |= parquet_ways(spark, names, broker.pid, given.rows, folder)
            chosen = given.only.split("|")
            all_ways = {name: way for name, way in all_ways.items() if any(one in name for one in chosen)}
            meter = Meter(spark)
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in all_ways}
            end = time.monotonic() + given.minutes * 60
            for number in range(WARM + given.rounds):
                if number > WARM and time.monotonic() > end:
                    break
                print(f"round {number - WARM + 1}, load {os.getloadavg()[0]:.1f}", flush=True)
                for name, way in all_ways.items():
                    run, served = measured(meter, way)
                    if number >= WARM:
                        found[name].append((run.cpu / way.rows * 1e6, served / way.rows * 1e6))
            show(found, all_ways)
            spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
