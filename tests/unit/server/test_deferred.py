"""Answers and calls that come later: when, how often, for whom, and how many."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rmq.errors import ResponseError
from rmq.server import deferred
from rmq.server.deferred import CALLS_OF_A_STEP, Deferred, DeferredCalls


class Table:
    """DeferredCalls with a clock to turn."""

    def __init__(self) -> None:
        self.now = 100.0
        self.deadlines: list[float] = []
        self.called: list[object] = []
        self.rows = DeferredCalls(lambda: self.now, self.deadlines.append)

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
    monkeypatch.setattr(deferred, "CALLS_MAX", 8)
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
    assert len(table.rows._rows._heap) <= 66


def rows_of(most: int = 10, **given: Any) -> Deferred[str, int]:
    return Deferred(most, "the rows of this test", **given)


def test_a_row_ends_once_however_it_ends() -> None:
    rows = rows_of()
    first, second, third = (rows.add("a", number, deadline=float(number)) for number in (1, 2, 3))
    assert rows.take(first)
    assert not rows.take(first)
    assert [row.value for row in rows.due(2)] == [2]
    assert not rows.take(second)
    assert rows.drain() == [3]
    assert not rows.take(third)
    assert (list(rows.due(9)), rows.drain(), rows.waiting_keys()) == ([], [], [])
    assert (len(rows), rows.deadline) == (0, math.inf)


def test_rows_keep_their_order_in_all_and_of_a_key() -> None:
    rows = rows_of()
    for number, key in enumerate("abab"):
        rows.add(key, number)
    assert [row.value for row in rows.of("a")] == [0, 2]
    assert (rows.count("b"), rows.count("c"), rows.first("c"), rows.last("c")) == (2, 0, None, None)
    first, last, oldest = rows.first("b"), rows.last("b"), rows.oldest()
    assert first is not None
    assert last is not None
    assert oldest is not None
    assert (first.value, last.value, oldest.value) == (1, 3, 0)
    assert rows.end("a") == [0, 2]
    assert rows.waiting_keys() == ["b"]
    assert rows.values() == rows.drain() == [1, 3]


def test_a_row_that_is_taken_while_others_are_answered_is_left_out() -> None:
    rows = rows_of()
    rows.add("a", 1, deadline=1.0)
    second = rows.add("a", 2, deadline=1.0)
    seen = []
    for row in rows.due(1.0):
        seen.append(row.value)
        rows.take(second)
        rows.add("a", 3, deadline=0.0)
    assert seen == [1]
    assert [row.value for row in rows.due(1.0)] == [3]


def test_places_and_bytes_are_bounded_in_all_and_for_each_holder() -> None:
    rows = rows_of(4, bytes_most=100)
    rows.add("a", 0, holders=("one",), size=50)
    assert "of their bytes 50 of 100 are taken by one" in rows.full(("one",), 1)
    assert not rows.full(("two",), 50)
    with pytest.raises(ResponseError, match="of the rows of this test of their bytes"):
        rows.check(("one",), 1)
    rows.add("a", 1, holders=("one",))
    with pytest.raises(ResponseError, match="2 of 4 are taken by one, 2 are free"):
        rows.check(("one",))
    assert not rows.full(("two",))
    rows.drain()
    assert (rows.places.used, rows.bytes.used, rows.places.holders()) == (0, 0, 0)


def test_the_owner_is_told_of_deadlines_only() -> None:
    told: list[float] = []
    rows = rows_of(on_deadline=told.append)
    rows.add("a", 1)
    rows.add("a", 2, deadline=7.0)
    assert told == [7.0]
    assert rows.deadline == 7.0
