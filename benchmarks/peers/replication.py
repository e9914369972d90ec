"""The rows of `benchmarks.peers` on replication: what a send costs that several servers have.

All servers of a set and the load share two cores, so each set has them in turn; the CPU is that of all its
servers together, name servers and controllers among them.
"""

from __future__ import annotations

import argparse
import contextlib

from benchmarks.peers.servers import Server
from benchmarks.peers.sets import REPLICATED, SYNCED, is_given, set_started
from benchmarks.peers.turns import Figures, Row, Work, by_turns, rows_of, run_load

FIRST_PORT, DISTANCE = 27_500, 40
WARM_ROUNDS = 2
OURS = "rmq, 1 slave"
WORKS = (
    Work("one at a time", 1),
    Work("256 in flight, each by itself", 256),
    Work("1024 in flight, 32 in a request", 1024, 32),
    Work("1024 in flight, 256 in a request", 1024, 256),
)


def rows(given: dict[str, str], options: argparse.Namespace) -> list[Row]:
    """The rows of both durabilities."""
    found = []
    for durability in (REPLICATED, SYNCED):
        with contextlib.ExitStack() as stack:
            kinds = [kind for kind in durability.words if is_given(kind, given)]
            servers = [
                stack.enter_context(set_started(kind, given, FIRST_PORT + DISTANCE * number, durability))
                for number, kind in enumerate(kinds)
            ]

            def turn(server: Server, work: Work) -> Figures | None:
                if work.batch and server.kind == "nats":
                    return None
                numbers = options.size, work.window, work.batch, work.connections, work.queues
                return run_load(server, "replicated", server.port, *numbers, 1.0, options.seconds)

            results = by_turns(durability.name, WORKS, servers, options.rounds, turn, WARM_ROUNDS)
        found += rows_of(durability, results, OURS)
    return found
