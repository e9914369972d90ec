"""The reader behind the data source `rmqstore`: a store's files in parallel, without a broker.

The driver finds the end of the log and cuts the files into chunks (or the consume queues into ranges of
units); each task reads one and depends on nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from attrs import define, evolve
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq.errors import ConfigError, CorruptRecord
from rmq.spark.formats.arrays import Array, gather
from rmq.spark.formats.pushdown import SPARE_MS, Conditions, Filter, Span
from rmq.spark.formats.records import HEAD, Batch, Records, decode_batch, each_fitting
from rmq.spark.formats.schema import asked_schema, own_names, renamed
from rmq.spark.options import StoreOptions
from rmq.spark.runtime import prepare_worker
from rmq.spark.store_files import (
    ChunkScan,
    Damage,
    Floors,
    LogFile,
    QueueUnits,
    check_no_hole,
    first_kept,
    kept,
    log_end,
    log_files,
    queue_folders,
    queue_range,
    queue_units,
    release_pages,
)
from rmq.store.files.scan import parse

log = logging.getLogger("rmq.spark")

_UNITS_AT_ONCE: Final = 1 << 18
"""Units of a consume queue that a task reads: their records are some 64 MiB and more of the log."""


@define(slots=False)
class Chunk(InputPartition):
    """A part of a file: the records that begin at begin <= place < end. The log ends at `limit`; `floors` are
    the first offsets that limits of topics leave."""

    file: LogFile
    begin: int
    end: int
    limit: int
    floors: Floors


@define(slots=False)
class QueuePart(InputPartition):
    """The records of a queue's units with first <= queue offset < end; the log ends at `limit`."""

    topic: str
    queue_id: int
    folder: str
    first: int
    end: int
    limit: int


class StoreReader(DataSourceReader):
    """The reader of a store, with the columns of `schema`. Raises ConfigError."""

    def __init__(self, options: StoreOptions, schema: StructType) -> None:
        self._options = options
        self._asked = asked_schema(schema, nullable=options.may_be_null)
        self._schema = own_names(self._asked)
        self._batch = Batch(options.batch_rows, options.batch_bytes)

    def narrowed(self, schema: StructType) -> Self:
        """A reader of fewer columns, for the tasks of the same plan."""
        return type(self)(self._options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """The parts to read. Raises ConfigError, StoreError, CorruptRecord when a file is missing."""
        options = self._options
        files = log_files(options.path)
        if options.on_corrupt == "fail":
            check_no_hole(files)
        limit = log_end(files)
        floors = first_kept(options.path, options.topics or None) if options.topic_limits else {}
        if options.via == "consumequeue":
            return _queue_parts(options.path, options.topics, limit, floors)
        size = options.chunk_bytes or chunk_size(limit - files[0].base if files else 0)
        return [chunk for file in files for chunk in _chunks(file, limit, size, floors)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one part. Raises CorruptRecord when onCorrupt=fail; an empty batch is never given."""
        prepare_worker()
        if isinstance(partition, Chunk):
            found = self._read_chunk(partition)
        elif isinstance(partition, QueuePart):
            found = self._read_queue(partition)
        else:  # Spark's stand-in for a plan without parts
            return
        for batch in renamed(found, self._asked):
            if batch.num_rows:
                yield batch

    # --- by the commit log ---

    def _read_chunk(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        buffer = chunk.file.map()
        limit = min(max(chunk.limit - chunk.file.base, 0), chunk.file.size)
        scan = ChunkScan(buffer, chunk.file.base, limit, self._batch)
        for found in scan.batches(chunk.begin, chunk.end, partial(self._decode, buffer, floors=chunk.floors)):
            if isinstance(found, Damage):
                yield from self._damaged(chunk.file, found)
            else:
                yield found

    def _decode(
        self, buffer: Array, starts: Array, floors: Floors = MappingProxyType({})
    ) -> tuple[pa.RecordBatch, int]:
        """A batch of the first records, and the number of records in it: as many as fit its bytes."""
        options = self._options
        release_pages(buffer, 0, int(starts[0]))
        chosen = starts
        if options.topics:
            topics = Records(buffer, starts, "").topics()
            selected = pc.is_in(topics, value_set=pa.array(options.topics))
            chosen = starts[selected.to_numpy(zero_copy_only=False)]
        if floors and len(chosen):
            chosen = chosen[kept(Records(buffer, chosen, ""), floors)]
        batch = decode_batch(
            buffer,
            chosen,
            self._schema,
            broker_name=options.broker_name,
            decompress=options.decompress,
            check_crc=options.verify_crc,
            most=options.batch_bytes,
        )
        if batch.num_rows == len(chosen):
            return batch, len(starts)
        return batch, int(np.searchsorted(starts, chosen[batch.num_rows]))

    def _damaged(self, file: LogFile, damage: Damage) -> Iterator[pa.RecordBatch]:
        """Treat damage by onCorrupt."""
        position = file.base + damage.position
        if self._options.on_corrupt == "fail":
            raise CorruptRecord(
                file.path,
                position,
                f"{damage.reason}; the next good place is {position + damage.size}. Restore the file, or "
                "read on with option onCorrupt=skip or onCorrupt=report",
            )
        log.warning(
            "%s: %d bytes from offset %d on are skipped: %s", file.path, damage.size, position, damage.reason
        )
        if self._options.on_corrupt == "report":
            properties = {"file": file.path, "bytes": str(damage.size), "reason": damage.reason}
            row = {"physicalOffset": position, "properties": properties}
            yield pa.RecordBatch.from_pylist(
                [{name: row.get(name) for name in self._schema.names}], schema=self._schema
            )

    # --- by a consume queue ---

    def _read_queue(self, part: QueuePart) -> Iterator[pa.RecordBatch]:
        units = queue_units(part.folder, part.first, part.end)
        files = log_files(self._options.path)
        lost = units.physical_offset >= part.limit
        if lost.any():
            yield from self._lost(part, units, lost)
        # Units of records that retention has removed stay for a while: they are no damage.
        for file in files:
            end = min(file.base + file.size, part.limit)
            here = (units.physical_offset >= file.base) & (units.physical_offset < end)
            inside = QueueUnits(*(field[here] for field in units))
            for cut in self._batch.cut(np.cumsum(inside.size, dtype=np.int64)):
                yield from self._decode_units(part, file, QueueUnits(*(field[cut] for field in inside)))

    def _lost(self, part: QueuePart, units: QueueUnits, lost: Array) -> Iterator[pa.RecordBatch]:
        first = int(units.queue_offset[lost][0])
        file = LogFile(part.folder, 0, 0)
        reason = f"unit {first} and {int(lost.sum()) - 1} others name places after the end of the log"
        yield from self._damaged(file, Damage(int(units.physical_offset[lost][0]), 0, reason))

    def _decode_units(self, part: QueuePart, file: LogFile, units: QueueUnits) -> Iterator[pa.RecordBatch]:
        # Mapped again for each batch: the pages of the last one are returned to the system.
        buffer = file.map()
        # Units are in the order of the log, unless they are damaged.
        breaks = np.flatnonzero(np.diff(units.physical_offset) <= 0) + 1
        for each in zip(*(np.split(field, breaks) for field in units), strict=True):
            run = QueueUnits(*each)
            starts = run.physical_offset - file.base
            left = starts
            while len(left):
                try:
                    yield from each_fitting(
                        left, partial(self._decode_run, buffer, part.queue_id, run, starts)
                    )
                    break
                except CorruptRecord as error:
                    bad = int(np.searchsorted(starts, error.offset))
                    found = Damage(error.offset, int(run.size[bad]), error.reason)
                yield from self._damaged(file, found)
                left = starts[bad + 1 :]

    def _decode_run(
        self, buffer: Array, queue_id: int, run: QueueUnits, starts: Array, some: Array
    ) -> tuple[pa.RecordBatch, int]:
        """Decode `some` of the records at `starts`, after a check that they are those of their units."""
        at = int(np.searchsorted(starts, some[0]))
        units = QueueUnits(*(field[at : at + len(some)] for field in run))
        _check_units(buffer, queue_id, some, units)
        return self._decode(buffer, some)


def _check_units(buffer: Array, queue_id: int, starts: Array, units: QueueUnits) -> None:
    """Raise CorruptRecord for a record that differs from its unit."""
    fits = starts <= len(buffer) - HEAD.itemsize
    head = gather(buffer, HEAD, np.where(fits, starts, 0))
    fits &= (head["size"] == units.size) & (head["queue_id"] == queue_id)
    fits &= head["queue_offset"] == units.queue_offset
    if not fits.all():
        wrong = int(np.argmin(fits))
        number = int(units.queue_offset[wrong])
        raise CorruptRecord("record", int(starts[wrong]), f"unit {number} of its queue names another record")


def chunk_size(stored: int) -> int:
    """Bytes that a task reads of a log of this size: an eighth of it, from 64 to 256 MiB.

    A task costs Spark and its workers tens of milliseconds, whatever it reads.
    """
    return min(max(stored // 8, 64 << 20), 256 << 20)


def _chunks(file: LogFile, limit: int, size: int, floors: Floors) -> Iterator[Chunk]:
    end = min(file.size, limit - file.base)
    for begin in range(0, max(end, 0), size):
        yield Chunk(file, begin, min(begin + size, end), limit, floors)


def _queue_parts(path: str, topics: Sequence[str], limit: int, floors: Floors) -> list[InputPartition]:
    parts: list[InputPartition] = []
    for topic in topics:
        folders = queue_folders(path, topic)
        if not folders:
            raise ConfigError("rmqstore option topic", topic, f"a topic with consume queues in {path}")
        for queue_id, folder in folders.items():
            first, end = queue_range(folder)
            first = max(first, floors.get(topic, {}).get(queue_id, 0))
            for begin in range(first, end, _UNITS_AT_ONCE):
                stop = min(begin + _UNITS_AT_ONCE, end)
                parts.append(QueuePart(topic, queue_id, folder, begin, stop, limit))
    return parts


# --- files, chunks and queues after the filters ---


class PushdownStoreReader(StoreReader):
    """The reader with filters, a class of its own: Spark refuses a reader that has `pushFilters`, whatever is
    asked of it, while its setting spark.sql.python.filterPushdown.enabled is false."""

    def __init__(self, options: StoreOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._conditions = Conditions()
        self._is_empty = False

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters, before `partitions`. Spark applies all of them too: rows of damage have no values
        to compare."""
        self._conditions = Conditions.of(filters)
        topics = self._options.topics or self._conditions.values("topic")
        if topics is not None:
            topics = tuple(topic for topic in topics if self._conditions.allow("topic", topic))
            # Topics without records are no topics for the options, where these stand for all.
            self._is_empty = not topics
            self._options = evolve(self._options, topic=",".join(topics))
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """The parts to read. Raises the errors of StoreReader."""
        if self._is_empty:
            return []
        parts = super().partitions()
        chunks = [part for part in parts if isinstance(part, Chunk)]
        cut = [self._cut_chunk(chunk) for chunk in self._in_time(chunks)]
        cut_queues = [self._cut_queue(part) for part in parts if isinstance(part, QueuePart)]
        return [part for part in cut if part.begin < part.end] + [
            part for part in cut_queues if part.first < part.end
        ]

    def _cut_chunk(self, chunk: Chunk) -> Chunk:
        low, high = self._conditions.span("physicalOffset")
        base = chunk.file.base
        begin, end = max(chunk.begin, low - base), min(chunk.end, high - base)
        return evolve(chunk, begin=begin, end=end)

    def _cut_queue(self, part: QueuePart) -> QueuePart:
        low, high = self._conditions.span("queueOffset")
        first, end = max(part.first, low), min(part.end, high)
        if not self._conditions.allow("queueId", part.queue_id):
            end = first
        return evolve(part, first=first, end=end)

    def _in_time(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The chunks of files that may have records of the time, by the first record of each file."""
        span = self._conditions.span("storeTimestamp")
        if span == Span():
            return list(chunks)
        files = sorted({chunk.file for chunk in chunks}, key=lambda file: file.base)
        times = [_first_time(file) for file in files]
        chosen = set()
        for file, first, after in zip(files, times, [*times, None][1:], strict=True):
            is_late = first is not None and first - SPARE_MS >= span.high
            is_early = after is not None and after + SPARE_MS < span.low
            if not is_late and not is_early:
                chosen.add(file)
        return [chunk for chunk in chunks if chunk.file in chosen]


def _first_time(file: LogFile) -> int | None:
    """The store time of a file's first record; None without a good one."""
    record = parse(file.map().data, 0, file.base, check_crc=False)
    return None if record is None else record.store_timestamp
