"""Golden vectors for every test, the two parts of the tests, and the line that names the tests left out.

The README's test command runs the first part, on all cores. `slow.txt` names the tests of the second
part, which CI runs beside the first: `nox -s slow`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# A slow machine is no failure of the code; the same examples each time make a failure repeatable.
settings.register_profile("checks", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "checks"))


if sys.dont_write_bytecode:
    # Workers and the processes that tests start would each compile the whole package again.
    COMPILED = Path(__file__).parent.parent / ".pytest_cache" / "compiled"
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(COMPILED)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

LONG = ("interop", "crash", "campaign", "packages", "runbooks", "browser")
"""Marks of tests without the time limit of pyproject.toml."""

TOGETHER = {
    "tests/spark/analyses/": "a first Spark session",
    "tests/spark/writing/": "a first Spark session",
    "tests/spark/": "a second Spark session",
    "tests/sim/": "seeds of the simulation",
    "tests/system/closed/": "a cluster with profile=secure",
    "tests/test_structure.py": "trees of all files",
}
"""Folders and files, the first that fits, and what one worker makes once for all their tests."""

SESSIONS = {
    "slow": "slow",
    "long": "long",
    "interop": "interop",
    "crash": "crash",
    "campaign": "fuzz, nox -s hostile",
    "packages": "packages",
    "runbooks": "runbooks",
    "browser": "browser",
}
"""The nox session for each mark that the default run leaves out."""

TABLE = Path(__file__).parent / "slow.txt"

LEFT_OUT = pytest.StashKey[Counter[str]]()
"""The number of tests that a run leaves out, by mark."""


def slow_tests(table: str) -> frozenset[str]:
    """The entries of the table: files and functions. A line has the seconds first, `#` begins a comment."""
    rows = (line.split() for line in table.splitlines() if line and not line.startswith("#"))
    return frozenset(name for _, name in rows)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves tests out by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = slow_tests(TABLE.read_text("utf-8"))
    if odd := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"each worker has another name for {odd[0]}: give its parameters ids")
    for item in items:
        function = item.nodeid.partition("[")[0]
        if function in slow or function.partition("::")[0] in slow:
            item.add_marker(pytest.mark.slow)
        if any(item.get_closest_marker(mark) for mark in LONG):
            item.add_marker(pytest.mark.timeout(0))


def worker_group(test: str) -> str:
    """The name that the tests of one worker share: a folder, a file, or the test itself."""
    if group := next((shared for folder, shared in TOGETHER.items() if test.startswith(folder)), ""):
        return group
    # The processes of a file's fixture serve all its tests.
    return test.partition("::")[0] if test.startswith("tests/system/") else test


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole groups of tests, the largest first."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return worker_group(nodeid)

    return Groups(config, log)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        mark = next((mark for mark in SESSIONS if item.get_closest_marker(mark)), None)
        if mark is not None:
            item.config.stash[LEFT_OUT][mark] += 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One process for a run of named tests, whose start would take longer than the tests; else three for two
    cores: a third of the time of the tests is waiting, for disks, threads and other processes."""
    named = config.invocation_params.args and config.args_source.name != "TESTPATHS"
    return 0 if named else (os.cpu_count() or 1) * 3 // 2


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)  # of a worker of pytest-xdist
    if output is not None:
        output["left_out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the counts from a worker; all workers collect the same tests."""
    counts = getattr(node, "workeroutput", {}).get("left_out")
    if counts is not None:
        node.config.stash[LEFT_OUT] = Counter(counts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for mark, count in sorted(config.stash[LEFT_OUT].items()):
        terminalreporter.write_line(f"left out: {count} tests marked {mark} (nox -s {SESSIONS[mark]})")
    skipped = Counter(reason_of(report) for report in terminalreporter.stats.get("skipped", ()))
    for reason, count in sorted(skipped.items()):
        terminalreporter.write_line(f"skipped: {count} tests: {reason}")


def reason_of(report: pytest.TestReport) -> str:
    """Why a test was skipped."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make the report of a test text that another process can get: a test may log lone surrogates, and a
    worker of pytest-xdist would die of them."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of the captured vectors; its README says what each file holds."""
    return Path(__file__).parent / "golden"
