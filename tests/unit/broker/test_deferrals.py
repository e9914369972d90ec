"""Calls that are made later: when, how often, for whom, and how many."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rmq.broker import deferrals
from rmq.broker.deferrals import CALLS_OF_A_STEP, Deferrals
from rmq.errors import ResponseError


class Table:
    """Deferrals with a clock to turn."""

    def __init__(self) -> None:
        self.now = 100.0
        self.deadlines: list[float] = []
        self.called: list[object] = []
        self.rows = Deferrals(lambda: self.now, self.deadlines.append)

    def add(self, name: object, seconds: float = 1.0, key: object = "one", holder: str = "a") -> Any:
        return self.rows.add(key, (holder,), seconds, lambda: self.called.append(name))

    def step(self, seconds: float = 0.0) -> float:
        self.now += seconds
        return self.rows.step(self.now)


@pytest.fixture
def table() -> Table:
    return Table()


def test_calls_are_made_when_they_are_due_in_their_order(table: Table) -> None:
    table.add("late", 5), table.add("soon", 1), table.add("now", 0), table.add("past", -3)
    assert table.deadlines == [105, 101, 100, 100]
    assert table.step() == 101
    assert table.called == ["now", "past"]
    assert table.step(4.9) == 105
    assert table.step(0.1) == math.inf
    assert table.called == ["now", "past", "soon", "late"]
    assert len(table.rows) == 0


def test_a_call_that_is_prevented_is_not_made(table: Table) -> None:
    prevent = table.add("a")
    table.add("b")
    prevent(), prevent()
    table.step(1)
    prevent()
    assert table.called == ["b"]
    assert len(table.rows) == 0


def test_the_end_of_a_connection_prevents_its_calls(table: Table) -> None:
    table.add("mine", key="one"), table.add("other", key="two")
    table.rows.on_close("one"), table.rows.on_close("unknown")
    table.step(1)
    assert table.called == ["other"]


def test_a_call_that_fails_does_not_keep_others_from_theirs(table: Table) -> None:
    table.rows.add("one", (), 0, lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    table.add("next", 0)
    table.step()
    assert table.called == ["next"]


def test_a_call_that_defers_itself_has_its_turn_in_the_next_step(table: Table) -> None:
    def again() -> None:
        table.called.append("again")
        table.rows.add("one", (), 0, again)

    table.rows.add("one", (), 0, again)
    assert table.step() == table.now
    assert table.called == ["again"]


def test_many_calls_are_made_in_several_steps(table: Table) -> None:
    for number in range(CALLS_OF_A_STEP + 1):
        table.add(number, 0)
    assert table.step() == table.now
    assert len(table.called) == CALLS_OF_A_STEP
    table.step()
    assert len(table.called) == CALLS_OF_A_STEP + 1


def test_one_holder_takes_half_of_the_places_and_others_have_some(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferrals, "WAITING_MAX", 8)
    table = Table()
    for _ in range(4):
        table.add("a")
    with pytest.raises(ResponseError, match="are taken by a"):
        table.add("a")
    table.add("b", holder="b")
    table.step(1)
    table.add("a")


def test_prevented_calls_take_no_memory(table: Table) -> None:
    for _ in range(1000):
        table.add("a", 1000)()
    assert len(table.rows._heap) <= 66
