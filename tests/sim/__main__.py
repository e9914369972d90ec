"""Runs many seeds: python -m tests.sim --seeds 0:1000, or --hours 0.5.

Of all kinds it takes in turn one seed of real brokers, one of damaged folders, one of topics that come and
go, and `PARTS` of each of the others. A seed of most kinds is 75 to 90 simulated seconds, and one of the
controllers or sets takes some thirty times less time of a core: so most of the time goes to real brokers, and
most cluster-hours come of those.
A seed of folders takes about two seconds of a core.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from tests.sim.campaign import LIMIT_SECONDS, Campaign, Kind
from tests.sim.controllers import Simulation
from tests.sim.folders import FolderSimulation
from tests.sim.old_sets import OldSets
from tests.sim.real_brokers.brokers import BrokerSimulation
from tests.sim.sets import SetSimulation
from tests.sim.topic_lives.topics import TopicSimulation
from tests.sim.wiped import Wiped

PARTS: Final[Mapping[Kind, int]] = {
    Simulation: 4,
    SetSimulation: 4,
    OldSets: 4,
    Wiped: 4,
    BrokerSimulation: 1,
    FolderSimulation: 1,
    TopicSimulation: 1,
}
STOPPED: Final = 130
"""The exit code after Ctrl-C, as shells have it."""


def main(arguments: Sequence[str] | None = None, parts: Mapping[Kind, int] = PARTS) -> int:
    """Run until the seeds or the time are over; 1 when a seed failed. `parts`: see `Campaign`."""
    parser = argparse.ArgumentParser("python -m tests.sim")
    parser.add_argument("--seeds", default="0:100000000", help="first:last, the last not included")
    parser.add_argument("--hours", type=float, default=float("inf"), help="of real time")
    parser.add_argument("--kind", choices=("all", *(kind.kind for kind in parts)), default="all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one a core)")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds of real time for a seed")
    options = parser.parse_args(arguments)
    first, last = map(int, options.seeds.split(":"))
    campaign = Campaign(
        {kind: part for kind, part in parts.items() if options.kind in ("all", kind.kind)},
        first,
        last,
        hours=options.hours,
        jobs=max(1, options.jobs),
        limit_s=options.limit,
        out=lambda text: print(text, flush=True),
    )
    is_complete = campaign.run()
    print(campaign.report(), flush=True)
    if campaign.failed:
        return 1
    return 0 if is_complete else STOPPED


if __name__ == "__main__":
    sys.exit(main())
