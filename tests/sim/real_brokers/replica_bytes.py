"""The logs of replicas, compared byte by byte where all have them, on disks that no broker has open."""

from __future__ import annotations

from collections.abc import Mapping

from rmq.store.audit.compare import first_difference, open_log
from rmq.testing.disk import MemoryDisk
from tests.sim.real_brokers.broker_traffic import Violation


def check_replicas(disks: Mapping[str, MemoryDisk], folder: str = "/store") -> int:
    """Compare the log of the first disk with each other one; returns how many bytes were the same at least.
    Raises Violation, which names the first difference.
    """
    (name, first), *others = [(name, open_log(disk, folder)) for name, disk in disks.items()]
    least = first.end - first.start
    for other_name, other in others:
        start, stop, found = first_difference(first, other)
        if found is not None:
            raise Violation(f"the logs of {name} and {other_name} differ at {found.start}: {found.record}")
        least = min(least, stop - start)
    return least
