"""Progress of a job, for display."""

from __future__ import annotations

import ast
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from rmq.errors import RmqError
from rmq.spark.cluster import Cluster
from rmq.spark.offsets import Offsets, away_of, offsets_of
from rmq.spark.options import read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS: Final = 0.5

log = logging.getLogger(__name__)


@frozen
class JobProgress:
    """`done` of `total` (None: unknown) items; `unit` names them, messages or tasks."""

    done: int
    total: int | None
    unit: str


Watch = Callable[[JobProgress], object]
"""Called now and then with a job's progress."""


def unwatched(progress: JobProgress) -> None:
    """Do nothing."""


def follow(query: StreamingQuery, watch: Watch) -> tuple[str, ...]:
    """Wait until a streaming query ends, and stop it when this is interrupted; return the brokers that it
    skipped last.

    Raises StreamingQueryException when it fails."""
    rows: dict[int, int] = {}
    ended = False
    try:
        while not ended:
            ended = bool(query.awaitTermination(POLL_SECONDS))  # type: ignore[arg-type]
            recent = query.recentProgress  # one look: `lastProgress` may be of a later batch
            for one in recent:
                rows[one.batchId] = one.numInputRows
            if recent:
                done = sum(rows.values())
                watch(JobProgress(done, done + _lag(recent[-1].sources), "messages"))
    finally:
        query.stop()
    return brokers_away(query)


def follow_to_end(
    start: Callable[[], StreamingQuery], options: Mapping[str, str], watch: Watch
) -> tuple[str, ...]:
    """Follow a query that processes the present messages and ends. Spark 4.0 and 4.1 end it after a single
    batch, which may be one that a killed run had begun, or as large as maxOffsetsPerTrigger allows: with
    these versions the query is started until it reaches the former ends of the queues of `options`. Return
    the brokers that were skipped last.

    Raises StreamingQueryException when it fails, and the errors of reading the source.
    """
    ends = ends_of(options)
    while True:
        query = start()
        skipped = follow(query, watch)
        if not is_behind(query, ends):
            commit_end(query, options)
            return skipped


def commit_end(query: StreamingQuery, options: Mapping[str, str]) -> None:
    """Commit the end of a successful query for the `groupId` of its source; Spark itself does not report the
    last batch to the source. An error is only logged: the query is right without the commit."""
    last = query.lastProgress
    end = _tree(last.sources[0].endOffset) if last is not None and len(last.sources) == 1 else None
    try:
        given = read_options(options, streaming=True)
        if given.group_id and end is not None:
            away = brokers_away(query)
            offsets = {queue: at for queue, at in offsets_of(end).items() if queue.broker_name not in away}
            with Cluster(given) as cluster:
                cluster.commit(offsets)
    except RmqError as error:
        log.warning("the last offsets of %s are not committed: %s", query.name or query.id, error)


def ends_of(options: Mapping[str, str]) -> Offsets:
    """The present ends of a source's queues; nothing if Spark itself ensures that a query reaches them.
    Raises ConfigError, BrokersAway."""
    from rmq.spark.source import TELLS_START

    if TELLS_START:
        return {}
    given = read_options(options, streaming=True)
    with Cluster(given) as cluster:
        bounds = cluster.bounds(cluster.queues((), patient=True, skips=given.skips), skips=given.skips)
    return {queue: most for queue, (_, most) in bounds.items()}


def is_behind(query: StreamingQuery, ends: Offsets) -> bool:
    """True if a query that has ended made progress and is not at these ends yet."""
    last = query.lastProgress
    if not ends or last is None:
        return False
    (source,) = last.sources
    end = _tree(source.endOffset)
    if end is None or end == _tree(source.startOffset):
        return False
    at = offsets_of(end)
    return any(at.get(queue, 0) < end for queue, end in ends.items())


def brokers_away(query: StreamingQuery) -> tuple[str, ...]:
    """Brokers whose queues the query skipped at its last look (onBrokerAway=skip); from Spark 4.2 on."""
    last = query.lastProgress
    trees = [_tree(source.latestOffset) for source in last.sources] if last is not None else []
    return tuple(sorted({name for tree in trees for name in away_of(tree)}))


def _lag(sources: Any) -> int:
    return sum(lag_of(source.endOffset, source.latestOffset) for source in sources)


def lag_of(end: str | None, latest: str | None) -> int:
    """Number of messages between two offsets in the progress of a query; 0 where Spark does not know them, as
    before the first batch."""
    ends, latests = _tree(end), _tree(latest)
    if ends is None or latests is None:  # before the first batch
        return 0
    known, newest = offsets_of(ends), offsets_of(latests)
    return sum(max(offset - known.get(queue, offset), 0) for queue, offset in newest.items())


def _tree(text: str | None) -> Any:
    """The offset in a query's progress; None without an offset. Spark 4.1 writes offsets as Python does, not
    as JSON."""
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


@contextmanager
def watched(spark: SparkSession, watch: Watch) -> Iterator[None]:
    """Report the tasks of jobs that run inside the block to `watch`."""
    if watch is unwatched:
        yield
        return
    with beside(lambda done: _watch_tasks(spark, watch, done)):
        yield


@contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` in a thread for the length of the block; the event is set at the end of the block."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _watch_tasks(spark: SparkSession, watch: Watch, done: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not done.wait(POLL_SECONDS):
        stages = filter(None, map(tracker.getStageInfo, tracker.getActiveStageIds()))
        counts = [(stage.numCompletedTasks, stage.numTasks) for stage in stages]
        if counts:
            watch(JobProgress(sum(one for one, _ in counts), sum(all_ for _, all_ in counts), "tasks"))
