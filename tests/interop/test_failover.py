"""Java clients and a controlled set of ours whose masters die: they find the new one by the routes."""

from __future__ import annotations

import pathlib

import pytest
import trio

from tests.interop.failover import JavaClients
from tests.interop.rocketmq import Processes
from tests.system.failover import run

pytestmark = pytest.mark.interop


def test_java_clients_lose_nothing_when_masters_die(processes: Processes, tmp_path: pathlib.Path) -> None:
    clients = JavaClients(processes)
    report = trio.run(lambda: run(tmp_path, size=3, kills=2, pauses=1, beside=clients))
    assert report.lost == []
    assert len(report.acknowledged) > 100
    assert report.epochs == 4
    assert len(report.others["Java without writes"]) >= 3
    assert max(report.others["Java without writes"]) < 60  # 5 s, where nothing else runs
