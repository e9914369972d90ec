"""Delayed messages: their due times, and their delivery to their real topics.

A delayed message lies in SCHEDULE_TOPIC_XXXX, in the queue of its level (queue id = level - 1), in order of
arrival and therefore of due times; its queue unit holds its due time. The progress of each level is in
`config/delayOffset.json`. Both are RocketMQ 4.9's. No function sleeps: `step` delivers the due messages and
returns the time of the next call.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from rmq.errors import CorruptRecord, LocalProtocolError, StoreError
from rmq.message import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    StoredMessage,
)
from rmq.protocol.bodies import DelayOffsetSerializeWrapper
from rmq.protocol.record import Record, decode_record, record_of
from rmq.store.config import delay_table

if TYPE_CHECKING:
    from rmq.store.store import Store

STEP_MESSAGES: Final = 100
"""Deliveries of one step; the event loop serves others between two steps."""
STEP_BYTES: Final = 1 << 20
"""So much one step delivers, and one message more of each level."""
UNSURE_MS: Final = 60_000
"""Of a store without its own progress what was due so long before its last record was delivered."""

log = logging.getLogger("rmq.broker")


class Schedule:
    """Delivers delayed messages of `store`.

    `put(record)` stores a due message, `commit()` commits these messages and answers their senders; both
    raise StoreError, and then no message of the level counts as delivered. `levels` is messageDelayLevel's
    text. `on_earlier()` is called when a message arrives that is due before all others, so that `step` is
    called earlier than it returned. `clock` is in seconds and never set, unlike the wall clock of due times.
    """

    def __init__(
        self,
        levels: str,
        store: Store,
        commit: Callable[[], None],
        on_earlier: Callable[[], None],
        clock: Callable[[], float],
        put: Callable[[Record], None],
    ) -> None:
        self.levels = delay_table(levels)
        self._on_earlier = on_earlier
        self._clock = clock
        self._store = store
        self._commit = commit
        self._put_record = put
        self._next: dict[int, int] = dict.fromkeys(self.levels, 0)
        self._dropped: dict[int, int] = {}  # the same of levels that are no longer there
        self._due: dict[int, int] = dict.fromkeys(self.levels, 0)  # when to look at a level again, ms
        self._turn: list[int] = list(self.levels)  # whose turn it is, first
        # After the wall clock was set back: below this offset messages came, first and last, at these times.
        self._there: dict[int, deque[tuple[int, int, int]]] = {level: deque() for level in self.levels}
        self._stepped_ms = 0
        self.is_changed = False

    @property
    def progress(self) -> dict[int, int]:
        """Level -> the queue offset that is delivered next."""
        return dict(self._next)

    def metrics(self) -> dict[str, str]:
        """The rows of the runtime metrics: how far each level is, and where it ends."""
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{self._store.max_offset(SCHEDULE_TOPIC, level - 1)}"
            for level, offset in self._next.items()
        }

    def load(self, data: bytes | None) -> None:
        """Take the progress of delayOffset.json; a level without progress begins at its first message. The
        progress of levels that messageDelayLevel no longer has is kept, and their waiting messages are
        logged."""
        table = DelayOffsetSerializeWrapper.from_json(data).offset_table if data else {}
        self._dropped = {}
        for level, offset in table.items():
            known = self._next if level in self._next else self._dropped
            known[level] = offset
        self._name_dropped()

    def check_ends(self) -> None:
        """On a master: correct the loaded progress if it is that of another store, or of a later state of
        this store. The level goes on at the first message that this store has not delivered."""
        sure_ms = self._store.last_ms - UNSURE_MS
        for level, offset in self._next.items():
            queue_id = level - 1
            if not self._store.never_reached(SCHEDULE_TOPIC, queue_id, offset):
                continue
            end = at = self._store.max_offset(SCHEDULE_TOPIC, queue_id)
            while (unit := self._store.unit(SCHEDULE_TOPIC, queue_id, at - 1)) and unit[2] > sure_ms:
                at -= 1
            log.warning(
                "delay level %d: the saved offset %d is not of this store, whose queue ends at %d: it goes on"
                " at %d",
                *(level, offset, end, at),
            )
            self._next[level], self.is_changed = at, True

    def follow(self, progress: Mapping[int, int]) -> None:
        """A slave's: have the master's progress, level by level."""
        for level, offset in progress.items():
            known = self._next if level in self._next else self._dropped
            if known.get(level) != offset:
                known[level] = offset
                self.is_changed = True

    def _name_dropped(self) -> None:
        for topic, queue_id in self._store.queues():
            level = queue_id + 1
            if topic != SCHEDULE_TOPIC or level in self._next:
                continue
            low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
            waiting = high - max(low, self._dropped.get(level, 0))
            if waiting > 0:
                log.error(
                    "delay level %d is not in messageDelayLevel, which ends at level %d: its messages (%d)"
                    " are not delivered; set it back to at least %d levels",
                    level,
                    len(self._next),
                    waiting,
                    level,
                )

    def to_json(self) -> bytes:
        """The content of delayOffset.json."""
        self.is_changed = False
        return DelayOffsetSerializeWrapper(self._next | self._dropped).to_json()

    def arrived(self, queue_id: int, now_ms: int) -> None:
        """A queue of the schedule topic got messages."""
        level = queue_id + 1
        if level in self._due:
            self._note_arrival(level, now_ms)
            due = self._due_at(level, now_ms)
            if due is not None and due < self._due[level]:
                earliest = min(self._due.values())
                self._due[level] = due
                if due < earliest:
                    self._on_earlier()

    def step(self, now_ms: int) -> int:
        """Deliver all messages due at `now_ms`; return the time (ms) of the next step, now if more messages
        are due."""
        if now_ms < self._stepped_ms:  # the clock was set back: what was due at a time may be due earlier
            self._due = dict.fromkeys(self.levels, 0)
        self._stepped_ms = now_ms
        left = STEP_MESSAGES
        for level in [level for level in self._turn if self._due[level] <= now_ms]:
            left -= self._deliver(level, now_ms, left)
            if left <= 0:
                self._turn.remove(level)
                self._turn.append(level)  # the others first, next time
                break
        return max(now_ms, min(self._due.values(), default=now_ms + _IDLE_MS))

    def _deliver(self, level: int, now_ms: int, most: int) -> int:
        """Deliver at most `most` messages of a level; return how many, `most` also when they are large."""
        offset = start = self._first(level)
        size = 0
        failure: StoreError | None = None
        try:
            while (
                offset < start + most
                and size < STEP_BYTES
                and (due := self._due_of(level, offset, now_ms)) is not None
            ):
                if due > now_ms:
                    break
                size += self._put(level, offset)
                offset += 1
        except StoreError as error:  # what was put before is committed all the same, or it would come twice
            failure = error
        # First the messages, then how far they are: killed in between, the broker delivers them twice, never
        # not at all.
        if offset > start:
            self._commit()
        if offset != self._next[level]:
            self._next[level] = offset
            self.is_changed = True
        there = self._there[level]
        while there and there[0][0] <= offset:
            there.popleft()
        if failure is not None:
            raise failure
        due = self._due_of(level, offset, now_ms)
        self._due[level] = now_ms + _IDLE_MS if due is None else max(due, now_ms)
        return offset - start if size < STEP_BYTES else most

    def _first(self, level: int) -> int:
        """The offset to deliver next, corrected to the range of the queue."""
        low = self._store.min_offset(SCHEDULE_TOPIC, level - 1)
        high = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
        offset = self._next[level]
        if not low <= offset <= high:
            log.warning(
                "delay level %d: offset %d is outside %d..%d and is corrected", level, offset, low, high
            )
            return min(max(offset, low), high)
        return offset

    def _due_at(self, level: int, now_ms: int) -> int | None:
        return self._due_of(level, self._next[level], now_ms)

    def _due_of(self, level: int, offset: int, now_ms: int) -> int | None:
        unit = self._store.unit(SCHEDULE_TOPIC, level - 1, offset)
        if unit is None:
            return None
        due, delay, there = unit[2], self.levels[level], self._there[level]
        # A clock that was set back must not hold messages longer than their level from when that is noticed,
        # nor are they early. Those that come in the next seconds have a store time from before it was set.
        if due > now_ms + delay and (not there or there[-1][0] <= offset):
            now = self._ms()
            there.append((self._store.max_offset(SCHEDULE_TOPIC, level - 1), now, now))
        for end, _, last in there:
            if offset < end:
                return min(due, now_ms + max(0, last + delay - self._ms()))
        return due

    def _note_arrival(self, level: int, now_ms: int) -> None:
        """Record the arrival of a message whose store time comes from a clock that was set back since.
        Messages within a 64th of their delay share the time of the last message."""
        end, delay = self._store.max_offset(SCHEDULE_TOPIC, level - 1), self.levels[level]
        unit = self._store.unit(SCHEDULE_TOPIC, level - 1, end - 1)
        if unit is None or unit[2] <= now_ms + delay:
            return
        there, now = self._there[level], self._ms()
        if there and now < there[-1][1] + delay // 64:
            there[-1] = end, there[-1][1], now
        else:
            there.append((end, now, now))

    def _ms(self) -> int:
        """Of the clock that is never set."""
        return round(self._clock() * 1000)

    def _put(self, level: int, offset: int) -> int:
        """Deliver a message; returns its size."""
        unit = self._store.unit(SCHEDULE_TOPIC, level - 1, offset)
        data = None if unit is None else self._store.read(unit[0])
        if data is None:
            log.warning("delay level %d: message %d is no longer in the log", level, offset)
            return 0
        try:
            record = _undelayed(decode_record(data, decompressed=False))
        except (CorruptRecord, LocalProtocolError, KeyError, ValueError) as error:
            log.error("delay level %d: message %d cannot be delivered: %r", level, offset, error)
            return 0
        self._put_record(record)
        return record.size


_IDLE_MS: Final = 60_000
"""Sleep of an empty level, in ms; an arrival wakes it at once."""


def _undelayed(message: StoredMessage) -> Record:
    """The record that is delivered: RocketMQ keeps DELAY, REAL_TOPIC and REAL_QID in its properties."""
    properties = message.properties
    topic = properties[PROPERTY_REAL_TOPIC]
    if topic == TRANS_HALF_TOPIC:
        raise ValueError(f"its real topic is {topic}")
    return record_of(message, topic, int(properties[PROPERTY_REAL_QUEUE_ID]), properties)
