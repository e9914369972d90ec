"""Named streams of a file: from topics into tables, files or topics, started, restarted, and watched.

Each stream is a query of its own in the same session. A stream that ends in an error is restarted after a
pause, which grows with each failure and is short again once a batch was done; all other streams go on.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field, fields, frozen

from rmq.config import java_key
from rmq.errors import ConfigError
from rmq.spark.offsets import Offsets
from rmq.spark.options import ConnectOptions, read_options, write_options
from rmq.spark.pipelines.progress import brokers_away, commit_end, ends_of, is_behind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 300.0
STEP_SECONDS: Final = 0.5
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_OWN_OF_SINKS: Final = ("format", "table", "mode")
_CONNECTION: Final = frozenset(java_key(one).lower() for one in fields(ConnectOptions))
"""Options of the source that a sink `rmq` has, too."""

Tell = Callable[[str], object]
"""Told in a line what happens to a stream."""


@frozen(kw_only=True)
class Stream:
    """A stream: options of the source `rmq`, the steps on its rows, and its target."""

    name: str
    source: Mapping[str, str]
    checkpoint: str
    to: Mapping[str, str]
    """`format`, and `table` or the options of that format, `path` among them."""
    where: str = ""
    select: Sequence[str] = ()
    every_ms: int = 1000


@frozen(kw_only=True)
class Jobs:
    """What a file says: its streams, settings of Spark, and where health and metrics are served."""

    streams: Sequence[Stream]
    spark: Mapping[str, str] = field(factory=dict)
    host: str = "127.0.0.1"
    port: int | None = None


def read_jobs(tree: object, source: Mapping[str, str] | None = None) -> Jobs:
    """Check the content of a file. `source` are options of all sources and of sinks `rmq`, which the file
    overrides. Raises ConfigError that names the place."""
    root = _mapping("the file", tree, ("source", "spark", "serve", "streams"))
    common = {**(source or {}), **_texts("source", root.get("source", {}))}
    streams = _mapping("streams", root.get("streams"))
    if not streams:
        raise ConfigError("streams", "", "at least one, by its name")
    serve = _mapping("serve", root.get("serve", {}), ("host", "port"))
    port = serve.get("port")
    if port is not None and (type(port) is not int or not 0 <= port <= 65535):
        raise ConfigError("serve.port", port, "a port, 0 for a free one")
    found = [_stream(str(name), one, common) for name, one in streams.items()]
    places = [one.checkpoint for one in found]
    if twice := {place for place in places if places.count(place) > 1}:
        raise ConfigError("checkpoint", min(twice), "a folder of each stream's own")
    return Jobs(
        streams=found,
        spark=_texts("spark", root.get("spark", {})),
        host=str(serve.get("host", "127.0.0.1")),
        port=port,
    )


def _stream(name: str, tree: object, common: Mapping[str, str]) -> Stream:
    place = f"streams.{name}"
    if not _NAME.fullmatch(name):
        raise ConfigError(place, name, "a name of letters, digits, '_', '.' and '-'")
    given = _mapping(place, tree, ("source", "where", "select", "to", "checkpoint", "every"))
    source = {**common, **_texts(f"{place}.source", given.get("source", {}))}
    to = _texts(f"{place}.to", given.get("to", {}))
    if not to.get("format"):
        raise ConfigError(
            f"{place}.to.format", "", "parquet, delta, iceberg, rmq or another format of Spark's"
        )
    with _named(f"{place}.source"):
        read_options(source, streaming=True)
    if to["format"] == "rmq":
        to = {**{key: value for key, value in common.items() if key.lower() in _CONNECTION}, **to}
        with _named(f"{place}.to"):
            write_options(sink_options(to))
    checkpoint = given.get("checkpoint")
    if not isinstance(checkpoint, str) or not checkpoint:
        raise ConfigError(f"{place}.checkpoint", checkpoint or "", "a folder of its own")
    select = given.get("select", ())
    if isinstance(select, str) or not all(isinstance(one, str) for one in select):
        raise ConfigError(f"{place}.select", select, "a list of SQL expressions")
    every = re.fullmatch(r"([0-9]{1,6})\s*(ms|s|m|h)", str(given.get("every", "1s")))
    if every is None:
        raise ConfigError(f"{place}.every", given["every"], "a time such as 500ms, 10s, 5m or 1h")
    return Stream(
        name=name,
        source=source,
        checkpoint=checkpoint,
        to=to,
        where=str(given.get("where", "")),
        select=tuple(select),
        every_ms=int(every[1]) * _UNITS_MS[every[2]],
    )


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Have errors of options name their place in the file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.key}", error.value, error.expected) from None


def sink_options(to: Mapping[str, str]) -> dict[str, str]:
    """What of `Stream.to` the sink itself gets."""
    return {name: value for name, value in to.items() if name not in _OWN_OF_SINKS}


def _mapping(place: str, tree: object, known: Sequence[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(tree, Mapping):
        raise ConfigError(place, "" if tree is None else tree, "names with values")
    if known is not None and (unknown := [str(name) for name in tree if name not in known]):
        raise ConfigError(f"{place}.{unknown[0]}", "***", f"one of {', '.join(known)}")
    return tree


def _texts(place: str, tree: object) -> dict[str, str]:
    """Options, as Spark takes them: numbers and truths as texts, anything deeper as JSON."""
    found = {}
    for name, value in _mapping(place, tree).items():
        if value is None:
            raise ConfigError(f"{place}.{name}", "", "a value")
        found[str(name)] = value if isinstance(value, str) else json.dumps(value)
    return found


# --- running ---


def start(spark: SparkSession, stream: Stream, *, once: bool = False) -> StreamingQuery:
    """Start a stream; `once`: for the present messages. Raises PySparkException, ConfigError."""
    frame = spark.readStream.format("rmq").options(**stream.source).load()
    if stream.where:
        frame = frame.where(stream.where)
    if stream.select:
        frame = frame.selectExpr(*stream.select)
    writer = frame.writeStream.format(stream.to["format"]).options(**sink_options(stream.to))
    writer = writer.queryName(stream.name)
    writer = writer.option("checkpointLocation", stream.checkpoint).outputMode(
        stream.to.get("mode", "append")
    )
    writer = (
        writer.trigger(availableNow=True)
        if once
        else writer.trigger(processingTime=f"{stream.every_ms} milliseconds")
    )
    return writer.toTable(stream.to["table"]) if "table" in stream.to else writer.start()


@define
class Kept:
    """A stream that is kept running: `step` starts it when due, and notices its end."""

    stream: Stream
    start: Callable[[Stream], StreamingQuery]
    tell: Tell
    query: StreamingQuery | None = None
    error: str = ""
    """Why it does not run."""
    failures: int = 0
    """Since a batch was done."""
    retry_at: float = 0.0
    _batch: int | None = None

    def step(self, now: float) -> None:
        """`now` in seconds of any clock that goes on."""
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
            ) as error:  # of Spark, the source or the sink: the next attempt may find it mended
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
    """The last line with the problem: errors that come through Spark contain tracebacks."""
    if error is None:
        return "it was stopped"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if re.match(r"(?:[a-z_]\w*\.)+[A-Z]\w*: ", line)]
    return (said or lines or [type(error).__name__])[-1 if said else 0][:500]


@frozen
class Ran:
    """How streams have ended that were run once; `errors` are those that failed."""

    streams: int
    rows: int
    errors: Mapping[str, str]
    seconds: float
    away: Mapping[str, Sequence[str]] = field(factory=dict)
    """Of each stream the brokers that it skipped (onBrokerAway=skip) when it ended, if any."""


def run_once(spark: SparkSession, jobs: Jobs, *, tell: Tell = print) -> Ran:
    """Run each stream, side by side, for its present messages: for a scheduler, which repeats the run."""
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
                    queries[stream.name] = start(spark, stream, once=True)
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
    return Ran(len(jobs.streams), rows, errors, time.monotonic() - began, away)


@define
class Streams:
    """The streams of a file, kept running until `close`."""

    kept: list[Kept]

    @classmethod
    def of(cls, spark: SparkSession, jobs: Jobs, *, tell: Tell = print) -> Streams:
        """Those of `jobs` in a session. Nothing runs before the first `step`."""
        return cls([Kept(stream, lambda stream: start(spark, stream), tell) for stream in jobs.streams])

    def step(self, now: float) -> None:
        """Start streams that are due, notice ends."""
        for one in self.kept:
            one.step(now)

    def health(self) -> tuple[bool, dict[str, str]]:
        """Whether all streams run, and the state of each."""
        states = {
            one.stream.name: "running" if one.query is not None else one.error or "starting"
            for one in self.kept
        }
        return all(state == "running" for state in states.values()), states

    def close(self) -> None:
        """Stop all."""
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
    from rmq.spark.metrics import watch_streams

    streams = Streams.of(spark, jobs, tell=tell)
    with watch_streams(spark, port=jobs.port, host=jobs.host, health=streams.health) as metrics:
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


def names_of(jobs: Jobs) -> list[dict[str, str]]:
    """Rows for people: the streams."""
    return [
        {
            "name": one.name,
            "topic": one.source.get("topic", one.source.get("topicPattern", "")),
            "to": _target(one.to),
        }
        for one in jobs.streams
    ]


def _target(to: Mapping[str, str]) -> str:
    place = next((to[name] for name in ("table", "path", "topic") if to.get(name)), "")
    return f"{to['format']} {place}".strip()
