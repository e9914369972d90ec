"""Runs many seeds: python -m tests.sim --seeds 0:1000, or --hours 0.5."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from tests.sim.brokers import BrokerSimulation
from tests.sim.controllers import HEALING_SECONDS, Simulation
from tests.sim.sets import SetSimulation


def main() -> int:
    """Run until the seeds or the time are over; 1 when a seed failed."""
    parser = argparse.ArgumentParser("python -m tests.sim")
    parser.add_argument("--seeds", default="0:100000000", help="first:last, the last not included")
    parser.add_argument("--hours", type=float, default=float("inf"), help="of real time")
    parser.add_argument("--kind", choices=("all", "controllers", "sets", "brokers"), default="all")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    logging.disable(logging.CRITICAL)
    began, ran, failed = time.monotonic(), 0, 0
    simulated, faults, accepted = 0.0, Counter[str](), 0
    kinds = {
        one.__name__: one
        for one in (Simulation, SetSimulation, BrokerSimulation)
        if options.kind in ("all", one.kind)
    }
    for seed in range(first, last):
        passed = time.monotonic() - began
        if passed > options.hours * 3600:
            break
        for kind in kinds.values():
            simulation = kind.of(seed)
            try:
                simulation.run()
            except Exception as error:
                failed += 1
                print(f"\nseed {seed}: {type(error).__name__}: {error}")
                again = f"--kind {kind.kind} --seeds {seed}:{seed + 1}"
                print(f"again: python -m tests.sim {again}", flush=True)
            simulated += simulation.seconds + HEALING_SECONDS
            accepted += simulation.accepted
            faults.update(simulation.counts)
        ran += 1
        if sys.stderr.isatty():
            share = max(ran / (last - first), passed / (options.hours * 3600))
            bar = "#" * int(share * 30)
            print(f"\r[{bar:<30}] {ran} seeds, {failed} failed", end="", file=sys.stderr)
    print(
        f"\n{ran} seeds, {simulated / 3600:.1f} cluster-hours, {sum(faults.values())} faults,"
        f" {accepted} entries and messages acknowledged, {failed} failed, in {time.monotonic() - began:.0f} s"
    )
    for name, count in faults.most_common():
        print(f"  {count:>8} {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
