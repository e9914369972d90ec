"""Metrics of Spark's streams for Prometheus: the messages that each query has read, its rate, and its lag.

Spark calls its source of a stream by a class name only, also on its page; in these metrics topics and brokers
are labels.
"""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql.streaming.listener import StreamingQueryListener

from rmq.errors import ConfigError
from rmq.metrics import CONTENT_TYPE, Kind, Metric, page_of
from rmq.spark.offsets import Offsets, away_of, offsets_of, places_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "rmq_spark_"
Health = Callable[[], tuple[bool, Mapping[str, str]]]


class StreamMetrics(StreamingQueryListener):
    """Counts Spark's events about the queries of a session: `watch_streams` makes it a listener.

    A query is known by its name, or by its id without a name; its rows stay after its end, for rare scrapes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        self._running: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._batches: Counter[str] = Counter()
        self._rates: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._behind: dict[str, dict[tuple[str, str], int]] = {}
        self._away: dict[str, dict[str, bool]] = {}
        """Query -> the brokers that it ever skipped, and whether it skips them now."""
        self._stored: dict[str, dict[tuple[str, str], float | None]] = {}
        """Query -> the store time, in seconds, of the last message that it read of a broker's topic; None
        when no message waits."""
        self._rejected: dict[tuple[str, str], int] = {}
        self._server: http.server.ThreadingHTTPServer | None = None
        self._spark: SparkSession | None = None

    # --- events of Spark, in a thread of its own ---

    def onQueryStarted(self, event: Any) -> None:
        with self._lock:
            name = self._names[str(event.runId)] = event.name or str(event.id)
            self._running[name] += 1
            self._failures[name] += 0

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        name = progress.name or str(progress.id)
        behind: Counter[tuple[str, str]] = Counter()
        for source in progress.sources:
            behind.update(_behind(source.endOffset, source.latestOffset))
        away = {broker for source in progress.sources for broker in away_of(_json(source.latestOffset))}
        stored = [
            one
            for source in progress.sources
            for one in _stored(source.endOffset, source.latestOffset).items()
        ]
        with self._lock:
            self._stored[name] = dict(stored)
            seen = self._away.setdefault(name, {})
            seen |= {broker: broker in away for broker in away | seen.keys()}
            self._rows[name] += progress.numInputRows
            self._batches[name] += 1
            self._rates[name] = _number(progress.processedRowsPerSecond)
            self._seconds[name] = _number(progress.durationMs.get("triggerExecution", 0)) / 1000
            self._behind[name] = dict(behind)

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: no message has arrived."""

    def onQueryTerminated(self, event: Any) -> None:
        with self._lock:
            name = self._names.pop(str(event.runId), str(event.id))
            self._running[name] -= 1
            self._failures[name] += event.exception is not None

    # --- reports of batches ---

    def count_rejected(self, query: str, found: Mapping[str, int]) -> None:
        """Count rows of a batch that could not be read, or do not meet an expectation."""
        with self._lock:
            for reason, count in found.items():
                self._rejected[query, reason] = self._rejected.get((query, reason), 0) + count

    # --- reading the metrics ---

    def collect(self) -> Iterator[Metric]:
        """The present metrics; names without prefix."""
        with self._lock:
            behind = [
                ((name, *place), float(lag))
                for name, found in self._behind.items()
                for place, lag in found.items()
            ]
            now = time.time()
            ages = [
                ((name, *place), 0.0 if stored is None else max(now - stored, 0.0))
                for name, found in self._stored.items()
                for place, stored in found.items()
            ]
            rejected = [(place, float(count)) for place, count in self._rejected.items()]
            away = [
                ((name, broker), float(is_away))
                for name, brokers in self._away.items()
                for broker, is_away in sorted(brokers.items())
            ]
            by_query: list[tuple[str, Kind, str, Mapping[str, float]]] = [
                ("running", "gauge", "Whether the query runs.", dict(self._running)),
                (
                    "failures",
                    "counter",
                    "Runs of the query that ended in an error.",
                    dict(self._failures),
                ),
                ("rows", "counter", "Messages that the query has read.", dict(self._rows)),
                ("batches", "counter", "Batches that the query has done.", dict(self._batches)),
                ("rows_per_second", "gauge", "Messages a second of the last batch.", dict(self._rates)),
                ("batch_seconds", "gauge", "What the last batch took.", dict(self._seconds)),
            ]
        for name, kind, help, values in by_query:
            rows = [((query,), float(value)) for query, value in values.items()]
            yield Metric(name, kind, help, rows, ("query",))
        text = "Messages that the brokers had beyond the end of the last batch."
        yield Metric("offsets_behind_latest", "gauge", text, behind, ("query", "topic", "broker"))
        text = "Time since the last message that was read was stored; 0 where nothing waits."
        yield Metric("age_seconds", "gauge", text, ages, ("query", "topic", "broker"))
        text = "Rows that could not be read (decode), or do not meet the expectation of that name."
        yield Metric("rejected_rows", "counter", text, rejected, ("query", "reason"))
        text = "Whether the last batch skipped the broker; of brokers that any batch skipped."
        yield Metric("broker_away", "gauge", text, away, ("query", "broker"))

    def text(self) -> str:
        """The metrics in Prometheus' text format."""
        return page_of(self.collect(), PREFIX).decode()

    @property
    def port(self) -> int:
        """The port of /metrics; 0 when it is not served."""
        return self._server.server_port if self._server is not None else 0

    def close(self) -> None:
        """Stop listening and serving."""
        if self._spark is not None:
            self._spark.streams.removeListener(self)
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._spark = self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self, host: str, port: int, health: Health | None = None) -> None:
        """Serve the metrics, and the result of `health`, as `watch_streams` does. Raises ConfigError when the
        port is not available."""
        metrics = self

        class Page(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = 404, CONTENT_TYPE, b""
                path = self.path.split("?")[0]
                if path == "/metrics":
                    status, body = 200, metrics.text().encode()
                elif path == "/health" and health is not None:
                    is_well, states = health()
                    kind, body = "application/json", json.dumps(states).encode()
                    status = 200 if is_well else 503
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        try:
            self._server = http.server.ThreadingHTTPServer((host, port), Page)
        except OSError as error:
            raise ConfigError("port", port, f"a port to listen on ({error.strerror})") from None
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


def watch_streams(
    spark: SparkSession, *, port: int | None = None, host: str = "127.0.0.1", health: Health | None = None
) -> StreamMetrics:
    """Count the events of a session's streams from now on, until `close` or the end of the block.

    With `port` (0: any free port) the counts are served as ``http://host:port/metrics`` for Prometheus, and
    the result of `health`, whether all is well and the state of each stream, as ``/health``, with status 503
    when it is not. Raises ConfigError when the port is not available.
    """
    metrics = StreamMetrics()
    if port is not None:
        metrics.serve(host, port, health)
    spark.streams.addListener(metrics)
    metrics._spark = spark
    return metrics


def _behind(end: str | None, latest: str | None) -> Mapping[tuple[str, str], int]:
    """Number of messages between two offsets of the source `rmq`, by topic and broker; empty for another
    source."""
    ends, latests = _offsets(end), _offsets(latest)
    found: Counter[tuple[str, str]] = Counter()
    for queue, newest in latests.items():
        found[queue.topic, queue.broker_name] += max(newest - ends.get(queue, newest), 0)
    return found


def _offsets(text: str | None) -> Offsets:
    try:
        return offsets_of(_json(text))
    except ConfigError:
        return {}


def _stored(end: str | None, latest: str | None) -> Mapping[tuple[str, str], float | None]:
    """By topic and broker the oldest store time, in seconds, of the last read messages of queues that have
    more messages; None without such a queue."""
    found: dict[tuple[str, str], float | None] = {}
    ends = _offsets(end)
    try:
        places = places_of(_json(end))
    except ConfigError:
        places = {}
    for queue, newest in _offsets(latest).items():
        at = queue.topic, queue.broker_name
        known = found.setdefault(at, None)
        if queue in places and newest > ends.get(queue, newest):
            stored = places[queue][1] / 1000
            found[at] = stored if known is None else min(stored, known)
    return found


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return {}


def _number(value: Any) -> float:
    return float(value) if value is not None and value == value else 0.0  # a batch without duration has NaN
