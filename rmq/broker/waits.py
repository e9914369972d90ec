"""Requests that cannot be answered yet, as rows in tables: long polls, and sends that wait for the disk.

No row has a task or a timer of its own. A long poll is a row under its queue, looked at when messages arrive
there; a deadline is an entry of one heap, which `step` works off. Sends that wait for the disk stand in one
queue in the order of their positions, because that is the order in which the log grows: one flush answers
all that it covers. Times are seconds of the clock given at construction, which must never run backwards.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

from attrs import define, field

if TYPE_CHECKING:
    from rmq.protocol.command import Command
    from rmq.protocol.headers import PullMessageRequestHeader
    from rmq.remoting.connection import Connection

NEVER = math.inf


@define(eq=False)
class HeldPull:
    """A pull that found nothing. `offset` moves on over messages that its filter refused."""

    connection: Connection
    request: Command
    header: PullMessageRequestHeader
    offset: int
    deadline: float
    answered: bool = False


@define(eq=False)
class ParkedSend:
    """Acknowledgements of one chunk, to be written once the log is safe up to `position`."""

    connection: Connection
    position: int
    deadline: float
    acks: list[Any] = field(repr=False)
    since: float = 0.0


def _not_wired(*_: Any) -> Any:
    raise AssertionError("Waits is not wired to the parts that answer")


class ParkingLine:
    """Sends that wait until the log is safe up to their positions, in the order in which it grew.

    `release(parked, in_time)` writes acknowledgements; `announce(deadline)` is told of each new deadline,
    `waited(since, acks)` of those that were reached and since when they stood here.
    """

    def __init__(self, announce: Callable[[float], None]) -> None:
        self.release: Callable[[ParkedSend, bool], None] = _not_wired
        self.waited: Callable[[float, int], None] = lambda since, acks: None
        self.acks = 0
        self._announce = announce
        self._line: deque[ParkedSend] = deque()

    def park(self, parked: ParkedSend) -> None:
        """Keep acknowledgements until their position is reached. Positions and deadlines never fall."""
        assert not self._line or self._line[-1].position <= parked.position
        self._line.append(parked)
        self.acks += len(parked.acks)
        self._announce(parked.deadline)

    def reached(self, position: int) -> None:
        """The log is safe up to `position`: write the acknowledgements that waited for it."""
        while self._line and self._line[0].position <= position:
            self._release(True)

    def expire(self, now: float) -> None:
        """Answer the sends whose deadline has passed."""
        while self._line and self._line[0].deadline <= now:
            self._release(False)

    @property
    def awaited(self) -> int:
        """The position that answers every send that waits; -1 when none does."""
        return self._line[-1].position if self._line else -1

    @property
    def oldest_deadline(self) -> float:
        """Deadline of the send that has waited longest; infinite when none waits."""
        return self._line[0].deadline if self._line else NEVER

    def _release(self, in_time: bool) -> None:
        parked = self._line.popleft()
        self.acks -= len(parked.acks)
        if in_time:
            self.waited(parked.since, len(parked.acks))
        self.release(parked, in_time)


class Waits:
    """The tables of waiting requests.

    `resume(pull, last)` tries a held pull again and says whether it answered; with `last` it must answer.
    `flush` holds the sends that wait for the disk, `replicas` those that wait for a slave.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.resume: Callable[[HeldPull, bool], bool] = _not_wired
        self.rescheduled: Callable[[], None] = lambda: None
        self.held = 0
        self._pulls: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._of_connection: dict[Connection, dict[HeldPull, None]] = {}
        self._timers: list[tuple[float, int, HeldPull]] = []
        self._order = count()
        self.flush = ParkingLine(self._announce)
        self.replicas = ParkingLine(self._announce)
        self._announced = NEVER

    def hold_pull(self, pull: HeldPull) -> None:
        """Keep a pull until its queue grows past its offset, its time is over, or its connection closes."""
        if pull.connection.closed:
            return
        self._pulls.setdefault((pull.header.topic, pull.header.queue_id), {})[pull] = None
        self._of_connection.setdefault(pull.connection, {})[pull] = None
        self.held += 1
        heappush(self._timers, (pull.deadline, next(self._order), pull))
        if len(self._timers) > 64 + 2 * self.held:
            self._drop_stale_timers()
        self._announce(pull.deadline)

    def arrived(self, topic: str, queue_id: int, next_offset: int) -> None:
        """A queue has messages below `next_offset`: try the pulls held there, each once."""
        pulls = self._pulls.get((topic, queue_id))
        if pulls is None:
            return
        for pull in list(pulls):
            if next_offset > pull.offset and not pull.answered and self.resume(pull, False):
                self._drop(pull)

    def step(self, now: float) -> float:
        """Answer what is due at `now`; returns the next deadline, infinite when nothing waits."""
        self.flush.expire(now)
        self.replicas.expire(now)
        timers = self._timers
        while timers and (timers[0][2].answered or timers[0][0] <= now):
            pull = heappop(timers)[2]
            if not pull.answered:
                self._finish(pull)
        lines = min(self.flush.oldest_deadline, self.replicas.oldest_deadline)
        self._announced = min(lines, timers[0][0] if timers else NEVER)
        return self._announced

    def closed(self, connection: Connection) -> None:
        """A connection is gone: forget its pulls. Its parked sends stay; their replies fall on deaf ears."""
        for pull in self._of_connection.pop(connection, ()):
            self._drop(pull)

    def finish_pulls(self) -> None:
        """Answer every held pull now, found or not: the broker stops."""
        for pulls in list(self._pulls.values()):
            for pull in list(pulls):
                self._finish(pull)

    def _finish(self, pull: HeldPull) -> None:
        answered = self.resume(pull, True)
        assert answered
        self._drop(pull)

    def _drop(self, pull: HeldPull) -> None:
        if pull.answered:  # its answer overfilled the outbox, which closed the connection, which dropped it
            return
        pull.answered = True
        self.held -= 1
        key = (pull.header.topic, pull.header.queue_id)
        pulls = self._pulls[key]
        del pulls[pull]
        if not pulls:
            del self._pulls[key]
        mine = self._of_connection.get(pull.connection)
        if mine is not None:
            del mine[pull]
            if not mine:
                del self._of_connection[pull.connection]

    def _drop_stale_timers(self) -> None:
        self._timers = [timer for timer in self._timers if not timer[2].answered]
        heapify(self._timers)

    def _announce(self, deadline: float) -> None:
        if deadline < self._announced:
            self._announced = deadline
            self.rescheduled()
