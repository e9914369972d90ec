"""Turns, rows and tables of `benchmarks.peers`: one load on one broker at a time, and what it told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import attrs

from benchmarks.peers.servers import Durability, Server

LOAD_CORE = "0"
LOAD_SECONDS = 240.0
"""A load that is not ready or at its end by then has failed."""
WIRE_OF = {"java": "rmq", "rabbitmq, quorum": "amqp"}
"""RocketMQ's brokers are asked as ours are."""


@attrs.frozen
class Work:
    """One kind of load: how many messages are in flight on each connection, how many go in one request (0:
    each alone), and by how many connections to how many queues (0: as the wire has it)."""

    name: str
    window: int
    batch: int = 0
    connections: int = 1
    queues: int = 4
    size: int = 0
    """Bytes of a body; 0: as the run says."""


@attrs.frozen
class Figures:
    """What one turn gave."""

    rate: float
    cpu_us: float
    latency: Mapping[str, float] = {}
    memory: float = 0.0


Row = dict[str, object]
Results = dict[tuple[str, str], list[Figures]]


class LoadFailed(Exception):
    """A load that ended without results; it has said why on its error output."""


def run_load(server: Server, module: str, *arguments: object) -> Figures:
    """Run a load on a broker: a module of this package, with the broker's wire before the arguments."""
    name = server.kind.split(",")[0]
    command = ["taskset", "-c", LOAD_CORE, sys.executable, "-m", f"benchmarks.peers.{module}"]
    command += [WIRE_OF.get(server.kind, WIRE_OF.get(name, name)), *map(str, arguments)]
    load = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert load.stdout is not None
        load.stdout.readline()
        before = server.cpu_seconds()
        line = load.stdout.readline()
        cpu = server.cpu_seconds() - before
        told = json.loads(line or "{}")
        if not told.get("messages"):
            raise LoadFailed(" ".join(command[5:]))
        load.wait(60)
    finally:
        if load.poll() is None:
            load.kill()
            load.wait()
    latency = {name: value for name, value in told.items() if name[0] == "p" or name == "max"}
    return Figures(told["rate"], cpu / told["messages"] * 1e6, latency, server.memory_mib())


def tell(*words: object) -> None:
    """Say how far it is."""
    print(*words, file=sys.stderr, flush=True)


def by_turns(
    name: str,
    works: Sequence[Work],
    servers: Sequence[Server],
    rounds: int,
    turn: Callable[[Server, Work], Figures | None],
    warm: int = 1,
) -> Results:
    """Each work on each broker, in rounds, the order turned from round to round; `warm` rounds warm them. A
    broker whose load fails, or that has no such work, has no row of it."""
    results: Results = {}
    failed: set[tuple[str, str]] = set()
    for number in range(-warm, rounds):
        for work in works:
            for server in servers[:: -1 if number % 2 else 1]:
                key = work.name, server.kind
                if key in failed:
                    continue
                try:
                    figures = turn(server, work)
                except LoadFailed as error:
                    tell(name, *key, "failed:", error)
                    figures = None
                if figures is None:
                    failed.add(key)
                    results.pop(key, None)
                    continue
                tell(name, *key, figures)
                if number >= 0:
                    results.setdefault(key, []).append(figures)
    return results


def rows_of(durability: Durability, results: Results, ours: str = "rmq") -> list[Row]:
    """The rows of a section: medians, and medians of the ratios to ours in the same round."""
    rows = []
    for (work_name, kind), turns in results.items():
        pairs = list(zip(turns, results.get((work_name, ours), ()), strict=False))
        has_cpu = [(their, own) for their, own in pairs if own.cpu_us]
        names = turns[0].latency
        rows.append(
            {
                "durability": durability.name,
                "work": work_name,
                "broker": kind,
                "words": durability.words[kind],
                "cpu_us": median(one.cpu_us for one in turns),
                "rate": median(one.rate for one in turns),
                "cpu_ratio": median(their.cpu_us / own.cpu_us for their, own in has_cpu) if has_cpu else None,
                "rate_ratio": median(own.rate / their.rate for their, own in pairs) if pairs else None,
                "latency": {name: median(one.latency[name] for one in turns) for name in names},
                "memory": median(one.memory for one in turns),
            }
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| work | broker | an acknowledgement means | CPU µs a message | ÷ rmq's | messages/s | latency ms |"
        " own memory MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    form = (
        "| {work} | {broker} | {words} | {cpu_us:.1f} | {ratio} | {rate:,.0f} | {latencies} | {memory:.0f} |"
    )
    for row in rows:
        latency: Any = row["latency"]
        ratio = row["cpu_ratio"]
        told: dict[str, Any] = {
            "latencies": ", ".join(f"{name} {value / 1000:.2f}" for name, value in latency.items()),
            "ratio": "" if ratio is None else f"{ratio:.2f}",
        }
        lines.append(form.format(**row, **told))
    return "\n".join(lines)
