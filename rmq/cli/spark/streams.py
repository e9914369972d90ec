"""`rmq spark run`: the streams of a file, until Ctrl-C or SIGTERM, or once."""

from __future__ import annotations

import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import yaml

from rmq.cli.output import EXIT_FAILED, Format, echo, fail, output_option, show
from rmq.cli.spark import job
from rmq.cli.spark.job import print_summary, source_options, spark_options
from rmq.cli.target import Target, target_options
from rmq.errors import ConfigError, RmqError


@click.command("run")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path), metavar="FILE")
@click.option("--once", is_flag=True, help="End after the present messages; for cron or Airflow.")
@click.option("--check", is_flag=True, help="Read the file, show its streams, and run nothing.")
@output_option
@spark_options
@target_options
def run_command(
    target: Target,
    file: pathlib.Path,
    once: bool,
    check: bool,
    output: Format,
    master: str,
    memory: str,
) -> None:
    """Run the streams of FILE, from topics into tables, files or topics (docs/spark_jobs.md).

    A stream that fails is started again after a pause. Ends by Ctrl-C or SIGTERM. With --once the status is 1
    when a stream fails, and nothing is started again.
    """
    with job.one_line_errors():
        from rmq.spark.jobs.run import run_once, run_streams
        from rmq.spark.jobs.spec import names_of, read_jobs

        try:
            jobs = read_jobs(_tree(file), source_options(target))
        except RmqError as error:
            fail(error)
        if check:
            show(names_of(jobs), output)
            return
        with job.show_progress() as shown, job.spark_session(shown, master, memory, jobs.spark) as spark:
            if once:
                ran = run_once(spark, jobs, tell=lambda line: echo(line, err=True))
            else:
                with _interrupted_sleep() as sleep:
                    run_streams(spark, jobs, tell=echo, sleep=sleep)
                return
        print_summary(ran, output)
        if ran.errors:
            sys.exit(EXIT_FAILED)


def _tree(file: pathlib.Path) -> object:
    try:
        return yaml.safe_load(file.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError("the file", str(file), f"YAML ({' '.join(str(error).split())[:200]})") from None


@contextmanager
def _interrupted_sleep() -> Iterator[Callable[[float], None]]:
    """A function that sleeps, until SIGTERM ends it as Ctrl-C does: Kubernetes and systemd stop services so.

    SIGTERM ends nothing else: after an interrupted call Java cannot be asked to stop the streams."""
    ended = threading.Event()
    before: Any = signal.signal(signal.SIGTERM, lambda *_: ended.set())

    def sleep(seconds: float) -> None:
        if ended.wait(seconds):
            raise KeyboardInterrupt

    try:
        yield sleep
    finally:
        signal.signal(signal.SIGTERM, before)
