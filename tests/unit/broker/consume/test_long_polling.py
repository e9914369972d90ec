"""Rows instead of tasks: what answers a waiting request, and what forgets it."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from rmq.broker.consume.long_polling import (
    TRIES_OF_A_QUEUE,
    TRIES_OF_A_TURN,
    ParkedPull,
    ParkedPulls,
    ParkedRead,
)


class Fixture:
    """ParkedPulls with a clock to turn and a record of what was answered."""

    def __init__(self) -> None:
        self.now = 0.0
        self.found: set[str] = set()
        self.answers: list[tuple[str, bool]] = []
        self.deadlines: list[float] = []
        self.parked_pulls = ParkedPulls(
            lambda: self.now, lambda pull, last: self.resume(pull, last), self.deadlines.append
        )

    def resume(self, pull: ParkedRead, last: bool) -> bool:
        assert isinstance(pull, ParkedPull)
        name = pull.request.remark
        if last or name in self.found:
            self.answers.append((str(name), last))
            return True
        return False

    def hold(
        self,
        name: str,
        *,
        connection: Any = None,
        queue_id: int = 0,
        offset: int = 5,
        wait: float = 15,
        holders: tuple[str, ...] = (),
        text: str | None = None,
        language: str = "JAVA",
    ) -> Any:
        pull: Any = ParkedPull(
            connection=connection or peer(),
            header=SimpleNamespace(topic="T", queue_id=queue_id, subscription=text),  # type: ignore[arg-type]
            request=SimpleNamespace(remark=name, language=language),  # type: ignore[arg-type]
            offset=offset,
            deadline=self.now + wait,
            on_result=lambda held, found: None,
            holders=holders,
        )
        self.parked_pulls.park_pull(pull)
        return pull


def peer() -> Any:
    return _Peer()


class _Peer:
    is_closed = False

    is_reset = False

    def finish(self, reason: str) -> None:
        self.is_closed = True

    def reset_on_close(self) -> None:
        self.is_reset = True


@pytest.fixture
def table() -> Fixture:
    return Fixture()


def test_an_arrival_answers_the_pulls_of_its_queue_only(table: Fixture) -> None:
    table.found = {"a", "b", "other"}
    table.hold("a")
    table.hold("other", queue_id=1)
    table.hold("b")
    table.parked_pulls.arrived("T", 0, 6)
    assert table.answers == [("a", False), ("b", False)]
    assert table.parked_pulls.count == 1


def test_an_arrival_below_the_wanted_offset_is_not_one(table: Fixture) -> None:
    table.found = {"a"}
    table.hold("a", offset=5)
    table.parked_pulls.arrived("T", 0, 5)
    assert table.answers == []


def test_a_pull_that_still_finds_nothing_stays_until_its_deadline(table: Fixture) -> None:
    table.hold("a", wait=15)
    table.parked_pulls.arrived("T", 0, 6)
    assert table.parked_pulls.count == 1
    assert table.parked_pulls.step(14.9) == 15
    assert table.parked_pulls.step(15) == math.inf
    assert table.answers == [("a", True)]
    assert table.parked_pulls.count == 0


def test_deadlines_are_answered_in_their_order(table: Fixture) -> None:
    table.hold("late", wait=30)
    table.hold("early", wait=10)
    assert table.parked_pulls.step(10) == 30
    assert table.parked_pulls.step(30) == math.inf
    assert table.answers == [("early", True), ("late", True)]


def test_an_answered_pull_is_not_answered_again_at_its_deadline(table: Fixture) -> None:
    table.found = {"a"}
    table.hold("a")
    table.parked_pulls.arrived("T", 0, 6)
    table.parked_pulls.step(100)
    assert table.answers == [("a", False)]


def test_pulls_of_a_closed_connection_are_forgotten(table: Fixture) -> None:
    table.found = {"gone", "stays"}
    gone = peer()
    table.hold("gone", connection=gone)
    table.hold("gone", connection=gone, queue_id=3)
    table.hold("stays")
    table.parked_pulls.on_close(gone)
    table.parked_pulls.arrived("T", 0, 6)
    table.parked_pulls.step(100)
    assert table.answers == [("stays", False)]
    assert table.parked_pulls.count == 0


def test_a_pull_of_a_connection_that_closed_while_it_was_handled_is_not_held(table: Fixture) -> None:
    closed = peer()
    closed.is_closed = True
    table.hold("a", connection=closed)
    assert table.parked_pulls.count == 0


def test_an_answer_that_closes_its_connection_does_not_count_twice(table: Fixture) -> None:
    """The reply overfills the outbox: the connection closes and forgets its pulls inside `resume`."""
    overfull = peer()

    def resume(pull: ParkedPull, last: bool) -> bool:
        table.parked_pulls.on_close(overfull)
        return True

    table.resume = resume  # type: ignore[method-assign]
    table.hold("a", connection=overfull)
    table.hold("b", connection=overfull)
    table.parked_pulls.arrived("T", 0, 6)
    assert table.parked_pulls.count == 0


def test_the_table_does_not_grow_with_answered_pulls(table: Fixture) -> None:
    table.found = {"a"}
    for _ in range(10_000):
        table.hold("a")
        table.parked_pulls.turn()
        table.parked_pulls.arrived("T", 0, 6)
    assert table.parked_pulls.count == 0
    assert len(table.parked_pulls._timers) < 200


def test_an_arrival_looks_at_a_bounded_number_of_pulls_and_the_turns_after_it_at_the_rest(
    table: Fixture,
) -> None:
    names = [f"p{number}" for number in range(1_000)]
    table.found = set(names)
    for name in names:
        table.hold(name)
    table.parked_pulls.turn()
    table.parked_pulls.arrived("T", 0, 6)
    assert len(table.answers) == TRIES_OF_A_QUEUE
    turns = 0
    while table.parked_pulls.step(1) == 1:
        turns += 1
        assert turns < 1_000
    assert [name for name, _ in table.answers] == names
    assert table.parked_pulls.count == 0


def test_the_loop_is_woken_for_pulls_that_a_turn_had_no_room_for(table: Fixture) -> None:
    for number in range(TRIES_OF_A_QUEUE + 1):
        table.hold(f"p{number}")
    table.now, before = 1, len(table.deadlines)
    table.parked_pulls.turn()
    table.parked_pulls.arrived("T", 0, 6)
    assert table.deadlines[before:] == [1]


def test_one_turn_over_many_queues_is_bounded_as_well_and_no_queue_waits_for_another(table: Fixture) -> None:
    for queue_id in range(10):
        for number in range(TRIES_OF_A_QUEUE * 10):
            table.hold(f"{queue_id}/{number}", queue_id=queue_id)
    tried: list[str] = []

    def resume(pull: ParkedPull, last: bool) -> bool:
        tried.append(str(pull.request.remark))
        return False

    table.resume = resume  # type: ignore[method-assign]
    table.parked_pulls.turn()
    for queue_id in range(10):
        table.parked_pulls.arrived("T", queue_id, 6)
    assert len(tried) == TRIES_OF_A_TURN
    for _ in range(10):
        before = len(tried)
        assert table.parked_pulls.step(1) == 1
        assert len(tried) - before <= TRIES_OF_A_TURN
    counts = Counter(name.split("/")[0] for name in tried)
    assert max(counts.values()) - min(counts.values()) <= 2 * TRIES_OF_A_QUEUE
    while table.parked_pulls.step(1) == 1:
        pass
    assert len(set(tried)) == len(tried) == TRIES_OF_A_QUEUE * 100


def test_a_pull_that_was_tried_before_the_next_message_came_is_tried_again(table: Fixture) -> None:
    for number in range(TRIES_OF_A_QUEUE + 5):
        table.hold(f"p{number}")
    table.parked_pulls.turn()
    table.parked_pulls.arrived("T", 0, 6)  # finds nothing for the first of them
    table.found = {"p0"}
    table.parked_pulls.arrived("T", 0, 7)
    while table.parked_pulls.step(1) == 1:
        pass
    assert table.answers == [("p0", False)]


def test_deadlines_that_come_together_are_answered_in_several_turns(table: Fixture) -> None:
    for number in range(TRIES_OF_A_TURN * 2 + 1):
        table.hold(f"p{number}", wait=15)
    assert table.parked_pulls.step(15) <= 15
    assert len(table.answers) == TRIES_OF_A_TURN
    assert table.parked_pulls.step(15) <= 15
    assert table.parked_pulls.step(15) == math.inf
    assert len(table.answers) == TRIES_OF_A_TURN * 2 + 1


def test_pulls_are_counted_for_their_connection_and_account_and_by_their_size(table: Fixture) -> None:
    one, other = peer(), peer()
    table.found = {"a"}
    table.hold("a", connection=one, holders=("account app",))
    table.hold("b", connection=one, holders=("account app",), text="x" * 4096, queue_id=1)
    table.hold("c", connection=other, holders=("account app",), queue_id=1)
    pulls = table.parked_pulls
    assert (pulls.count, pulls.held_by(one), pulls.held_by(other)) == (7, 6, 1)
    assert pulls.shares.held("account app") == 7
    pulls.arrived("T", 0, 6)
    assert (pulls.count, pulls.held_by(one), pulls.shares.held("account app")) == (6, 5, 6)
    pulls.on_close(one)
    assert (pulls.count, pulls.held_by(one), pulls.shares.held("account app")) == (1, 0, 1)
    pulls.on_close(other)
    assert pulls.shares.holders() == pulls.shares.used == 0
    assert pulls._long == pulls._pulls == pulls._of_connection == {}


def test_a_broker_that_stops_answers_no_pull_so_that_clients_are_quiet_when_connections_break(
    table: Fixture,
) -> None:
    """Clients for Java that write as a connection breaks do not see that: they wait for 30 s then."""
    early, late = peer(), peer()
    table.hold("a", connection=early)
    table.found = {"a", "b"}
    table.parked_pulls.fall_silent()
    table.hold("b", connection=late, queue_id=1)
    table.parked_pulls.arrived("T", 0, 6)
    table.parked_pulls.finish_where(lambda pull: True)
    assert table.parked_pulls.step(20) == math.inf
    table.parked_pulls.finish_last()
    assert table.answers == []
    assert (early.is_reset, late.is_reset) == (True, True)


def test_clients_in_go_pull_no_more_when_the_broker_stops(table: Fixture) -> None:
    """Clients in Go do not see the end of a connection over which they pull, and wait for 30 s."""
    java, go, other = peer(), peer(), peer()
    table.hold("a", connection=java)
    table.hold("b", connection=go, language="GO")
    table.hold("c", connection=other, language="GO", queue_id=1)
    table.parked_pulls.fall_silent()
    table.hold("d", connection=go, language="GO", queue_id=1)
    table.parked_pulls.finish_last()
    assert sorted(table.answers) == [(name, True) for name in "bcd"]
    assert table.parked_pulls.count == 1
    ends = [(one.is_closed, one.is_reset) for one in (java, go, other)]
    assert ends == [(False, True), (True, False), (True, False)]
