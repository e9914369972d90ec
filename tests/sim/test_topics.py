"""Some seeds of topics that come and go; each planted bug is caught."""

from __future__ import annotations

import pytest

from tests.sim.broker_traffic import Violation
from tests.sim.topic_bugs import TOPIC_BUGS, TOPICS_CAUGHT_BY
from tests.sim.topic_ledger import Ledger, check_same
from tests.sim.topics import TopicSimulation

SEEDS = (0, 2, 3)
SECONDS = 10.0


@pytest.mark.parametrize("seed", SEEDS)
def test_topics_that_come_and_go_lose_nothing_of_their_present_life(seed: int) -> None:
    simulation = TopicSimulation.of(seed)
    simulation.run()
    assert simulation.accepted > 100


@pytest.mark.long
@pytest.mark.parametrize("name", TOPIC_BUGS)
def test_a_bug_planted_in_the_identity_of_topics_is_caught(name: str) -> None:
    with TOPIC_BUGS[name](), pytest.raises(Violation):
        TopicSimulation.of(TOPICS_CAUGHT_BY[name]).run()


def test_a_ledger_asks_for_what_was_sent_behind_all_deletions() -> None:
    ledger = Ledger()
    ledger.acknowledge("T", "before", 0.0, 1.0, (0, 0))
    deletion = ledger.begin("T", 2.0)
    ledger.acknowledge("T", "meanwhile", 2.5, 2.6, (0, 1))
    assert ledger.missing("T", []) == []
    deletion.until, deletion.is_answered = 3.0, True
    ledger.acknowledge("T", "behind", 3.5, 3.6, (0, 0))
    assert ledger.missing("T", []) == ["behind"]
    assert [one.body for one in ledger.gone("T")] == ["before"]
    ledger.begin("T", 4.0)
    assert ledger.missing("T", []) == []
    assert [one.body for one in ledger.gone("T")] == ["before"]


def test_rows_that_differ_are_a_violation() -> None:
    check_same({"a": {1: 2}, "b": {1: 2}}, "queue")
    with pytest.raises(Violation, match="queue 1: a has 2, b has None"):
        check_same({"a": {1: 2}, "b": {}}, "queue")
