"""`rmq controller status` for what the controllers say of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from rmq.cli import controller
from rmq.cli.target import Target


def status(monkeypatch: pytest.MonkeyPatch, *states: dict[str, Any]) -> Result:
    async def said(target: object, controllers: str) -> list[dict[str, Any]]:
        return list(states)

    monkeypatch.setattr(controller, "_status", said)
    return CliRunner().invoke(controller.operations, ["status", "--all", "-n", "a:1"])


def state(address: str, **more: Any) -> dict[str, Any]:
    members = {name: name for name in ("a:1", "b:1")}
    return {"address": address, "self": address, "members": members, "sets": [], "leaseMs": 3000} | more


def test_who_has_lost_its_journal_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    done = status(monkeypatch, state("a:1", leading=True, forgetful=["b:1"]), state("b:1"))
    assert done.exit_code == 0, done.output
    (row,) = [line for line in done.output.splitlines() if line.startswith("b:1")]
    assert "it has lost its journal: drop it, and add it with an empty folder" in row


async def test_others_are_asked_by_tls_where_the_first_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def states(target: object, addresses: Sequence[str]) -> list[dict[str, Any]]:
        asked.extend(addresses)
        return [state(one) | {"self": one.removeprefix("tls://")} for one in addresses]

    monkeypatch.setattr(controller, "_states", states)
    target = cast(Target, object())
    found = await controller._status(target, "tls://a:1")
    assert asked == [one["address"] for one in found] == ["tls://a:1", "tls://b:1"]
    asked.clear()
    await controller._status(target, "b:1")
    assert asked == ["b:1", "a:1"]


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


async def test_a_member_that_has_lost_its_journal_is_not_added_before_it_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def states(target: object, addresses: Sequence[str]) -> list[dict[str, Any]]:
        known = {"a:1": state("a:1", leading=True), "b:1": state("b:1", blank=True, committed=0)}
        return [known[one] for one in addresses]

    monkeypatch.setattr(controller, "_states", states)
    done, why = await controller._add(cast(Target, object()), "a:1", "b:1", 1.0)
    assert not done
    assert "b:1 is one of the controllers, and has lost its journal: `rmq controller drop b:1` first" in why
