"""Forks of a pytest that has imported all and collected its tests already: one for each mutation.

To import the tests costs more than to run most of them. A fork changes the code of live functions instead,
so it does not see a mutation of what ran at import: `CoverageMap.at_import` knows these lines.
"""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Final, NoReturn

import pytest

LOAD_SECONDS: Final = 30.0
"""What a fork may take beside its tests."""
OUT_OF_TIME: Final = "more time than they should"
"""What `Warm.run` names instead of a test."""


class NotPlanted(Exception):
    """No live function has this code, or it has other closed-over variables now."""


class Warm:
    """A pytest plug-in: calls `use` with itself instead of running what was collected."""

    def __init__(self, use: Callable[[Warm], None]) -> None:
        self._use = use
        self._items: dict[str, pytest.Item] = {}
        self._functions: defaultdict[str, list[FunctionType]] = defaultdict(list)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of the tests. A child never comes back from here."""
        self._session = session
        self._items = {item.nodeid: item for item in session.items}
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                self._functions[found.__code__.co_filename].append(found)
        gc.collect()
        gc.freeze()  # its pages stay shared
        self._use(self)
        return True

    def run(self, tests: Mapping[str, float], plant: Callable[[], None], note: pathlib.Path) -> str:
        """The first of these tests that fails with this mutation planted, OUT_OF_TIME, or "" when all pass.

        `tests` says how many seconds each may take. Raises NotPlanted. `note` is a file that the fork
        writes to.
        """
        note.write_text("")
        process = os.fork()
        if not process:
            self._in_fork(tests, plant, note)
        status = wait(process, LOAD_SECONDS + sum(tests.values()))
        told = note.read_text()
        if told == NotPlanted.__name__:
            raise NotPlanted
        if status in (None, -signal.SIGALRM):
            return OUT_OF_TIME
        return "" if status == 0 else told or "the interpreter ended"

    def _in_fork(self, tests: Mapping[str, float], plant: Callable[[], None], note: pathlib.Path) -> NoReturn:
        try:
            os.setsid()
            try:
                plant()
            except NotPlanted:
                note.write_text(NotPlanted.__name__)
                os._exit(1)
            items = [self._items[test] for test in tests if test in self._items]
            for item, after in zip(items, [*items[1:], None], strict=True):
                note.write_text(item.nodeid)
                signal.setitimer(signal.ITIMER_REAL, tests[item.nodeid])  # its end is that of the process
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                if self._session.testsfailed:
                    os._exit(1)
            os._exit(0)
        finally:
            os._exit(1)

    def plant(self, file: str, before: str, after: str) -> None:
        """Give the live functions of a file the code that another source makes. Raises NotPlanted."""
        old, new = (_codes(compile(source, file, "exec", dont_inherit=True)) for source in (before, after))
        changed = False
        for function in self._functions[file]:
            place = _place(function.__code__)
            if function.__code__ not in old[place] or len(old[place]) != len(new[place]):
                continue
            code = new[place][old[place].index(function.__code__)]
            if code != function.__code__:
                try:
                    function.__code__ = code
                except ValueError as error:
                    raise NotPlanted from error
                changed = True
        if not changed:
            raise NotPlanted


_Place = tuple[str, int]


def _place(code: CodeType) -> _Place:
    return code.co_qualname, code.co_firstlineno


def _codes(module: CodeType) -> defaultdict[_Place, list[CodeType]]:
    """The codes of all functions, and of those inside them, by name and line."""
    found: defaultdict[_Place, list[CodeType]] = defaultdict(list)
    for code in _inside(module):
        found[_place(code)].append(code)
    return found


def _inside(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inside(constant)


def wait(process: int, seconds: float) -> int | None:
    """A child's exit status; None when it took too long. Whatever it started is ended with it."""
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return None
    finally:
        for number in (process, -process):  # before and after it has a session of its own
            with suppress(OSError):
                os.kill(number, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(process, 0)
