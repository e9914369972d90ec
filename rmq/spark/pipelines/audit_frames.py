"""Frames that the store audit joins: the records of a commit log and the units of its queues, as Arrow
columns.

Each side is planned in the driver and read in parts by tasks; nothing is looped over message by message
except the CRC of bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from attrs import define, frozen
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq.message import PROPERTY_TAGS, SCHEDULE_TOPIC, TIMER_TOPIC, tags_code
from rmq.protocol.properties import due_time, has_unit, timer_due
from rmq.spark.formats.arrays import Array, gather
from rmq.spark.formats.records import HEAD, Batch, Records, find_records
from rmq.spark.store_files import (
    ChunkScan,
    Damage,
    LogFile,
    log_end,
    queue_folders,
    queue_range,
    queue_topics,
    queue_units,
)
from rmq.store.audit.rules import is_compared, is_kept

CHUNK: Final = 64 << 20
UNITS_AT_ONCE: Final = 1 << 18
BATCH: Final = Batch(rows=16384, size=8 << 20)

RECORD_SCHEMA: Final = pa.schema(
    [
        ("place", pa.int64()),
        ("size", pa.int64()),
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("tagsCode", pa.int64()),
        ("hasUnit", pa.bool_()),
        ("badCrc", pa.bool_()),
        ("damage", pa.string()),
    ]
)
UNIT_SCHEMA: Final = pa.schema(
    [
        ("place", pa.int64()),
        ("unitSize", pa.int64()),
        ("unitTopic", pa.string()),
        ("unitQueueId", pa.int32()),
        ("unitOffset", pa.int64()),
        ("unitCode", pa.int64()),
    ]
)
RECORD_COLUMNS: Final = (
    "place bigint, size bigint, topic string, queueId int, queueOffset bigint, tagsCode bigint,"
    " hasUnit boolean, badCrc boolean, damage string"
)
UNIT_COLUMNS: Final = (
    "place bigint, unitSize bigint, unitTopic string, unitQueueId int, unitOffset bigint, unitCode bigint"
)


@frozen
class Log:
    """A commit log for the audit: its files, and the end of its records."""

    files: tuple[LogFile, ...]
    end: int

    @property
    def start(self) -> int:
        """The physical offset of the first stored byte."""
        return self.files[0].base


@frozen
class Chunk:
    """The records of a file that begin at begin <= place < end; the log ends at `limit` in it."""

    file: LogFile
    begin: int
    end: int
    limit: int


@frozen
class Units:
    """Units of a queue: first <= queue offset < end."""

    topic: str
    queue_id: int
    folder: str
    first: int
    end: int


def find_log(files: Sequence[LogFile]) -> Log:
    """The end of the records: after the last good record, and after whole records with a wrong CRC that
    follow. Raises StoreError when a file cannot be read."""
    good = log_end(list(files)) or files[0].base
    for file in files:
        if file.base <= good < file.base + file.size:
            _, reached = find_records(file.map(), good - file.base, file.size)
            return Log(tuple(files), file.base + reached)
    return Log(tuple(files), good)


# --- records ---


def record_frame(spark: SparkSession, log: Log, delays: Mapping[int, int]) -> DataFrame:
    """A row for each whole record and each damaged place of the log."""
    chunks = [
        Chunk(file, begin, min(begin + CHUNK, limit), limit)
        for file in log.files
        for limit in [min(max(log.end - file.base, 0), file.size)]
        for begin in range(0, limit, CHUNK)
    ]
    return frame_of_parts(spark, chunks, partial(_scan, delays=dict(delays)), RECORD_COLUMNS)


def _scan(chunk: Chunk, *, delays: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
    buffer = chunk.file.map()
    scan = ChunkScan(buffer, chunk.file.base, chunk.limit, BATCH)
    for found in scan.rows(chunk.begin, chunk.end, partial(_records, buffer, delays)):
        yield _damage(chunk.file, found) if isinstance(found, Damage) else found


def _records(buffer: Array, delays: Mapping[int, int], starts: Array) -> pa.RecordBatch:
    records = Records(buffer, starts, "")
    topics = records.topics()
    sys_flag: Any = records.head["sys_flag"]
    rows = len(starts)
    return pa.RecordBatch.from_arrays(
        [
            records.column("physicalOffset"),
            pa.array(records.head["size"].astype(np.int64)),
            topics,
            records.column("queueId"),
            records.column("queueOffset"),
            pa.array(unit_codes(records, topics, delays)),
            pa.array(has_unit(sys_flag)),
            pa.array(~records.crc_matches()),
            pa.nulls(rows, pa.string()),
        ],
        schema=RECORD_SCHEMA,
    )


def _damage(file: LogFile, damage: Damage) -> pa.RecordBatch:
    row = {"place": file.base + damage.position, "size": damage.size, "damage": damage.reason}
    return pa.RecordBatch.from_pylist([row], schema=RECORD_SCHEMA)


def unit_codes(records: Records, topics: pa.Array, delays: Mapping[int, int]) -> Array:
    """The tags codes that the units of these records must have, by `protocol.properties.unit_code`."""
    codes = _by_value(records.property(PROPERTY_TAGS), lambda tags: tags_code(tags) if tags else 0, 0)
    scheduled = pc.equal(topics, SCHEDULE_TOPIC).to_numpy(zero_copy_only=False)
    if scheduled.any():
        stored = pc.divide(records.store_times().cast(pa.int64()), 1000).to_numpy()
        delay = _by_value(records.property("DELAY"), lambda level: _delay_ms(level, delays), -1)
        codes = np.where(scheduled & (delay >= 0), stored + delay, codes)
    timed = pc.equal(topics, TIMER_TOPIC).to_numpy(zero_copy_only=False)
    if timed.any():
        due = _by_value(records.property("TIMER_OUT_MS"), lambda ms: timer_due(ms.encode()), 0)
        codes = np.where(timed, due, codes)
    return codes


def _by_value(texts: pa.Array, code: Callable[[str], int], absent: int) -> Array:
    """`code` of each text, called once for each different text."""
    found = texts.dictionary_encode()
    numbers = np.array([*map(code, found.dictionary.to_pylist()), absent], np.int64)
    codes: Array = numbers[found.indices.fill_null(len(numbers) - 1).to_numpy()]
    return codes


def _delay_ms(level: str, delays: Mapping[int, int]) -> int:
    due = due_time(level.encode(), 0, delays)
    return -1 if due is None else due


# --- units ---


def unit_frame(spark: SparkSession, folder: str, log: Log) -> DataFrame:
    """A row for each unit, but for those of records that retention has removed.

    A unit of a record that was stored after the search for the log's end is left out, so that a broker may
    run during the audit.
    """
    return frame_of_parts(spark, _packed(_queue_parts(folder)), partial(_read_units, log=log), UNIT_COLUMNS)


def _queue_parts(folder: str) -> Iterator[Units]:
    for topic in queue_topics(folder):
        if not is_compared(topic):
            continue
        for queue_id, place in queue_folders(folder, topic).items():
            first, end = queue_range(place)
            for begin in range(first, end, UNITS_AT_ONCE):
                yield Units(topic, queue_id, place, begin, min(begin + UNITS_AT_ONCE, end))


def _packed(parts: Iterator[Units]) -> list[list[Units]]:
    """Small queues together: a task costs some 10 ms whatever it reads."""
    packs: list[list[Units]] = []
    room = 0
    for part in parts:
        size = part.end - part.first
        if size > room:
            packs.append([])
            room = 8 * UNITS_AT_ONCE
        packs[-1].append(part)
        room -= size
    return packs


def _read_units(parts: list[Units], *, log: Log) -> Iterator[pa.RecordBatch]:
    for part in parts:
        units = queue_units(part.folder, part.first, part.end)
        kept = is_kept(units.physical_offset, log.start)
        late = np.flatnonzero(units.physical_offset >= log.end)
        kept[late[_is_record(log, units.physical_offset[late])]] = False
        offset, place, size, code = (field[kept] for field in units)
        rows = len(offset)
        if rows:
            topic = pa.repeat(pa.scalar(part.topic, pa.string()), rows)
            queue = pa.array(np.full(rows, part.queue_id, np.int32))
            columns = [place, size.astype(np.int64), topic, queue, offset, code]
            yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=UNIT_SCHEMA)


def _is_record(log: Log, places: Array) -> Array:
    """True for a record that has this place in its own fields."""
    found = np.zeros(len(places), bool)
    for file in log.files if len(places) else ():
        here = (places >= file.base) & (places < file.base + file.size - HEAD.itemsize)
        if here.any():
            head = gather(file.map(), HEAD, places[here] - file.base)
            found[here] = head["physical_offset"] == places[here]
    return found


# --- a frame from a function that reads part by part ---
#
# `mapInArrow` would do this, but needs pandas; a data source of our own does not.

P = TypeVar("P")


@define(slots=False)
class Number(InputPartition):
    """The number of the part."""

    value: int


def frame_of_parts(
    spark: SparkSession, parts: Sequence[P], read: Callable[[P], Iterator[pa.RecordBatch]], columns: str
) -> DataFrame:
    """A frame of the results of `read` for each part: a task for each. Parts and function must be picklable.

    `columns` is a schema in Spark's text form; the batches must have the same columns in the same order.
    """
    if not parts:
        return spark.createDataFrame([], columns)

    class Reader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [Number(number) for number in range(len(parts))]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            assert isinstance(partition, Number)
            return read(parts[partition.value])

    class Parts(DataSource):
        @classmethod
        def name(cls) -> str:
            return "rmq-parts"

        def schema(self) -> str:
            return columns

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Parts)  # in place of the last one: a frame keeps its own
    return spark.read.format(Parts.name()).load()
