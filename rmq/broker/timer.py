"""Messages with a delivery time of their own, up to 40 days ahead, and their recall.

RocketMQ 4.9 knows 18 fixed delays; the properties that name any time (TIMER_DELIVER_MS, TIMER_DELAY_MS,
TIMER_DELAY_SEC) and the recall handle are 5.x's. Such a message lies in the topic rmq_sys_wheel_timer, queue
0, with its real place in REAL_TOPIC and REAL_QID and its time in TIMER_OUT_MS, which is also the tags code of
its queue unit: the pending ones are found again at start by reading units only. A recall is a record of the
same time that names the message; both come up together and cancel out.

`config/timerProgress.json` says up to which time everything is delivered. After a crash what was delivered
since it was saved is delivered again: at least once, as with delay levels. A message that waits longer than
half of what the log is kept for is written anew, so that it is never deleted with an old file.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from rmq.errors import CorruptRecord, LocalProtocolError, for_code
from rmq.message import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQUE_KEY,
    TIMER_TOPIC,
    StoredMessage,
)
from rmq.protocol import json
from rmq.protocol.codes import ResponseCode
from rmq.protocol.recall import (
    ILLEGAL_OPERATION,
    PROPERTY_DELAY_MS,
    PROPERTY_DELAY_SEC,
    PROPERTY_DELIVER_MS,
    RecallHandle,
)
from rmq.protocol.record import Record, decode_record, encode_properties, record_of

if TYPE_CHECKING:
    from rmq.store.store import Store

PROPERTY_OUT_MS: Final = "TIMER_OUT_MS"
PROPERTY_RECALLED: Final = "TIMER_DEL_UNIQKEY"
TIMER_PROPERTIES: Final = (PROPERTY_DELAY_SEC, PROPERTY_DELAY_MS, PROPERTY_DELIVER_MS)

MAX_AHEAD_MS: Final = 40 * 86_400_000
STEP_MESSAGES: Final = 500
ROLLS_AT_ONCE: Final = 200

log = logging.getLogger("rmq.broker")


def deliver_time(properties: Mapping[str, str], now_ms: int) -> int | None:
    """When a message wants to be delivered (ms), None when it names no time or had its time already.

    Of several names of a time the delay in seconds wins, then that in milliseconds, as in 5.x. Raises
    ResponseError(MESSAGE_ILLEGAL) for a time that is no number or more than 40 days ahead.
    """
    if PROPERTY_OUT_MS in properties:
        return None
    for name in TIMER_PROPERTIES:
        text = properties.get(name)
        if text is not None:
            return _deliver_time(name, text, now_ms)
    return None


def _deliver_time(name: str, text: str, now_ms: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise for_code(ResponseCode.MESSAGE_ILLEGAL, f"{name} is {text[:40]!r}: a whole number is expected")
    number = int(text) * (1000 if name == PROPERTY_DELAY_SEC else 1)
    due = number if name == PROPERTY_DELIVER_MS else now_ms + number
    if due > now_ms + MAX_AHEAD_MS:
        raise for_code(
            ResponseCode.MESSAGE_ILLEGAL, f"{name}: {(due - now_ms) / 86_400_000:.1f} days are over the 40"
        )
    return due


class Timers:
    """The messages of `store` that wait for a time of their own; at most `limit` of them.

    `commit()` commits what was put and tells who waits for it; it raises StoreError, and then nothing of the
    step counts as delivered.
    """

    def __init__(self, store: Store, commit: Callable[[], None], *, limit: int = 1_000_000) -> None:
        self.limit = limit
        self.rescheduled: Callable[[], None] = lambda: None
        self.dirty = False
        self._store = store
        self._commit = commit
        self._due: list[tuple[int, int]] = []  # heap of (time, queue offset)
        self._waiting: dict[int, int] = {}  # queue offset -> time
        self._by_age: deque[int] = deque()  # queue offsets, oldest first; some no longer wait
        self._read = 0  # units below this queue offset are known
        self._delivered_ms = 0

    def __len__(self) -> int:
        return len(self._waiting)

    # ---- taking ----

    def take(self, record: Record, properties: dict[str, str], due_ms: int) -> None:
        """Turn a record on its way into the store into one that waits until `due_ms`.

        Raises ResponseError(SYSTEM_BUSY) when too many wait already.
        """
        if len(self._waiting) >= self.limit:
            raise for_code(ResponseCode.SYSTEM_BUSY, f"{self.limit} messages wait for their time already")
        properties[PROPERTY_REAL_TOPIC] = record.topic
        properties[PROPERTY_REAL_QUEUE_ID] = str(record.queue_id)
        properties[PROPERTY_OUT_MS] = str(due_ms)
        record.properties = encode_properties(properties)
        record.topic, record.queue_id, record.tags_code = TIMER_TOPIC, 0, due_ms

    def recall(self, handle: RecallHandle, host: bytes, now_ms: int) -> Record:
        """The record that cancels a waiting message; it holds once it is put and committed.

        Raises ResponseError(ILLEGAL_OPERATION) when the time has passed. Whether the message exists is not
        looked up: an unknown handle cancels nothing.
        """
        if not now_ms < handle.deliver_ms <= now_ms + MAX_AHEAD_MS:
            raise for_code(ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        properties = {PROPERTY_RECALLED: f"{handle.topic}_{handle.unique_key}"}
        record = Record(handle.topic, 0, b"0", born_timestamp=now_ms, born_host=host)
        self.take(record, properties, handle.deliver_ms)
        return record

    def arrived(self, next_offset: int) -> None:
        """The timer queue has messages below `next_offset`."""
        earliest = self._due[0][0] if self._due else None
        for offset in range(self._read, next_offset):
            unit = self._store.unit(TIMER_TOPIC, 0, offset)
            if unit is not None:
                self._wait(offset, unit[2])
        self._read = max(self._read, next_offset)
        if self._due and (earliest is None or self._due[0][0] < earliest):
            self.rescheduled()

    def _wait(self, offset: int, due_ms: int) -> None:
        self._waiting[offset] = due_ms
        self._by_age.append(offset)
        heappush(self._due, (due_ms, offset))

    # ---- delivering ----

    def step(self, now_ms: int) -> int:
        """Deliver what is due at `now_ms`; returns the time (ms) of the next step, now when more is due."""
        rolled = self._roll(now_ms)
        batch = self._next_batch(now_ms)
        if batch:
            self._deliver(batch)
        if not self._due or self._due[0][0] > now_ms:
            self._delivered_ms = now_ms
        if batch or rolled:
            self.dirty = True
        if rolled == ROLLS_AT_ONCE:
            return now_ms
        idle = now_ms + 60_000
        return max(now_ms, min(self._due[0][0], idle)) if self._due else idle

    def _next_batch(self, now_ms: int) -> list[int]:
        """Offsets that are due, earliest first; those of one time are never divided (see recall)."""
        batch: list[int] = []
        last = -1
        due = self._due
        while due and due[0][0] <= now_ms and (len(batch) < STEP_MESSAGES or due[0][0] == last):
            last, offset = heappop(due)
            if self._waiting.get(offset) == last:
                batch.append(offset)
        return batch

    def _deliver(self, batch: list[int]) -> None:
        try:
            messages = [message for offset in batch if (message := self._message(offset)) is not None]
            recalled = {
                key for message in messages if (key := message.properties.get(PROPERTY_RECALLED)) is not None
            }
            for message in messages:
                if PROPERTY_RECALLED not in message.properties and _recall_key(message) not in recalled:
                    self._store.put(_undelayed(message))
            if self._store.pending:
                self._commit()
        except BaseException:
            for offset in batch:
                heappush(self._due, (self._waiting[offset], offset))
            raise
        for offset in batch:
            del self._waiting[offset]

    def _message(self, offset: int) -> StoredMessage | None:
        unit = self._store.unit(TIMER_TOPIC, 0, offset)
        data = None if unit is None else self._store.read(unit[0])
        try:
            if data is None:
                raise LocalProtocolError("it is no longer in the log")
            message = decode_record(data, decompressed=False)
            if PROPERTY_RECALLED not in message.properties:
                _undelayed(message)
            return message
        except (CorruptRecord, LocalProtocolError, KeyError, ValueError) as error:
            log.error("timer message %d cannot be delivered: %r", offset, error)
            return None

    def _roll(self, now_ms: int) -> int:
        """Write anew what waits since long; returns how many."""
        keep_ms = self._store.config.file_reserved_time * 3_600_000 // 2
        rolled: list[int] = []
        by_age = self._by_age
        while by_age and len(rolled) < ROLLS_AT_ONCE:
            offset = by_age[0]
            if offset in self._waiting:
                stored = self._store.message_time(TIMER_TOPIC, 0, offset)
                if self._waiting[offset] <= now_ms or now_ms - stored < keep_ms:
                    break
                message = self._message(offset)
                if message is not None:
                    due_ms = self._waiting[offset]
                    self._store.put(record_of(message, TIMER_TOPIC, 0, message.properties, due_ms))
                rolled.append(offset)
            by_age.popleft()
        if rolled:
            try:
                if self._store.pending:
                    self._commit()
            except BaseException:
                by_age.extendleft(reversed(rolled))
                raise
            for offset in rolled:
                del self._waiting[offset]
        return len(rolled)

    # ---- progress ----

    def load(self, data: bytes | None) -> None:
        """Find the waiting messages of the store, with the progress of timerProgress.json."""
        progress = json.loads(data) if data else {}
        known, self._delivered_ms = int(progress.get("read", 0)), int(progress.get("deliveredMs", 0))
        first = max(int(progress.get("first", 0)), self._store.min_offset(TIMER_TOPIC, 0))
        self._due, self._waiting, self._by_age = [], {}, deque()
        self._read = self._store.max_offset(TIMER_TOPIC, 0)
        for offset in range(first, self._read):
            unit = self._store.unit(TIMER_TOPIC, 0, offset)
            if unit is not None and (unit[2] > self._delivered_ms or offset >= known):
                self._wait(offset, unit[2])

    def to_json(self) -> bytes:
        """The content of timerProgress.json."""
        self.dirty = False
        while self._by_age and self._by_age[0] not in self._waiting:
            self._by_age.popleft()
        first = self._by_age[0] if self._by_age else self._read
        return json.dumps({"first": first, "read": self._read, "deliveredMs": self._delivered_ms})


def _recall_key(message: StoredMessage) -> str:
    topic = message.properties.get(PROPERTY_REAL_TOPIC)
    return f"{topic}_{message.properties.get(PROPERTY_UNIQUE_KEY)}"


def _undelayed(message: StoredMessage) -> Record:
    properties = message.properties
    return record_of(
        message, properties[PROPERTY_REAL_TOPIC], int(properties[PROPERTY_REAL_QUEUE_ID]), properties
    )
