"""Metrics of streams, from the events that Spark gives a listener."""

from __future__ import annotations

import json
import urllib.request
from types import SimpleNamespace as Event
from typing import Any

import pytest

from rmq.errors import ConfigError
from rmq.message import MessageQueue
from rmq.spark import watch_streams
from rmq.spark.offsets import offsets_tree


class Session:
    """A Spark session, as far as listeners go."""

    def __init__(self) -> None:
        self.streams = self
        self.listeners: list[Any] = []

    def addListener(self, listener: Any) -> None:
        self.listeners.append(listener)

    def removeListener(self, listener: Any) -> None:
        self.listeners.remove(listener)


def offsets(first: int, second: int) -> str:
    queues = [MessageQueue("Orders", "broker-a", number) for number in (0, 1)]
    return json.dumps(offsets_tree(dict(zip(queues, (first, second), strict=True))))


def progress(end: str | None, latest: str | None, *, name: str | None = "copy") -> Event:
    made = Event(
        id="7", name=name, numInputRows=30, processedRowsPerSecond=float("nan"),
        durationMs={"triggerExecution": 1500}, sources=[Event(endOffset=end, latestOffset=latest)],
    )  # fmt: skip
    return Event(progress=made)


def test_prometheus_sees_what_streams_read() -> None:
    session = Session()
    with watch_streams(session, port=0) as metrics:  # type: ignore[arg-type]
        (listener,) = session.listeners
        listener.onQueryStarted(Event(id="7", runId="1", name="copy"))
        listener.onQueryProgress(progress(offsets(10, 20), offsets(15, 20)))
        listener.onQueryProgress(progress(offsets(12, 20), offsets(15, 22)))
        listener.onQueryStarted(Event(id="8", runId="2", name=None))
        skipping = json.loads(offsets(15, 22)) | {"away": ["broker-b"]}
        listener.onQueryProgress(progress(offsets(15, 22), json.dumps(skipping), name="skips"))
        assert 'rmq_spark_broker_away{query="skips",broker="broker-b"} 1.0' in metrics.text()
        listener.onQueryProgress(progress(offsets(15, 22), offsets(15, 22), name="skips"))
        listener.onQueryProgress(progress("12", "{no json", name='of "another" source'))
        listener.onQueryTerminated(Event(id="8", runId="2", exception="it broke"))
        metrics.count_rejected("copy", {"decode": 2})
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=60) as answer:
            page = answer.read().decode()
        assert page == metrics.text()
        wanted = [
            'rmq_spark_running{query="copy"} 1.0',
            'rmq_spark_running{query="8"} 0.0',
            'rmq_spark_failures_total{query="copy"} 0.0',
            'rmq_spark_failures_total{query="8"} 1.0',
            'rmq_spark_rows_total{query="copy"} 60.0',
            'rmq_spark_batches_total{query="copy"} 2.0',
            'rmq_spark_rows_per_second{query="copy"} 0.0',
            'rmq_spark_batch_seconds{query="copy"} 1.5',
            'rmq_spark_offsets_behind_latest{query="copy",topic="Orders",broker="broker-a"} 5.0',
            'rmq_spark_rows_total{query="of \\"another\\" source"} 30.0',
            'rmq_spark_broker_away{query="skips",broker="broker-b"} 0.0',
            'rmq_spark_rejected_rows_total{query="copy",reason="decode"} 2.0',
            "# TYPE rmq_spark_rows_total counter",
        ]
        assert set(wanted) - set(page.splitlines()) == set()
        assert page.count('rmq_spark_offsets_behind_latest{query="copy"') == 1, (
            "nothing of what is no offset of ours"
        )
        with pytest.raises(ConfigError, match="a port to listen on"):
            watch_streams(session, port=metrics.port)  # type: ignore[arg-type]
    assert (session.listeners, metrics.port) == ([], 0)
