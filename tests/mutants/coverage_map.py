"""The map of tests to the lines that they execute: a pytest plug-in that asks coverage.py, and the map that
it leaves.

`-p tests.mutants.coverage_map`, with RMQ_MUTANTS_MAP naming the file to write.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pathlib
from collections.abc import Generator, Iterable, Mapping
from typing import Any

import pytest
from attrs import asdict, define, field


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()


def _file(test: str) -> str:
    return test.partition("::")[0]


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
    at_import: dict[str, list[int]] = {}
    for file in sorted(data.measured_files()):
        path = str(pathlib.Path(file).relative_to(root))
        contexts = data.contexts_by_lineno(file)
        at_import[path] = sorted(line for line, names in contexts.items() if "" in names)
        lines[path] = {
            line: sorted(numbers[test] for test in names if test in numbers)
            for line, names in contexts.items()
        }
    made = {
        "tests": tests,
        "seconds": [_seconds[test] for test in tests],
        "lines": lines,
        "at_import": at_import,
        "sources": {path: _digest((root / path).read_text()) for path in lines},
        "files": {path: _digest((root / path).read_text()) for path in sorted({*map(_file, _seconds)})},
    }
    pathlib.Path(os.environ["RMQ_MUTANTS_MAP"]).write_text(json.dumps(made))


@define
class CoverageMap:
    """The tests, what each took, and which of them execute a line."""

    tests: list[str]
    seconds: list[float]
    lines: dict[str, dict[str, list[int]]] = field(repr=False)
    at_import: dict[str, list[int]] = field(repr=False)
    """Lines that run while modules, the tests' too, are imported; in functions as well."""
    sources: dict[str, str] = field(repr=False)
    files: dict[str, str] = field(repr=False)
    """Digests of the files of the tests."""

    @classmethod
    def load(cls, path: pathlib.Path) -> CoverageMap:
        """Read the map. Raises FileNotFoundError before a first run."""
        return cls(**json.loads(path.read_text()))

    @classmethod
    def joined(cls, parts: Iterable[CoverageMap]) -> CoverageMap:
        """One map of several, each of other tests of the same sources."""
        joined = cls([], [], {}, {}, {}, {})
        for part in parts:
            first = len(joined.tests)
            joined.tests += part.tests
            joined.seconds += part.seconds
            for path, digest in part.sources.items():  # of two sources: all tests of the module
                joined.sources[path] = digest if joined.sources.get(path, digest) == digest else ""
            joined.files |= part.files
            for path, imported in part.at_import.items():
                joined.at_import[path] = sorted({*imported, *joined.at_import.get(path, ())})
            for path, lines in part.lines.items():
                known = joined.lines.setdefault(path, {})
                for line, tests in lines.items():
                    known.setdefault(line, []).extend(first + number for number in tests)
        return joined

    def stale(self, tests: Mapping[str, str]) -> list[str]:
        """The new and changed files among these files of tests, given with their text."""
        return [file for file, text in tests.items() if self.files.get(file) != _digest(text)]

    def without(self, files: Iterable[str]) -> CoverageMap:
        """The map without the tests of these files, and of those that are gone."""
        kept = set(self.files) - set(files)
        chosen = [number for number, test in enumerate(self.tests) if _file(test) in kept]
        numbers = {old: new for new, old in enumerate(chosen)}
        return CoverageMap(
            [self.tests[number] for number in chosen],
            [self.seconds[number] for number in chosen],
            {
                path: {
                    line: [numbers[number] for number in found if number in numbers]
                    for line, found in lines.items()
                }
                for path, lines in self.lines.items()
            },
            self.at_import,
            self.sources,
            {file: digest for file, digest in self.files.items() if file in kept},
        )

    def save(self, path: pathlib.Path) -> None:
        """Write it where `load` finds it."""
        path.write_text(json.dumps(asdict(self)))

    def is_at_import(self, path: str, line: int) -> bool:
        """True if the line runs while modules are imported, or may do so unnoticed: a plug-in of pytest
        imports before the map begins."""
        return line in self.at_import.get(path, ()) or str(line) not in self.lines.get(path, {})

    def of(self, path: str, line: int, source: str, most_seconds: float) -> dict[str, float]:
        """The tests of a line and the seconds that each takes; of the whole module where `source` has
        changed, or the line runs at import.

        Those of the module's own test file come first, then the quickest; when all would take longer than
        `most_seconds`, the slowest are left out.
        """
        own = f"test_{pathlib.Path(path).stem}.py"
        lines = self.lines.get(path, {})
        near = set(lines.get(str(line), []))
        numbers = near
        if self.sources.get(path) != _digest(source) or self.is_at_import(path, line):
            numbers = {number for found in lines.values() for number in found}
        ordered = sorted(numbers, key=lambda n: (own not in self.tests[n], n not in near, self.seconds[n]))
        chosen: dict[str, float] = {}
        left = most_seconds
        for number in ordered:
            if not chosen or self.seconds[number] <= left:
                chosen[self.tests[number]] = self.seconds[number]
                left -= self.seconds[number]
        return chosen
