"""Some seeds of the simulation with real brokers; it is deterministic, and catches what is wrong."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from contextlib import nullcontext
from functools import partial

import pytest
from trio.testing import MockClock

from tests.sim.planted_bugs.broker_bugs import BROKER_BUGS, BROKERS_CAUGHT_BY
from tests.sim.planted_bugs.bugs import BUGS
from tests.sim.planted_bugs.bugs import CAUGHT_BY as SEEDS_OF_BUGS
from tests.sim.planted_bugs.consumer_bugs import CONSUMER_BUGS, CONSUMERS_CAUGHT_BY
from tests.sim.planted_bugs.old_bugs import OLD_BUGS, OLD_CAUGHT_BY, WIPED_BUGS, WIPED_CAUGHT_BY
from tests.sim.planted_bugs.set_bugs import SET_BUGS, SETS_CAUGHT_BY
from tests.sim.planted_bugs.topic_bugs import TOPIC_BUGS, TOPICS_CAUGHT_BY
from tests.sim.real_brokers.broker_traffic import Violation
from tests.sim.real_brokers.brokers import BrokerSimulation

SEEDS = 6
SECONDS = 20.0
BUGS_OF_BROKERS = BROKER_BUGS | CONSUMER_BUGS
CAUGHT_BY = BROKERS_CAUGHT_BY | CONSUMERS_CAUGHT_BY
PAGE = pathlib.Path(__file__).parents[3] / "docs" / "design" / "reliability.md"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_real_brokers_lose_nothing_that_was_acknowledged(seed: int) -> None:
    simulation = BrokerSimulation(seed, size=2 + seed % 2, seconds=SECONDS)
    simulation.run()
    assert simulation.accepted > 0


def test_the_same_seed_gives_the_same_trace() -> None:
    """In another process too, where sets of texts are in another order."""
    code = (
        "from tests.sim.real_brokers.brokers import BrokerSimulation as S;"
        f"s = S(5, size=3, seconds={SECONDS}); s.run(); print('trace', s.trace)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    again, other = (BrokerSimulation(seed, size=3, seconds=SECONDS) for seed in (5, 6))
    again.run()
    assert done.stdout.split()[-2:] == ["trace", again.trace]
    other.run()
    assert other.trace != again.trace


def test_the_quicker_loop_gives_the_same_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, plain = (BrokerSimulation(7, size=2, seconds=5.0) for _ in range(2))
    quick.run()
    monkeypatch.setattr(
        "tests.sim.real_brokers.brokers.virtual_clock", partial(MockClock, autojump_threshold=0)
    )
    monkeypatch.setattr("tests.sim.real_brokers.brokers.no_sockets", nullcontext)
    plain.run()
    assert quick.trace == plain.trace


@pytest.mark.long
@pytest.mark.parametrize("name", BUGS_OF_BROKERS)
def test_a_bug_planted_in_real_brokers_is_caught(name: str) -> None:
    with BUGS_OF_BROKERS[name](), pytest.raises(Violation):
        BrokerSimulation.of(CAUGHT_BY[name]).run()


CATCHING_SEEDS = (
    *(SEEDS_OF_BUGS, SETS_CAUGHT_BY, OLD_CAUGHT_BY, WIPED_CAUGHT_BY),
    *(BROKERS_CAUGHT_BY, CONSUMERS_CAUGHT_BY, TOPICS_CAUGHT_BY),
)
ALL_BUGS = BUGS | SET_BUGS | OLD_BUGS | WIPED_BUGS | BUGS_OF_BROKERS | TOPIC_BUGS


def test_the_page_names_every_planted_bug() -> None:
    text = PAGE.read_text("utf-8")
    for name in ALL_BUGS:
        assert f"| {name} |" in text, name
    for seeds in CATCHING_SEEDS:
        for name, seed in seeds.items():
            assert re.search(rf"^\| {re.escape(name)} \| .*, seed {seed}\b", text, re.MULTILINE), (name, seed)


def test_what_the_bugs_change_is_there() -> None:
    """Most are run by `nox -s long` only: a name that has changed since would be seen late."""
    for bug in ALL_BUGS.values():
        with bug():
            pass
