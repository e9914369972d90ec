"""A person at the command line, and servers as processes for it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from attrs import frozen
from click.testing import CliRunner, Result

from rmq.cli import command

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = (
    "haEnable=false",
    "mappedFileSizeCommitLog=16777216",
    "autoCreateTopicEnable=false",
    "mappedFileSizeConsumeQueue=400000",
    "maxHashSlotNum=100000",
    "maxIndexNum=400000",
)


@frozen
class Shell:
    """A person at the command line: a home folder, and a cluster that the environment names."""

    home: pathlib.Path
    namesrv: str = ""

    @property
    def environment(self) -> dict[str, str]:
        given = {"HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / ".config"), "COLUMNS": "200"}
        return given | ({"RMQ_NAMESRV_ADDR": self.namesrv} if self.namesrv else {})

    def run(self, *arguments: str, given: str | None = None, **variables: str) -> Result:
        """In this process, which is quick; `given` is what is typed."""
        runner = CliRunner(env=self.environment | variables)
        return runner.invoke(command, list(arguments), input=given, catch_exceptions=False)

    def ok(self, *arguments: str, given: str | None = None) -> str:
        """The output of a command that must end with 0."""
        done = self.run(*arguments, given=given)
        assert done.exit_code == 0, done.output
        return done.stdout

    def rows(self, *arguments: str) -> Any:
        """The output of a command, as JSON."""
        return json.loads(self.ok(*arguments, "-o", "json"))

    def start(self, *arguments: str, stdin: int | None = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """Start a command as a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "rmq", *arguments],
            env={**os.environ, **self.environment, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            cwd=self.home,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@contextmanager
def service(folder: pathlib.Path, expected: str, *arguments: str) -> Iterator[str]:
    """A server process, from the line that `expected` matches, whose group is its address, to SIGTERM."""
    with (folder / f"{arguments[0]}.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rmq", *arguments],
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(expected, line):
                yield found[1]
                break
        else:
            pytest.fail(f"{arguments} did not start: {(folder / f'{arguments[0]}.log').read_text()}")
    finally:
        process.terminate()
        process.communicate(timeout=20)
