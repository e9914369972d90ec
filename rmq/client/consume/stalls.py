"""Stalls: finds messages without progress. Pure: `scan` is called at intervals.

A message is stalled that has been with its handler, or the oldest unfinished message of its queue, for too
long. Nothing is recorded when a message is taken or finished, so scans are the only cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from attrs import field

from rmq.client.consume.dispatch import Dispatch
from rmq.client.consume.message_view import PulledMessage
from rmq.client.consume.process_queue import ProcessQueue
from rmq.client.session.events import Stalled
from rmq.errors import CorruptRecord
from rmq.message import MessageQueue

if TYPE_CHECKING:
    from attrs import define
else:
    from rmq.lazy_attrs import define

SCANS = 6
"""Looks at a message before it counts as stalled."""

Reason = Literal["handler", "unfinished", "untaken"]
_Place = tuple[MessageQueue, int]


@define(eq=False)
class Stalls:
    """The stalls of one consumer. `seconds` is the longest time without progress; 0: no limit."""

    group: str
    seconds: float
    dispatch: Dispatch[Any]
    current: dict[_Place, Stalled] = field(factory=dict)
    """The stalls of the last look."""
    _since: dict[tuple[_Place, Reason], float] = field(factory=dict)
    _places: set[_Place] = field(factory=set)
    _moved: float = 0.0  # time of the last seen end of a message

    @property
    def has_found(self) -> bool:
        """True if the last look found an unfinished message."""
        return bool(self._places)

    def restart(self, message: PulledMessage) -> None:
        """Restart the time of a message that makes progress."""
        if message.window is not None:
            place = message.window.queue, message.queue_offset
            self._since.pop((place, "handler"), None)
            self.current.pop(place, None)

    def scan(
        self, now: float, windows: Iterable[ProcessQueue], handled: Iterable[PulledMessage]
    ) -> list[Stalled]:
        """Messages that have become stalled since the last scan. `handled` are the messages of handlers and
        deliveries."""
        by_queue = {window.queue: window for window in windows}
        found = self._find(by_queue, handled)
        places = {place for place, _ in found} | {(q, w.commit_offset) for q, w in by_queue.items() if len(w)}
        if self._places - places or not self._places:
            self._moved = now
        self._places = places
        since = {key: self._since.get(key, now) for key in found}
        was, self._since, self.current = self.current, since, {}
        for (place, reason), message in sorted(found.items(), key=itemgetter(0)):
            window = by_queue[place[0]]
            began = since[place, reason]
            if reason == "untaken":
                # While others end, it only waits for its turn behind handlers that take long.
                began = max(began, self._moved) if window.is_full else now
            if now - began >= self.seconds:
                stalled = was.get(place)
                if stalled is None or stalled.reason != reason:
                    stalled = self._stalled(window, place[1], reason, message)
                self.current[place] = stalled
        return [stalled for place, stalled in self.current.items() if was.get(place) is not stalled]

    def _find(
        self, by_queue: Mapping[MessageQueue, ProcessQueue], handled: Iterable[PulledMessage]
    ) -> dict[tuple[_Place, Reason], PulledMessage | None]:
        """The messages with handlers, and the oldest of each queue, unless it is paused or waits for a
        redelivery."""
        found: dict[tuple[_Place, Reason], PulledMessage | None] = {}
        for message in handled:
            window = message.window
            if window is not None and by_queue.get(window.queue) is window and message.queue_offset in window:
                found[(window.queue, message.queue_offset), "handler"] = message
        oldest = {
            window: window.commit_offset
            for queue, window in by_queue.items()
            if len(window)
            and not self.dispatch.is_paused(queue)
            and ((queue, window.commit_offset), "handler") not in found
        }
        waiting = self.dispatch.waiting(oldest)
        for window in oldest.keys() - self.dispatch.postpone(oldest):
            reason: Reason = "untaken" if window in waiting else "unfinished"
            found[(window.queue, oldest[window]), reason] = waiting.get(window)
        return found

    def _stalled(
        self, window: ProcessQueue, queue_offset: int, reason: Reason, message: PulledMessage | None
    ) -> Stalled:
        message_id, keys = "", tuple[str, ...]()
        if message is not None:
            try:
                message_id, keys = message.message_id, tuple(message.keys)
            except CorruptRecord:
                message_id = "(damaged)"
        return Stalled(
            self.group,
            window.queue,
            queue_offset,
            reason,
            self.seconds,
            len(window),
            window.is_full,
            message_id,
            keys,
        )
