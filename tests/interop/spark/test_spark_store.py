"""Spark's rows are what RocketMQ's own decoder finds in the same files: all 18 columns of every message.

The rows of the golden store are compared value by value. Of a generated store (of RMQ_SPARK_STORE_MIB, 64, in
the folder RMQ_SPARK_STORE, else a temporary one) both sides make a digest of each column for each block of
messages; of a block that differs, the values are compared.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.interop.rocketmq import ROOT, Processes

pytest.importorskip("pyspark")

pytestmark = pytest.mark.interop

GOLDEN = ROOT / "tests" / "golden" / "store"
SIZE = int(os.environ.get("RMQ_SPARK_STORE_MIB", "64")) << 20
BLOCK = 1 << 20  # bytes of the log; chunks and files are multiples of it
BROKER = "broker-ä"
ALL = 1 << 62


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from rmq.spark import session

    settings = {"spark.driver.memory": "768m", "spark.sql.execution.arrow.maxRecordsPerBatch": "4000"}
    started = session("rmq interop", master="local[2]", settings=settings)
    yield started
    started.stop()


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """The folder of the generated store; it is removed at once, since pytest keeps its own folders for a
    while."""
    found = pathlib.Path(os.environ.get("RMQ_SPARK_STORE") or tmp_path / "store")
    found.mkdir(parents=True)
    yield found
    shutil.rmtree(found)


def read(spark: Any, folder: pathlib.Path, **options: object) -> Any:
    reader = spark.read.format("rmqstore").option("brokerName", BROKER)
    return reader.options(**options).load(str(folder))


def values_of(frame: Any) -> list[dict[str, Any]]:
    """Spark's rows in the form that java/StoreDigest.java prints.

    Python's dict has a name once, Spark's map may not: then it says how many entries there are."""
    from pyspark.sql import functions

    frame = frame.withColumn("entries", functions.size("properties"))
    for name in ("bornTimestamp", "storeTimestamp"):
        frame = frame.withColumn(name, functions.unix_micros(name))
    rows = [row.asDict() for row in frame.orderBy("physicalOffset").collect()]
    for row in rows:
        row["body"] = row["body"].hex()
        if (entries := row.pop("entries")) != len(row["properties"]):
            row["properties"]["(entries)"] = entries
    return rows


def differences(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> Iterator[str]:
    """For each row that is not the same: where it is and what differs."""
    ours, java = ({row["physicalOffset"]: row for row in rows} for rows in (found, expected))
    if len(ours) < len(found):
        yield f"{len(found) - len(ours)} of Spark's rows have the physicalOffset of another"
    for place in sorted(ours.keys() | java.keys()):
        if place not in ours or place not in java:
            yield f"physicalOffset {place}: only {'Spark' if place in ours else 'Java'} has this row"
        else:
            for name, value in java[place].items():
                if (our := ours[place][name]) != value:
                    yield f"physicalOffset {place}, {name}: Spark {our!r:.99}, Java {value!r:.99}"


class JavaDecoder:
    """java/StoreDigest.java over a store's commit log."""

    def __init__(self, processes: Processes, folder: pathlib.Path) -> None:
        self._start = partial(processes.program, "StoreDigest", str(folder / "commitlog"), BROKER)

    def digests(self, size: int) -> list[dict[str, Any]]:
        rows = self._start(str(size)).finish(seconds=1800)
        return sorted(rows, key=lambda row: int(row["block"]))

    def values(self, size: int = ALL, block: int = 0) -> list[dict[str, Any]]:
        rows = self._start(str(size), str(block)).finish(seconds=1800)
        return sorted(rows, key=lambda row: int(row["physicalOffset"]))


def explain(frame: Any, java: JavaDecoder, found: list[Any], expected: list[Any]) -> str:
    """The differences between the digests, and the different values of the first different block."""
    ours, theirs = ({row["block"]: row for row in rows} for rows in (found, expected))
    blocks = [block for block in sorted(ours.keys() | theirs.keys()) if ours.get(block) != theirs.get(block)]
    names = {
        name
        for block in ours.keys() & theirs.keys()
        for name, digest in theirs[block]["digests"].items()
        if ours[block]["digests"].get(name) != digest
    }
    said = f"{len(blocks)} of {len(theirs)} blocks differ, in the columns {sorted(names)}; the first has"
    rows = values_of(frame.where(f"physicalOffset div {BLOCK} = {blocks[0]}"))
    what = differences(rows, java.values(BLOCK, blocks[0]))
    return "\n".join([said, *(list(itertools.islice(what, 20)) or ["the same rows in another order"])])


def test_the_golden_store_has_the_rows_that_java_decodes(processes: Processes, spark: Any) -> None:
    rows = values_of(read(spark, GOLDEN))

    assert len(rows) == 182
    assert list(differences(rows, JavaDecoder(processes, GOLDEN).values())) == []


def test_a_generated_store_has_the_rows_that_java_decodes(
    processes: Processes, spark: Any, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    from tests.interop.digests import digests_of
    from tests.interop.varied_store import make_store

    file_size = SIZE >> 2
    count = make_store(folder, SIZE, file_size)
    java = JavaDecoder(processes, folder)
    expected = java.digests(BLOCK)
    frame = read(spark, folder, chunkBytes=min(file_size >> 2, 64 << 20))

    print(f"{count} messages, {len(expected)} blocks, {len(list((folder / 'commitlog').iterdir()))} files")

    found = digests_of(frame, BLOCK, tmp_path / "digests")

    assert found == expected or pytest.fail(explain(frame, java, found, expected))
    assert sum(row["rows"] for row in found) == count


@pytest.mark.skipif(SIZE > 256 << 20, reason="all values of such a store do not fit into memory")
def test_the_values_of_all_its_different_records(
    processes: Processes, spark: Any, folder: pathlib.Path
) -> None:
    from tests.interop.varied_store import make_store

    make_store(folder, 12 << 20, 4 << 20)

    rows = values_of(read(spark, folder, chunkBytes=1 << 20))
    assert list(differences(rows, JavaDecoder(processes, folder).values())) == []
