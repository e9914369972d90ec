"""Long polling: reads that found no message yet, as rows in a table: pulls of clients, and reads of doors.

No row has a task or a timer of its own. A parked pull is a row under its queue, tried when messages arrive; a
deadline is an entry of a single heap, which `step` works off. A send pays for a bounded number of the pulls
of its queue: `step` tries the rest, a bounded number at a time, queue by queue in turn. Times are seconds of
the clock given at construction, which must never run backwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

from attrs import define, field

from rmq.shares import NOBODY, Holders, Holding, Shares

if TYPE_CHECKING:
    from rmq.errors import ResponseError
    from rmq.protocol.bodies import SubscriptionGroupConfig
    from rmq.protocol.command import Command
    from rmq.protocol.headers import PullMessageRequestHeader
    from rmq.remoting.connection import Connection
    from rmq.store.reader import GetResult

    Found = tuple[SubscriptionGroupConfig, GetResult, int]
    """The group that reads, the result, and its response code."""


NEVER = math.inf
TRIES_OF_A_TURN: Final = 256
"""Held pulls that one turn looks at: some milliseconds of work."""
TRIES_OF_A_QUEUE: Final = 64
"""Held pulls of one queue that a turn looks at before the next queue is tried."""
SEES_NO_END: Final = "GO"
"""The language of clients that do not notice the end of a connection over which they wait for a response:
they wait for half a minute."""
_LONG: Final = 1024


class ReadRequest(Protocol):
    """The messages that a consumer asks for; the header of a pull is one such value."""

    @property
    def consumer_group(self) -> str:
        """The group that reads."""

    @property
    def topic(self) -> str:
        """The topic to read."""

    @property
    def queue_id(self) -> int:
        """The queue of the topic."""

    @property
    def queue_offset(self) -> int:
        """The offset of the first message."""

    @property
    def max_msg_nums(self) -> int:
        """The most messages that are taken."""

    @property
    def sys_flag(self) -> int:
        """With PULL_SUBSCRIPTION the value has its own expression, else the group's subscription holds."""

    @property
    def subscription(self) -> str | None:
        """The expression that messages must match; None or `*` for all messages."""

    @property
    def expression_type(self) -> str | None:
        """TAG or SQL92; None stands for TAG."""

    @property
    def sub_version(self) -> int:
        """The version of the subscription that the group's members must have announced."""

    @property
    def topic_created_ms(self) -> int | None:
        """The creation (ms) of the topic that the offset belongs to; None when the reader does not know."""


class Reading(Holding, Protocol):
    """The connection of a consumer, of the wire or of a door."""

    @property
    def local_address(self) -> str:
        """``host:port`` of this side."""

    @property
    def is_closed(self) -> bool:
        """True if the connection has ended."""

    @property
    def is_busy(self) -> bool:
        """True if so many bytes wait to be sent that a read should take a single message."""

    def reset_on_close(self) -> None:
        """Let the peer see a broken connection when this connection is closed."""

    def finish(self, reason: str) -> None:
        """Close the connection behind the bytes that wait to be sent."""


OnResult = Callable[["ParkedRead", "Found | ResponseError"], None]
"""Called once, with the result of a held read or its refusal."""


@define(eq=False)
class ParkedRead:
    """A read that found nothing. `offset` moves on over messages that its filter refused.

    `holders` are the names under which the row counts.
    """

    connection: Reading
    header: ReadRequest
    offset: int
    deadline: float
    on_result: OnResult
    holders: Holders = NOBODY
    is_answered: bool = False

    @property
    def is_answered_at_stop(self) -> bool:
        """True if the broker answers the read when it stops; otherwise it breaks the connection."""
        return True


@define(eq=False)
class ParkedPull(ParkedRead):
    """A pull that found nothing. `request` needs no text map and no body: `header` has all fields for another
    try."""

    connection: Connection = field(kw_only=True)
    header: PullMessageRequestHeader = field(kw_only=True)
    request: Command = field(kw_only=True)

    @property
    def is_answered_at_stop(self) -> bool:
        """True if its client does not notice that the connection of a waiting call breaks."""
        return self.request.language == SEES_NO_END


@define(eq=False)
class _Round:
    """Parked reads of a queue that were not tried since messages below `end` came; the last read is tried
    next. `has_more`: more messages have come since, so that the earlier reads are tried once more."""

    untried: list[ParkedRead]
    end: int
    has_more: bool = False


class ParkedPulls:
    """The table of parked pulls.

    `resume(pull, last)` tries a parked pull again and returns whether the pull was answered; with `last` it
    must answer the pull. Without `last` several pulls of a queue are tried in a row, and `on_tried` is called
    after the row.
    `on_deadline(at)` is called with each new deadline, so that `step` is called by then.

    `count` is the figure that limits apply to: a pull counts as 1, and 1 more for each KiB of its expression.
    The figure is kept for each connection, and in `shares` for each account or address. While the table
    `is_silent`, a pull is parked even if messages for it exist.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        resume: Callable[[ParkedRead, bool], bool],
        on_deadline: Callable[[float], None],
        on_tried: Callable[[], None] = lambda: None,
    ) -> None:
        self.clock = clock
        self._on_tried = on_tried
        self._resume = resume
        self._on_deadline = on_deadline
        self.count = 0
        self.shares = Shares(0)
        self.is_silent = False
        self._pulls: dict[tuple[str, int], dict[ParkedRead, None]] = {}
        self._rounds: dict[tuple[str, int], _Round] = {}  # of queues with more pulls than a turn has room for
        self._tries = TRIES_OF_A_TURN
        self._of_connection: dict[Reading, dict[ParkedRead, None]] = {}
        self._long: dict[Reading, int] = {}  # the part of long expressions
        self._timers: list[tuple[float, int, ParkedRead]] = []
        self._order = count()

    def by_queue(self) -> dict[tuple[str, int], int]:
        """The number of pulls held for each queue, by topic and queue id."""
        return {queue: len(pulls) for queue, pulls in self._pulls.items()}

    def held_by(self, connection: Reading) -> int:
        """The pulls held for a connection."""
        mine = self._of_connection.get(connection)
        return 0 if mine is None else len(mine) + self._long.get(connection, 0)

    def has_of(self, topic: str, queue_id: int, group: str) -> bool:
        """True if a read of a group waits for a queue."""
        pulls = self._pulls.get((topic, queue_id), ())
        return any(pull.header.consumer_group == group for pull in pulls)

    def park_pull(self, pull: ParkedRead) -> None:
        """Keep a pull until its queue grows past its offset, its time is over, or its connection closes."""
        connection, header = pull.connection, pull.header
        if connection.is_closed:
            return
        if self.is_silent and not pull.is_answered_at_stop:
            connection.reset_on_close()
        self._pulls.setdefault((header.topic, header.queue_id), {})[pull] = None
        self._of_connection.setdefault(connection, {})[pull] = None
        self._count(pull, 1)
        heappush(self._timers, (pull.deadline, next(self._order), pull))
        if len(self._timers) > 64 + 2 * self.count:
            self._drop_stale_timers()
        self._on_deadline(pull.deadline)

    def turn(self) -> None:
        """A turn of the loop begins: `TRIES_OF_A_TURN` pulls may be tried in it."""
        self._tries = TRIES_OF_A_TURN

    def arrived(self, topic: str, queue_id: int, next_offset: int) -> None:
        """A queue has messages below `next_offset`: try the pulls parked at it, each once. Pulls beyond the
        bound of this turn are tried by `step`, soon."""
        key = (topic, queue_id)
        pulls = self._pulls.get(key)
        if pulls is None or self.is_silent:
            return
        # Most queues have one or two pulls, which are tried here. More pulls are tried in a round, over
        # several turns, so that a send does not pay at once for all readers of its queue.
        if key in self._rounds or len(pulls) > TRIES_OF_A_QUEUE or len(pulls) > self._tries:
            self._begin_round(key, pulls, next_offset)
            return
        self._tries -= len(pulls)
        for pull in list(pulls):
            if next_offset > pull.offset and not pull.is_answered and self._resume(pull, False):
                self._drop(pull)
        self._on_tried()

    def _begin_round(self, key: tuple[str, int], pulls: dict[ParkedRead, None], end: int) -> None:
        round = self._rounds.get(key)
        if round is not None:
            round.end, round.has_more = end, True
            return
        round = self._rounds[key] = _Round(list(reversed(pulls)), end)
        self._go_on(key, round)
        if key in self._rounds:
            self._on_deadline(self.clock())

    def step(self, now: float) -> float:
        """Answer every pull that is due at `now`; return the next deadline, infinite without parked pulls.
        The deadline is `now` when a turn left more work: other tasks go first."""
        if self.is_silent:
            return NEVER
        self.turn()
        for key, round in list(self._rounds.items()):
            if self._tries > 0:
                self._go_on(key, round)
        timers = self._timers
        while timers and (timers[0][2].is_answered or timers[0][0] <= now) and self._tries > 0:
            pull = heappop(timers)[2]
            if not pull.is_answered:
                self._tries -= 1
                self._finish(pull)
        return now if self._rounds else timers[0][0] if timers else NEVER

    def _go_on(self, key: tuple[str, int], round: _Round) -> None:
        """Try some pulls of a round; the round goes to the end of the line, or ends."""
        left = min(self._tries, TRIES_OF_A_QUEUE)
        while round.untried and left > 0:
            pull = round.untried.pop()
            if round.end > pull.offset and not pull.is_answered:
                left -= 1
                self._tries -= 1
                if self._resume(pull, False):
                    self._drop(pull)
        self._on_tried()
        # A pull may have been tried before the last messages came: so all remaining pulls get another try.
        if round.has_more and not round.untried:
            round.untried, round.has_more = list(reversed(self._pulls.get(key, ()))), False
        del self._rounds[key]
        if round.untried:
            self._rounds[key] = round

    def on_close(self, connection: Reading) -> None:
        """A connection has ended: forget its pulls."""
        for pull in self._of_connection.pop(connection, ()):
            self._drop(pull)

    def finish_where(self, holds: Callable[[ParkedRead], bool]) -> None:
        """Answer all pulls for which `holds` is true, with or without messages."""
        if self.is_silent:
            return
        for pull in self.all_pulls():
            if not pull.is_answered and holds(pull):
                self._finish(pull)

    def fall_silent(self) -> None:
        """The broker stops soon: answer no pull until `finish_last`.

        The connections of these pulls break. After an orderly end Java's consumers would wait another half
        minute. They notice a broken connection when they read from it, but not when they write at that
        moment, since Netty closes it without informing the waiting calls. A pull that was answered would make
        its client write, to pull again.
        """
        self.is_silent = True
        for pull in self.all_pulls():
            if not pull.is_answered_at_stop:
                pull.connection.reset_on_close()

    def finish_last(self) -> None:
        """Answer the reads that are answered at a stop, and end each connection right behind its response,
        before the client can pull again."""
        waiting = [pull for pull in self.all_pulls() if pull.is_answered_at_stop]
        for pull in waiting:
            self._finish(pull)
        for connection in {pull.connection: None for pull in waiting}:
            connection.finish("this broker is stopping")

    def all_pulls(self) -> list[ParkedRead]:
        """All held pulls."""
        return [pull for pulls in self._pulls.values() for pull in pulls]

    def _finish(self, pull: ParkedRead) -> None:
        answered = self._resume(pull, True)
        assert answered
        self._drop(pull)

    def _drop(self, pull: ParkedRead) -> None:
        if (
            pull.is_answered
        ):  # the answer overfilled the outbox: the connection was closed, and the pull dropped
            return
        pull.is_answered = True
        self._count(pull, -1)
        assert self.count >= 0
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

    def _count(self, pull: ParkedRead, sign: int) -> None:
        """Count a pull, and the size of a long expression."""
        text, count = pull.header.subscription, sign
        if text and len(text) >= _LONG:
            extra = len(text) // _LONG * sign
            count += extra
            _add(self._long, pull.connection, extra)
        self.count += count
        self.shares.add(pull.holders, count)

    def _drop_stale_timers(self) -> None:
        self._timers = [timer for timer in self._timers if not timer[2].is_answered]
        heapify(self._timers)


def _add(table: dict[Any, int], key: Any, count: int) -> None:
    left = table.get(key, 0) + count
    if left:
        table[key] = left
    else:
        table.pop(key, None)
