"""Three controllers as processes: the leader is killed, another leads, and the command line shows it."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ports import free_ports

SECONDS = 60.0


def rmq(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rmq", "controller", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )


class Processes:
    def __init__(self, folder: pathlib.Path) -> None:
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
        self.named = ";".join(self.addresses)
        self.folder = folder
        self.running: dict[str, subprocess.Popen[str]] = {}

    def start(self, address: str, *, joins: bool = False) -> None:
        port = address.rpartition(":")[2]
        settings = {
            "listenPort": port,
            "controllers": address if joins else self.named,
            "controllerJoins": str(joins).lower(),
            "controllerPath": str(self.folder / port),
        }
        given = [part for pair in settings.items() for part in ("--set", "=".join(pair))]
        self.running[address] = subprocess.Popen(
            [sys.executable, "-m", "rmq.controller", *given], stdout=subprocess.DEVNULL, text=True
        )

    def states(self) -> list[dict[str, Any]]:
        said = rmq("status", "--all", "--controllers", self.named, "-o", "json")
        found: list[dict[str, Any]] = json.loads(said.stdout) if said.stdout else []
        return found

    def leader(self) -> str:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            leading = [one["address"] for one in self.states() if one["leading"]]
            if leading:
                return str(leading[0])
        pytest.fail("nobody leads")


@pytest.fixture
def three(tmp_path: pathlib.Path) -> Iterator[Processes]:
    found = Processes(tmp_path)
    try:
        for address in found.addresses:
            found.start(address)
        yield found
    finally:
        for process in found.running.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


def test_another_leads_after_the_leader_was_killed(three: Processes) -> None:
    first = three.leader()
    process = three.running.pop(first)
    process.kill()
    process.wait()
    second = three.leader()
    assert second != first
    three.start(first)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        leaders = {one["leader"] for one in three.states()}
        if leaders == {second}:
            break
    assert leaders == {second}  # who comes back follows
    said = rmq("elect", "none", "1", "--controllers", three.named)
    assert said.returncode == 1
    assert "know no broker set none" in said.stderr


@pytest.mark.long
def test_a_controller_is_added_and_the_one_that_leads_is_dropped(three: Processes) -> None:
    first = three.leader()
    (port,) = free_ports(1)
    new = f"127.0.0.1:{port}"
    at = ("--controllers", three.named)
    assert "does not answer" in rmq("add", new, *at).stderr
    three.start(new, joins=True)
    end = time.monotonic() + SECONDS
    while (said := rmq("add", new, *at)).returncode and time.monotonic() < end:
        assert "does not answer" in said.stderr  # it starts
    assert f"{new} is added" in said.stdout, said.stderr
    assert "4 tolerate no more failures than 3" in said.stdout
    assert f"the controllers are {new}" not in rmq("drop", first, "--yes", *at).stdout
    three.running[first].kill()
    second = three.leader()  # the list that is asked is the old one still
    assert second != first
    members = {one["address"]: one["member"] for one in three.states()}
    assert members == {one: one != first for one in (*three.addresses, new)}

    # One that founded a cluster of its own is no controller of this.
    (port,) = free_ports(1)
    other = f"127.0.0.1:{port}"
    three.named, named = other, three.named
    three.start(other)
    three.leader()
    said = rmq("add", other, "--controllers", named)
    assert said.returncode == 1
    assert f"{other} has a journal, of the controllers {other}" in said.stderr


def test_without_a_majority_the_command_line_says_so(three: Processes) -> None:
    first = three.leader()
    for address in [one for one in three.addresses if one != first]:
        three.running[address].kill()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        said = rmq("status", "--controllers", three.named)
        if "no controller leads" in said.stderr:
            break
    assert said.returncode == 1
    assert "no controller leads" in said.stderr
    (state,) = [one for one in three.states() if one["address"] == first]
    assert state["member"], "it says so itself"
    assert rmq("elect", "none", "1", "--controllers", three.named).returncode != 0
