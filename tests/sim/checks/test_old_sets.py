"""Some seeds with controllers and replicas that go back in time; each planted bug is caught."""

from __future__ import annotations

import pytest

from tests.sim.controllers import Violation
from tests.sim.old_sets import OldSets
from tests.sim.planted_bugs.old_bugs import OLD_BUGS, OLD_CAUGHT_BY, WIPED_BUGS, WIPED_CAUGHT_BY
from tests.sim.wiped import Wiped


@pytest.mark.parametrize("kind", [OldSets, Wiped])
@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_when_folders_go_back(kind: type[OldSets | Wiped], seed: int) -> None:
    simulation = kind.of(seed)
    simulation.run()
    assert simulation.accepted > 0 or simulation.counts


@pytest.mark.parametrize("name", OLD_BUGS)
def test_a_bug_planted_in_what_guards_against_old_folders_is_caught(name: str) -> None:
    with OLD_BUGS[name](), pytest.raises(Violation):
        OldSets.of(OLD_CAUGHT_BY[name]).run()


@pytest.mark.parametrize("name", WIPED_BUGS)
def test_a_bug_planted_in_how_a_member_recalls_is_caught(name: str) -> None:
    with WIPED_BUGS[name](), pytest.raises(Violation):
        Wiped.of(WIPED_CAUGHT_BY[name]).run()
