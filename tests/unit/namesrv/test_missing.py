"""Brokers that left without a drain, and refused registrations, as a name server remembers them."""

from __future__ import annotations

import attrs

from rmq.namesrv.masters import Masters
from rmq.namesrv.missing import KEPT_MS, MOST, REFUSED_MS, SHOWN_TOPICS, MissingBrokers
from rmq.namesrv.routes import Registration

MASTER = Registration("C", "a", 0, "h1:1")
SLAVE = Registration("C", "a", 1, "h2:1")


def names(table: MissingBrokers, now_ms: int = 10) -> list[str]:
    return [one.broker_addr for one in table.missing(now_ms)]


def test_a_drained_master_that_stops_is_not_missing_and_a_killed_one_is() -> None:
    table = MissingBrokers()
    table.left(MASTER, "it unregistered", [], 0, is_stopped=True)
    assert names(table) == []
    table.left(MASTER, "its connection closed", [], 5, is_stopped=False)
    (one,) = table.missing(10)
    assert (one.broker_name, one.left_ms, one.why) == ("a", 5, "its connection closed")
    table.left(MASTER, "it unregistered", [], 6, is_stopped=True)
    assert names(table) == []


def test_topics_are_counted_and_some_are_named() -> None:
    table = MissingBrokers()
    table.left(MASTER, "why", [f"T{number:03}" for number in range(200)], 0, is_stopped=True)
    (one,) = table.missing(0)
    assert (one.topic_count, len(one.topics), one.topics[0]) == (200, SHOWN_TOPICS, "T000")


def test_who_takes_the_place_of_a_missing_broker() -> None:
    table = MissingBrokers()
    table.left(MASTER, "why", ["T"], 0, is_stopped=False)
    table.came(Registration("C", "a", 0, "h2:1"), was_here=True)  # the slave became master
    assert names(table) == ["h1:1"]
    table.came(Registration("C", "a", 1, "h1:1"), was_here=False)  # the former master is its slave now
    assert names(table) == []
    table.left(SLAVE, "why", [], 0, is_stopped=False)
    table.left(MASTER, "why", ["T"], 0, is_stopped=False)
    table.came(Registration("C", "a", 0, "h2:1"), was_here=False)  # a slave that was away comes as master
    assert names(table) == ["h1:1"]
    table.came(Registration("C", "a", 0, "h9:1"), was_here=False)  # another machine in its place
    assert names(table) == []


def test_missing_brokers_are_forgotten_by_name_by_age_and_beyond_a_number() -> None:
    table = MissingBrokers()
    table.left(MASTER, "why", ["T"], 0, is_stopped=False)
    table.left(Registration("C", "b", 0, "h3:1"), "why", ["T"], 0, is_stopped=False)
    assert table.forget("a") == 1
    assert table.forget("a") == 0
    assert names(table, KEPT_MS) == ["h3:1"]
    assert names(table, KEPT_MS + 1) == []
    for number in range(MOST + 5):
        table.left(Registration("C", f"b{number}", 0, f"h{number}:1"), "why", [], 0, is_stopped=False)
    assert len(names(table)) == MOST


def test_a_refusal_is_shown_until_the_broker_is_taken_or_stops_trying() -> None:
    table = MissingBrokers()
    table.refused(MASTER, "another master lives", 0)
    assert [one.reason for one in table.refusals(REFUSED_MS)] == ["another master lives"]
    assert list(table.refusals(REFUSED_MS + 1)) == []
    table.refused(MASTER, "another master lives", 0)
    table.came(MASTER, was_here=False)
    assert list(table.refusals(0)) == []
    table.refused(MASTER, "another master lives", 0)
    table.came(attrs.evolve(MASTER, broker_id=1), was_here=False)  # it came back as the slave
    assert list(table.refusals(0)) == []


def test_masters_of_before_a_start_are_awaited_until_they_are_forgotten() -> None:
    saved: list[bytes] = []
    masters = Masters(saved.append, b'{"C/a": "h1:1", "C/b": "h3:1"}', 0)
    assert [(one.broker_name, one.broker_addr) for one in masters.awaited()] == [("a", "h1:1"), ("b", "h3:1")]
    masters.registered(MASTER)
    assert [one.broker_name for one in masters.awaited()] == ["b"]
    assert masters.forget("b")
    assert masters.awaited() == []
    masters.save()
    assert saved == [b'{"C/a":"h1:1"}']
    assert not masters.forget("b")
