"""Messages with a delivery time of their own, up to 40 days ahead, and their recall.

RocketMQ 4.9 knows 18 fixed delays; the properties that name any time (TIMER_DELIVER_MS, TIMER_DELAY_MS,
TIMER_DELAY_SEC) and the recall handle, which their producer is given, are 5.x's. Such a message lies in the
topic rmq_sys_wheel_timer, queue 0, with its real place in REAL_TOPIC and REAL_QID and its time in
TIMER_OUT_MS, which is also the tags code of its queue unit: the pending ones are found again at start by
reading units only. A recall is a record of the same time that names the message; both come up together and
cancel out.

All that is due at one time is a group. Very many may be due at midnight, so a step does a little of it: first
the records of the group are looked through for recalls, then they are delivered, in the order in which they
were sent. No step is longer than some ms, however large the group.

`config/timerProgress.json` says up to which time everything is delivered, and how far the group is that is
being delivered. After a crash what was delivered since it was saved is delivered again: at least once, as
with delay levels. A message that waits longer than half of what the log is kept for is written anew, so that
it is never deleted with an old file. So is one with a delay that was stored before the wall clock was set
back: it waits no longer than its delay from when that is noticed, and a recall takes the first one away.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from attrs import field

from rmq.broker.tables.topics import unknown_topic
from rmq.errors import (
    CorruptRecord,
    LocalProtocolError,
    RemoteProtocolError,
    ResponseError,
    StoreError,
    for_code,
)
from rmq.message import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQUE_KEY,
    TIMER_TOPIC,
    StoredMessage,
)
from rmq.protocol import json
from rmq.protocol.codes import ILLEGAL_OPERATION, RECALL_MESSAGE, ResponseCode
from rmq.protocol.headers import RecallHandle, RecallMessageRequestHeader
from rmq.protocol.properties import (
    PROPERTY_DELAY_MS,
    PROPERTY_DELAY_SEC,
    PROPERTY_DELIVER_MS,
    encode_properties,
)
from rmq.protocol.record import Record, decode_record, property_bytes, record_of
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from attrs import define

    from rmq.broker.config import Settings
    from rmq.broker.tables.topics import Topics
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection
    from rmq.store.store import Store
else:
    from rmq.late_attrs import define


PROPERTY_OUT_MS: Final = "TIMER_OUT_MS"
PROPERTY_RECALLED: Final = "TIMER_DEL_UNIQKEY"
TIMER_PROPERTIES: Final = (PROPERTY_DELAY_SEC, PROPERTY_DELAY_MS, PROPERTY_DELIVER_MS)

MAX_AHEAD_MS: Final = 40 * 86_400_000
STEP_MESSAGES: Final = 100
"""Deliveries of one step; the event loop serves others between two steps."""
STEP_LOOKS: Final = 1_000
"""Records that one step looks through for recalls."""
STEP_BYTES: Final = 1 << 20
"""So much one step delivers or writes anew, and one message more."""

CLOCK_STEP_MS: Final = 1_000
"""A wall clock that is set back by less is left alone."""

_RECALL_MARK: Final = f"{PROPERTY_RECALLED}\x01".encode()

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


@define(eq=False)
class _Group:
    """All that is due at one time: `offsets` in the queue, in order."""

    due_ms: int
    offsets: list[int] = field(repr=False)
    sent: int = 0  # how many are delivered
    looked: int = 0  # how many were looked through for recalls
    recalled: set[bytes] = field(factory=set, repr=False)


class Timers:
    """The messages of `store` that wait for a time of their own; at most `limit` of them.

    `put(record)` stores a record of the broker's own, `commit()` commits what was put and answers senders;
    both raise StoreError, and then nothing of the step counts as delivered. `on_earlier()` is called when a
    message arrives that is due before anything known, so that `step` comes earlier than it said.
    """

    def __init__(
        self,
        store: Store,
        commit: Callable[[], None],
        on_earlier: Callable[[], None],
        *,
        put: Callable[[Record], None],
        limit: int = 1_000_000,
    ) -> None:
        self.limit = limit
        self._on_earlier = on_earlier
        self.is_changed = False
        self._store = store
        self._commit = commit
        self._put_record = put
        self._due: list[int] = []  # heap of the times in `_at`
        self._at: dict[int, list[int]] = {}  # time -> queue offsets, lowest first
        self._groups: deque[_Group] = deque()  # what is due and not all delivered, earliest first
        self._part: tuple[int, int] = (-1, 0)  # a group that was begun before the start, and its next offset
        self._waiting: dict[int, int] = {}  # queue offset -> time
        self._by_age: deque[int] = deque()  # queue offsets, oldest first; some no longer wait
        self._read = 0  # units below this queue offset are known
        self._delivered_ms = 0
        self._stepped_ms = 0
        # After the wall clock was set back: queue offsets to look at, and the time since which delays count.
        self._doubted: deque[int] = deque()
        self._noticed_ms = 0
        self._moved: dict[bytes, int] = {}  # messages that were written anew for that -> their time now
        # A slave delivers nothing: it only keeps what its master says, for when it is made master.
        self._copied: dict[str, int] = {}
        self._is_slave = store.config.broker_role is BrokerRole.SLAVE

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
        due_ms = self._moved.get(_key(handle.topic, handle.unique_key), handle.deliver_ms)
        if not now_ms < due_ms <= now_ms + MAX_AHEAD_MS:
            raise for_code(ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        # Joined as 5.x does it: no topic has a plus sign.
        properties = {PROPERTY_RECALLED: f"{handle.topic}+{handle.unique_key}"}
        record = Record(handle.topic, 0, b"0", born_timestamp=now_ms, born_host=host)
        self.take(record, properties, due_ms)
        return record

    def arrived(self, next_offset: int) -> None:
        """The timer queue has messages below `next_offset`."""
        if self._is_slave:
            return
        earliest = self._due[0] if self._due else None
        for offset in range(self._read, next_offset):
            unit = self._store.unit(TIMER_TOPIC, 0, offset)
            if unit is not None:
                self._wait(offset, unit[2])
        self._read = max(self._read, next_offset)
        if self._due and (earliest is None or self._due[0] < earliest):
            self._on_earlier()

    def _wait(self, offset: int, due_ms: int) -> None:
        self._waiting[offset] = due_ms
        self._by_age.append(offset)
        offsets = self._at.get(due_ms)
        if offsets is None:
            offsets = self._at[due_ms] = []
            heappush(self._due, due_ms)
        offsets.append(offset)

    # ---- delivering ----

    def step(self, now_ms: int) -> int:
        """Deliver what is due at `now_ms`; returns the time (ms) of the next step, now when more is due."""
        self._look_at_clock(now_ms)
        if self._deliver(now_ms):
            self.is_changed = True
        if self._groups or self._correct() or self._roll(now_ms):
            return now_ms
        self._delivered_ms = now_ms
        idle = now_ms + 60_000
        return min(self._due[0], idle) if self._due else idle

    def _deliver(self, now_ms: int) -> bool:
        """Do a step's part of what is due; says whether anything was delivered."""
        looks, left, size = STEP_LOOKS, STEP_MESSAGES, STEP_BYTES
        sent: list[tuple[_Group, int]] = []
        failure: StoreError | None = None
        for group in self._open(now_ms):
            looks -= self._look(group, looks)
            if group.looked < len(group.offsets):
                break
            end = at = group.sent
            try:
                while at < len(group.offsets) and left > 0 and size > 0:
                    size -= self._put(group, group.offsets[at])
                    left -= 1
                    at += 1
                    end = at
            except (
                StoreError
            ) as error:  # what was put before is committed all the same, or it would come twice
                failure = error
            sent.append((group, end))
            if failure is not None or at < len(group.offsets):
                break
        if self._store.has_pending:
            self._commit()
        for group, end in sent:
            self._delivered(group, end)
        if failure is not None:
            raise failure
        return left < STEP_MESSAGES

    def _open(self, now_ms: int) -> Iterator[_Group]:
        """The groups that are due, earliest first."""
        yield from list(self._groups)
        while self._due and self._due[0] <= now_ms:
            due_ms = heappop(self._due)
            group = _Group(due_ms, self._at.pop(due_ms))
            if due_ms == self._part[0]:
                group.sent = bisect_left(group.offsets, self._part[1])
                self._part = -1, 0
            self._groups.append(group)
            yield group

    def _delivered(self, group: _Group, end: int) -> None:
        assert group.sent <= end <= group.looked, "recalls are looked for before anything is delivered"
        for offset in group.offsets[group.sent : end]:
            self._waiting.pop(offset, None)
        group.sent = end
        if self._groups and self._groups[0] is group and end == len(group.offsets):
            self._groups.popleft()

    def _look(self, group: _Group, most: int) -> int:
        """Look through some of the group's records for recalls; returns how many."""
        start = group.looked
        group.looked = min(len(group.offsets), start + most)
        for offset in group.offsets[start : min(group.looked, group.sent)]:  # delivered before the start
            self._waiting.pop(offset, None)
        for offset in group.offsets[start : group.looked]:
            unit = self._store.unit(TIMER_TOPIC, 0, offset)
            data = None if unit is None else self._store.read(unit[0])
            if data is not None and _may_recall(data):
                message = self._message(offset)
                named = None if message is None else message.properties.get(PROPERTY_RECALLED)
                if message is not None and named is not None:
                    topic = message.properties.get(PROPERTY_REAL_TOPIC, "")
                    group.recalled.add(_key(topic, named[len(topic) + 1 :]))
        return group.looked - start

    def _put(self, group: _Group, offset: int) -> int:
        """Deliver a message unless it was recalled, or was written anew; returns its size."""
        message = self._message(offset) if self._waiting.get(offset) == group.due_ms else None
        if message is None or PROPERTY_RECALLED in message.properties:
            return 0
        properties = message.properties
        try:
            topic, queue_id = properties[PROPERTY_REAL_TOPIC], int(properties[PROPERTY_REAL_QUEUE_ID])
            if self._moved:
                self._moved.pop(_key(topic, properties.get(PROPERTY_UNIQUE_KEY, "")), None)
            if group.recalled and _key(topic, properties.get(PROPERTY_UNIQUE_KEY, "")) in group.recalled:
                return 0
            record = record_of(message, topic, queue_id, properties)
        except (LocalProtocolError, KeyError, ValueError) as error:
            log.error("timer message %d cannot be delivered: %r", offset, error)
            return 0
        self._put_record(record)
        return record.size

    def _message(self, offset: int) -> StoredMessage | None:
        unit = self._store.unit(TIMER_TOPIC, 0, offset)
        data = None if unit is None else self._store.read(unit[0])
        try:
            if data is None:
                raise LocalProtocolError("it is no longer in the log")
            return decode_record(data, decompressed=False)
        except (CorruptRecord, LocalProtocolError) as error:
            log.error("timer message %d cannot be delivered: %r", offset, error)
            return None

    def _roll(self, now_ms: int) -> bool:
        """Write anew what waits since long, a step's part of it; says whether there may be more."""
        keep_ms = self._store.config.file_reserved_time * 3_600_000 // 2
        rolled: list[int] = []
        by_age, size, looks = self._by_age, 0, 0
        failure: StoreError | None = None
        while by_age and len(rolled) < STEP_MESSAGES and size < STEP_BYTES and looks < STEP_LOOKS:
            offset = by_age[0]
            looks += 1
            due_ms = self._waiting.get(offset)
            if due_ms is not None:
                stored = self._store.message_time(TIMER_TOPIC, 0, offset)
                if due_ms <= now_ms or now_ms - stored < keep_ms:
                    looks = -1
                    break
                message = self._message(offset)
                try:
                    if message is not None:
                        record = record_of(message, TIMER_TOPIC, 0, message.properties, due_ms)
                        self._put_record(record)
                        size += record.size
                except StoreError as error:  # what was put before is committed, or it would come twice
                    failure = error
                    break
                rolled.append(offset)
            by_age.popleft()
        try:
            if self._store.has_pending:
                self._commit()
        except BaseException:
            by_age.extendleft(reversed(rolled))
            raise
        for offset in rolled:
            del self._waiting[offset]
        self.is_changed |= bool(rolled)
        if failure is not None:
            raise failure
        return bool(rolled) or (bool(by_age) and looks > 0)

    # ---- a wall clock that was set back ----

    def _look_at_clock(self, now_ms: int) -> None:
        """Doubt what waits when the wall clock was set back, while this ran or just before it began."""
        before, self._stepped_ms = self._stepped_ms, now_ms
        if not before and self._read:
            before = self._store.message_time(TIMER_TOPIC, 0, self._read - 1)
        if now_ms < before - CLOCK_STEP_MS:
            self._doubted, self._noticed_ms = deque(self._by_age), now_ms

    def _correct(self) -> bool:
        """Look at some of what is doubted; says whether there is more. A message that was stored at a time
        that is still to come, and asked for a delay, is written anew with that delay from when it is noticed.
        """
        looks = written = 0
        moved: list[tuple[int, bytes, int]] = []
        failure: StoreError | None = None
        while self._doubted and looks < STEP_LOOKS and written < STEP_BYTES:
            offset = self._doubted[0]
            looks += 1
            due_ms = self._waiting.get(offset)
            stored = -1 if due_ms is None else self._store.message_time(TIMER_TOPIC, 0, offset)
            if due_ms is not None and stored > self._noticed_ms + CLOCK_STEP_MS:
                try:
                    found = self._moved_to(offset, due_ms)
                except StoreError as error:
                    failure = error
                    break
                if found is not None:
                    key, earlier_ms, size = found
                    moved.append((offset, key, earlier_ms))
                    written += size
            self._doubted.popleft()
        try:
            if self._store.has_pending:
                self._commit()
        except BaseException:
            self._doubted.extendleft(offset for offset, _, _ in reversed(moved))
            raise
        for offset, key, earlier_ms in moved:
            del self._waiting[offset]
            self._moved[key] = earlier_ms
        self.is_changed |= bool(moved)
        if failure is not None:
            raise failure
        return bool(self._doubted)

    def _moved_to(self, offset: int, due_ms: int) -> tuple[bytes, int, int] | None:
        """Put a message with the time that its delay gives now, and a recall of the one that waits. Returns
        its key, that time and the bytes of it; None when it waits as it should, or no recall can name it.
        """
        message = self._message(offset)
        if message is None or PROPERTY_RECALLED in message.properties:
            return None
        properties = dict(message.properties)
        topic, unique_key = properties.get(PROPERTY_REAL_TOPIC, ""), properties.get(PROPERTY_UNIQUE_KEY, "")
        earlier_ms = self._noticed_ms + _delay_ms(properties, due_ms)
        if not unique_key or earlier_ms >= due_ms:
            return None
        recall = {
            PROPERTY_RECALLED: f"{topic}+{unique_key}",
            PROPERTY_REAL_TOPIC: topic,
            PROPERTY_REAL_QUEUE_ID: properties[PROPERTY_REAL_QUEUE_ID],
            PROPERTY_OUT_MS: str(due_ms),
        }
        properties[PROPERTY_OUT_MS] = str(earlier_ms)
        again = record_of(message, TIMER_TOPIC, 0, properties, earlier_ms)
        cancel = Record(TIMER_TOPIC, 0, b"0", encode_properties(recall), tags_code=due_ms)
        cancel.born_timestamp, cancel.born_host = self._noticed_ms, again.born_host
        self._put_record(again)
        self._put_record(cancel)
        return _key(topic, unique_key), earlier_ms, again.size

    # ---- progress ----

    def load(self, data: bytes | None) -> None:
        """Find the waiting messages of the store, with the progress of timerProgress.json."""
        progress = json.loads(data) if data else {}
        if self._is_slave:
            self._copied = {str(name): int(value) for name, value in progress.items()}
            return
        known, self._delivered_ms = int(progress.get("read", 0)), int(progress.get("deliveredMs", 0))
        self._part = int(progress.get("partMs", -1)), int(progress.get("partNext", 0))
        first = max(int(progress.get("first", 0)), self._store.min_offset(TIMER_TOPIC, 0))
        self._due, self._at, self._groups = [], {}, deque()
        self._waiting, self._by_age = {}, deque()
        self._read = self._store.max_offset(TIMER_TOPIC, 0)
        for offset in range(first, self._read):
            unit = self._store.unit(TIMER_TOPIC, 0, offset)
            if unit is not None and (unit[2] > self._delivered_ms or offset >= known):
                self._wait(offset, unit[2])

    def to_json(self) -> bytes:
        """The content of timerProgress.json."""
        self.is_changed = False
        return json.dumps(self._copied if self._is_slave else self._progress())

    def progress(self) -> dict[str, int]:
        """The progress as slaves are told it; empty when there never was a message with a time. A slave's: as
        it was told."""
        if self._is_slave:
            return dict(self._copied)
        return self._progress() if self._read else {}

    def follow(self, progress: Mapping[str, int]) -> None:
        """A slave's: have the master's progress."""
        if self._copied != progress:
            self._copied, self.is_changed = dict(progress), True

    def _progress(self) -> dict[str, int]:
        first = self._by_age[0] if self._by_age else self._read
        progress = {"first": first, "read": self._read, "deliveredMs": self._delivered_ms}
        due = [group.due_ms for group in self._groups] + self._due[:1]
        if due:  # some of it may have come too late for `deliveredMs`
            progress["deliveredMs"] = min(self._delivered_ms, *(ms - 1 for ms in due))
        part = self._part
        if self._groups and self._groups[0].sent:
            group = self._groups[0]
            part = group.due_ms, group.offsets[group.sent]
            progress["first"] = min(first, group.offsets[0])  # recalls among those that are delivered
        if part[0] > progress["deliveredMs"]:
            progress |= {"partMs": part[0], "partNext": part[1]}
        return progress


def _delay_ms(properties: Mapping[str, str], due_ms: int) -> int:
    """The delay that a message asked for; no less than its time if it asked for a time."""
    for name, factor in ((PROPERTY_DELAY_SEC, 1000), (PROPERTY_DELAY_MS, 1)):
        text = properties.get(name)
        if text is not None:
            return int(text) * factor if text.isascii() and text.isdigit() else due_ms
    return due_ms


def _may_recall(data: memoryview) -> bool:
    try:
        return _RECALL_MARK in property_bytes(data)
    except CorruptRecord:  # its delivery says so
        return False


def _key(topic: str, unique_key: str) -> bytes:
    """What names a message to be recalled, short however long its key is."""
    return blake2b(f"{topic}+{unique_key}".encode(), digest_size=16).digest()


Put = Callable[["Command", Record, dict[str, str]], None]


class Recall:
    """Handles RECALL_MESSAGE (370) of 5.x.

    `put(request, record, header)` stores a record and acknowledges the request with these header fields.
    """

    def __init__(
        self, settings: Settings, *, timers: Timers, topics: Topics, store_host: bytes, put: Put
    ) -> None:
        self._settings = settings
        self._timers = timers
        self._topics = topics
        self._store_host = store_host
        self._put = put

    def handlers(self) -> dict[int, Callable[[Command, Connection, int], Command | None]]:
        """What this part answers."""
        return {RECALL_MESSAGE: self._on_recall}

    def _on_recall(self, request: Command, connection: Connection, now: int) -> None:
        header = request.read(RecallMessageRequestHeader)
        if self._topics.get(header.topic) is None:
            raise unknown_topic(header.topic)
        handle = self._handle(header)
        record = self._timers.recall(handle, self._store_host, now)
        self._put(request, record, {"msgId": handle.unique_key})

    def _handle(self, header: RecallMessageRequestHeader) -> RecallHandle:
        try:
            handle = RecallHandle.parse(header.recall_handle)
        except RemoteProtocolError as error:
            raise _refused(str(error)) from None
        if handle.topic != header.topic:
            raise _refused("recall failed, topic not match")
        if handle.broker_name != self._settings.broker.broker_name:
            raise _refused(
                f"recall failed, the message is at broker {handle.broker_name}, this is "
                f"{self._settings.broker.broker_name}"
            )
        return handle


def _refused(remark: str) -> ResponseError:
    return for_code(ILLEGAL_OPERATION, remark)
