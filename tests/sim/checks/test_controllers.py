"""Some seeds of the simulation, that it is deterministic, and that it catches what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sim.controllers import Simulation, Violation
from tests.sim.planted_bugs.bugs import BUGS, CAUGHT_BY
from tests.sim.planted_bugs.set_bugs import SET_BUGS, SETS_CAUGHT_BY
from tests.sim.planted_bugs.set_scripts import SCRIPTS
from tests.sim.sets import SetSimulation

SEEDS = 12


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_must_hold_holds(seed: int) -> None:
    simulation = Simulation.of(seed)
    simulation.run()
    assert simulation.accepted > 0 or simulation.counts


def test_the_same_seed_gives_the_same_trace() -> None:
    """In another process too, where sets of texts are in another order."""
    code = "from tests.sim.controllers import Simulation as S; s = S.of(3); s.run(); print(s.trace)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(number), "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for number in (1, 2)
    }
    again = Simulation.of(3)
    again.run()
    assert traces == {again.trace}
    other = Simulation.of(4)
    other.run()
    assert other.trace != again.trace


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str) -> None:
    with BUGS[name](), pytest.raises(Violation):
        Simulation.of(CAUGHT_BY[name]).run()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_set_loses_nothing_that_was_acknowledged(seed: int) -> None:
    simulation = SetSimulation.of(seed)
    simulation.run()
    assert simulation.accepted > 0


def test_each_planted_bug_has_a_seed_or_a_schedule_of_its_own() -> None:
    assert SET_BUGS.keys() - SETS_CAUGHT_BY.keys() == SCRIPTS.keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_bug_that_seeds_show_seldom_is_caught_by_its_schedule(name: str) -> None:
    SCRIPTS[name]()
    with SET_BUGS[name](), pytest.raises(Violation):
        SCRIPTS[name]()


@pytest.mark.parametrize("name", SETS_CAUGHT_BY)
def test_a_bug_planted_in_the_rules_of_sets_is_caught(name: str) -> None:
    with SET_BUGS[name](), pytest.raises(Violation):
        SetSimulation.of(SETS_CAUGHT_BY[name]).run()
