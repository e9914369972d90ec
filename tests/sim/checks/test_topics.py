"""Some seeds of topics that come and go; each planted bug is caught."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from functools import partial
from unittest import mock

import pytest
import trio

from tests.sim.planted_bugs.topic_bugs import TOPIC_BUGS, TOPICS_CAUGHT_BY
from tests.sim.real_brokers.broker_traffic import Violation
from tests.sim.topic_lives.topic_ledger import Ledger, check_same
from tests.sim.topic_lives.topics import TopicSimulation

SEEDS = (0, 2, 3)
SECONDS = 10.0


@pytest.mark.parametrize("seed", SEEDS)
def test_topics_that_come_and_go_lose_nothing_of_their_present_life(seed: int) -> None:
    simulation = TopicSimulation.of(seed)
    simulation.run()
    assert simulation.accepted > 100


def test_the_same_seed_runs_the_same_tasks() -> None:
    """In two processes, where sets of texts are in two orders."""
    path = os.pathsep.join(sys.path)
    runs = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from tests.sim.checks.test_topics import say_steps; say_steps({SECONDS})",
            ],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for seed in ("1", "2")
    ]
    said = [run.communicate()[0].split()[-2:] for run in runs]
    assert said[0][:1] == ["steps"]
    assert said[0] == said[1]


def say_steps(seconds: float) -> None:
    """Print a digest of all steps of tasks in a seed: which task runs when. A trace may hide an order."""
    steps = hashlib.blake2b(digest_size=16)

    class Steps(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            steps.update(f"{trio.current_time()} {task.name}\n".encode())

    with mock.patch.object(trio, "run", partial(trio.run, instruments=[Steps()])):
        TopicSimulation(3, size=2, seconds=seconds).run()
    print("steps", steps.hexdigest())


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
    assert [one.body for one in ledger.deleted("T")] == ["before"]
    ledger.begin("T", 4.0)
    assert ledger.missing("T", []) == []
    assert [one.body for one in ledger.deleted("T")] == ["before"]


def test_rows_that_differ_are_a_violation() -> None:
    check_same({"a": {1: 2}, "b": {1: 2}}, "queue")
    with pytest.raises(Violation, match="queue 1: a has 2, b has None"):
        check_same({"a": {1: 2}, "b": {}}, "queue")
