"""Digests of Spark's rows: a data source to write them to, which keeps one of each column for each block.

A block is the messages that begin in the same so many bytes of the commit log. Each task makes a file of JSON
lines. (`mapInArrow` would do without files, but it asks for pandas.)
"""

from __future__ import annotations

import itertools
import json
import sys
import uuid
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType


def digests_of(frame: DataFrame, size: int, folder: Path) -> list[dict[str, Any]]:
    """Digests of the rows, block by block; `folder` gets files."""
    register_pickle_by_value(sys.modules[__name__])  # Spark's workers do not have the tests
    frame.sparkSession.dataSource.register(Digests)
    frame.write.format("digests").option("size", size).mode("append").save(str(folder))
    rows = [json.loads(line) for path in folder.iterdir() for line in path.read_text().splitlines()]
    return sorted(rows, key=lambda row: int(row["block"]))


class Digests(DataSource):
    @classmethod
    def name(cls) -> str:
        return "digests"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return DigestWriter(Path(self.options["path"]), int(self.options["size"]))


class DigestWriter(DataSourceArrowWriter):
    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._size = size

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / uuid.uuid4().hex, "w") as file:
            for block in blocks_of(iterator, self._size):
                file.write(json.dumps(block.as_row()) + "\n")
        return WriterCommitMessage()


def blocks_of(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[Block]:
    """Blocks whose messages follow each other."""
    block: Block | None = None
    for batch in batches:
        numbers = batch.column("physicalOffset").to_numpy() // size
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), batch.num_rows]
        for begin, end in itertools.pairwise(cuts):
            if begin == end:
                continue
            if block is None or block.number != numbers[begin]:
                if block is not None:
                    yield block
                block = Block(int(numbers[begin]))
            block.add(batch.slice(begin, end - begin))
    if block is not None:
        yield block


class Block:
    """The digests of the rows of one block, as far as they have come."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.rows = 0
        self._digests: dict[str, list[Any]] = {}

    def add(self, batch: Any) -> None:
        self.rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            parts = list(streams(column))
            digests = self._digests.setdefault(name, [sha256() for _ in parts])
            for digest, part in zip(digests, parts, strict=True):
                digest.update(part)

    def as_row(self) -> dict[str, Any]:
        digests = {
            name: sha256(b"".join(each.digest() for each in found)).hexdigest()[:32]
            for name, found in self._digests.items()
        }
        return {"block": self.number, "rows": self.rows, "digests": digests}


def streams(column: pa.Array) -> Iterator[bytes]:
    """The bytes that a column's digest is made of, a stream each.

    Numbers are 8 bytes long, big-endian; times are microseconds. Lengths are 4 bytes and -1 for null, and
    maps are in the order of their names' bytes: sizes, names (lengths, content), values (lengths, content).
    """
    if pa.types.is_map(column.type):
        yield from streams_of_maps(column)
    elif pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type):
        yield np.where(column.is_valid(), 8, -1).astype(">i4").tobytes()
        yield column.drop_null().cast(pa.int64()).to_numpy().astype(">i8").tobytes()
    else:
        yield pc.binary_length(column).fill_null(-1).to_numpy().astype(">i4").tobytes()
        yield b"".join(column.drop_null().cast(pa.binary()).to_pylist())


def streams_of_maps(column: pa.Array) -> Iterator[bytes]:
    ends = column.offsets.to_numpy()
    sizes = np.diff(ends)
    names, values = (part[ends[0] : ends[-1]] for part in (column.keys, column.items))
    encoded = names.cast(pa.binary()).dictionary_encode()
    ranks = np.argsort(np.argsort(np.array(encoded.dictionary.to_pylist(), object)))
    rows = np.repeat(np.arange(len(column)), sizes)
    order = pa.array(np.lexsort((ranks[encoded.indices.to_numpy()], rows)))
    yield np.where(column.is_valid(), sizes, -1).astype(">i4").tobytes()
    yield from streams(names.take(order))
    yield from streams(values.take(order))
