"""A job of `rmq spark`: starts Spark, shows its progress, ends with a summary or an error in one line."""

from __future__ import annotations

import importlib.util
import logging
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import click
from attrs import frozen

from rmq.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, Format, echo, fail, plain, progress, show
from rmq.cli.target import Target
from rmq.errors import RmqError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmq.spark.pipelines.progress import JobProgress as SparkProgress
    from rmq.spark.pipelines.progress import Watch

T = TypeVar("T")

STDERR: Final = 2
_BROKERS: Final = "rmq.cli.spark.brokers"
_OURS: Final = re.compile(r"rmq\.[a-z_.]*errors?\.[A-Za-z]+: (.*)|rmq\.[a-z_.]+\.[A-Z][A-Za-z]+: (.*)")


def spark_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add Spark's options; the command gets `master` and `memory`."""
    for option in (
        click.option(
            "--memory", default="1g", show_default=True, metavar="SIZE", help="Memory of Spark's Java."
        ),
        click.option(
            "--master",
            default="local[*]",
            show_default=True,
            metavar="URL",
            help="local[CORES] or a cluster.",
        ),
    ):
        command = option(command)
    return command


def brokers_option(command: Callable[..., T]) -> Callable[..., T]:
    """Add --require-brokers, which `source_options` passes on."""
    return click.option(
        "--require-brokers",
        metavar="NAME[,NAME...]",
        default="",
        expose_value=False,
        callback=_on_brokers,
        help="Wait for these brokers, and fail without them: name servers do not know stopped brokers.",
    )(command)


def _on_brokers(context: click.Context, parameter: click.Parameter, given: str) -> None:
    context.meta[_BROKERS] = given


def source_options(target: Target) -> dict[str, str]:
    """The options of the source `rmq` for a target, in the command that is called."""
    options = {"nameServer": target.namesrv}
    if (context := click.get_current_context(silent=True)) is not None:
        options["requireBrokers"] = context.meta.get(_BROKERS, "")
    if target.credentials is not None:
        options["accessKey"] = target.credentials.access_key
        options["secretKey"] = target.credentials.secret_key
    if target.tls is not None:
        options |= {
            "tls": "true",
            "tlsCa": target.tls.tls_trust_path,
            "tlsCert": target.tls.tls_cert_path,
            "tlsKey": target.tls.tls_key_path,
            "tlsInsecure": str(target.tls.tls_insecure_skip_verify).lower(),
        }
    return {name: value for name, value in options.items() if value}


def run_pipeline(work: Callable[[SparkSession, Watch], T], *, master: str, memory: str) -> T:
    """Start Spark, do the work in it, and return its result. Errors end the process with a line."""
    with one_line_errors(), show_progress() as shown, spark_session(shown, master, memory) as spark:
        return work(spark, shown.watch)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with one line for errors of the block, for Ctrl-C, and if Spark is not installed."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        echo("rmq: Spark is not installed: pip install 'rmq[spark]'", err=True)
        sys.exit(EXIT_FAILED)
    from pyspark.errors import PySparkException

    # It prints the error, which we print in a line, as JSON on the error output.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    try:
        yield
    except KeyboardInterrupt:
        echo("interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except (RmqError, OSError) as error:
        fail(error)
    except PySparkException as error:
        echo("; ".join([f"rmq: {reason_of(error)}", *error.__notes__]), err=True)
        sys.exit(EXIT_FAILED)


@frozen
class JobProgress:
    """Display of a job's progress on the terminal: `step` names the present step, `watch` gets the job's
    progress."""

    step: Callable[[str], object]
    watch: Watch


@contextmanager
def spark_session(
    shown: JobProgress, master: str, memory: str, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session for the length of the block; `settings` are Spark's."""
    from rmq.spark import session

    shown.step("starting Spark")
    with _errors_to_a_file() as log:
        spark = session(
            "rmq spark", master=master, settings={"spark.driver.memory": memory, **(settings or {})}
        )
    shown.step("working")
    try:
        yield spark
    except Exception as error:
        error.add_note(f"Spark's output is in {log}")
        raise
    else:
        log.unlink(missing_ok=True)
    finally:
        spark.stop()


@contextmanager
def _errors_to_a_file() -> Iterator[pathlib.Path]:
    """Processes that start in the block write their errors to a file, which the caller removes: Java prints
    five lines at its start, and two pages for each error, of which the command prints one line."""
    handle, name = tempfile.mkstemp(prefix="rmq-spark-", suffix=".log")
    sys.stderr.flush()
    before = os.dup(STDERR)
    os.dup2(handle, STDERR)
    os.close(handle)
    try:
        yield pathlib.Path(name)
    finally:
        os.dup2(before, STDERR)
        os.close(before)


def reason_of(error: BaseException) -> str:
    """The text of rmq's own exception in an error that came through Spark, which contains two tracebacks."""
    said = [next(filter(None, found)) for found in _OURS.findall(str(error))]
    return said[-1].strip() if said else str(error).splitlines()[0].rstrip("; ")


@contextmanager
def show_progress() -> Iterator[JobProgress]:
    """Show steps and progress on the error output, when that is a terminal; the display disappears when the
    block ends."""
    if not sys.stderr.isatty():
        from rmq.spark.pipelines.progress import unwatched

        yield JobProgress(lambda text: None, unwatched)
        return
    from rich.console import Console

    # A handle of its own: while Java starts, the error output is redirected.
    with os.fdopen(os.dup(STDERR), "w") as terminal:
        console = Console(file=terminal, force_terminal=True)
        with progress(console, redirect_stderr=False) as bars:
            task = bars.add_task("", total=None)

            def watch(at: SparkProgress) -> None:
                bars.update(task, description=at.unit, completed=at.done, total=at.total)

            yield JobProgress(lambda text: bars.update(task, description=text), watch)


def print_summary(summary: Any, output: Format, *, columns: Mapping[str, str] | None = None) -> None:
    """Print the result of a pipeline: its parts as a table, and its metrics; or all as JSON or YAML."""
    if output != "table":
        show(summary, output)
        return
    metrics = {name: value for name, value in attrs.asdict(summary, recurse=False).items() if name != "parts"}
    if getattr(summary, "parts", ()):
        show(summary.parts, columns=columns)
        echo()
    if isinstance(metrics.get("seconds"), float):
        metrics["seconds"] = f"{metrics['seconds']:.1f}"
    show(plain(metrics))
