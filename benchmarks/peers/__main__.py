"""Our broker beside Kafka, NATS JetStream, RabbitMQ streams and Redis streams: the same sends, in turns.

    python -m benchmarks.peers [--kafka FOLDER] [--nats FILE] [--redis FILE] [--rabbitmq FILE] [--page FILE]

FOLDER holds the jars of org.apache.kafka:kafka_2.13 and what it needs (Maven), the FILEs are nats-server (a
Go module, github.com/nats-io/nats-server/v2), redis-server and rabbitmq-server (Debian's packages; the latter
in /usr/lib/rabbitmq/bin). What is not given is left out. Each broker runs on core 1, all with the same
durability, which each row names, and the load on core 0: one connection that keeps a window of acknowledged
messages of 1 KiB in flight. In each round the brokers take turns, in an order that is turned round from round
to round. Told are medians: the broker's CPU time for a message, user and system, the rate, and the ratio of
theirs to ours in the same round. --page writes an HTML page with charts.

Then, with messages that are acknowledged before they are on the disk: a backlog (--backlog) read by one
connection and by eight, and the latency of sends at 10, 50 and 80 % of the rate that each broker itself took
with 256 in flight: an open load (`wires`), whose p50, p99, p99.9 and maximum are told. --realtime keeps other
processes out of CPU times and rates, but not out of latencies: by default Linux stops real-time processes for
50 ms of each second.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

import attrs

from benchmarks.peers.page import page
from benchmarks.peers.servers import CACHE, DISK, Durability, Server, started

FIRST_PORT = 27_100
LOAD_CORE = "0"


@attrs.frozen
class Work:
    """One kind of load: how many messages are in flight, and how many go in one request (0: each alone)."""

    name: str
    window: int
    batch: int


WORKS = (Work("256 in flight, each by itself", 256, 0), Work("1024 in flight, 32 in a request", 1024, 32))
ALONE = {"nats", "redis"}
"""Whose protocols take one message a request."""


SHARES = (0.1, 0.5, 0.8)
"""Of a broker's own rate, at which its latency is measured."""
READERS = (1, 8)
"""Connections that read the backlog, each all of it."""


@attrs.frozen
class Figures:
    """What one turn gave."""

    rate: float
    cpu_us: float
    latency: Mapping[str, float] = {}


def turn(server: Server, work: Work, size: int, warm: float, seconds: float, *rate: float) -> Figures:
    """One work on one broker, at a rate if one is given."""
    return _run(server, "wires", server.port, size, work.window, work.batch, warm, seconds, *rate)


def _run(server: Server, module: str, *numbers: float) -> Figures:
    wire = "rmq" if server.kind.startswith("rmq") else server.kind
    command = ["taskset", "-c", LOAD_CORE, sys.executable, "-m", f"benchmarks.peers.{module}", wire]
    load = subprocess.Popen([*command, *map(str, numbers)], stdout=subprocess.PIPE, text=True)
    assert load.stdout is not None
    load.stdout.readline()
    before = server.cpu_seconds()
    told = json.loads(load.stdout.readline())
    cpu = server.cpu_seconds() - before
    load.wait(60)
    latency = {name: value for name, value in told.items() if name[0] == "p" or name == "max"}
    return Figures(told["rate"], cpu / told["messages"] * 1e6, latency)


def more_of(server: Server, options: argparse.Namespace, rate: float) -> Iterator[tuple[str, Figures]]:
    """The backlog and the latencies of one broker, which takes `rate` messages a second."""
    for connections in READERS:
        is_first = int(connections == READERS[0])
        name = f"backlog of {options.backlog:,} read by {connections} connection{'s' * (connections > 1)}"
        numbers = server.port, options.size, connections, options.backlog, is_first
        try:
            yield name, _run(server, "reads", *numbers)
        except json.JSONDecodeError:  # the load has said why: no row then
            print(f"{server.kind}: {name}: failed", file=sys.stderr)
    for share in SHARES:
        name = f"sends at {share:.0%} of its own rate"
        yield name, turn(server, WORKS[0], options.size, 0.5, options.seconds, rate * share)


Row = dict[str, object]


def measured(durability: Durability, given: dict[str, str], options: argparse.Namespace) -> list[Row]:
    """The rows of one durability."""
    results: dict[tuple[str, str], list[Figures]] = {}
    kinds = [kind for kind in durability.words if kind in given]
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(started(kind, given[kind], FIRST_PORT + 10 * number, durability))
            for number, kind in enumerate(kinds)
        ]
        for number in range(-1, options.rounds):
            for work in WORKS:
                for server in servers[:: -1 if number % 2 else 1]:
                    if work.batch and server.kind in ALONE:
                        continue
                    figures = turn(server, work, options.size, 1.0, options.seconds)
                    print(durability.name, work.name, server.kind, figures, file=sys.stderr)
                    if number >= 0:  # the first round warms them
                        results.setdefault((work.name, server.kind), []).append(figures)
        if durability is CACHE and options.backlog:
            for server in servers:
                most = median(one.rate for one in results[WORKS[0].name, server.kind])
                for name, one in more_of(server, options, most):
                    print(durability.name, name, server.kind, one, file=sys.stderr)
                    results[name, server.kind] = [one]
    rows = []
    for (work_name, kind), turns in results.items():
        ours = results[work_name, "rmq"]
        pairs = list(zip(turns, ours, strict=True))
        rows.append(
            {
                "durability": durability.name,
                "work": work_name,
                "broker": kind,
                "words": durability.words[kind],
                "cpu_us": median(one.cpu_us for one in turns),
                "rate": median(one.rate for one in turns),
                "cpu_ratio": median(their.cpu_us / own.cpu_us for their, own in pairs),
                "rate_ratio": median(own.rate / their.rate for their, own in pairs),
                "latency": turns[-1].latency,
            }
        )
    return rows


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| work | broker | an acknowledgement means | CPU µs a message | ÷ rmq's | messages/s | latency ms |",
        "|---|---|---|---|---|---|---|",
    ]
    form = "| {work} | {broker} | {words} | {cpu_us:.1f} | {cpu_ratio:.2f} | {rate:,.0f} | "
    for row in rows:
        latency: Any = row["latency"]
        told = ", ".join(f"{name} {value / 1000:.1f}" for name, value in latency.items())
        lines.append(form.format(**row) + f"{told} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("kafka", "nats", "redis", "rabbitmq"):
        parser.add_argument(f"--{name}", metavar="FOLDER" if name == "kafka" else "FILE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--backlog", type=int, default=1_000_000, help="0: neither backlog nor latencies")
    parser.add_argument("--realtime", action="store_true", help="at real-time priority, as root")
    parser.add_argument("--page", type=pathlib.Path, help="HTML file to write")
    options = parser.parse_args()
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # all that it starts has it, too
    given = {"rmq": "", "rmq, pure": ""}
    given |= {name: value for name, value in vars(options).items() if name in CACHE.words and value}
    loads, rows = [os.getloadavg()[0]], []
    for durability in (CACHE, DISK):
        rows += measured(durability, given, options)
        loads.append(os.getloadavg()[0])
    today, python = datetime.date.today().isoformat(), platform.python_version()
    conditions = (
        f"Taken {today}: {os.cpu_count()} CPUs, Python {python}, load {min(loads):.1f} to {max(loads):.1f}; "
        f"bodies of {options.size} B, {options.rounds} rounds of {options.seconds:g} s; medians"
        f"{', at real-time priority' * options.realtime}; backlog and latencies once."
    )
    print(f"{conditions}\n\n{table(rows)}")
    if options.page:
        options.page.write_text(page(conditions, rows), "utf-8")


if __name__ == "__main__":
    main()
