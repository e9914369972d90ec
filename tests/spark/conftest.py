"""One Spark session for all tests of the folder: it takes some 10 s and 1 GiB to start."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if importlib.util.find_spec("pyspark") is None:  # the extra `spark` is not installed
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two workers, on loopback."""
    from rmq.spark import session

    settings = {
        "spark.sql.shuffle.partitions": "2",
        # Java's second compiler does not pay for small data: a third less CPU time without it.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    started = session("rmq tests", master="local[2]", settings=settings)
    yield started
    for query in started.streams.active:
        query.stop()  # a query that runs while the session ends fills the log with errors
    started.stop()
