"""Reading topics in batches and streams: the plans, made in the driver. See `pull` for the tasks.

The module of the cluster is imported by the first question: Spark makes readers in processes that ask none.

A read is exact because a range [start, stop) of a queue is always the same messages: Spark keeps the ranges
in its checkpoint, and missing messages of a range raise DataLoss (or are skipped and logged).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Final, Self

from attrs import frozen
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from rmq.message import MessageQueue
from rmq.spark.formats.pushdown import SPARE_MS, Conditions, Filter, Span, clipped, is_ensured
from rmq.spark.formats.schema import asked_schema, own_names, renamed
from rmq.spark.offsets import (
    AWAY,
    Bounds,
    Offsets,
    Places,
    Plan,
    join,
    limited,
    lost,
    offsets_of,
    offsets_tree,
    places_of,
    plan,
    split,
)
from rmq.spark.options import ReadOptions, read_options

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    TELLS_START: bool = True
    """True if Spark gives the begin when it asks a stream for its end: from 4.2 on."""
except ImportError:
    TELLS_START = False

    class ReadLimit:  # type: ignore[no-redef]
        """Limit of a batch."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """No limit: all present messages."""

    @frozen
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """A limit in messages."""

        max_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stand-in without effect: this version of Spark itself ends at the messages of the start."""


if TYPE_CHECKING:
    import pyarrow as pa

    from rmq.spark.cluster import Cluster


POLL_SECONDS: Final = 0.1
"""Pause between Spark's queries for new messages, in seconds, since Spark makes none. It doubles when no
message came."""
POLL_SECONDS_MAX: Final = 1.6
JOIN_ABOVE: Final = 16
"""Number of queues up to which each queue is a task, however few messages they have."""
JOIN_RECORDS: Final = 20_000
"""Messages that cost about as much to read as a task to start (40 ms)."""

log = logging.getLogger(__name__)


def batch_reader(options: Mapping[str, str], schema: StructType) -> BatchReader:
    """The reader of `spark.read`. Raises ConfigError."""
    found = read_options(options, streaming=False)
    reader = PushdownBatchReader if found.pushdown else BatchReader
    return reader(found, asked_schema(schema, nullable=found.null_columns))


def stream_reader(options: Mapping[str, str], schema: StructType) -> StreamReader:
    """The reader of `spark.readStream`. Raises ConfigError."""
    found = read_options(options, streaming=True)
    reader = StreamReader if TELLS_START else UnpositionedStreamReader
    return reader(found, asked_schema(schema, nullable=found.null_columns))


def _read(
    options: ReadOptions, schema: pa.Schema, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    from rmq.spark.pull import read_ranges

    if partition is None or partition.value is None:  # Spark's replacement for an empty list of partitions
        return iter(())
    return renamed(read_ranges(options, partition.value, own_names(schema)), schema)


def _partitions(found: Plan, options: ReadOptions) -> list[InputPartition]:
    """The tasks of a plan. Raises DataLoss for lost messages, unless losses are to be skipped."""
    if found.losses and options.fail_on_data_loss:
        raise lost(found.losses)
    for loss in found.losses:
        log.warning("skipped, since failOnDataLoss is false: %s", loss)
    ranges = split(
        found.ranges,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    enough = max(JOIN_ABOVE, sum(map(len, ranges)) // JOIN_RECORDS)
    most = options.max_partitions or options.min_partitions or enough
    tasks = join(ranges, most, max_records=options.max_records_per_partition)
    return [InputPartition(one) for one in tasks]


def _up_to(target: Offsets, known: Offsets, end: Offsets) -> Offsets:
    """`end` without the messages after `target`, but never before `known`."""
    return {
        queue: max(min(offset, target.get(queue, 0)), min(offset, known.get(queue, 0)))
        for queue, offset in end.items()
        if queue in target or queue in known
    }


class BatchReader(DataSourceReader):
    """A batch; its end is fixed when it is planned."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        from rmq.spark.cluster import Cluster

        with Cluster(self._options) as cluster:
            start, end = self._bounds(cluster)
            return _partitions(plan(start, end, cluster.bounds(end, end)), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)

    def narrowed(self, schema: StructType) -> Self:
        """A reader of fewer columns, for the tasks of the same plan."""
        return type(self)(self._options, asked_schema(schema, nullable=self._options.null_columns))

    def _bounds(self, cluster: Cluster) -> tuple[Offsets, Offsets]:
        from rmq.spark.ranges import batch_bounds

        return batch_bounds(cluster, self._options)


class PushdownBatchReader(BatchReader):
    """One batch, of which only messages that may pass Spark's filters are read.

    A class of its own: Spark refuses any reader with `pushFilters` while its setting
    spark.sql.python.filterPushdown.enabled is false.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self._conditions = Conditions()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters, before `partitions`; returns the filters that Spark has to apply itself."""
        self._conditions = Conditions.of(filters)
        return [each for each in filters if not is_ensured(each)]

    def _bounds(self, cluster: Cluster) -> tuple[Offsets, Offsets]:
        """The ranges to read. Messages before the first message of a time were stored before that time, and
        later messages later, except after a clock was set back."""
        start, end = super()._bounds(cluster)
        queues = [queue for queue in end if self._conditions.allow_queue(queue)]
        low, high = self._conditions.span("queueOffset")
        since, until = self._conditions.span("storeTimestamp")
        least, most = dict.fromkeys(queues, low), dict.fromkeys(queues, high)
        if since > SPARE_MS:
            found = cluster.at_time(queues, since - SPARE_MS)
            least = {queue: max(low, found[queue]) for queue in queues}
        if until < Span().high:
            found = cluster.at_time(queues, max(until + SPARE_MS, 0))
            most = {queue: min(high, found[queue]) for queue in queues}
        return clipped({q: start[q] for q in queues}, {q: end[q] for q in queues}, least, most)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Spark keeps one object in the driver for as long as a query runs; copies without any state
    read."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._cluster: Cluster | None = None
        self._first: Offsets | None = None
        self._target: Offsets | None = None
        self._newest: Offsets | None = None
        self._polled_at = 0.0
        self._poll_seconds = POLL_SECONDS
        self._batch_at: float | None = None
        self._logged_losses: set[str] = set()
        self._made: dict[str, Any] | None = None
        self._begins: Offsets = {}
        self._is_checked = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._schema)

    # --- planning, in the driver ---

    def initialOffset(self) -> dict[str, Any]:
        if self._first is None:
            from rmq.spark.ranges import first_offsets

            self._first = first_offsets(self._open(), self._options)
        return offsets_tree(self._first)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        bounds = self._bounds(skips=self._options.skips)
        self._target = {queue: most for queue, (_, most) in bounds.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        known = offsets_of(start)
        self._pause()
        expected = known if self._options.fail_on_data_loss else ()
        bounds = self._bounds(expected, known=known, skips=self._options.skips)
        self._newest = {queue: most for queue, (_, most) in bounds.items()}
        begin = {**{queue: least for queue, (least, _) in bounds.items()}, **known}
        end = self._end(known, self._newest)
        if self._target is not None:
            end = _up_to(self._target, known, end)
        places = places_of(start)
        waits = self._waits(begin, end)
        look = [queue for queue, at in end.items() if at != known.get(queue, at) and not waits]
        begins = self._made_again(known, places, bounds, look if self._is_checked else known)
        self._is_checked = True
        if waits and not begins:
            return start
        begin |= begins
        if isinstance(limit, ReadMaxRows):
            end = limited(begin, end, limit.max_rows)
        if end == known and not begins:
            self._poll_seconds = min(2 * self._poll_seconds, POLL_SECONDS_MAX)
            return start  # also of version 1: another text would be a batch
        self._batch_at = time.monotonic()
        self._poll_seconds = POLL_SECONDS
        moved = {
            queue: at
            for queue, at in end.items()
            if at > begin.get(queue, 0) or (queue in begins and at > bounds[queue][0])
        }
        absent = moved.keys() | begins.keys()
        kept = {queue: place for queue, place in places.items() if queue not in absent}
        self._made = offsets_tree(end, kept | (self._open().places(moved) if moved else {}))
        self._begins = begins
        return self._made

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The newest offsets, for the progress of the query, with the skipped brokers."""
        if self._newest is None:
            return None
        skipped = sorted(self._open().skipped)
        return offsets_tree(self._newest) | ({AWAY: skipped} if skipped else {})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        from rmq.spark.cluster import BrokersAway

        first, last = offsets_of(start), offsets_of(end)
        was, now = places_of(start), places_of(end)
        asked = [
            queue
            for queue, at in last.items()
            if (at, now.get(queue)) != (first.get(queue, 0), was.get(queue))
        ]
        brokers = {queue.broker_name for queue in (*asked, *(first.keys() - last.keys()))}
        try:
            bounds = self._bounds(asked, reached=last, brokers=brokers)
        except BrokersAway:
            if self._options.fail_on_data_loss:
                raise
            bounds = self._bounds(
                reached=last, brokers=brokers
            )  # unreadable messages are skipped, and logged
        begins = self._begins
        if end != self._made:  # the checkpoint's batch, which another process planned
            begins = self._made_again(first, was, bounds, asked)
            # Its messages are lost if another message is at its end now; the next batch begins again.
            first |= {queue: last[queue] for queue in self._made_again(last, now, bounds, asked)}
        first |= {queue: at for queue, at in begins.items() if at <= last.get(queue, 0)}
        return _partitions(plan(first, last, bounds), self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit for the group, for monitoring of its lag; the source never reads these offsets."""
        if not self._options.group_id:
            return
        try:
            cluster = self._open()
            offsets = offsets_of(end)
            cluster.commit({q: at for q, at in offsets.items() if q.broker_name not in cluster.skipped})
        except Exception as error:  # the query is right without the commit
            log.warning("the offsets of group %s are not committed: %s", self._options.group_id, error)

    def stop(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.__exit__(None, None, None)

    # --- reading, in a task ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)

    # --- parts ---

    def _open(self) -> Cluster:
        from rmq.spark.cluster import Cluster

        if self._cluster is not None and self._cluster.has_old_secret:
            self.stop()
        if self._cluster is None:
            self._cluster = Cluster(self._options).__enter__()
        return self._cluster

    def _bounds(
        self,
        expected: Iterable[MessageQueue] = (),
        *,
        known: Mapping[MessageQueue, int] | None = None,
        reached: Mapping[MessageQueue, int] | None = None,
        skips: bool = False,
        brokers: Set[str] | None = None,
    ) -> dict[MessageQueue, tuple[int, int]]:
        """The begins and ends of the queues, or of the queues of `brokers`; waits for the queues of
        `expected`. Raises BrokersAway.

        A queue that was removed from the topic, but that its broker still serves and that was read to its end
        (`known` has the offset), is included: none of its messages is lost. A slave's ends are raised to
        `known` or `reached`, offsets that the queues had. With `skips` brokers that are away are left out.
        """
        cluster = self._open()
        queues = cluster.queues(expected, patient=True, skips=skips)
        if brokers is not None:
            queues = [queue for queue in queues if queue.broker_name in brokers]
        there = {(queue.topic, queue.broker_name) for queue in queues}
        closed = [
            queue
            for queue in set(known or ()).difference(queues)
            if (queue.topic, queue.broker_name) in there
        ]
        found = cluster.bounds([*queues, *closed], known or reached or {}, skips=skips)
        return {
            queue: bounds
            for queue, bounds in found.items()
            if queue not in closed or known is None or known[queue] == bounds[1]
        }

    def _pause(self) -> None:
        wait = self._polled_at + self._poll_seconds - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        self._polled_at = time.monotonic()

    def _end(self, known: Offsets, newest: Mapping[MessageQueue, int]) -> Offsets:
        """The ends of the queues. A queue that is missing keeps its end: its broker may come back."""
        absent = {queue: offset for queue, offset in known.items() if queue not in newest}
        there = {(queue.topic, queue.broker_name) for queue in newest}
        lost_queues = [
            queue for queue in absent if not self._options.skips or (queue.topic, queue.broker_name) in there
        ]
        back = {queue: offset for queue, offset in known.items() if offset > newest.get(queue, offset)}
        losses = [f"{queue} is gone, it was read up to {absent[queue]}" for queue in lost_queues]
        losses += [
            f"{queue} was read up to {offset}, it ends at {newest[queue]}" for queue, offset in back.items()
        ]
        if losses and self._options.fail_on_data_loss:
            raise lost(losses)
        for loss in set(losses) - self._logged_losses:
            log.warning("skipped, since failOnDataLoss is false: %s", loss)
        self._logged_losses = set(losses)
        return {**absent, **newest}

    def _made_again(
        self, offsets: Offsets, places: Places, bounds: Bounds, queues: Iterable[MessageQueue]
    ) -> Offsets:
        """New begins for the queues in which the message before an offset differs from the message that was
        read: the first message that was stored later. Raises DataLoss for such queues, unless losses are to
        be skipped."""
        look = {
            queue: offsets[queue]
            for queue in queues
            if queue in places and queue in bounds and bounds[queue][0] < offsets.get(queue, 0)
            if not self._open().is_of_slave(queue)
        }
        there = {queue: at for queue, at in look.items() if at <= bounds[queue][1]}
        found = self._open().places(there) if there else {}
        losses = [
            f"{queue} was deleted and made again: message {look[queue] - 1} was stored at {places[queue]},"
            f" now another one is there, stored at {place} (physical offset, time in ms)"
            for queue, place in found.items()
            if place != places[queue]
        ]
        if losses and self._options.fail_on_data_loss:
            raise lost(losses)
        shorter = look.keys() - there.keys()
        begins = {}
        for queue in [*shorter, *(queue for queue, place in found.items() if place != places[queue])]:
            least, most = bounds[queue]
            at = self._open().at_time([queue], places[queue][1] + 1)[queue]
            begins[queue] = min(max(at, least), most)
        for loss in losses:
            log.warning("skipped, since failOnDataLoss is false: %s", loss)
        for queue, at in begins.items():
            log.warning("%s is read from message %d on, the first that was stored later", queue, at)
        return begins

    def _waits(self, begin: Offsets, end: Offsets) -> bool:
        """True if there are too few messages for a batch, and the wait has not been too long."""
        least = self._options.min_offsets_per_trigger
        if not least or self._target is not None or self._batch_at is None:
            return False
        ready = sum(max(offset - begin.get(queue, offset), 0) for queue, offset in end.items())
        waited_ms = (time.monotonic() - self._batch_at) * 1000
        return ready < least and waited_ms < self._options.max_trigger_delay_ms


class UnpositionedStreamReader(StreamReader):
    """A stream of Spark 4.0 or 4.1, which queries the end without the begin.

    The begin is that of the last result, since each result becomes the start of the next batch. Before the
    first result it is in `stateLocation`, where each planned batch leaves its end; or it is that of the batch
    that Spark repeats. Without both the first batch takes all present messages, regardless of
    `maxOffsetsPerTrigger`, and fails when a queue of the checkpoint does not exist.
    """

    _at: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        self._at = super().initialOffset()
        return self._at

    def latestOffset(self, *_: Any) -> dict[str, Any]:
        from rmq.spark.ranges import is_new, read_last

        if self._at is None:
            self._at = self.initialOffset() if is_new(self._options) else read_last(self._options)
        if self._at is None:
            self._at = self._all_there()
        else:
            self._at = super().latestOffset(self._at, self.getDefaultReadLimit())
        return self._at

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        from rmq.spark.ranges import keep_last

        found = super().partitions(start, end)
        self._at = end
        keep_last(self._options, end)
        return found

    def _all_there(self) -> dict[str, Any]:
        bounds = self._whole_bounds()
        end = {queue: most for queue, (_, most) in bounds.items()}
        there = {queue: most for queue, (least, most) in bounds.items() if most > least}
        return offsets_tree(end, self._open().places(there) if there else None)

    def _whole_bounds(self) -> dict[MessageQueue, tuple[int, int]]:
        """The begins and ends of all queues, also of brokers that are away. Raises BrokersAway.

        The position of the stream is unknown in this call. An end that lacks a queue, or that is before the
        position, would become the next position: messages would be read again. So the call waits for every
        master, regardless of `onBrokerAway`, `requireMasters` and `failOnDataLoss`.
        """
        from rmq.spark.cluster import BrokersAway

        cluster = self._open()
        left = cluster.left_behind() or frozenset[str]()
        try:
            queues = cluster.queues(brokers=left, patient=True)
        except BrokersAway as error:
            if not left - self._options.required_brokers:
                raise
            hint = "they left without a drain; `rmq broker forget` where they are gone; or stateLocation"
            raise BrokersAway(f"{error} ({hint})") from None
        return cluster.bounds(queues, needs_masters=True)
