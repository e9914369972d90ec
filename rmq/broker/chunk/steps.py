"""The steps that the loops of a broker's service call: deadlines, delayed messages, check-backs, expiry."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Final

from rmq.errors import StoreError

RETRY_MS: Final = 1_000
SLAVE_IDLE_MS: Final = 60_000
"""Sleep of a slave's delivery and check-back, in ms: its master does both, and the slave copies the
result."""

log = logging.getLogger("rmq.broker")


Step = Callable[[int], int]
"""Does the work that is due at a time (ms), and returns the time of the next call."""
DeadlineStep = Callable[[float], float]
"""Answers the waiting requests that are due at a time (seconds), and returns the next deadline."""


class Deadlines:
    """The earliest deadline of all waiting requests, in seconds; `wake` is called when it becomes earlier
    than the loop of deadlines knows."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._known = math.inf  # until when the loop sleeps
        self._is_held = False
        self.next = math.inf

    def add(self, deadline: float) -> None:
        """A request has begun to wait until `deadline`."""
        if deadline < self.next:
            self.next = deadline
            if not self._is_held:
                self._wake()

    def sleep(self) -> float:
        """The time until which the loop of deadlines sleeps now."""
        self._known = self.next
        return self._known

    def hold(self) -> None:
        """Wake nobody until `release`: the caller does the due work itself."""
        self._is_held = True

    def release(self) -> None:
        """Wake the loop again; at once when a deadline comes before the end of its sleep."""
        self._is_held = False
        if self.next < self._known:
            self._wake()

    def step(self, steps: Sequence[DeadlineStep], now: float) -> None:
        """Answer the waiting requests that are due."""
        self.next = math.inf  # a request that begins to wait during the step calls `add`
        times = [step(now) for step in steps]
        self.next = min(self.next, *times)


class RoundEnd:
    """Calls at the end of a round of the loop of deadlines, which commits and reports outcomes. `wake` is
    called when one is added outside of a round."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._is_within = False
        self._calls: dict[Callable[[], None], Callable[[Callable[[], None]], None]] = {}

    def add(self, call: Callable[[], None], run: Callable[[Callable[[], None]], None]) -> None:
        """Call `run(call)` at the end of the round; once, however often `call` is added."""
        self._calls[call] = run
        if not self._is_within:
            self._wake()

    def begin(self) -> None:
        """A round begins."""
        self._is_within = True

    def end(self) -> None:
        """The round ends: make the calls. A call that one of them adds belongs to the next round."""
        self._is_within = False
        calls, self._calls = self._calls, {}
        for call, run in calls.items():
            run(call)


class Steps:
    """The steps of a broker's loops. Each step commits the records that it has put.

    `waiting` answer requests with deadlines. By wall time `delayed` deliver delayed messages, `check_back`
    checks half messages back, and `sample` samples metrics; by `clock`, in seconds, `expiring` drop rows.
    """

    def __init__(
        self,
        deadlines: Deadlines,
        *,
        waiting: Sequence[DeadlineStep],
        delayed: Sequence[Step],
        check_back: Step,
        expiring: Sequence[Step],
        sample: Step,
        commit_pending: Callable[[], None],
        is_slave: Callable[[], bool],
        now_ms: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._deadlines = deadlines
        self._waiting = waiting
        self._delayed = delayed
        self._check_back = check_back
        self._expiring = expiring
        self._sample = sample
        self._commit_pending = commit_pending
        self.round_end = RoundEnd(lambda: deadlines.add(clock()))
        self._is_slave = is_slave
        self._now_ms, self._clock = now_ms, clock
        self._expire_at = 0
        self._is_turning = False

    def commit_soon(self) -> None:
        """Commit the pending messages in the next round of the loop, or at the end of the present turn."""
        if not self._is_turning:
            self._deadlines.add(self._clock())

    def deadlines(self, now: float) -> float:
        """Answer the waiting requests that are due; returns the next deadline, in seconds."""
        self._round(now)
        return self._deadlines.sleep()

    def _round(self, now: float) -> None:
        self.round_end.begin()
        try:
            self._deadlines.step(self._waiting, now)
            self._commit_pending()
        finally:
            self.round_end.end()

    def turn(self, work: Callable[[], None]) -> None:
        """Do work, commit what it has put, and do a round if a step is due, without the loop of deadlines."""
        self._deadlines.hold()
        try:
            self._is_turning = True
            try:
                work()
            finally:
                self._is_turning = False
                self._commit_pending()
            now = self._clock()
            if self._deadlines.next <= now:
                self._round(now)
        finally:
            self._deadlines.release()

    def schedule(self) -> int:
        """Deliver the delayed messages that are due; returns when to come again, in ms of wall time."""
        return self._step(
            lambda now: min(step(now) for step in self._delayed), "delayed messages cannot be delivered"
        )

    def transactions(self) -> int:
        """Check back the half messages that are due; returns when to come again, in ms of wall time."""
        return self._step(self._check_back, "half messages cannot be checked")

    def _step(self, step: Step, failure: str) -> int:
        now = self._now_ms()
        if self._is_slave():
            return now + SLAVE_IDLE_MS
        try:
            return step(now)
        except StoreError as error:
            log.error("%s now: %s", failure, error)
            return now + RETRY_MS
        finally:
            self._commit_pending()

    def expire(self) -> int:
        """Drop silent members and expired locks, sample metrics; returns when to come again, in wall ms."""
        now = self._now_ms()
        clock = round(self._clock() * 1000)
        if clock >= self._expire_at:
            self._expire_at = min([step(clock) for step in self._expiring])
        return min(self._expire_at - clock + now, self._sample(now))
