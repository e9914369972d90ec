"""`rmq demo`: a whole system in one process, a real file through it, and the metrics."""

from __future__ import annotations

import pathlib
import shutil
import sys
import tempfile
import uuid

import click
import trio
from rich.console import Console

from rmq.cli.demo.report import check_order, files_table, flow_table, order_line, print_parts, share_table
from rmq.cli.demo.rows import BadInput, bundled, read_rows
from rmq.cli.demo.run import DemoFailed, Plan, run_demo
from rmq.cli.output import echo
from rmq.cli.status import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, status_of
from rmq.errors import InvalidName, RmqError
from rmq.message import validate_topic

ORDERS_KEY = "order_id"
ONE_PROCESS = (
    "Servers, producer and consumers shared one process and one core: these are not the broker's limits."
)


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=pathlib.Path))
@click.option("--topic", default="Orders", show_default=True, help="Topic to publish to.")
@click.option("--key", metavar="COLUMN", help="Column whose equal values stay in order. [default: the first]")
@click.option(
    "--queues", type=click.IntRange(2, 256), default=8, show_default=True, help="Queues of the topic."
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    help="Folder for the store. [default: a new one under the system's temporary folder]",
)
@click.option(
    "--keep/--no-keep", default=True, help="Keep a temporary folder for a look at it. [default: keep]"
)
@click.option(
    "--spark/--no-spark",
    default=True,
    help="Archive the topic by Spark, if it is installed. [default: spark]",
)
def demo(
    file: pathlib.Path | None,
    topic: str,
    key: str | None,
    queues: int,
    data_dir: pathlib.Path | None,
    keep: bool,
    spark: bool,
) -> None:
    """Send a data set through name server, broker and two consumers; show the metrics.

    Without FILE the order events that come with rmq are sent, ordered by order_id. FILE is a CSV file with a
    header line, or JSON lines (one object a line). Nothing but this process is needed, and nothing of it
    stays but the folder with the messages. Where the extra `spark` is installed, the topic is archived as
    Parquet at last.
    """
    path = file or bundled()
    try:
        validate_topic(topic)
        rows = read_rows(path, key or (None if file else ORDERS_KEY))
    except (BadInput, InvalidName) as error:
        sys.exit(_fail(error, EXIT_USAGE))
    folder = (data_dir or pathlib.Path(tempfile.mkdtemp(prefix="rmq-demo-"))).resolve()
    column = key or ("the first column" if file else ORDERS_KEY)
    plan = Plan(rows, topic, queues, folder, uuid.uuid4().hex[:12])
    passing = data_dir is None and not keep
    try:
        status = _run(plan, path, column, note=" (removed now, because of --no-keep)" if passing else "")
        sys.exit(status or (_archive(plan) if spark else 0))
    finally:
        if passing:
            shutil.rmtree(folder, ignore_errors=True)


def _run(plan: Plan, path: pathlib.Path, column: str, *, note: str) -> int:
    """Runs the plan and prints what came of it; returns the exit status."""
    console = Console()
    print_parts(
        console, f"rmq demo: {len(plan.rows):,} rows of {path} to topic {plan.topic}, {plan.queues} queues"
    )
    try:
        results = trio.run(run_demo, plan)
    except KeyboardInterrupt:
        return _fail(DemoFailed(f"interrupted; what was stored lies in {plan.folder}"), EXIT_INTERRUPTED)
    except (RmqError, DemoFailed, OSError) as error:
        return _fail(error, status_of(error))
    check = check_order(plan.rows, results.deliveries)
    names = ("consumer-1", "consumer-2")
    print_parts(
        console, flow_table(results), share_table(results, names, column), files_table(plan.folder / "store")
    )
    print_parts(console, order_line(check, column), ONE_PROCESS, f"Files: {plan.folder / 'store'}{note}")
    if not check.passed:
        return _fail(DemoFailed(check.first_wrong or "not everything came once and unchanged"), EXIT_FAILED)
    return 0


def _archive(plan: Plan) -> int:
    """The last step, where Spark is installed; returns the exit status."""
    from rmq.cli.demo.spark import EXPECTED, SparkFailed, archive_demo, archive_line, count_table, has_spark

    if not has_spark():
        return 0
    console = Console()
    print_parts(console, EXPECTED)
    try:
        counted = archive_demo(plan)
    except KeyboardInterrupt:
        return _fail(DemoFailed("interrupted while Spark was at work"), EXIT_INTERRUPTED)
    except (SparkFailed, RmqError, OSError) as error:
        return _fail(error, status_of(error))
    print_parts(console, count_table(counted), archive_line(counted))
    if counted.rows != len(plan.rows):
        return _fail(DemoFailed(f"the archive has {counted.rows:,} of {len(plan.rows):,} rows"), EXIT_FAILED)
    return 0


def _fail(error: Exception, status: int) -> int:
    echo(f"rmq demo: {error}", err=True)
    return status
