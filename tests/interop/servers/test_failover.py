"""Java, Go and Node clients and a set whose masters die: they find the new one by the routes."""

from __future__ import annotations

import pathlib

import pytest
import trio

from tests.interop.conftest import program
from tests.interop.failover import LANGUAGES, Clients
from tests.interop.rocketmq import Processes
from tests.system.failover import run

pytestmark = pytest.mark.interop

SECONDS = {"java": 60, "go": 120, "node": 60}
"""Without writes at most: 5 s where nothing else runs; Go's client looks at the routes each half minute."""

READS = 25
"""The same of reads. A Go client that waits at the master when that is killed would wait for 33 s."""


@pytest.mark.parametrize("language", LANGUAGES)
def test_clients_lose_nothing_when_masters_die(
    processes: Processes, tmp_path: pathlib.Path, language: str
) -> None:
    if language != "java":
        program(language, processes.java)
    clients = Clients(processes, [language])
    report = trio.run(lambda: run(tmp_path, size=3, kills=2, pauses=1, beside=clients))
    assert report.lost == []
    assert len(report.acknowledged) > 100
    assert report.epochs == 4
    pauses = report.others[f"{LANGUAGES[language]} without writes"]
    assert pauses
    assert max(pauses) < SECONDS[language]
    assert max(report.others[f"{LANGUAGES[language]} without reads"]) < READS


def test_a_go_consumer_reads_on_when_the_slave_dies_at_which_it_waits(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    """Go's client does not see the death of the slave, and accepts the master's answer."""
    program("go", processes.java)
    report = trio.run(
        lambda: run(tmp_path, size=2, kills=0, slaves=1, load_s=10, beside=Clients(processes, ["go"]))
    )
    assert report.lost == []
    assert len(report.acknowledged) > 100
    assert max(report.others["Go late"]) < READS
