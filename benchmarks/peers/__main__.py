"""Our broker beside Kafka, NATS JetStream, RabbitMQ streams, Redis streams and RocketMQ: the same, in turns.

    python -m benchmarks.peers [--kafka FOLDER] [--nats FILE] [--redis FILE] [--rabbitmq FILE]
                               [--java FOLDER] [--java5 FOLDER] [--only PART ...] [--page FILE]

FOLDER holds the jars of org.apache.kafka:kafka_2.13 and what it needs, or of org.apache.rocketmq:
rocketmq-broker and rocketmq-namesrv, 4.9.7 or 5.3.3 (Maven), the FILEs are nats-server (a Go module,
github.com/nats-io/nats-server/v2), redis-server and rabbitmq-server (Debian's packages; the latter in
/usr/lib/rabbitmq/bin). What is not given is left out. Parts:

- sends: one connection that keeps a window of acknowledged messages of 1 KiB in flight, with the same
  durability at all brokers, which each row names;
- reads: a backlog (--backlog) read by one connection and by eight; then the latency of sends at 10, 50 and
  80 % of the rate that each broker itself took, an open load (`wires`);
- crowds: 1 to 5,000 connections, 1 to 10,000 queues, bodies of 100 B to 1 MiB (`crowds`);
- tails: messages that come at a rate and are read as they come, from when each was due until it is read;
- replication: sends to sets of brokers (`replication`);
- disturbed: our latency while something else goes on (`disturbed`).

Each broker runs on core 1 and the load on core 0; sets share both. In each round the brokers take turns, in
an order that is turned round from round to round. Told are medians: the CPU time for a message of all the
broker's processes, user and system, the rate, latencies, memory that is the processes' own, and the ratio of
theirs to ours in the same round. --page writes an HTML page with charts. --realtime keeps other processes out
of CPU times and rates, but not out of latencies: by default Linux stops real-time processes for 50 ms of each
second.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import pathlib
import platform
import signal
import sys
from collections.abc import Iterator
from statistics import median

from benchmarks.peers import crowd_rows, disturbed, replication
from benchmarks.peers.page import page
from benchmarks.peers.servers import CACHE, DISK, Durability, Server, started
from benchmarks.peers.turns import (
    Figures,
    LoadFailed,
    Row,
    Work,
    by_turns,
    rows_of,
    run_load,
    table,
    tell,
)

FIRST_PORT = 27_100
WORKS = (Work("256 in flight, each by itself", 256), Work("1024 in flight, 32 in a request", 1024, 32))
SAME_FILES = {"java, 5.3.3": "java5", "rabbitmq, quorum": "rabbitmq"}
ALONE = {"nats", "redis", "rabbitmq, quorum"}
"""Whose protocols take one message a request."""
SHARES = (0.1, 0.5, 0.8)
"""Of a broker's own rate, at which its latency is measured."""
READERS = (1, 8)
"""Connections that read the backlog, each all of it."""
PARTS = ("sends", "reads", "crowds", "tails", "replication", "disturbed")


def turn(server: Server, work: Work, options: argparse.Namespace, *rate: float) -> Figures | None:
    """One work on one broker, at a rate if one is given."""
    if work.batch and server.kind in ALONE:
        return None
    numbers = server.port, options.size, work.window, work.batch, 1.0, options.seconds, *rate
    return run_load(server, "wires", *numbers)


def more_of(server: Server, options: argparse.Namespace, rate: float) -> Iterator[tuple[str, Figures]]:
    """The backlog and the latencies of one broker, which takes `rate` messages a second."""
    for connections in READERS:
        is_first = int(connections == READERS[0])
        name = f"backlog of {options.backlog:,} read by {connections} connection{'s' * (connections > 1)}"
        numbers = server.port, options.size, connections, options.backlog, is_first
        try:
            yield name, run_load(server, "reads", *numbers)
        except LoadFailed:  # it has said why: no row then
            tell(server.kind, name, "failed")
    for share in SHARES:
        if figures := turn(server, WORKS[0], options, rate * share):
            yield f"sends at {share:.0%} of its own rate", figures


def measured(durability: Durability, given: dict[str, str], options: argparse.Namespace) -> list[Row]:
    """The rows of one durability."""
    kinds = [kind for kind in durability.words if kind in given]
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(started(kind, given[kind], FIRST_PORT + 10 * number, durability))
            for number, kind in enumerate(kinds)
        ]
        results = by_turns(
            durability.name, WORKS, servers, options.rounds, lambda server, work: turn(server, work, options)
        )
        if durability is CACHE and options.backlog and "reads" in options.only:
            for server in servers:
                rates = [one.rate for one in results.get((WORKS[0].name, server.kind), ())]
                if not rates:  # it has failed before
                    continue
                most = median(rates)
                for name, one in more_of(server, options, most):
                    tell(durability.name, name, server.kind, one)
                    results[name, server.kind] = [one]
    return rows_of(durability, results)


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("kafka", "nats", "redis", "rabbitmq", "java", "java5"):
        is_folder = name in {"kafka", "java", "java5"}
        parser.add_argument(f"--{name}", metavar="FOLDER" if is_folder else "FILE")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts; all if not given")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--backlog", type=int, default=1_000_000, help="0: neither backlog nor latencies")
    parser.add_argument("--steady", type=float, default=5_000, help="rate of `disturbed`, messages a second")
    parser.add_argument("--most", type=int, default=10_000, help="leave out more connections and queues")
    parser.add_argument("--realtime", action="store_true", help="at real-time priority, as root")
    parser.add_argument("--page", type=pathlib.Path, help="HTML file to write")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # its servers end, too
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # all that it starts has it, too
    given = {"rmq": "", "rmq, pure": "", "rmq, 2 processes": ""}
    others = ("kafka", "nats", "redis", "rabbitmq", "java", "java5")
    given |= {name: getattr(options, name) for name in others if getattr(options, name)}
    given |= {kind: given[name] for kind, name in SAME_FILES.items() if name in given}
    loads, rows = [os.getloadavg()[0]], []
    if {"sends", "reads"} & set(options.only):
        for durability in (CACHE, DISK):
            rows += measured(durability, given, options)
            loads.append(os.getloadavg()[0])
    if {"crowds", "tails"} & set(options.only):
        rows += crowd_rows.rows(given, options)
    if "replication" in options.only:
        rows += replication.rows(given, options)
    if "disturbed" in options.only:
        rows += disturbed.rows(options)
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
