"""Which test executes which line: a pytest plug-in that asks coverage.py, and the map that it leaves.

`-p tests.mutants.coverage_map`, with RMQ_MUTANTS_MAP naming the file to write.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pathlib
from collections.abc import Generator, Iterable
from typing import Any

import pytest
from attrs import asdict, define, field


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()


_coverage: Any = None
_seconds: dict[str, float] = {}
_failed: set[str] = set()


def pytest_configure() -> None:
    global _coverage
    module: Any = importlib.import_module("coverage")
    _coverage = module.Coverage(data_file=os.environ["RMQ_MUTANTS_MAP"] + ".data", source=["rmq", "plugins"])
    _coverage.erase()
    _coverage.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _coverage.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        _coverage.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        _failed.add(report.nodeid)


def pytest_unconfigure() -> None:
    _coverage.stop()
    data = _coverage.get_data()
    tests = [test for test in _seconds if test not in _failed]
    numbers = {test: number for number, test in enumerate(tests)}
    root = pathlib.Path.cwd()
    lines: dict[str, dict[int, list[int]]] = {}
    for file in sorted(data.measured_files()):
        path = str(pathlib.Path(file).relative_to(root))
        contexts = data.contexts_by_lineno(file)
        lines[path] = {
            line: sorted(numbers[test] for test in names if test in numbers)
            for line, names in contexts.items()
        }
    made = {
        "tests": tests,
        "seconds": [_seconds[test] for test in tests],
        "lines": lines,
        "sources": {path: _digest((root / path).read_text()) for path in lines},
    }
    pathlib.Path(os.environ["RMQ_MUTANTS_MAP"]).write_text(json.dumps(made))


@define
class CoverageMap:
    """The tests, what each took, and which of them execute a line."""

    tests: list[str]
    seconds: list[float]
    lines: dict[str, dict[str, list[int]]] = field(repr=False)
    sources: dict[str, str] = field(repr=False)

    @classmethod
    def load(cls, path: pathlib.Path) -> CoverageMap:
        """Raises FileNotFoundError before a first run."""
        return cls(**json.loads(path.read_text()))

    @classmethod
    def joined(cls, parts: Iterable[CoverageMap]) -> CoverageMap:
        """One map of several, each of other tests of the same sources."""
        joined = cls([], [], {}, {})
        for part in parts:
            first = len(joined.tests)
            joined.tests += part.tests
            joined.seconds += part.seconds
            joined.sources |= part.sources
            for path, lines in part.lines.items():
                known = joined.lines.setdefault(path, {})
                for line, tests in lines.items():
                    known.setdefault(line, []).extend(first + number for number in tests)
        return joined

    def save(self, path: pathlib.Path) -> None:
        """Write it where `load` finds it."""
        path.write_text(json.dumps(asdict(self)))

    def of(self, path: str, line: int, source: str, most_seconds: float) -> tuple[list[str], float]:
        """The tests of a line and what they take in all; of the whole module where `source` has changed.

        Those of the module's own test file come first, then the quickest; when all would take longer than
        `most_seconds`, the slowest are left out.
        """
        own = f"test_{pathlib.Path(path).stem}.py"
        lines = self.lines.get(path, {})
        if self.sources.get(path) == _digest(source):
            numbers = lines.get(str(line), [])
        else:
            numbers = sorted({number for found in lines.values() for number in found})
        ordered = sorted(numbers, key=lambda n: (own not in self.tests[n], self.seconds[n]))
        chosen, total = [], 0.0
        for number in ordered:
            if not chosen or total + self.seconds[number] <= most_seconds:
                chosen.append(self.tests[number])
                total += self.seconds[number]
        return chosen, total
