"""Takes that found no message yet (long polling), as rows without a task or timer.

A poll is tried again when its topic has a message for its group: a new message, a message that was given
back, or a retry whose time has come. The polls of a group are tried in order of arrival, until a poll finds
nothing; a turn answers a bounded number, and `step` goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

from rmq.errors import ResponseError, for_code
from rmq.protocol.codes import ResponseCode
from rmq.shares import NOBODY, Holders, Shares

if TYPE_CHECKING:
    from attrs import define

    from rmq.broker.config import Settings
    from rmq.broker.consume.long_polling import Reading
    from rmq.broker.consume.per_message.taking import Handed
    from rmq.doors import TakeRequest

    OnTaken = Callable[[Sequence[Handed] | ResponseError], None]
else:
    from rmq.lazy_attrs import define

TRIES_OF_A_TURN: Final = 64
"""Polls that one turn answers: each may be 32 messages."""

TRIES_AT_ONCE: Final = 8
"""Polls that a sender's turn answers."""

Key = tuple[str, str]
"""A group and a topic."""


@define(eq=False)
class HeldTake:
    """A take that waits. `is_answered_at_stop`: it gets an empty answer when the broker stops, else the
    connection breaks.
    """

    connection: Reading
    request: TakeRequest
    deadline: float
    on_taken: OnTaken
    holders: Holders = NOBODY
    is_answered_at_stop: bool = True
    asks_only: bool = False
    """True if the take is answered, without messages, as soon as a message is ready."""
    is_answered: bool = False


class HeldTakes:
    """The table of takes that wait.

    `take(held)` takes messages for a row; it may find nothing, and raises ResponseError for a refusal.
    `has(held)` says whether a message for the row exists, and raises as well. `on_deadline(at)` is called
    with each new deadline, so that `step` is called by then. Times are in seconds of `clock`.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float],
        on_deadline: Callable[[float], None],
        take: Callable[[HeldTake], Sequence[Handed]],
        has: Callable[[HeldTake], bool],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_deadline = on_deadline
        self._take = take
        self._has = has
        self.is_silent = False
        self._polls: dict[Key, dict[HeldTake, None]] = {}
        self._groups: dict[str, dict[Key, None]] = {}  # by topic
        self._of_connection: dict[Reading, dict[HeldTake, None]] = {}
        self._timers: list[tuple[float, int, HeldTake]] = []
        self._to_wake: dict[Key, None] = {}
        self._order = count()
        self._shares = Shares(0)

    def __len__(self) -> int:
        """The number of takes that wait."""
        return self._shares.used

    @property
    def shares(self) -> Shares:
        """The places of the takes that wait."""
        self._shares.most = self._settings.broker.pull_thread_pool_queue_capacity
        return self._shares

    def waiting(self, key: Key) -> int:
        """The takes of a group that wait for a topic."""
        return len(self._polls.get(key, ()))

    def hold(self, held: HeldTake) -> None:
        """Keep a take until it finds a message, its time is over, or its connection closes. Raises
        ResponseError when too many wait.
        """
        if held.connection.is_closed:
            return
        self._check_room(held)
        if self.is_silent and not held.is_answered_at_stop:
            held.connection.reset_on_close()
        key = held.request.consumer_group, held.request.topic
        self._polls.setdefault(key, {})[held] = None
        self._groups.setdefault(key[1], {})[key] = None
        self._of_connection.setdefault(held.connection, {})[held] = None
        self._shares.add(held.holders)
        heappush(self._timers, (held.deadline, next(self._order), held))
        if len(self._timers) > 64 + 2 * len(self):
            self._timers = [timer for timer in self._timers if not timer[2].is_answered]
            heapify(self._timers)
        self._on_deadline(held.deadline)

    def _check_room(self, held: HeldTake) -> None:
        config = self._settings.broker
        self._shares.most = config.pull_thread_pool_queue_capacity
        mine = len(self._of_connection.get(held.connection, ()))
        full = self._shares.full(held.holders)
        if mine >= config.max_held_pulls_of_connection:
            most = config.max_held_pulls_of_connection
            full = f"{mine} of this connection, maxHeldPullsOfConnection is {most}"
        if full:
            text = f"takes wait for messages: {full} (pullThreadPoolQueueCapacity)"
            raise for_code(
                ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]system busy, start flow control for a while: {text}"
            )

    def arrived(self, topic: str) -> None:
        """A topic has new messages: try a few polls of its groups now, and the others soon."""
        if topic not in self._groups or self.is_silent:
            return
        tries = TRIES_AT_ONCE
        for key in list(self._groups[topic]):
            if tries > 0:
                tries -= self._try(key, tries)
            else:
                self.wake(key)

    def wake(self, key: Key) -> None:
        """A group has a message to take: try its polls, soon."""
        if key in self._polls and not self.is_silent:
            self._to_wake[key] = None
            self._on_deadline(self._clock())

    def step(self, now: float) -> float:
        """Answer what is ready or due; return the next deadline, infinite when nothing waits."""
        if self.is_silent:
            return math.inf
        tries = TRIES_OF_A_TURN
        while self._to_wake and tries > 0:
            key = next(iter(self._to_wake))
            del self._to_wake[key]
            tries -= self._try(key, tries)
        timers = self._timers
        while timers and (timers[0][2].is_answered or timers[0][0] <= now):
            held = heappop(timers)[2]
            if not held.is_answered:
                self._answer(held, ())
        return now if self._to_wake else timers[0][0] if timers else math.inf

    def _try(self, key: Key, most: int) -> int:
        """Try the polls of a group; return how many were tried."""
        tried = 0
        for held in list(self._polls.get(key, ())):
            if tried >= most:
                self.wake(key)
                break
            if held.is_answered:
                continue
            tried += 1
            handed: Sequence[Handed] = ()
            try:
                if held.asks_only:
                    if self._has(held):
                        self._answer(held, ())
                    continue
                handed = self._take(held)
            except ResponseError as error:
                self._answer(held, error)
                continue
            if handed:
                self._answer(held, handed)
            elif held.request.queue_id < 0 and held.request.chooser is None:
                break
        return tried

    def _answer(self, held: HeldTake, found: Sequence[Handed] | ResponseError) -> None:
        self.drop(held)
        held.on_taken(found)

    def drop(self, held: HeldTake) -> None:
        """End a wait without an answer."""
        if held.is_answered:
            return
        held.is_answered = True
        self._shares.give(held.holders)
        key = held.request.consumer_group, held.request.topic
        polls = self._polls[key]
        del polls[held]
        if not polls:
            del self._polls[key]
            groups = self._groups[key[1]]
            del groups[key]
            if not groups:
                del self._groups[key[1]]
        mine = self._of_connection.get(held.connection)
        if mine is not None:
            del mine[held]
            if not mine:
                del self._of_connection[held.connection]

    def on_close(self, connection: Reading) -> None:
        """A connection has ended: forget its polls."""
        for held in list(self._of_connection.get(connection, ())):
            self.drop(held)

    def finish_topic(self, topic: str) -> None:
        """A topic is deleted: try its polls, which are refused now."""
        self.arrived(topic)

    def fall_silent(self) -> None:
        """The broker stops soon: answer no poll until `finish_last`."""
        self.is_silent = True
        for mine in self._of_connection.values():
            for held in mine:
                if not held.is_answered_at_stop:
                    held.connection.reset_on_close()

    def finish_last(self) -> None:
        """Answer the polls that get an answer at a stop."""
        for mine in list(self._of_connection.values()):
            for held in list(mine):
                if held.is_answered_at_stop:
                    self._answer(held, ())
