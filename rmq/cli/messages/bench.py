"""`rmq bench producer|consumer|both`: load a cluster and show rates and latencies."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

import click
import trio
from attrs import frozen

from rmq.cli.completion import complete_topic
from rmq.cli.latency import Meter
from rmq.cli.messages.sub import check_may_consume
from rmq.cli.output import EXIT_FAILED, Format, console, echo, output_option, show
from rmq.cli.target import Target, first_error, run, target_options
from rmq.cli.values import as_duration
from rmq.client.client import Client
from rmq.client.consume.consumer import Consumer
from rmq.client.produce.producer import Producer
from rmq.errors import NoRoute, RmqError
from rmq.message import Message, StoredMessage
from rmq.printable import counted

TOPIC = "BenchmarkTest"
"""RocketMQ's own topic for benchmarks; every broker has it."""
LIVE_SECONDS = 0.5
STAMP = 16
"""Bytes at the start of a body: the time of its send, ns since 1970, in hex."""
ERROR_PAUSE_SECONDS = 0.05


@frozen
class Load:
    """The load and its duration. `rate` is messages a second, None: as many as possible."""

    topic: str
    seconds: float
    size: int = 128
    in_flight: int = 64
    batch: int = 1
    rate: float | None = None
    group: str = "rmq-cli-bench"
    count: int | None = None


@click.group()
def bench() -> None:
    """Load a cluster: rates and latencies of sending and consuming."""


def load_options(command: Any) -> Any:
    """Add the options that all three commands have."""
    for option in (
        click.option("--topic", default=TOPIC, show_default=True, shell_complete=complete_topic),
        click.option("--duration", callback=as_duration, default="10s", show_default=True, help="Duration."),
        click.option("--count", type=click.IntRange(1), help="End after this number of messages."),
        output_option,
        target_options,
    ):
        command = option(command)
    return command


def sending_options(command: Any) -> Any:
    """Add the options of senders."""
    for option in (
        click.option(
            "--size", type=click.IntRange(16, 4 << 20), default=128, show_default=True, help="Bytes."
        ),
        click.option(
            "--in-flight", type=click.IntRange(1, 4096), default=64, show_default=True, help="Sends at once."
        ),
        click.option("--batch", type=click.IntRange(1, 1024), default=1, help="Messages of one request."),
        click.option(
            "--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second at most."
        ),
    ):
        command = option(command)
    return command


@bench.command()
@sending_options
@load_options
def producer(target: Target, output: Format, **load: Any) -> None:
    """Send as fast as the cluster takes messages."""
    _bench(target, output, ("producer",), load)


@bench.command()
@click.option("--group", default="rmq-cli-bench", show_default=True, help="Consumer group.")
@load_options
def consumer(target: Target, output: Format, **load: Any) -> None:
    """Consume as fast as messages arrive; latency is from the send to the delivery, by two clocks."""
    _bench(target, output, ("consumer",), load)


@bench.command()
@click.option("--group", default="rmq-cli-bench", show_default=True, help="Consumer group.")
@sending_options
@load_options
def both(target: Target, output: Format, **load: Any) -> None:
    """Send and consume at once, in this process."""
    _bench(target, output, ("producer", "consumer"), load)


def _bench(target: Target, output: Format, roles: tuple[str, ...], options: dict[str, Any]) -> None:
    load = Load(seconds=options.pop("duration") / 1000, **options)
    meters = run(load_cluster, target, load, roles)
    rows = [meter.row() for meter in meters]
    if output != "table":
        show(rows, output)
    else:
        names = [name for name in rows[0] if name != "role"]  # one a line: a terminal is not wide enough
        show([{"": name.replace("_", " ")} | {row["role"]: row[name] for row in rows} for name in names])
        for meter in meters:
            meter.print_histogram()
    if any(row["failed"] for row in rows) or not any(row["messages"] for row in rows):
        error = next((meter.error for meter in meters if meter.error), "no message arrived")
        echo(f"rmq bench: {error}", err=True)
        sys.exit(EXIT_FAILED)


# --- running ---


async def load_cluster(target: Target, load: Load, roles: tuple[str, ...]) -> list[Meter]:
    """Run the roles side by side until the time, the count or a signal ends them. Raises RmqError for an
    error that stops every message."""
    meters = {role: Meter(role, load.size) for role in roles}
    async with target.connect() as client:
        if "consumer" in meters:
            await check_may_consume(client, load.group, [load.topic])
        with first_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_show_rates, list(meters.values()))
                if "consumer" in meters:
                    alone = "producer" not in meters
                    await nursery.start(_consume, client, load, meters["consumer"], alone)
                if "producer" in meters:
                    await _produce(client, load, meters["producer"])
                    if "consumer" in meters:
                        await _drain(meters["producer"], meters["consumer"])
                else:
                    with trio.move_on_after(load.seconds):
                        while load.count is None or meters["consumer"].count < load.count:
                            await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
    return list(meters.values())


async def _produce(client: Client, load: Load, meter: Meter) -> None:
    """Send by `in_flight` workers; each sends again when the broker has answered."""
    left = load.count if load.count is not None else 1 << 62
    slot = trio.current_time()

    async def worker(producer: Producer) -> None:
        nonlocal left, slot
        while left > 0:
            size = min(load.batch, left)
            left -= size
            if load.rate is not None:
                slot = max(slot, trio.current_time()) + size / load.rate
                await trio.sleep_until(slot)
            await _send(producer, load, meter, size)

    async with client.producer("rmq-cli-bench") as producer:
        await producer.queues(load.topic)  # waiting for a missing topic is no load
        with first_error(), trio.move_on_after(load.seconds):
            async with trio.open_nursery() as nursery:
                for _ in range(load.in_flight):
                    nursery.start_soon(worker, producer)


async def _send(producer: Producer, load: Load, meter: Meter, size: int) -> None:
    body = f"{time.time_ns():0{STAMP}x}".encode()[:STAMP] + bytes(load.size - STAMP)
    began = time.perf_counter()
    try:
        if size == 1:
            await producer.send(Message(load.topic, body))
        else:
            await producer.send_batch([Message(load.topic, body) for _ in range(size)])
    except RmqError as error:
        if (isinstance(error, NoRoute) or not error.retriable) and not meter.count:
            raise
        meter.failed += size
        meter.error = str(error)
        await trio.sleep(ERROR_PAUSE_SECONDS)
        return
    meter.record(time.perf_counter() - began, size)


async def _consume(
    client: Client,
    load: Load,
    meter: Meter,
    alone: bool,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Consume until cancelled; beside a producer only messages from now on count."""
    began_ns = 0 if alone else time.time_ns()

    async def take(message: StoredMessage) -> None:
        sent = _sent_at_ns(message)
        if sent >= began_ns and (load.count is None or meter.count < load.count):
            meter.size = len(message.body)
            meter.record(max(0.0, (time.time_ns() - sent) / 1e9))

    start = "first" if alone else "last"
    async with client.consumer(load.group, {load.topic: "*"}, consume_from=start) as consumer:
        await _wait_for_queues(consumer)
        task_status.started()
        await partial(consumer.run, take, concurrency=64)()


async def _wait_for_queues(consumer: Consumer) -> None:
    """Wait, for a while, until this member has its queues."""
    with trio.move_on_after(5):
        while not consumer.queues:
            await trio.sleep(0.02)


def _sent_at_ns(message: StoredMessage) -> int:
    """The time of a message's send, ns since 1970: to the ns for messages of `rmq bench`, else to the ms."""
    try:
        return int(message.body[:STAMP], 16)
    except ValueError:
        return message.born_timestamp * 1_000_000


async def _drain(sent: Meter, consumed: Meter) -> None:
    """Wait until the sent messages have arrived, as long as some still arrive."""
    seen = -1
    while consumed.count < sent.count and consumed.count != seen:
        seen = consumed.count
        with trio.move_on_after(2):
            while consumed.count < sent.count:
                await trio.sleep(0.02)


async def _show_rates(meters: list[Meter]) -> None:
    """Live rates on the error output, when that is a terminal."""
    if not sys.stderr.isatty():
        return
    from rich.live import Live

    counts = [0] * len(meters)
    with Live(console=console(stderr=True), transient=True, auto_refresh=False) as live:
        while True:
            await trio.sleep(LIVE_SECONDS)
            now = [meter.count for meter in meters]
            rates = [(new - old) / LIVE_SECONDS for new, old in zip(now, counts, strict=True)]
            counts = now
            parts = [
                f"{meter.role} {rate:,.0f}/s, {counted(meter.count, 'message', ',')}, {meter.failed:,} failed"
                for meter, rate in zip(meters, rates, strict=True)
            ]
            live.update("   ".join(parts), refresh=True)
