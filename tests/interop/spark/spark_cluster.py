"""A standalone cluster of Spark."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any, cast

from rmq.spark.runtime import unpack_home

MASTER = "org.apache.spark.deploy.master.Master"


WORKER = "org.apache.spark.deploy.worker.Worker"


def spark_home() -> pathlib.Path:
    return pathlib.Path(cast(Any, importlib.util.find_spec("pyspark")).origin).parent


def unpacked_home(folder: pathlib.Path) -> pathlib.Path:
    """A home of Spark in `folder`, whose Python processes start sooner than from Spark's zip files of
    sources: Spark waits 10 s for them, and has no setting for it."""
    home = folder / "spark-home"
    home.mkdir()
    unpack_home(spark_home(), home)
    return home
