"""Lineage of streams for OpenLineage: a listener that sends an event when a run starts, makes progress and
ends.

Inputs are topics (namespace `rocketmq://<name server>`), the output is the target of the stream. An event has
the facets of the specification: the processing engine, the kind of the job, the number of messages read, and
the error of a failed run. Events are sent in a thread of Spark's listeners; an error is logged once and
changes nothing for the stream.
"""

from __future__ import annotations

import json
import logging
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from rmq.spark.jobs.spec import Jobs, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRODUCER: Final = "https://github.com/apache/rocketmq"
_SPEC: Final = "https://openlineage.io/spec"
SCHEMA_URL: Final = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
SEND_SECONDS: Final = 5.0
END_SECONDS: Final = 10.0
"""Seconds to wait for Spark's notice of the end of a run, which follows a moment later."""

Send = Callable[[Mapping[str, Any]], None]
log = logging.getLogger(__name__)


def sender(place: str) -> Send:
    """A function that sends an event to a URL (POST of JSON), or adds it as a line to a file."""
    if not place.startswith(("http://", "https://")):
        return lambda event: _append(Path(place), event)

    def post(event: Mapping[str, Any]) -> None:
        body = json.dumps(event).encode()
        request = urllib.request.Request(place, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=SEND_SECONDS):
            pass

    return post


def _append(path: Path, event: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


class Lineage(StreamingQueryListener):
    """Sends events of the streams of a file, by the names of their queries."""

    def __init__(self, jobs: Jobs, send: Send | None = None, spark_version: str = "") -> None:
        self._streams = {one.name: one for one in jobs.streams}
        self._namespace = jobs.lineage_namespace
        self._send = send or sender(jobs.lineage)
        self._version = spark_version
        self._lock = threading.Condition()
        self._runs: dict[str, Stream] = {}
        self._rows: Counter[str] = Counter()
        self._began: set[str] = set()
        self._ended: set[str] = set()
        """Reported runs, which are few in one process."""
        self._has_failed = False

    def onQueryStarted(self, event: Any) -> None:
        stream = self._streams.get(event.name or "")
        if stream is not None:
            with self._lock:
                self._runs[str(event.runId)] = stream
                self._began.add(str(event.runId))
            self._emit("START", str(event.runId), stream)

    def onQueryProgress(self, event: Any) -> None:
        run = str(event.progress.runId)
        with self._lock:
            stream = self._runs.get(run)
            self._rows[run] += event.progress.numInputRows
        if stream is not None and event.progress.numInputRows:
            self._emit("RUNNING", run, stream)

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: no message has arrived."""

    def onQueryTerminated(self, event: Any) -> None:
        run = str(event.runId)
        with self._lock:
            stream = self._runs.pop(run, None)
        if stream is not None:
            self._emit("FAIL" if event.exception else "COMPLETE", run, stream, str(event.exception or ""))
        with self._lock:
            self._rows.pop(run, None)
            self._ended.update({run} & self._began)
            self._lock.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until all runs that began have ended and were reported, or until the time is over."""
        with self._lock:
            self._lock.wait_for(lambda: self._began == self._ended, seconds)

    def _emit(self, kind: str, run: str, stream: Stream, error: str = "") -> None:
        with self._lock:
            rows = self._rows[run]
        event = run_event(kind, run, stream, self._namespace, rows, error=error, spark_version=self._version)
        try:
            self._send(event)
        except OSError as problem:
            if not self._has_failed:
                log.warning("events of lineage are not sent: %s", problem)
            self._has_failed = True


def run_event(
    kind: str,
    run: str,
    stream: Stream,
    namespace: str,
    rows: int,
    *,
    error: str = "",
    spark_version: str = "",
    now: datetime | None = None,
) -> dict[str, Any]:
    """An event of OpenLineage about a run of a stream; `rows` is the number of messages read so far."""
    facets: dict[str, Any] = {
        "processing_engine": _facet("1-1-1/ProcessingEngineRunFacet", name="Spark", version=spark_version)
    }
    if error:
        facets["errorMessage"] = _facet(
            "1-0-1/ErrorMessageRunFacet", message=error[:2000], programmingLanguage="Python"
        )
    job = _facet("2-0-3/JobTypeJobFacet", processingType="STREAMING", integration="SPARK", jobType="QUERY")
    server = stream.source.get("nameServer", "").split(";")[0]
    topics = (stream.source.get("topic") or stream.source.get("topicPattern") or "").split(",")
    statistics = {"inputStatistics": _facet("1-0-0/InputStatisticsInputDatasetFacet", rowCount=rows)}
    inputs: Sequence[dict[str, Any]] = [
        {
            "namespace": f"rocketmq://{server}",
            "name": topic.strip(),
            "inputFacets": statistics if len(topics) == 1 else {},
        }
        for topic in topics
    ]
    return {
        "eventType": kind,
        "eventTime": (now or datetime.now(UTC)).isoformat(),
        "run": {"runId": run, "facets": facets},
        "job": {"namespace": namespace, "name": stream.name, "facets": {"jobType": job}},
        "inputs": inputs,
        "outputs": [_output(stream, server)],
        "producer": PRODUCER,
        "schemaURL": SCHEMA_URL,
    }


def _output(stream: Stream, server: str) -> dict[str, Any]:
    kind, place = stream.to["format"], stream.to.get("topic", "")
    if kind == "rmq":
        return {"namespace": f"rocketmq://{stream.to.get('nameServer', server)}", "name": place, "facets": {}}
    if stream.to.get("table"):
        return {"namespace": kind, "name": stream.to["table"], "facets": {}}
    scheme, _, rest = stream.target.rpartition("://")
    host, _, path = rest.partition("/") if scheme and scheme != "file" else ("", "", rest.lstrip("/"))
    found = {"namespace": f"{scheme}://{host}" if host else "file", "name": path if host else f"/{path}"}
    return {**found, "facets": {}}


def _facet(schema: str, **values: Any) -> dict[str, Any]:
    name = schema.rsplit("/", 1)[1]
    return {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/facets/{schema}.json#/$defs/{name}", **values}


def trace_lineage(spark: SparkSession, jobs: Jobs) -> Callable[[], None]:
    """Send events of the streams from now on, if the file names a target; returns a function that ends
    this."""
    if not jobs.lineage:
        return lambda: None
    listener = Lineage(jobs, spark_version=spark.version)
    spark.streams.addListener(listener)

    def end() -> None:
        listener.wait(END_SECONDS)
        spark.streams.removeListener(listener)

    return end
