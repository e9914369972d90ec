"""The rows of `benchmarks.peers` on crowds and tails: connections, queues, bodies, readers of what comes."""

from __future__ import annotations

import argparse
import contextlib

from benchmarks.peers.servers import CACHE, Durability, Server, started
from benchmarks.peers.turns import Figures, Row, Work, by_turns, rows_of, run_load

FIRST_PORT = 27_200
SECTION = Durability(
    "many connections, many queues, large bodies, readers at the tail",
    dict(CACHE.words)
    | {
        "rmq, 2 processes": "as rmq, two brokers with a core each, and half of the connections each",
    },
)
LARGE_WINDOW_BYTES = 4 << 20
SIZES = {"100 B": 100, "64 KiB": 64 << 10, "1 MiB": 1 << 20}


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count > 1)}"


CROWDS = (
    *(
        Work(f"{_many(count, 'connection')}, one in flight each", 1, 0, count)
        for count in (1, 100, 1000, 5000)
    ),
    *(
        Work(
            f"{_many(count, 'queue')}, {_many(min(count, 8), 'connection')} x 32 in flight",
            32,
            0,
            min(count, 8),
            count,
        )
        for count in (1, 1000, 10_000)
    ),
    *(
        Work(f"bodies of {name}", min(256, LARGE_WINDOW_BYTES // size), size=size)
        for name, size in SIZES.items()
    ),
)
TAILS = (Work("tail read at 5,000/s", 5_000), Work("tail read at 50,000/s, 32 in a request", 50_000, 32))
"""Their windows are rates. Whose protocols take one message a request send each by itself."""
ALONE = {"nats", "redis"}
LEFT_OUT = {"rmq, pure"}
MOST_QUEUES = {"kafka": 5000, "rabbitmq": 1000}
"""Kafka keeps three files of each partition open; RabbitMQ has 255 publishers for a connection."""


def works_of(options: argparse.Namespace) -> list[Work]:
    """The works that the options ask for."""
    crowds = [work for work in CROWDS if max(work.connections, work.queues) <= options.most]
    asked: list[Work] = []
    asked += crowds if "crowds" in options.only else []
    asked += TAILS if "tails" in options.only else []
    return asked


def turn(server: Server, work: Work, options: argparse.Namespace) -> Figures | None:
    """One work on one broker."""
    size = work.size or options.size
    if work in TAILS:
        if server.ports:
            return None
        batch = 0 if server.kind in ALONE else work.batch
        return run_load(server, "tails", server.port, size, batch, work.window, 1.0, options.seconds)
    if work.queues > MOST_QUEUES.get(server.kind, work.queues):
        return None
    if server.ports and work.connections < len(server.ports):
        return None
    ports = ",".join(map(str, server.ports or (server.port,)))
    numbers = size, work.window, work.batch, work.connections, work.queues, 1.0, options.seconds
    return run_load(server, "crowds", ports, *numbers)


def rows(given: dict[str, str], options: argparse.Namespace) -> list[Row]:
    """All rows."""
    with contextlib.ExitStack() as stack:
        kinds = [kind for kind in SECTION.words if kind in given and kind not in LEFT_OUT]
        servers = [
            stack.enter_context(started(kind, given[kind], FIRST_PORT + 20 * number, CACHE))
            for number, kind in enumerate(kinds)
        ]
        results = by_turns(
            SECTION.name,
            works_of(options),
            servers,
            options.rounds,
            lambda server, work: turn(server, work, options),
        )
    return rows_of(SECTION, results)
