"""Some seeds of damaged folders, and the comparison of replicas that they end with."""

from __future__ import annotations

import pytest

from rmq.testing.disk import MemoryDisk
from tests.sim.folders import FolderSimulation
from tests.sim.real_brokers.broker_traffic import Violation
from tests.sim.real_brokers.replica_bytes import check_replicas
from tests.unit.store.stores import ROOT, fill, open_store

SEEDS = 6


@pytest.mark.parametrize("seed", range(SEEDS))
def test_folders_that_lose_their_end_cost_nothing_that_was_acknowledged(seed: int) -> None:
    simulation = FolderSimulation(seed)
    simulation.run()
    assert simulation.accepted > 80
    assert simulation.counts["started again"] > 0


def test_a_byte_that_differs_is_a_violation() -> None:
    disks: dict[str, MemoryDisk] = {}
    for name in ("a", "b"):
        disks[name] = MemoryDisk()
        store = open_store(disks[name])
        fill(store, 50)
        store.close()
    assert check_replicas(disks, ROOT) > 4096
    disks["b"].flip(f"{ROOT}/commitlog/{0:020d}", 1000)
    with pytest.raises(Violation, match="differ at 1000"):
        check_replicas(disks, ROOT)
