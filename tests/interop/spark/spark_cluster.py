"""A standalone cluster of Spark."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any, cast

MASTER = "org.apache.spark.deploy.master.Master"


WORKER = "org.apache.spark.deploy.worker.Worker"


def spark_home() -> pathlib.Path:
    return pathlib.Path(cast(Any, importlib.util.find_spec("pyspark")).origin).parent
