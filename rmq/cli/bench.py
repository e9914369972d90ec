"""`rmq bench producer|consumer|both`: load a cluster and show rates and latencies."""

from __future__ import annotations

import sys
from typing import Any

import click
from attrs import frozen

from rmq.cli.completion import complete_topic
from rmq.cli.output import Format, echo, output_option, show
from rmq.cli.target import Target, run, target_options
from rmq.cli.times import as_duration

TOPIC = "BenchmarkTest"
"""RocketMQ's own topic for this; every broker has it."""


@frozen
class Load:
    """What to send and to take, and for how long. `rate` is messages a second, None: as many as go."""

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
    """Adds what all three have in common."""
    for option in (
        click.option("--topic", default=TOPIC, show_default=True, shell_complete=complete_topic),
        click.option(
            "--duration", callback=as_duration, default="10s", show_default=True, help="How long to go on."
        ),
        click.option("--count", type=click.IntRange(1), help="End after so many messages."),
        output_option,
        target_options,
    ):
        command = option(command)
    return command


def sending_options(command: Any) -> Any:
    """Adds what senders have."""
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
    """Send as fast as the cluster takes it."""
    _bench(target, output, ("producer",), load)


@bench.command()
@click.option("--group", default="rmq-cli-bench", show_default=True, help="Consumer group.")
@load_options
def consumer(target: Target, output: Format, **load: Any) -> None:
    """Consume as fast as messages come; latency is from the send to the delivery, by two clocks."""
    _bench(target, output, ("consumer",), load)


@bench.command()
@click.option("--group", default="rmq-cli-bench", show_default=True, help="Consumer group.")
@sending_options
@load_options
def both(target: Target, output: Format, **load: Any) -> None:
    """Send and consume at once, in this process."""
    _bench(target, output, ("producer", "consumer"), load)


def _bench(target: Target, output: Format, roles: tuple[str, ...], options: dict[str, Any]) -> None:
    from rmq.cli.bench_run import load_cluster

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
        error = next((meter.error for meter in meters if meter.error), "no message came")
        echo(f"rmq bench: {error}", err=True)
        sys.exit(1)
