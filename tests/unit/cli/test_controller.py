"""`rmq controller status` for what the controllers say of themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rmq.cli.clusters import controller
from rmq.operate.controllers import Controllers, ControllerState, Outcome, state_of
from rmq.protocol.command import Command


async def nobody(address: str, request: Command) -> Command:
    raise AssertionError(f"{address} is asked")


def status(
    monkeypatch: pytest.MonkeyPatch, *states: dict[str, Any], options: Sequence[str] = ("--all",)
) -> Result:
    class Said(Controllers):
        async def states(self) -> list[ControllerState]:
            return [state_of(one["address"], one) for one in states]

    @asynccontextmanager
    async def opened(addresses: Sequence[str], **how: object) -> AsyncIterator[Controllers]:
        yield Said(addresses, nobody)

    monkeypatch.setattr("rmq.operate.controllers.opened", opened)
    return CliRunner().invoke(controller.operations, ["status", *options, "-n", "a:1"])


def state(address: str, **more: Any) -> dict[str, Any]:
    members = {name: name for name in ("a:1", "b:1")}
    return {"address": address, "self": address, "members": members, "sets": [], "leaseMs": 3000} | more


def test_who_has_lost_its_journal_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    done = status(monkeypatch, state("a:1", leading=True, forgetful=["b:1"]), state("b:1"))
    assert done.exit_code == 1, done.output
    (row,) = [line for line in done.output.splitlines() if line.startswith("b:1")]
    assert "it has lost its journal: drop it, and add it again with an empty folder" in row


def test_leases_that_differ_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert status(monkeypatch, state("a:1", leading=True), state("b:1")).exit_code == 0
    leading = state("a:1", leading=True, leaseMsAgreed=9000)
    done = status(monkeypatch, leading, state("b:1", leaseMs=9000))
    assert done.exit_code == 1
    text = "controllerLeaseMs differs: 3000 at a:1, 9000 at b:1; 9000 is in force"
    assert text in done.output


def test_a_controller_that_has_stopped_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "entry 7 of the log, of term 2: rmq 0.1 knows no command Split"
    done = status(monkeypatch, state("a:1", leading=True), state("b:1", stopped=reason))
    (row,) = [line for line in done.output.splitlines() if line.startswith("b:1")]
    assert f"it has stopped, because it cannot read {reason}: start a later version there" in row
    done = status(monkeypatch, state("a:1", stopped=reason), state("b:1", stopped=reason))
    assert done.exit_code == 1
    assert done.output.count(reason) == 4  # as a row, and as what is wrong


def a_set(*lives: bool) -> dict[str, Any]:
    replicas = [
        {"number": number, "address": f"h{number}:1", "lives": is_living, "reach": 10 * number}
        for number, is_living in enumerate(lives, 1)
    ]
    return {"cluster": "c", "name": "s", "epoch": 3, "master": 1, "inSync": [1], "replicas": replicas}


def test_a_set_of_which_no_replica_in_sync_lives_is_named_with_the_way_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = status(monkeypatch, state("a:1", leading=True, sets=[a_set(False, True, True)]), options=())
    assert said.exit_code == 1
    assert (
        "broker s: has no master, since no replica in sync (1) lives; start an in-sync replica" in said.output
    )
    assert "`rmq controller elect s 3 --unclean`" in said.output
    for lives in ((True, True), (False, False)):
        said = status(monkeypatch, state("a:1", leading=True, sets=[a_set(*lives)]), options=())
        assert "--unclean" not in said.output


@pytest.mark.parametrize(("answer", "is_asked"), [("y", True), ("n", False)])
def test_an_unclean_election_is_asked_for_twice(
    monkeypatch: pytest.MonkeyPatch, answer: str, is_asked: bool
) -> None:
    asked: list[tuple[str, int, bool]] = []

    class Said(Controllers):
        async def elect(self, broker: str, number: int, *, is_unclean: bool = False) -> Outcome:
            asked.append((broker, number, is_unclean))
            return Outcome(True, "done")

    @asynccontextmanager
    async def opened(addresses: Sequence[str], **how: object) -> AsyncIterator[Controllers]:
        yield Said(addresses, nobody)

    monkeypatch.setattr("rmq.operate.controllers.opened", opened)
    arguments = ["elect", "--controllers", "a:1", "s", "2", "--unclean", "-n", "a:1"]
    CliRunner().invoke(controller.operations, arguments, input=f"{answer}\n")
    assert asked == [("s", 2, True)] * is_asked
