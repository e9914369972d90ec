"""`rmq spark` and the demo's last step, in the session of the tests."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from rmq.cli import LazyGroup, command
from rmq.cli.demo import Plan
from rmq.cli.demo.rows import Row
from rmq.cli.demo.spark import archive_and_count, archive_line, column_to_count, count_table
from rmq.cli.output import console
from rmq.cli.spark import PIPELINES, job
from rmq.cli.spark import spark as spark_commands
from rmq.cli.spark.streams import _interrupted_sleep
from rmq.cli.target import Target
from rmq.client import blocking
from rmq.spark import read_archive
from tests.spark.cluster import Pair, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(tmp_path_factory.mktemp("pair")) as started:
        yield started


@pytest.fixture
def rmq(spark: SparkSession, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command line on the tests' session; return its output."""

    @contextmanager
    def started(*arguments: object) -> Iterator[SparkSession]:
        try:
            yield spark
        except Exception as error:
            error.add_note("a note")
            raise

    monkeypatch.setattr(job, "spark_session", started)

    def run(*arguments: str | pathlib.Path, status: int = 0) -> str:
        more = [] if arguments[0] == "compact" else ["-n", pair.names]
        done: Result = CliRunner().invoke(command, ["spark", *map(str, arguments), *more])
        assert done.exit_code == status, done.output
        return done.output

    return run


def test_the_streams_of_a_file_run_once(rmq: Any, pair: Pair, tmp_path: pathlib.Path) -> None:
    for topic in ("CliRun", "CliRunTo"):
        pair.make_topic(topic, 2)
    pair.send("CliRun", 12)
    source = {"topic": "CliRun", "startingOffsets": "earliest", "pullTimeoutMs": 500}
    stream = {"source": source, "to": {"format": "rmq", "topic": "CliRunTo"}, "select": ["body"]}
    good = {"good": stream | {"checkpoint": str(tmp_path / "good")}}
    bad = {"bad": stream | {"source": source | {"topic": "CliNone"}, "checkpoint": str(tmp_path / "bad")}}
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump({"streams": good}))
    assert [row.split() for row in rmq("run", file, "--check").splitlines()[1:]] == [
        ["good", "CliRun", "rmq", "CliRunTo"]
    ]
    said = rmq("run", file, "--once", "-o", "json")
    found = json.loads(said[said.index("{") :])
    assert (found["streams"], found["rows"], found["errors"]) == (1, 12, {})
    file.write_text(yaml.safe_dump({"streams": good | bad}))
    said = rmq("run", file, "--once", status=1)
    assert "good: 0 rows" in said
    assert "CliNone" in said
    file.write_text(yaml.safe_dump({"streams": {"odd": {"from": 1}}}))
    assert "streams.odd.from" in rmq("run", file, "--once", status=2)
    file.write_text("streams: [")
    assert "YAML" in rmq("run", file, "--check", status=2)


def test_archive_compact_and_replay(
    rmq: Any, spark: SparkSession, pair: Pair, tmp_path: pathlib.Path
) -> None:
    for topic in ("Cli", "CliTo"):
        pair.make_topic(topic, 2)
    pair.send("Cli", 40, tags="paid")
    folder = tmp_path / "a"
    printed = rmq("archive", "Cli", folder, "--batch-rows", "20")
    assert "Cli" in printed
    assert [line.split() for line in printed.splitlines() if line.startswith(("rows", "batches"))] == [
        ["rows", "40"],
        ["batches", "2"],
    ]
    assert json.loads(rmq("archive", "Cli", folder, "-o", "json"))["rows"] == 0
    assert json.loads(rmq("compact", folder, "-o", "json"))["files_after"] == 1
    assert read_archive(spark, folder).count() == 40
    asked = ("--to", "CliTo", "--run", "r1", "--state", tmp_path, "-o", "json")
    chosen = ("--archive", folder, "--where", "queueOffset < 10", "--rate", "10000")
    assert json.loads(rmq("replay", *chosen, *asked))["sent"] == 20
    offsets = json.dumps({"Cli": {pair.broker: {"0": 5, "1": 5}}})
    done = json.loads(rmq("replay", "--topic", "Cli", "--from-offsets", offsets, *asked))
    assert (done["sent"], done["already"]) == (20, 20)
    assert "choose the source" in rmq("replay", "--to", "CliTo", status=2)


def test_dead_letters_and_errors(rmq: Any, pair: Pair, tmp_path: pathlib.Path) -> None:
    pair.make_topic("%DLQ%cli", 1)
    pair.make_topic("CliBack", 1)
    pair.send(
        "%DLQ%cli", 6, queues=1, tags="t", properties={"DLQ_ORIGIN_TOPIC": "CliBack", "DLQ_REASON": "no"}
    )
    report = json.loads(rmq("dlq", "cli", "--bucket", "day", "-o", "json"))
    assert report["letters"] == 6
    assert sum(part["letters"] for part in report["parts"]) == 6
    assert {(part["group"], part["originTopic"], part["reason"]) for part in report["parts"]} == {
        ("cli", "CliBack", "no")
    }
    assert "letters" in rmq("dlq", "cli", "--where", "queueOffset = 1")
    assert json.loads(rmq("resend", "cli", "--where", "queueOffset < 2", "-o", "json"))["sent"] == 2
    assert "choose letters" in rmq("resend", status=2)
    printed = rmq("dlq", "cli", "--where", "nonsense = 1", status=1)
    assert len(printed.splitlines()) == 1
    assert "nonsense" in printed
    assert "a note" in printed
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    assert "an empty or new folder" in rmq("archive", "CliBack", tmp_path, status=2)


def test_the_demo_counts_what_it_archived(spark: SparkSession, pair: Pair, tmp_path: pathlib.Path) -> None:
    pair.make_topic("DemoSpark", 2)
    steps = ("created", "paid", "paid")
    bodies = [{"order": f"o{number}", "step": steps[number % 3]} for number in range(60)]
    rows = [Row(number, body["order"], json.dumps(body).encode()) for number, body in enumerate(bodies)]
    plan = Plan(rows, "DemoSpark", 2, tmp_path, "run1")
    with blocking.connect(pair.names) as client, client.producer("tests") as producer:
        for row in rows:
            producer.send(plan.message(row))
    pair.send("DemoSpark", 10)  # of another run
    assert column_to_count(rows) == "step"
    counted = archive_and_count(spark, plan, pair.names)
    assert (counted.column, list(counted.groups), counted.rows) == (
        "step",
        [("paid", 40), ("created", 20)],
        60,
    )
    with (shown := console()).capture() as captured:
        shown.print(count_table(counted))
    assert "created" in captured.get()
    assert archive_line(counted).startswith(f"Archive: 60 messages of this run in {tmp_path / 'archive'}, ")
    assert column_to_count([Row(n, "k", b'{"a": %d}' % n) for n in range(20)]) is None


def test_required_brokers_are_an_option_of_what_reads_topics() -> None:
    @click.command()
    @job.brokers_option
    def show() -> None:
        click.echo(job.source_options(Target("n:1")).get("requireBrokers", "none"))

    said = [CliRunner().invoke(show, given).output for given in (["--require-brokers", "a,b"], [])]
    assert said == ["a,b\n", "none\n"]
    reading = {name for name in PIPELINES if "--require-brokers" in help_of(name)}
    assert reading == {"archive", "replay", "resend", "dlq", "trace", "profile", "lag"}


def help_of(name: str) -> str:
    return CliRunner().invoke(spark_commands, [name, "--help"]).output


def test_help_needs_neither_spark_nor_arrow() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyarrow'] = None\n"
        "from rmq.cli import command\n"
        "from rmq.cli.demo.spark import has_spark\n"
        "command(['spark', 'replay', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rmqSparkKey" in done.stdout
    context = click.Context(command)
    group = command.get_command(context, "spark")
    assert isinstance(group, LazyGroup)
    assert {name: found.name for name in PIPELINES if (found := group.get_command(context, name))} == {
        name: name for name in PIPELINES
    }


def test_sigterm_ends_a_sleep_and_no_call_of_java() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with _interrupted_sleep() as sleep:
        sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert [*range(3)] == [0, 1, 2]  # what is under way goes on
        with pytest.raises(KeyboardInterrupt):
            sleep(60)
    assert signal.getsignal(signal.SIGTERM) == before
