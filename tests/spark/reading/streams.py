"""Streams of Spark whose brokers come and go."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from rmq.spark.formats.schema import arrow_schema
from rmq.spark.offsets import Offsets, offsets_of, offsets_tree
from rmq.spark.source import BatchReader, StreamReader
from tests.spark.cluster import Pair

SCHEMA = arrow_schema(["brokerName", "queueId", "queueOffset"])


def rows(parts: Sequence[InputPartition], read: Callable[[InputPartition], Any]) -> int:
    return sum(one.num_rows for part in parts for one in read(part))


def count(reader: BatchReader) -> int:
    return rows(reader.partitions(), reader.read)


def latest(reader: StreamReader, start: Offsets) -> Offsets:
    return offsets_of(reader.latestOffset(offsets_tree(start), ReadAllAvailable()))


SLAVE = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": "127.0.0.1:1"}


def file_of(pair: Pair, folder: pathlib.Path, **serve: Any) -> dict[str, Any]:
    def stream(topic: str, to: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {
            "source": {"topic": topic},
            "to": to,
            "checkpoint": str(folder / "cp" / topic),
            "every": "100ms",
            **more,
        }

    return {
        "source": {"nameServer": pair.names, "startingOffsets": "earliest"},
        "serve": serve,
        "streams": {
            "files": stream(
                "RunFiles",
                {"format": "parquet", "path": str(folder / "rows")},
                where="queueOffset < 20",
                select=["cast(body as string) as text", "queueOffset"],
            ),
            "copies": stream("RunIn", {"format": "rmq", "topic": "RunOut"}, select=["body"]),
        },
    }
