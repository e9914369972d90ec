"""Corrections of delays that were requested while the wall clock was ahead: counted again once the clock was
set back."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rmq.broker.delay.timer_records import (
    PROPERTY_OUT_MS,
    PROPERTY_RECALLED,
    delay_ms,
    has_room,
    marked_message,
    replaced_offset,
    timer_message,
)
from rmq.errors import StoreError
from rmq.message import PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC, PROPERTY_UNIQUE_KEY, TIMER_TOPIC
from rmq.protocol.properties import PROPERTY_TIMER_HANDLE_MS, PROPERTY_TIMER_REPLACES, encode_properties
from rmq.protocol.record import Record, record_of

if TYPE_CHECKING:
    from rmq.store.store import Store

CLOCK_STEP_MS: Final = 1_000
"""A wall clock that is set back by less is left alone."""
STEP_LOOKS: Final = 1_000
"""Records that one step looks at."""
STEP_COPIES: Final = 100
STEP_BYTES: Final = 1 << 20
"""So much one step copies, and one message more."""

log = logging.getLogger("rmq.broker")


class Corrections:
    """Copies messages of the timer queue that wait for too long, a step at a time.

    `waiting` is queue offset -> time of the waiting messages; `on_copied(offsets)` removes the originals from
    `waiting` once their copies are committed. `put` and `commit` raise StoreError.
    """

    def __init__(
        self,
        store: Store,
        waiting: Mapping[int, int],
        commit: Callable[[], None],
        put: Callable[[Record], None],
        on_copied: Callable[[Sequence[int]], None],
    ) -> None:
        self._store = store
        self._waiting = waiting
        self._commit = commit
        self._put_record = put
        self._on_copied = on_copied
        self._noticed_ms = 0
        self._doubted: deque[int] = deque()
        self._to_correct: deque[int] = deque()
        self._have_copies: set[int] = set()

    def doubt(self, offsets: Iterable[int], now_ms: int) -> None:
        """Begin to check messages, oldest first: at `now_ms` the broker noticed that the clock was set
        back."""
        self._doubted, self._noticed_ms = deque(offsets), now_ms
        self._to_correct.clear()
        self._have_copies.clear()

    def step(self) -> bool:
        """Check some of the doubted messages, or correct some; return whether more remain.

        A message whose store time is in the future, and that asked for a delay, is copied with that delay
        from the time of its discovery. Another master may have copied the message already, so all messages
        are checked before the first is copied.
        """
        if self._doubted:
            self._check_doubted()
        elif self._to_correct:
            self._copy_some()
        if self._doubted or self._to_correct:
            return True
        self._have_copies.clear()
        return False

    def _check_doubted(self) -> None:
        for _ in range(min(STEP_LOOKS, len(self._doubted))):
            offset = self._doubted.popleft()
            if offset not in self._waiting:
                continue
            message = marked_message(self._store, offset)
            replaced = None if message is None else replaced_offset(message)
            if replaced is not None:
                self._have_copies.add(replaced)
            if self._store.message_time(TIMER_TOPIC, 0, offset) > self._noticed_ms + CLOCK_STEP_MS:
                self._to_correct.append(offset)

    def _copy_some(self) -> None:
        looks = written = 0
        copied: list[int] = []
        failure: StoreError | None = None
        while self._to_correct and looks < STEP_COPIES and written < STEP_BYTES:
            offset = self._to_correct[0]
            looks += 1
            due_ms = self._waiting.get(offset)
            if due_ms is not None and offset not in self._have_copies:
                try:
                    size = self._put_corrected(offset, due_ms)
                except StoreError as error:
                    failure = error
                    break
                if size:
                    copied.append(offset)
                    written += size
            self._to_correct.popleft()
        try:
            if self._store.has_pending:
                self._commit()
        except BaseException:
            self._to_correct.extendleft(reversed(copied))
            raise
        self._on_copied(copied)
        if failure is not None:
            raise failure

    def _put_corrected(self, offset: int, due_ms: int) -> int:
        """Put a copy of a message with the time that its delay gives now, and a recall of the original.
        Return the bytes of the copy; 0 for a message whose time is right, for a message that no recall can
        name, and for a message without room for the mark of a copy."""
        message = timer_message(self._store, offset)
        if message is None or PROPERTY_RECALLED in message.properties:
            return 0
        properties = message.properties
        topic, unique_key = properties.get(PROPERTY_REAL_TOPIC, ""), properties.get(PROPERTY_UNIQUE_KEY, "")
        earlier_ms = self._noticed_ms + delay_ms(properties, due_ms)
        if not unique_key or earlier_ms >= due_ms:
            return 0
        recall = {
            PROPERTY_RECALLED: f"{topic}+{unique_key}",  # rmq before `PROPERTY_TIMER_REPLACES` reads this one
            PROPERTY_TIMER_REPLACES: str(offset),
            PROPERTY_REAL_TOPIC: topic,
            PROPERTY_REAL_QUEUE_ID: properties[PROPERTY_REAL_QUEUE_ID],
            PROPERTY_OUT_MS: str(due_ms),
        }
        properties |= {PROPERTY_OUT_MS: str(earlier_ms), PROPERTY_TIMER_REPLACES: str(offset)}
        properties.setdefault(PROPERTY_TIMER_HANDLE_MS, str(due_ms))
        again = record_of(message, TIMER_TOPIC, 0, properties, earlier_ms)
        if not has_room(again):  # stored by an earlier version
            log.error("timer message %d has no room in its properties for a correction", offset)
            return 0
        cancel = Record(TIMER_TOPIC, 0, b"0", encode_properties(recall), tags_code=due_ms)
        cancel.born_timestamp, cancel.born_host = self._noticed_ms, again.born_host
        self._put_record(again)
        self._put_record(cancel)
        return again.size
