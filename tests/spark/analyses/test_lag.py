"""Lag: samples of a real cluster, and what is made of samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from rmq.cli import command
from rmq.cli.spark import analyses, job
from rmq.errors import ConfigError
from rmq.message import MessageQueue
from rmq.spark.cluster import Cluster
from rmq.spark.options import read_options
from rmq.spark.pipelines.lag import LagSample, record_lag, report_lag, write_samples
from tests.spark.cluster import running


def test_lag_of_a_cluster(spark: SparkSession, tmp_path: Path) -> None:
    pauses: list[float] = []
    with running(tmp_path / "broker") as pair:
        pair.make_topic("Orders", 2)
        pair.send("Orders", 10)
        options = read_options(pair.options("Orders", groupId="billing"), streaming=True)
        with Cluster(options) as cluster:
            cluster.commit(
                {MessageQueue("Orders", pair.broker, 0): 5, MessageQueue("Orders", pair.broker, 1): 2}
            )
        given = {"nameServer": pair.names}
        rows = record_lag(given, tmp_path / "lag", ["billing"], times=2, every_seconds=7, pause=pauses.append)

    assert (rows, pauses) == (4, [7])
    summary = report_lag(spark, tmp_path / "lag")
    [found] = summary.parts
    assert (found.group, found.topic, found.samples, found.lag) == ("billing", "Orders", 2, 3)


def sample(at: int, queue: int, end: int, offset: int, topic: str = "Orders") -> LagSample:
    return LagSample(at, "billing", topic, "b", queue, end, offset, 0)


def test_lag_over_time(spark: SparkSession, tmp_path: Path) -> None:
    write_samples(
        [sample(10_000, 0, 100, 40), sample(10_000, 1, 50, 60), sample(10_000, 0, 9, 0, "Other")], tmp_path
    )
    write_samples([sample(20_000, 0, 120, 100), sample(20_000, 1, 70, 70)], tmp_path)

    summary = report_lag(spark, tmp_path)
    orders, other = sorted(summary.parts, key=lambda one: one.topic)
    assert (orders.samples, orders.lag, orders.max_lag) == (2, 20, 60)
    assert (orders.stored_rate, orders.consumed_rate) == (4.0, 7.0)
    assert (other.samples, other.lag, other.stored_rate) == (1, 9, 0.0)
    rows = spark.read.parquet(str(tmp_path / "lag")).where("topic = 'Orders'").orderBy("at").collect()
    assert [(row["at"], row["queues"], row["lag"]) for row in rows] == [(10_000, 2, 60), (20_000, 2, 20)]
    assert (tmp_path / "report.html").read_text().count("<svg") == 2


def test_the_command_starts_spark_after_its_last_sample(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = tmp_path / "lag", []

    @contextmanager
    def started(*arguments: object) -> Iterator[SparkSession]:
        seen.append(len(list((folder / "samples").glob("*.parquet"))))
        yield spark

    monkeypatch.setattr(job, "spark_session", started)
    with running(tmp_path / "broker") as pair:
        pair.make_topic("Orders", 2)
        with Cluster(read_options(pair.options("Orders", groupId="billing"), streaming=True)) as cluster:
            cluster.commit({MessageQueue("Orders", pair.broker, 0): 0})
        given = ["spark", "lag", str(folder), "-n", pair.names, "--times", "3", "--every", "1ms"]
        given += ["--group", "billing"]
        done = CliRunner().invoke(command, given)
    assert (done.exit_code, seen) == (0, [3]), done.output
    assert "billing" in done.output

    patient, soon = analyses.source_options, {"pullTimeoutMs": "500"}
    monkeypatch.setattr(analyses, "source_options", lambda target: patient(target) | soon)
    lost = CliRunner().invoke(command, ["spark", "lag", str(folder), "-n", pair.names])  # nobody is there
    assert (lost.exit_code, seen) == (1, [3])
    assert lost.output.startswith("rmq: ")
    again = CliRunner().invoke(command, ["spark", "lag", str(folder), "-n", pair.names, "--times", "0"])
    assert (again.exit_code, seen) == (0, [3, 3]), again.output


def test_no_samples(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="with samples"):
        report_lag(spark, tmp_path)
