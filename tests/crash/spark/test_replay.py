"""The kill of a run that sends faster than the test looks."""

from __future__ import annotations

import pathlib
from typing import Any, cast

import pytest

from tests.crash.spark import replay
from tests.crash.spark.replay import AHEAD_UNLIMITED, EndedEarly, Replay


class Child:
    """A process that has this status."""

    pid = -1

    def __init__(self, status: int | None) -> None:
        self._status = status
        self.child = self
        self.is_killed = False

    def poll(self) -> int | None:
        return self._status

    def kill(self) -> None:
        self.is_killed = True

    def said(self) -> str:
        return "its summary"


class Runs(Replay):
    """Runs without Spark: each sends all rows at once, and then has the next one of these statuses."""

    def __init__(self, *statuses: int | None) -> None:
        super().__init__(cast(Any, None), pathlib.Path(), "", cast(Any, None), cast(Any, self))
        self.children = [Child(status) for status in statuses]
        self.begun: list[int] = []
        self._sent = 0

    async def send_batch(self, messages: list[Any]) -> None:
        pass

    async def length(self) -> int:
        return 1 + self._sent

    def start(self, *more: str) -> Any:
        self.begun.append(self.source - self._sent)
        child = self.children[len(self.begun) - 1]
        if child.poll() == 0:
            self._sent = self.source
        return child


@pytest.fixture(autouse=True)
def no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "signal_all", lambda process, number: None)


async def test_a_run_that_ends_before_its_kill_is_repeated_with_more_rows() -> None:
    runs = Runs(0, 0, None)
    await runs.killed(0, 0)
    assert runs.begun == [AHEAD_UNLIMITED, 2 * AHEAD_UNLIMITED, 4 * AHEAD_UNLIMITED]
    assert all(child.is_killed for child in runs.children)


async def test_a_run_that_fails_is_not_repeated() -> None:
    runs = Runs(1, None)
    with pytest.raises(AssertionError, match="its summary"):
        await runs.killed(0, 0)
    assert len(runs.begun) == 1


async def test_runs_that_always_end_before_their_kill_are_an_error() -> None:
    with pytest.raises(EndedEarly):
        await Runs(*[0] * replay.TRIES).killed(0, 0)
