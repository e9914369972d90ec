"""Named streams of a file: from topics into tables, files or topics, started, restarted, and watched.

Each stream is a query of its own in the same session. A stream that ends in an error is restarted after a
pause, which grows with each failure and is short again once a batch was done; all other streams continue.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from rmq.spark.jobs.batches import Batches, Note, unnoted
from rmq.spark.jobs.rows import chosen, read_rows, with_watermark
from rmq.spark.jobs.spec import Jobs, Stream, sink_options
from rmq.spark.offsets import Offsets
from rmq.spark.pipelines.progress import brokers_away, commit_end, ends_of, is_behind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 300.0
STEP_SECONDS: Final = 0.5

Tell = Callable[[str], object]
"""Called with a line about each event of a stream."""


# --- running ---


def start(spark: SparkSession, stream: Stream, *, once: bool = False, note: Note = unnoted) -> StreamingQuery:
    """Start a stream; `once`: for the present messages. `note` gets the counts of rows that are set apart.
    Raises PySparkException, ConfigError."""
    frame = spark.readStream.format("rmq").options(**stream.source).load()
    if stream.by_batch:
        if stream.watermark is not None:
            frame = with_watermark(read_rows(frame, stream), stream)
        writer = frame.writeStream.foreachBatch(Batches(spark, stream, note).take)
    else:
        frame = chosen(frame, stream)
        writer = frame.writeStream.format(stream.to["format"]).options(**sink_options(stream.to))
        writer = writer.outputMode(stream.to.get("mode", "append"))
        if stream.partition:
            writer = writer.partitionBy(*stream.partition)
    writer = writer.queryName(stream.name).option("checkpointLocation", stream.checkpoint)
    writer = (
        writer.trigger(availableNow=True)
        if once
        else writer.trigger(processingTime=f"{stream.every_ms} milliseconds")
    )
    is_table = "table" in stream.to and not stream.by_batch
    return writer.toTable(stream.to["table"]) if is_table else writer.start()


@define
class Kept:
    """A stream that is kept running: `step` starts it when due, and notices its end."""

    stream: Stream
    start: Callable[[Stream], StreamingQuery]
    tell: Tell
    query: StreamingQuery | None = None
    error: str = ""
    """The reason why it does not run."""
    failures: int = 0
    """True since a batch was done."""
    retry_at: float = 0.0
    _batch: int | None = None

    def step(self, now: float) -> None:
        """Start or check the stream; `now` is in seconds of any clock that only goes forward."""
        if self.query is not None and self.query.isActive:
            self._note_batches()
        elif self.query is not None:
            self._note_batches()
            query, self.query = self.query, None
            self._failed(now, _reason(query.exception()))
        elif now >= self.retry_at:
            try:
                self.query = self.start(self.stream)
            except (
                Exception
            ) as error:  # an error of Spark, the source or the sink: the next attempt may succeed
                self._failed(now, _reason(error))
            else:
                self.error = ""
                self.tell(f"{self.stream.name}: started")

    def stop(self) -> None:
        """Stop the stream between two batches, or in a batch, which is repeated at the next start."""
        if self.query is not None:
            self.query.stop()
            self.query = None

    def _note_batches(self) -> None:
        assert self.query is not None
        progress = self.query.lastProgress
        if progress is not None and progress.batchId != self._batch:
            self._batch = progress.batchId
            self.failures = 0

    def _failed(self, now: float, reason: str) -> None:
        pause = min(FIRST_PAUSE_SECONDS * 2 ** min(self.failures, 20), LONGEST_PAUSE_SECONDS)
        self.failures += 1
        self.error = reason
        self.retry_at = now + pause
        self.tell(f"{self.stream.name}: ended, again in {pause:g} s: {reason}")


def _reason(error: Exception | None) -> str:
    """The last line with the fault: errors that come through Spark contain tracebacks."""
    if error is None:
        return "it was stopped"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if re.match(r"(?:(?:[a-z_]\w*\.)+[A-Z]\w*|[A-Z]\w*Error): ", line)]
    return (said or lines or [type(error).__name__])[-1 if said else 0][:500]


@frozen
class Ran:
    """Result of streams that were run once; `errors` are those of failed streams."""

    streams: int
    rows: int
    errors: Mapping[str, str]
    seconds: float
    away: Mapping[str, Sequence[str]] = field(factory=dict)
    """Stream -> the brokers that it skipped (onBrokerAway=skip) when it ended, if any."""
    rejected: Mapping[str, Mapping[str, int]] = field(factory=dict)
    """Stream -> the number of rows that could not be read (`decode`), or do not meet an expectation, if
    any."""


def run_once(spark: SparkSession, jobs: Jobs, *, tell: Tell = print) -> Ran:
    """Run all streams in parallel, each for its present messages: for a scheduler, which repeats the run."""
    from rmq.spark.jobs.lineage import trace_lineage

    end_lineage = trace_lineage(spark, jobs)
    try:
        return _run_once(spark, jobs, tell)
    finally:
        end_lineage()


def _run_once(spark: SparkSession, jobs: Jobs, tell: Tell) -> Ran:
    rejected: dict[str, Counter[str]] = {}

    def note(name: str, found: Mapping[str, int]) -> None:
        rejected.setdefault(name, Counter()).update({word: n for word, n in found.items() if n})

    began, rows, left = time.monotonic(), 0, list(jobs.streams)
    errors: dict[str, str] = {}
    away: dict[str, Sequence[str]] = {}
    ends: dict[str, Offsets] = {}
    while left:  # more than once on Spark 4.0 and 4.1: see ends_of
        queries: dict[str, StreamingQuery] = {}
        try:
            for stream in left:
                try:
                    if stream.name not in ends:
                        ends[stream.name] = ends_of(stream.source)
                    queries[stream.name] = start(spark, stream, once=True, note=note)
                except Exception as error:
                    errors[stream.name] = _reason(error)
            for name, query in queries.items():
                try:
                    query.awaitTermination()
                except Exception as error:
                    errors[name] = _reason(error)
                done = sum(one.numInputRows for one in query.recentProgress)
                rows += done
                if name not in errors:
                    commit_end(query, next(one.source for one in left if one.name == name))
                if skipped := brokers_away(query):
                    away[name] = skipped
                    tell(f"{name}: skipped, as they are away: {', '.join(skipped)}")
                tell(f"{name}: {errors[name]}" if name in errors else f"{name}: {done} rows")
        finally:
            for query in queries.values():
                query.stop()
        left = [
            stream
            for stream in left
            if stream.name not in errors and is_behind(queries[stream.name], ends[stream.name])
        ]
    return Ran(len(jobs.streams), rows, errors, time.monotonic() - began, away, rejected)


@define
class Streams:
    """The streams of a file, kept running until `close`."""

    kept: list[Kept]

    @classmethod
    def of(cls, spark: SparkSession, jobs: Jobs, *, tell: Tell = print, note: Note = unnoted) -> Streams:
        """The streams of `jobs` in a session. Nothing runs before the first `step`."""

        def begin(stream: Stream) -> StreamingQuery:
            return start(spark, stream, note=note)

        return cls([Kept(stream, begin, tell) for stream in jobs.streams])

    def step(self, now: float) -> None:
        """Start due streams, and notice ends."""
        for one in self.kept:
            one.step(now)

    def health(self) -> tuple[bool, dict[str, str]]:
        """True if all streams run, and the state of each."""
        states = {
            one.stream.name: "running" if one.query is not None else one.error or "starting"
            for one in self.kept
        }
        return all(state == "running" for state in states.values()), states

    def close(self) -> None:
        """Stop all streams."""
        for one in self.kept:
            one.stop()


def run_streams(
    spark: SparkSession,
    jobs: Jobs,
    *,
    tell: Tell = print,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run the streams until this is interrupted (KeyboardInterrupt), stop them and return.

    With `port` health and metrics are served: ``/health`` answers 200 when all streams run, else 503, with
    the state of each as JSON; ``/metrics`` is that of `watch_streams`. Raises ConfigError when the port is
    not available.
    """
    from rmq.spark.jobs.lineage import trace_lineage
    from rmq.spark.metrics import watch_streams

    metrics = watch_streams(spark)
    streams = Streams.of(spark, jobs, tell=tell, note=metrics.count_rejected)
    with metrics:
        if jobs.port is not None:
            metrics.serve(jobs.host, jobs.port, streams.health)
        end_lineage = trace_lineage(spark, jobs)
        if jobs.port is not None:
            tell(f"http://{jobs.host}:{metrics.port}/health and /metrics")
        try:
            while True:
                streams.step(clock())
                sleep(STEP_SECONDS)
        except KeyboardInterrupt:
            tell("stopping")
        finally:
            streams.close()
            end_lineage()
