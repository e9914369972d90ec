"""`rmq spark audit`, `trace`, `lag` and `profile`, in the session of the tests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from rmq.cli import command
from rmq.cli.spark import job
from rmq.spark.pipelines.lag import LagSample, write_samples

Run = Callable[..., str]


@pytest.fixture
def rmq(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line; return its output."""

    @contextmanager
    def started(*arguments: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(job, "spark_session", started)

    def run(*arguments: object, status: int = 0) -> str:
        done = CliRunner().invoke(command, ["spark", *map(str, arguments)])
        assert done.exit_code == status, done.output
        return done.stdout

    return run


def test_audit_tells_what_is_wrong(rmq: Run, golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden / "store", tmp_path / "store")
    queue = tmp_path / "store" / "consumequeue" / "DelayTopic" / "1"
    [file] = queue.iterdir()
    file.write_bytes(bytes(20) + file.read_bytes()[20:])

    told = json.loads(rmq("audit", tmp_path / "store", "-o", "json", status=1))
    assert (told["records"], told["units"], told["faults"]) == (182, 181, {"queue unit missing": 1})
    [finding] = told["parts"]
    assert (finding["topic"], finding["queueId"], finding["queueOffset"]) == ("DelayTopic", 1, 0)


def test_profile_of_a_store(rmq: Run, golden: Path, tmp_path: Path) -> None:
    told = rmq("profile", "TopicTest", tmp_path / "out", "--store", golden / "store")

    assert "TopicTest" in told
    assert "93" in told
    assert (tmp_path / "out" / "report.html").exists()


def test_traces_of_a_store_that_has_none(rmq: Run, golden: Path, tmp_path: Path) -> None:
    told = json.loads(rmq("trace", tmp_path, "--store", golden / "store", "--window", "1m", "-o", "json"))

    assert (told["rows"], told["parts"], told["window_ms"]) == (0, [], 60_000)


def test_lag_of_samples_that_are_there(rmq: Run, tmp_path: Path) -> None:
    write_samples([LagSample(1000, "billing", "Orders", "b", 0, 9, 4, 0)], tmp_path)

    told = json.loads(rmq("lag", tmp_path, "--times", "0", "-o", "json"))
    assert [(one["group"], one["lag"]) for one in told["parts"]] == [("billing", 5)]
