"""A standalone cluster of Spark."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
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


def environment_of(home: pathlib.Path, java: pathlib.Path) -> dict[str, str]:
    """The environment of a program of Spark: this Python, loopback, and compiled modules where they are
    installed; in another folder (PYTHONPYCACHEPREFIX) each new home would be compiled again."""
    inherited = {name: text for name, text in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}
    return {
        **inherited,
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
