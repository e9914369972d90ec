"""`rmq demo`: a name server, a broker, a producer and two consumers in a single process; a real file is sent
through them, and metrics are printed."""

from __future__ import annotations

import pathlib
import shutil
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import click
import trio
from attrs import field, frozen
from rich.console import Console
from rich.progress import Progress, TaskID

import rmq
from rmq import embedded
from rmq.cli.demo.report import (
    Delivery,
    Results,
    check_order,
    files_table,
    flow_table,
    order_line,
    print_parts,
    share_table,
)
from rmq.cli.demo.rows import BadInput, Row, bundled, read_rows
from rmq.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, console, echo, progress, status_of
from rmq.client.consume.consumer import Consumer
from rmq.client.produce.producer import Producer
from rmq.errors import InvalidName, RmqError
from rmq.message import validate_topic
from rmq.printable import counted
from rmq.remoting.loop import unwrap_groups

ORDERS_KEY = "order_id"
CONSUMERS = 2
WORKERS = 32
"""Sends in flight; one worker sends all rows of a key, one after the other."""
STALL_SECONDS = 30
LONGEST_INDEXED_KEY = 128
ONE_PROCESS = (
    "Servers, producer and consumers shared one process and one core: these are not the broker's limits."
)


class DemoFailed(Exception):
    """The demo could not finish; the text has its progress."""


@frozen
class Plan:
    """The messages to send, their topic, and the id by which this run knows its own messages."""

    rows: Sequence[Row] = field(repr=False)
    topic: str
    queues: int
    folder: pathlib.Path
    run_id: str

    def message(self, row: Row) -> rmq.Message:
        """The message of one row."""
        indexed = row.key.isprintable() and " " not in row.key and len(row.key) <= LONGEST_INDEXED_KEY
        return rmq.Message(
            self.topic,
            row.body,
            keys=(row.key,) if indexed else (),
            properties={"demo": self.run_id, "row": str(row.number)},
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
    help="Folder for the store. [default: a new folder in the temporary folder]",
)
@click.option("--keep/--no-keep", default=True, help="Keep the temporary folder. [default: keep]")
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
    header line, or JSON lines (one object a line). The demo needs no other process, and leaves only the
    folder with the messages. If the extra `spark` is installed, the last step archives the topic as Parquet.
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
    """Run the plan and print the results; return the exit status."""
    terminal = Console()
    rows = f"{len(plan.rows):,} rows of {path}"
    print_parts(terminal, f"rmq demo: {rows} to topic {plan.topic}, {counted(plan.queues, 'queue')}")
    try:
        results = trio.run(run_demo, plan)
    except KeyboardInterrupt:
        return _fail(DemoFailed(f"interrupted; the stored messages are in {plan.folder}"), EXIT_INTERRUPTED)
    except (RmqError, DemoFailed, OSError) as error:
        return _fail(error, status_of(error))
    check = check_order(plan.rows, results.deliveries)
    names = ("consumer-1", "consumer-2")
    print_parts(
        terminal, flow_table(results), share_table(results, names, column), files_table(plan.folder / "store")
    )
    print_parts(terminal, order_line(check, column), ONE_PROCESS, f"Files: {plan.folder / 'store'}{note}")
    if not check.has_passed:
        return _fail(DemoFailed(check.first_wrong or "messages lost, duplicated or changed"), EXIT_FAILED)
    return 0


def _archive(plan: Plan) -> int:
    """The last step, where Spark is installed; returns the exit status."""
    from rmq.cli.demo.spark import EXPECTED, SparkFailed, archive_demo, archive_line, count_table, has_spark

    if not has_spark():
        return 0
    terminal = Console()
    print_parts(terminal, EXPECTED)
    try:
        counts = archive_demo(plan)
    except KeyboardInterrupt:
        return _fail(DemoFailed("interrupted while Spark was at work"), EXIT_INTERRUPTED)
    except (SparkFailed, RmqError, OSError) as error:
        return _fail(error, status_of(error))
    print_parts(terminal, count_table(counts), archive_line(counts))
    if counts.rows != len(plan.rows):
        return _fail(DemoFailed(f"the archive has {counts.rows:,} of {len(plan.rows):,} rows"), EXIT_FAILED)
    return 0


def _fail(error: Exception, status: int) -> int:
    echo(f"rmq demo: {error}", err=True)
    return status


# --- the run ---


async def run_demo(plan: Plan) -> Results:
    """Run the whole demo and return its events. Raises RmqError, DemoFailed."""
    results = Results(plan.rows)
    async with embedded.open(plan.folder) as system:
        await system.create_topic(plan.topic, plan.queues)
        async with AsyncExitStack() as stack:
            producer, consumers = await _connect(stack, system, plan)
            with unwrap_groups():
                async with trio.open_nursery() as nursery:
                    for number, consumer in enumerate(consumers):
                        handler = partial(_deliver, plan, results, number)
                        nursery.start_soon(partial(consumer.run, handler, concurrency=plan.queues))
                    await _wait_for_even_shares(consumers, plan)
                    await _publish_and_wait(producer, plan, results)
                    nursery.cancel_scope.cancel()
    return results


async def _connect(
    stack: AsyncExitStack, system: embedded.System, plan: Plan
) -> tuple[Producer, list[Consumer]]:
    """A producer and two members of a group, each on a client of its own as in separate processes."""
    group = f"demo-{plan.run_id}"
    clients = [
        await stack.enter_async_context(rmq.connect(system.namesrv_address)) for _ in range(CONSUMERS + 1)
    ]
    # Ordered: of a queue one message at a time, under the broker's lock of the queue.
    ordered = partial(rmq.Client.consumer, consume_from="first", ordered=True)
    consumers = [
        await stack.enter_async_context(ordered(client, group, {plan.topic: "*"})) for client in clients[1:]
    ]
    return await stack.enter_async_context(clients[0].producer(group)), consumers


async def _wait_for_even_shares(consumers: Sequence[Consumer], plan: Plan) -> None:
    """Wait until the queues are divided evenly, so that no queue changes its member while messages flow."""
    with trio.move_on_after(STALL_SECONDS):
        while True:
            counts = [sum(queue.topic == plan.topic for queue in one.queues) for one in consumers]
            if sum(counts) == plan.queues and max(counts) - min(counts) <= 1:
                return
            await trio.sleep(0.02)
    raise DemoFailed(f"the queues of {plan.topic} were not shared out within {STALL_SECONDS} s: {counts}")


async def _deliver(plan: Plan, results: Results, consumer: int, message: rmq.StoredMessage) -> None:
    """Handle a message, for both consumers. Messages of an earlier run in the same folder are passed over."""
    if message.properties.get("demo") != plan.run_id:
        return
    number = int(message.properties["row"])
    await trio.lowlevel.checkpoint()  # a handler that waits: another message may overtake this one here
    intact = message.body == plan.rows[number].body
    results.delivered(Delivery(consumer, number, message.queue_id, time.perf_counter(), intact))


async def _publish_and_wait(producer: Producer, plan: Plan, results: Results) -> None:
    shares: list[list[Row]] = [[] for _ in range(WORKERS)]
    for row in plan.rows:
        shares[zlib.crc32(row.key.encode()) % WORKERS].append(row)
    with progress(console(stderr=True), transient=False) as shown:
        bars = [shown.add_task(name, total=len(plan.rows)) for name in ("published", "consumed")]
        with unwrap_groups():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch, shown, bars, results, nursery.cancel_scope)
                for rows in shares:
                    nursery.start_soon(_publish, producer, plan, results, rows)
        if not results.is_complete:
            came = f"only {len(results.seen):,} of {len(plan.rows):,} rows came"
            raise DemoFailed(f"{came}; the last {STALL_SECONDS} s brought none")


async def _publish(producer: Producer, plan: Plan, results: Results, rows: Sequence[Row]) -> None:
    """Send rows in order: a row is sent when its predecessor is acknowledged."""
    for row in rows:
        message = plan.message(row)
        results.sent_at[row.number] = time.perf_counter()
        await producer.send(message, sharding_key=row.key)
        results.acknowledged_at[row.number] = time.perf_counter()


async def _watch(shown: Progress, bars: Sequence[TaskID], results: Results, scope: trio.CancelScope) -> None:
    """Move the bars; end the wait when all rows have come, or when no more come."""
    last, since = (0, 0), trio.current_time()
    while not results.is_complete:
        now = len(results.acknowledged_at), len(results.seen)
        for bar, count in zip(bars, now, strict=True):
            shown.update(bar, completed=count)
        if now != last:
            last, since = now, trio.current_time()
        elif trio.current_time() - since > STALL_SECONDS:
            break
        await trio.sleep(0.05)
    while len(results.acknowledged_at) < len(results.seen):
        await trio.sleep(0.01)  # a row can be consumed before its send has the response
    for bar in bars:
        shown.update(bar, completed=len(results.seen))
    scope.cancel()
