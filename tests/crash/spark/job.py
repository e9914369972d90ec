"""The streams of the campaign of faults, in one Spark: a topic into Parquet, into Iceberg, into a topic by
the sink, and by foreachBatch into a topic and dead letters.

    python -m tests.crash.spark.job JSON

Each has other options, so that a fault meets each way to wait: the stream into Parquet skips lost messages
and has no list of brokers, that into Iceberg has the defaults, that of foreachBatch skips brokers that are
away. The first stream that fails ends the process, with its reason as the last line of the output.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rmq.spark import archive_table, decoded, register, session, undecoded
from tests.crash.spark.processes import batches_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IN, OUT, EACH, GROUP = "Lake", "LakeOut", "LakeEach", "lake"
"""The topic that is read, those that the sink and foreachBatch write, and the group of the dead letters."""
SCHEMA = "n long, text string"
TABLE = "lake.shop.orders"
PLAN_SECONDS = 10.0
STARVED = "failed to connect back"
"""Spark's error where a Python worker takes longer than 10 s to start, as on a busy machine."""


class Streams:
    """The streams; `given` are the settings of Spark, the name server, the brokers, a folder, the seconds
    from one batch to the next (None: the present messages only), and the names of the streams."""

    def __init__(self, spark: SparkSession, given: Mapping[str, Any]) -> None:
        self._spark, self._given = spark, given

    def run(self, name: str) -> None:
        """Run a stream until it ends. Raises its error."""
        streams: dict[str, Callable[[str], None]] = {
            "parquet": self._parquet,
            "iceberg": self._iceberg,
            "sink": self._sink,
            "each": self._each,
        }
        streams[name](f"{self._given['folder']}/checkpoints/{name}")

    def _source(self, **more: str) -> dict[str, str]:
        rate = {"maxOffsetsPerTrigger": str(self._given["most"]), "pullTimeoutMs": "300000"}
        where = {"nameServer": self._given["namesrv"], "topic": IN, "startingOffsets": "earliest"}
        return {**where, **rate, **more}

    def _required(self) -> dict[str, str]:
        return {"requireBrokers": ",".join(self._given["brokers"])}

    def _table(self, target: str, to: Any, checkpoint: str, **more: str) -> None:
        every = self._given["every"]
        archive_table(
            self._spark, self._source(**more), target, to=to, checkpoint=checkpoint, every_seconds=every
        )

    def _parquet(self, checkpoint: str) -> None:
        state = f"{self._given['folder']}/state"
        more = {"failOnDataLoss": "false", "stateLocation": state}
        self._table(f"{self._given['folder']}/parquet", "parquet", checkpoint, **more)

    def _iceberg(self, checkpoint: str) -> None:
        self._table(TABLE, "iceberg", checkpoint)

    def _sink(self, checkpoint: str) -> None:
        frame = self._read(**self._required()).select("body")
        writer = frame.writeStream.format("rmq").options(**self._written(OUT))
        self._finish(writer, checkpoint)

    def _each(self, checkpoint: str) -> None:
        def take(frame: DataFrame, batch_id: int) -> None:
            rows = decoded(frame, SCHEMA, bad="dlq")
            good = rows.where("decodeError is null").select("body")
            good.write.format("rmq").options(**self._written(EACH)).mode("append").save()
            letters = undecoded(rows, GROUP)
            letters.write.format("rmq").options(**self._written("")).mode("append").save()

        self._finish(self._read(onBrokerAway="skip").writeStream.foreachBatch(take), checkpoint)

    def _read(self, **more: str) -> DataFrame:
        return self._spark.readStream.format("rmq").options(**self._source(**more)).load()

    def _written(self, topic: str) -> dict[str, str]:
        options = {"nameServer": self._given["namesrv"], "exactlyOnce": "true", "sendTimeoutMs": "60000"}
        options |= self._required()
        return options | ({"topic": topic} if topic else {})

    def _finish(self, writer: Any, checkpoint: str) -> None:
        every = self._given["every"]
        timed = (
            writer.trigger(availableNow=True)
            if every is None
            else writer.trigger(processingTime=f"{every} seconds")
        )
        timed.option("checkpointLocation", checkpoint).start().awaitTermination()


def await_plan(folder: str) -> None:
    """Wait until a stream has planned a batch, but not for long: streams that start side by side take the
    processor from each other, and Spark gives the Python process of each 10 s."""
    deadline, before = time.monotonic() + PLAN_SECONDS, batches_in(pathlib.Path(folder))
    while batches_in(pathlib.Path(folder)) == before and time.monotonic() < deadline:
        time.sleep(0.1)


def main(text: str) -> None:
    given = json.loads(text)
    spark = session("faults", master="local[2]", settings=given["settings"])
    streams = Streams(spark, given)

    def run(name: str) -> None:
        register(spark)  # in each thread: Spark looks for a sink in the thread's session
        try:
            while True:
                try:
                    return streams.run(name)
                except Exception as error:
                    if STARVED not in str(error):
                        raise
                    print(f"{name} again: {STARVED}", flush=True)
        except BaseException as error:
            lines = [line.strip() for line in str(error).splitlines() if not line.startswith("\tat ")]
            print(f"{name} ended: {' / '.join(lines[:1] + lines[-8:])}", flush=True)
            os._exit(1)

    threads = [threading.Thread(target=run, args=(name,)) for name in given["streams"]]
    for name, one in zip(given["streams"], threads, strict=True):
        one.start()
        await_plan(f"{given['folder']}/checkpoints/{name}/offsets")
    print("started", flush=True)
    for one in threads:
        one.join()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
