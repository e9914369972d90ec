"""Parquet files of messages, written by Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COMPRESSION: Final = "zstd"


def write(frame: DataFrame, folder: Path, *, partition: Sequence[str] = ()) -> None:
    """Write rows as Parquet files into a folder that is not there yet."""
    frame.write.mode("error").option("compression", COMPRESSION).parquet(
        str(folder), partitionBy=[*partition]
    )


def with_rows(folder: Path) -> Iterator[tuple[Path, int]]:
    """The files of a folder, with their numbers of rows."""
    for path in sorted(folder.rglob("*.parquet")):
        yield path, row_count(path)


def row_count(path: Path) -> int:
    """How many rows a file says it has."""
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def names_of(partition: str) -> tuple[str, str]:
    """(date, topic) of ``date=.../topic=...``."""
    date, topic = (unquote(part.partition("=")[2]) for part in partition.split("/")[-2:])
    return date, topic
