"""Folders of stores that Spark reads."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from rmq.protocol.record import Record
from rmq.spark.formats.schema import spark_schema
from rmq.spark.options import store_options
from rmq.spark.store_source import StoreReader
from rmq.store.files.disk import RealDisk
from tests.spark.records import V4
from tests.unit.store.stores import open_store

FILE = 16384


Row = dict[str, Any]


def write_store(root: Path, made: list[Record], store_host: bytes = V4) -> bytes:
    """A store of small files with these records; gives the log's bytes up to its end."""
    store = open_store(RealDisk(), root=str(root), store_host=store_host, mapped_file_size_commit_log=FILE)
    for record in made:
        store.put(record)
        store.commit()
    end = store.max_physical_offset
    store.close()
    return log_bytes(root)[:end]


def log_bytes(root: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((root / "commitlog").iterdir()))


def read(root: Path, columns: list[str] | None = None, **options: object) -> list[Row]:
    given = {name: str(value) for name, value in options.items()}
    options = store_options({"path": str(root), **given})
    reader = StoreReader(options, spark_schema(columns, nullable=options.may_be_null))
    reader = pickle.loads(pickle.dumps(reader))
    rows: list[Row] = []
    for part in reader.partitions():
        for batch in reader.read(pickle.loads(pickle.dumps(part))):
            batch.validate(full=True)
            rows += batch.to_pylist(maps_as_pydicts="strict")
    return rows


def simple(number: int, size: int = 300, topic: str = "T") -> Record:
    text = f"UNIQ_KEY\x01{number:02}\x02TAGS\x01a"
    return Record(topic, number % 2, bytes([number % 256]) * size, text, born_host=V4)
