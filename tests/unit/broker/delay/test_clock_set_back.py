"""Restarts after the wall clock was set back: no message comes again, and none is lost."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.broker.delay import delivered as module
from tests.unit.broker.delay.bench import Bench

from .bench import START, send_delayed

FAR = START + 900_000


def restart(bench: Bench) -> None:
    bench.saved = bench.timers.to_json()
    bench.restart()


def test_what_was_delivered_before_the_clock_was_set_back_does_not_come_again(bench: Bench) -> None:
    bench.send(b"far", FAR)
    bench.send(b"a", START + 90_000)
    bench.at(START + 100_000)
    assert bench.at(START + 50_000) > START + 50_000
    bench.send(b"b", START + 60_000)
    bench.at(START + 60_000)
    restart(bench)
    assert len(bench.timers) == 1
    bench.at(START + 200_000)
    assert bench.delivered() == [b"a", b"b"]
    restart(bench)
    bench.at(FAR)
    assert bench.delivered() == [b"a", b"b", b"far"]


def test_a_message_for_a_time_that_is_over_brings_no_other_back(bench: Bench) -> None:
    bench.send(b"far", FAR)
    bench.send(b"a", START + 90_000)
    bench.at(START + 100_000)
    bench.send(b"late", START + 10_000)
    restart(bench)
    bench.at(START + 100_000)
    assert bench.delivered() == [b"a", b"late"]


def test_a_clock_that_was_set_back_while_the_broker_was_off(bench: Bench) -> None:
    bench.send(b"far", FAR)
    bench.send(b"a", START + 90_000)
    bench.at(START + 100_000)
    bench.now = START + 20_000
    restart(bench)
    bench.at(START + 20_000)
    bench.send(b"b", START + 90_000)
    restart(bench)
    bench.at(START + 100_000)
    assert bench.delivered() == [b"a", b"b"]


def test_the_marks_end_when_the_clock_has_passed_them(bench: Bench) -> None:
    bench.send(b"far", FAR)
    bench.send(b"a", START + 90_000)
    bench.at(START + 100_000)
    bench.at(START + 50_000)
    progress = json.loads(bench.timers.to_json())
    assert (progress["read0"], progress["deliveredMs0"]) == (2, START + 100_000)
    bench.at(START + 100_000)
    assert json.loads(bench.timers.to_json()) == {"first": 0, "read": 2, "deliveredMs": START + 100_000}


def test_marks_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MARKS_MAX", 3)
    bench.send(b"far", FAR)
    for number in range(9, 0, -1):
        bench.send(b"%d" % number, START + number * 10_000)
        bench.at(START + number * 10_000)
    progress = json.loads(bench.timers.to_json())
    assert len(progress) == 3 + 2 * 3
    restart(bench)
    assert len(bench.timers) == 6  # those that the three oldest marks named come again, and the far one


STEP = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 40)),
    st.tuples(st.just("delay"), st.integers(0, 3)),
    st.tuples(st.just("at"), st.integers(0, 40)),
    st.tuples(st.just("restart"), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=25))
def test_with_any_clock_each_message_comes_once(steps: list[tuple[str, int]]) -> None:
    """`at` sets the clock, also back; restarts are clean."""
    with TemporaryDirectory() as folder:
        bench, sent = Bench(Path(folder)), []
        bench.send(b"far", FAR)
        for kind, number in steps:
            if kind == "send":
                sent.append(b"%d" % len(sent))
                bench.send(sent[-1], START + number * 100)
            elif kind == "delay":
                sent.append(b"%d" % len(sent))
                send_delayed(bench, sent[-1], number)
            elif kind == "at":
                bench.at(START + number * 100)
            else:
                restart(bench)
        bench.at(START + 10_000)
        assert sorted(bench.delivered()) == sorted(sent)
        bench.store.close()
