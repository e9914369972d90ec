"""Notices to the members of consumer groups that their group has changed, so that they rebalance at once.

A member that joins or leaves is told to all others, so a thousand members that come together would get half a
million notices, and look at the group after each. The first change of a group is told at once; the changes of
the following `APART_SECONDS` are told together, when that time is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import encode
from rmq.protocol.headers import NotifyConsumerIdsChangedRequestHeader

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.membership.members import ConsumerGroup
    from rmq.broker.tables.groups import Groups

APART_SECONDS: Final = 0.02
"""Seconds between two notices of a group."""


class Notices:
    """The notices to the members of `consumers`. `clock` is in seconds; `on_deadline(at)` is called when
    `step` is to be called by then."""

    def __init__(
        self,
        settings: Settings,
        groups: Groups,
        consumers: Mapping[str, ConsumerGroup],
        *,
        clock: Callable[[], float],
        on_deadline: Callable[[float], None],
    ) -> None:
        self._settings = settings
        self._groups = groups
        self._consumers = consumers
        self._clock = clock
        self._on_deadline = on_deadline
        self._is_silent = False
        self._next: dict[str, float] = {}  # when a group's next notice may go, the earliest first
        self._untold: set[str] = set()  # groups that have changed since their last notice

    def changed(self, group: str) -> None:
        """Notify the members of a consumer group of a change: now, or together with changes that follow."""
        now = self._clock()
        at = self._next.get(group, now)
        if at <= now:
            self.step(now)
            self._tell(group, now)
        elif group not in self._untold:
            self._untold.add(group)
            self._on_deadline(at)

    def step(self, now: float) -> float:
        """Notify of the changes that have waited; returns when to come again, infinite when none waits."""
        while self._next:
            group, at = next(iter(self._next.items()))
            if at > now:
                break
            del self._next[group]
            if group in self._untold:
                self._untold.discard(group)
                self._tell(group, now)
        return next(iter(self._next.values())) if self._untold else math.inf

    def fall_silent(self) -> None:
        """Notify members of no more changes: the broker stops, and all of them lose their connection."""
        self._is_silent = True

    def _tell(self, group: str, now: float) -> None:
        config, known = self._groups.table.get(group), self._consumers.get(group)
        if known is None or self._is_silent or not self._settings.broker.notify_consumer_ids_changed_enable:
            return
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return
        self._next[group] = now + APART_SECONDS
        header = NotifyConsumerIdsChangedRequestHeader(group)
        command = Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, oneway=True)
        frame = encode(command)
        for connection in list(known.members):
            connection.notify(command, frame)
