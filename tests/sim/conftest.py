"""The first seeds, which every run of all tests takes: begun first, looked at last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from attrs import frozen

SEEDS: Final = {"controllers": 200, "sets": 100, "brokers": 20}
"""Of each kind the first so many: the same in every run. A good minute of a core, brokers most of it."""
LAST: Final = "test_first_seeds.py"


@frozen
class Beside:
    """The seeds of a kind in a process of their own, and the file that it writes its report to."""

    process: subprocess.Popen[bytes]
    report: Path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name == LAST)  # the others stay in their order


@pytest.fixture(scope="session", autouse=True)
def first_seeds(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Beside]]:
    """Begun with the first test of this folder, where a test is to look at it, on what others leave of the
    cores: most tests take one at most, or wait."""
    beside: dict[str, Beside] = {}
    try:
        if any(item.path.name == LAST for item in request.session.items):
            folder = tmp_path_factory.mktemp("seeds")
            for kind, seeds in SEEDS.items():
                beside[kind] = _begin(kind, seeds, folder / kind)
        yield beside
    finally:
        for one in beside.values():
            with suppress(ProcessLookupError):  # the group holds the processes that run seeds, too
                os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()


def _begin(kind: str, seeds: int, report: Path) -> Beside:
    with report.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.sim", "--kind", kind, "--seeds", f"0:{seeds}", "--jobs", "1"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    os.setpriority(os.PRIO_PROCESS, process.pid, 5)  # with 19 a worker waited nine minutes for them
    return Beside(process, report)
