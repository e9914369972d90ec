"""`rmq controller status` for what the controllers say of themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rmq.cli import controller
from rmq.operate.controllers import Controllers, ControllerState, state_of
from rmq.protocol.command import Command


async def nobody(address: str, request: Command) -> Command:
    raise AssertionError(f"{address} is asked")


def status(monkeypatch: pytest.MonkeyPatch, *states: dict[str, Any]) -> Result:
    class Said(Controllers):
        async def states(self) -> list[ControllerState]:
            return [state_of(one["address"], one) for one in states]

    @asynccontextmanager
    async def opened(addresses: Sequence[str], **how: object) -> AsyncIterator[Controllers]:
        yield Said(addresses, nobody)

    monkeypatch.setattr("rmq.operate.controllers.opened", opened)
    return CliRunner().invoke(controller.operations, ["status", "--all", "-n", "a:1"])


def state(address: str, **more: Any) -> dict[str, Any]:
    members = {name: name for name in ("a:1", "b:1")}
    return {"address": address, "self": address, "members": members, "sets": [], "leaseMs": 3000} | more


def test_who_has_lost_its_journal_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    done = status(monkeypatch, state("a:1", leading=True, forgetful=["b:1"]), state("b:1"))
    assert done.exit_code == 0, done.output
    (row,) = [line for line in done.output.splitlines() if line.startswith("b:1")]
    assert "it has lost its journal: drop it, and add it with an empty folder" in row


def test_leases_that_differ_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert status(monkeypatch, state("a:1", leading=True), state("b:1")).exit_code == 0
    leading = state("a:1", leading=True, leaseMsAgreed=9000)
    done = status(monkeypatch, leading, state("b:1", leaseMs=9000))
    assert done.exit_code == 1
    text = (
        "controllerLeaseMs is 3000 at a:1, 9000 at b:1: that of who leads counts, 9000 now; make it the same"
    )
    assert text in done.output


def test_a_controller_that_has_stopped_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "entry 7 of the log, of term 2: rmq 0.1 knows no command Split"
    done = status(monkeypatch, state("a:1", leading=True), state("b:1", stopped=reason))
    (row,) = [line for line in done.output.splitlines() if line.startswith("b:1")]
    assert f"it has stopped, since it cannot read {reason}: start a later version there" in row
    done = status(monkeypatch, state("a:1", stopped=reason), state("b:1", stopped=reason))
    assert done.exit_code == 1
    assert done.output.count(reason) == 2
