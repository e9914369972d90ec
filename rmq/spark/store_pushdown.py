"""Reading of a store only what Spark's filters may let through: files, chunks and queues are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import evolve
from pyspark.sql.datasource import Filter, InputPartition
from pyspark.sql.types import StructType

from rmq.spark.pushdown import SPARE_MS, Conditions, Span
from rmq.spark.store_files import LogFile
from rmq.spark.store_options import StoreOptions
from rmq.spark.store_source import Chunk, QueuePart, StoreReader
from rmq.store.scan import parse


class PushdownStoreReader(StoreReader):
    """A class of its own: Spark refuses a reader that has `pushFilters`, whatever is asked of it, while its
    setting spark.sql.python.filterPushdown.enabled is false."""

    def __init__(self, options: StoreOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._conditions = Conditions()
        self._is_empty = False

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters, before `partitions`. Spark applies all of them too: rows that tell of damage have
        nothing that could be compared."""
        self._conditions = Conditions.of(filters)
        topics = self._options.topics or self._conditions.values("topic")
        if topics is not None:
            topics = tuple(topic for topic in topics if self._conditions.allow("topic", topic))
            # Topics that no record has are no topics for the options, where they stand for all.
            self._is_empty = not topics
            self._options = evolve(self._options, topics=topics)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """The parts to read of. Raises what StoreReader does."""
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
        """The chunks of files that may hold records of the time, by the first record of each file."""
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
    """When the first record of a file was stored; None when there is no good one."""
    record = parse(file.map().data, 0, file.base, check_crc=False)
    return None if record is None else record.store_timestamp
