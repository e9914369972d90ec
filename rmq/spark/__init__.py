"""RocketMQ and Spark: data sources for PySpark, and pipelines made of them. Needs the extra `spark`.

No other module of rmq imports this package (except the command, when `rmq spark` is called), and it imports
pyspark and pyarrow on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmq.spark.decode import decoded, undecoded
    from rmq.spark.jobs.run import run_once, run_streams
    from rmq.spark.jobs.spec import read_jobs
    from rmq.spark.jobs.targets import read_added, read_merged
    from rmq.spark.metrics import StreamMetrics, watch_streams
    from rmq.spark.pipelines.archive import archive, compact, read_archive
    from rmq.spark.pipelines.audit import audit_store
    from rmq.spark.pipelines.dead_letters import count_letters, dead_letters, resend
    from rmq.spark.pipelines.lag import record_lag, report_lag
    from rmq.spark.pipelines.profile import profile_topics
    from rmq.spark.pipelines.replay import Run, replay
    from rmq.spark.pipelines.tables import archive_table, compact_table, read_table
    from rmq.spark.pipelines.trace import analyse_traces
    from rmq.spark.runtime import register, session
    from rmq.spark.sink import without_duplicates

# Name -> its module.
_PLACES = {
    "Run": "pipelines.replay",
    "StreamMetrics": "metrics",
    "analyse_traces": "pipelines.trace",
    "archive": "pipelines.archive",
    "archive_table": "pipelines.tables",
    "audit_store": "pipelines.audit",
    "compact": "pipelines.archive",
    "compact_table": "pipelines.tables",
    "count_letters": "pipelines.dead_letters",
    "dead_letters": "pipelines.dead_letters",
    "decoded": "decode",
    "profile_topics": "pipelines.profile",
    "read_archive": "pipelines.archive",
    "read_added": "jobs.targets",
    "read_jobs": "jobs.spec",
    "read_merged": "jobs.targets",
    "read_table": "pipelines.tables",
    "record_lag": "pipelines.lag",
    "register": "runtime",
    "replay": "pipelines.replay",
    "report_lag": "pipelines.lag",
    "resend": "pipelines.dead_letters",
    "run_once": "jobs.run",
    "run_streams": "jobs.run",
    "session": "runtime",
    "undecoded": "decode",
    "watch_streams": "metrics",
    "without_duplicates": "sink",
}

__all__ = [
    "Run",
    "StreamMetrics",
    "analyse_traces",
    "archive",
    "archive_table",
    "audit_store",
    "compact",
    "compact_table",
    "count_letters",
    "dead_letters",
    "decoded",
    "profile_topics",
    "read_added",
    "read_archive",
    "read_jobs",
    "read_merged",
    "read_table",
    "record_lag",
    "register",
    "replay",
    "report_lag",
    "resend",
    "run_once",
    "run_streams",
    "session",
    "undecoded",
    "watch_streams",
    "without_duplicates",
]


def __getattr__(name: str) -> object:
    if name in _PLACES:
        return getattr(importlib.import_module(f"rmq.spark.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
