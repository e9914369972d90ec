"""Timers: messages with a delivery time of their own, up to 40 days ahead, and their recall.

RocketMQ 4.9 knows 18 fixed delays; the properties for any time (TIMER_DELIVER_MS, TIMER_DELAY_MS,
TIMER_DELAY_SEC) and the recall handle of the producer are 5.x's. Such a message lies in the topic
rmq_sys_wheel_timer, queue 0, with its real place in REAL_TOPIC and REAL_QID and its time in TIMER_OUT_MS,
which is also the tags code of its queue unit: at a start the pending messages are found by reading units
only. A recall is a record of the same time that names the message; both become due together and cancel out.

All records that are due at the same time form a group. A great many may be due at midnight, so a step does a
part of the work: first it searches the records of the group for recalls, and next it delivers the messages in
the order of their sends. No step is longer than some ms, however large the group.

`config/timerProgress.json` holds the time up to which everything is delivered, the progress within the
present group, and what was delivered by a clock that was set back since (`delivered`). After a crash the
deliveries since the last save are repeated: at least once, as with delay levels. A message that waits longer
than half of the log's retention is copied to the end of the log, so that it is never deleted with an old
file. A message with a delay that was stored before the wall clock was set back is copied as well: from the
discovery on it waits no longer than its delay.

A copy names its original by the queue offset, which all replicas of a log have in common
(`PROPERTY_TIMER_REPLACES`): a master that begins with both, by an older progress, delivers only the copy.
Both have the same time, and so belong to the same group, unless the time was corrected. After a correction a
recall by the broker goes into the group of the original, and the copy has the time by which its producer
recalls the message (`PROPERTY_TIMER_HANDLE_MS`): recalls become due in the group of that time, which is
searched before the copy is delivered.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from attrs import field

from rmq.broker.delay.corrections import CLOCK_STEP_MS, Corrections
from rmq.broker.delay.delay_levels import UNSURE_MS
from rmq.broker.delay.delivered import Delivered
from rmq.broker.delay.timer_records import (
    COPY_ROOM,
    HIDDEN_PROPERTIES,
    MAX_AHEAD_MS,
    PROPERTY_OUT_MS,
    PROPERTY_RECALLED,
    has_key,
    has_room,
    marked_message,
    message_key,
    replaced_offset,
    timer_message,
)
from rmq.broker.error_responses import check_room
from rmq.errors import LocalProtocolError, StoreError, for_code
from rmq.message import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQUE_KEY,
    TIMER_TOPIC,
    StoredMessage,
)
from rmq.protocol import json
from rmq.protocol.codes import ILLEGAL_OPERATION, ResponseCode
from rmq.protocol.properties import (
    PROPERTY_ACCOUNT,
    PROPERTY_TIMER_HANDLE_MS,
    PROPERTY_TIMER_REPLACES,
    encode_properties,
)
from rmq.protocol.record import PROPERTIES_MAX, Record, record_of
from rmq.shares import NOBODY, Holders, Shares
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from attrs import define

    from rmq.protocol.headers import RecallHandle
    from rmq.store.store import Store
else:
    from rmq.lazy_attrs import define


STEP_MESSAGES: Final = 100
"""Deliveries of one step; the event loop serves others between two steps."""
STEP_LOOKS: Final = 1_000
"""Records that one step looks through for recalls."""
OWNER_LOOKS: Final = 200
"""Records that a recall looks through for the message that it names."""
TAKEN_MAX: Final = 8_192
"""Records on their way into the store whose makers are remembered; a chunk of requests has at most 1,024."""
BLOCK: Final = 64
"""Queue offsets of a block of `_ByAge`."""
STEP_BYTES: Final = 1 << 20
"""So much one step delivers or writes anew, and one message more."""

log = logging.getLogger("rmq.broker")


@define(eq=False)
class _Group:
    """All that is due at one time: `offsets` in the queue, in order."""

    due_ms: int
    offsets: list[int] = field(repr=False)
    sent: int = 0  # how many are delivered
    looked: int = 0  # how many were looked through for recalls and copies
    recalled: dict[bytes, set[str]] = field(factory=dict, repr=False)  # message -> accounts that recall it
    replaced: set[int] = field(factory=set, repr=False)  # originals that have a copy
    handles: dict[int, None] = field(factory=dict, repr=False)  # times by which copies are recalled


class _Places:
    """The shares of waiting messages. A message counts for its maker until its delivery; a message from
    before the start counts for no maker."""

    def __init__(self) -> None:
        self._shares = Shares(0)
        self._holders: dict[int, Holders] = {}  # by queue offset
        self._taken: deque[tuple[Record, Holders]] = deque(maxlen=TAKEN_MAX)  # on their way into the store

    def shares(self, most: int) -> Shares:
        """The counts, of `most` messages in all."""
        self._shares.most = most
        return self._shares

    def take(self, record: Record, maker: Holders) -> None:
        """A record is perhaps on its way into the store."""
        if maker:
            self._taken.append((record, maker))

    def copy(self, record: Record, original: int) -> None:
        """A record is on its way that takes the place of an original."""
        self.take(record, self._holders.get(original, NOBODY))

    def arrived(self, offsets: Collection[int]) -> None:
        """These messages are stored; taken records that are none of them are not."""
        while self._taken:
            record, maker = self._taken.popleft()
            if record.store_timestamp and record.queue_offset in offsets:
                self._holders[record.queue_offset] = maker
        for offset in offsets:
            self._shares.add(self._holders.get(offset, NOBODY))

    def left(self, offset: int) -> None:
        """A message waits no longer."""
        self._shares.give(self._holders.pop(offset, NOBODY))


class _ByAge:
    """The queue offsets of `waiting`, oldest first, by blocks that count their messages. A block without one
    is dropped, so that the messages behind one that waits for long take no memory once they are delivered."""

    def __init__(self, waiting: Mapping[int, int]) -> None:
        self._waiting = waiting
        self._counts: dict[int, int] = {}  # by block, the lowest first

    def __iter__(self) -> Iterator[int]:
        for block in self._counts:
            for offset in range(block * BLOCK, (block + 1) * BLOCK):
                if offset in self._waiting:
                    yield offset

    def add(self, offset: int) -> None:
        """A message waits, behind all others."""
        self._counts[offset // BLOCK] = self._counts.get(offset // BLOCK, 0) + 1

    def remove(self, offset: int) -> None:
        """A message waits no longer."""
        if left := self._counts[offset // BLOCK] - 1:
            self._counts[offset // BLOCK] = left
        else:
            del self._counts[offset // BLOCK]

    def clear(self) -> None:
        """No message waits."""
        self._counts.clear()


class Timers:
    """The messages of `store` that wait for a time of their own; at most `limit` messages, of which each
    account or address has a share.

    `put(record)` stores a record of the broker's own, `commit()` commits these records and answers senders;
    both raise StoreError, and then no record of the step counts as delivered. `on_earlier()` is called when a
    message arrives that is due before all others, so that `step` is called earlier than it returned.
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
        self._recalls_of: dict[int, _Group] = {}  # time -> the group that has the recalls of copies
        self._part: tuple[int, int] = (-1, 0)  # a group that was begun before the start, and its next offset
        self._waiting: dict[int, int] = {}  # queue offset -> time
        self._places = _Places()
        self._by_age = _ByAge(self._waiting)
        self._read = 0  # units below this queue offset are known
        self._delivered_ms = 0
        self._saved_read = 0  # the end of the queue when the loaded progress was saved
        self._delivered_so_far = Delivered()
        self._stepped_ms = 0
        self._corrections = Corrections(store, self._waiting, commit, put, on_copied=self._corrected)
        # A slave delivers nothing: it only keeps what its master says, for when it is made master.
        self._copied: dict[str, int] = {}
        self._is_slave = store.config.broker_role is BrokerRole.SLAVE

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def shares(self) -> Shares:
        """The places of the messages that wait."""
        return self._places.shares(self.limit)

    # ---- taking ----

    def full(self, maker: Holders) -> str:
        """Why no further message of `maker` may wait for its time; empty when one may."""
        return self.shares.full(maker)

    def take(
        self,
        record: Record,
        properties: dict[str, str],
        due_ms: int,
        account: str = "",
        maker: Holders = NOBODY,
    ) -> None:
        """Turn a record on its way into the store into a record that waits until `due_ms`. `account` is that
        of its sender, which alone may recall it, or empty; the message counts for `maker`.

        Raises ResponseError: SYSTEM_BUSY when too many messages wait already, in all or of the maker, and
        MESSAGE_ILLEGAL when its properties leave no room for those of a copy.
        """
        if over := self.full(maker):
            raise for_code(ResponseCode.SYSTEM_BUSY, f"of the messages that may wait for their time {over}")
        properties[PROPERTY_REAL_TOPIC] = record.topic
        properties[PROPERTY_REAL_QUEUE_ID] = str(record.queue_id)
        properties[PROPERTY_OUT_MS] = str(due_ms)
        if account:
            properties[PROPERTY_ACCOUNT] = account
        record.properties = encode_properties(properties)
        check_room(record.properties, PROPERTIES_MAX - COPY_ROOM, "message with a delivery time")
        self._places.take(record, maker)
        record.topic, record.queue_id, record.tags_code = TIMER_TOPIC, 0, due_ms

    def recall(
        self, handle: RecallHandle, host: bytes, now_ms: int, account: str = "", maker: Holders = NOBODY
    ) -> Record:
        """The record that cancels a waiting message of `account`, or a message without account. It takes
        effect once it is put and committed, and counts for `maker`.

        Raises ResponseError(ILLEGAL_OPERATION) when the time has passed. The message is not looked up: an
        unknown handle cancels nothing.
        """
        if not now_ms < handle.deliver_ms <= now_ms + MAX_AHEAD_MS:
            raise for_code(ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        # Joined as 5.x does it: no topic has a plus sign.
        properties = {PROPERTY_RECALLED: f"{handle.topic}+{handle.unique_key}"}
        record = Record(handle.topic, 0, b"0", born_timestamp=now_ms, born_host=host)
        self.take(record, properties, handle.deliver_ms, account, maker)
        return record

    def owner(self, handle: RecallHandle) -> str | None:
        """The account of the waiting message that a handle names, empty for a message without account; None
        when it is not among the first `OWNER_LOOKS` of its time."""
        for offset in self._at.get(handle.deliver_ms, ())[:OWNER_LOOKS]:
            unit = self._store.unit(TIMER_TOPIC, 0, offset)
            data = None if unit is None else self._store.read(unit[0])
            if data is None or not has_key(data, handle.unique_key):
                continue
            message = timer_message(self._store, offset)
            if message is not None and message.properties.get(PROPERTY_REAL_TOPIC) == handle.topic:
                return message.properties.get(PROPERTY_ACCOUNT, "")
        return None

    def arrived(self, next_offset: int) -> None:
        """The timer queue has messages below `next_offset`."""
        if self._is_slave:
            return
        earliest = self._due[0] if self._due else None
        units = {
            offset: self._store.unit(TIMER_TOPIC, 0, offset) for offset in range(self._read, next_offset)
        }
        arrived = {offset: unit[2] for offset, unit in units.items() if unit is not None}
        for offset, due_ms in arrived.items():
            self._wait(offset, due_ms)
        self._places.arrived(arrived)
        self._read = max(self._read, next_offset)
        if self._due and (earliest is None or self._due[0] < earliest):
            self._on_earlier()

    def _wait(self, offset: int, due_ms: int) -> None:
        self._waiting[offset] = due_ms
        self._by_age.add(offset)
        offsets = self._at.get(due_ms)
        if offsets is None:
            offsets = self._at[due_ms] = []
            heappush(self._due, due_ms)
        offsets.append(offset)

    # ---- delivering ----

    def step(self, now_ms: int) -> int:
        """Deliver all messages due at `now_ms`; return the time (ms) of the next step, now if more messages
        are due."""
        self._check_clock(now_ms)
        if self._deliver(now_ms):
            self.is_changed = True
        if self._groups or self._corrections.step() or self._roll(now_ms):
            return now_ms
        self._delivered_ms = now_ms
        self._delivered_so_far.note(self._read, now_ms)
        idle = now_ms + 60_000
        return min(self._due[0], idle) if self._due else idle

    def _deliver(self, now_ms: int) -> bool:
        """Do a part of the due work; return whether a message was delivered."""
        looks, left, size = STEP_LOOKS, STEP_MESSAGES, STEP_BYTES
        sent: list[tuple[_Group, int]] = []
        failure: StoreError | None = None
        for group in self._open(now_ms):
            looks -= self._look_for(group, looks)
            if looks <= 0 and not self._is_looked_for(group):
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
            group, offsets = self._recalls_of.get(due_ms), self._at.pop(due_ms)
            if group is None or group in self._groups:  # those came when others of this time were delivered
                group = _Group(due_ms, offsets)
            if due_ms == self._part[0]:
                group.sent, group.looked = bisect_left(group.offsets, self._part[1]), 0
                self._part = -1, 0
            self._groups.append(group)
            yield group

    def _delivered(self, group: _Group, end: int) -> None:
        assert group.sent <= end <= group.looked, "recalls are looked for before anything is delivered"
        for offset in group.offsets[group.sent : end]:
            self._left(offset)
        group.sent = end
        if self._groups and self._groups[0] is group and end == len(group.offsets):
            self._groups.popleft()
            self._recalls_of.pop(group.due_ms, None)

    def _look_for(self, group: _Group, most: int) -> int:
        """Search some of the records that decide which messages of the group are delivered: the group's own
        records, and the records at the times by which its copies are recalled. Return how many."""
        looks = self._look(group, most)
        for handle_ms in group.handles:
            other = self._recalls_at(handle_ms)
            if other is not None:
                looks += self._look(other, most - looks)
        return looks

    def _is_looked_for(self, group: _Group) -> bool:
        others = (self._recalls_at(handle_ms) for handle_ms in group.handles)
        return all(one is None or one.looked == len(one.offsets) for one in (group, *others))

    def _recalls_at(self, handle_ms: int) -> _Group | None:
        """The group of a time, which is not due yet maybe, for its recalls; None when none waits then."""
        group = self._recalls_of.get(handle_ms)
        if group is None:
            offsets = self._at.get(handle_ms)
            if offsets is not None:
                group = _Group(handle_ms, offsets)  # it grows with those that arrive
            else:
                group = next((one for one in self._groups if one.due_ms == handle_ms), None)
            if group is not None:
                self._recalls_of[handle_ms] = group
        return group

    def _look(self, group: _Group, most: int) -> int:
        """Look through some of the group's records for recalls and copies; returns how many."""
        start = group.looked
        group.looked = min(len(group.offsets), start + most)
        for offset in group.offsets[start : min(group.looked, group.sent)]:  # delivered before the start
            self._left(offset)
        for offset in group.offsets[start : group.looked]:
            message = marked_message(self._store, offset)
            if message is not None:
                _note(group, message)
        return group.looked - start

    def _put(self, group: _Group, offset: int) -> int:
        """Deliver a message unless it was recalled, or has a copy; returns its size."""
        if offset in group.replaced or self._waiting.get(offset) != group.due_ms:
            return 0
        message = timer_message(self._store, offset)
        if message is None or PROPERTY_RECALLED in message.properties:
            return 0
        properties = message.properties
        try:
            topic, queue_id = properties[PROPERTY_REAL_TOPIC], int(properties[PROPERTY_REAL_QUEUE_ID])
            if self._is_recalled(group, topic, properties):
                return 0
            for name in HIDDEN_PROPERTIES:
                properties.pop(name, None)
            record = record_of(message, topic, queue_id, properties)
        except (LocalProtocolError, KeyError, ValueError) as error:
            log.error("timer message %d cannot be delivered: %r", offset, error)
            return 0
        self._put_record(record)
        return record.size

    def _is_recalled(self, group: _Group, topic: str, properties: Mapping[str, str]) -> bool:
        handle_ms = properties.get(PROPERTY_TIMER_HANDLE_MS)
        other = None if handle_ms is None else self._recalls_at(int(handle_ms))
        account = properties.get(PROPERTY_ACCOUNT, "")
        for one in (group, other):
            if one is not None and one.recalled:
                by = one.recalled.get(message_key(topic, properties.get(PROPERTY_UNIQUE_KEY, "")))
                if by is not None:
                    if not account or account in by:
                        return True
                    others = ", ".join(sorted(by))
                    text = "refused the recall of a message of account %s by %s"
                    log.warning(text, account, others or "-")
        return False

    def _roll(self, now_ms: int) -> bool:
        """Copy a part of the messages that have waited long; return whether more may be left."""
        keep_ms = self._store.config.file_reserved_time * 3_600_000 // 2
        rolled: list[int] = []
        size = 0
        failure: StoreError | None = None
        for offset in self._by_age:
            due_ms = self._waiting[offset]
            stored = self._store.message_time(TIMER_TOPIC, 0, offset)
            if due_ms <= now_ms or now_ms - stored < keep_ms:
                break
            if len(rolled) >= STEP_MESSAGES or size >= STEP_BYTES:
                break
            message = timer_message(self._store, offset)
            try:
                if message is not None:
                    record = _copy_of(message, offset, due_ms)
                    self._put_record(record)
                    self._places.copy(record, offset)
                    size += record.size
            except StoreError as error:  # what was put before is committed, or it would come twice
                failure = error
                break
            rolled.append(offset)
        if self._store.has_pending:
            self._commit()
        for offset in rolled:
            self._left(offset)
        self.is_changed |= bool(rolled)
        if failure is not None:
            raise failure
        return bool(rolled)

    def _check_clock(self, now_ms: int) -> None:
        """Doubt the waiting messages when the wall clock was set back, now or just before the start."""
        before, self._stepped_ms = self._stepped_ms, now_ms
        if not before and self._read:
            before = self._store.message_time(TIMER_TOPIC, 0, self._read - 1)
        if now_ms < before - CLOCK_STEP_MS:
            self._corrections.doubt(self._by_age, now_ms)

    def _corrected(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            self._left(offset)
        self.is_changed |= bool(offsets)

    def _left(self, offset: int) -> None:
        if self._waiting.pop(offset, None) is not None:
            self._by_age.remove(offset)
            self._places.left(offset)

    # ---- progress ----

    def load(self, data: bytes | None) -> None:
        """Find the waiting messages of the store, with the progress of timerProgress.json."""
        progress = json.loads(data) if data else {}
        if self._is_slave:
            self._copied = {str(name): int(value) for name, value in progress.items()}
            return
        self._delivered_ms = int(progress.get("deliveredMs", 0))
        self._part = int(progress.get("partMs", -1)), int(progress.get("partNext", 0))
        first = max(int(progress.get("first", 0)), self._store.min_offset(TIMER_TOPIC, 0))
        self._due, self._at, self._groups, self._recalls_of = [], {}, deque(), {}
        self._waiting.clear()
        self._by_age.clear()
        self._read = self._store.max_offset(TIMER_TOPIC, 0)
        self._saved_read = int(progress.get("read", 0))
        self._delivered_so_far.load(progress, self._read)
        for offset in range(first, self._read):
            unit = self._store.unit(TIMER_TOPIC, 0, offset)
            if unit is not None and not self._delivered_so_far.has(offset, unit[2]):
                self._wait(offset, unit[2])
        self._places = _Places()
        self._places.arrived(self._waiting)

    def check_ends(self) -> None:
        """On a master: correct the loaded progress if it is that of another store, or of a later state of
        this store, which has delivered what was due by its last record."""
        if self._is_slave or not self._store.never_reached(TIMER_TOPIC, 0, self._saved_read):
            return
        delivered_ms = min(self._delivered_ms, max(0, self._store.last_ms - UNSURE_MS))
        log.warning(
            "the saved progress of timers, %d, is not of this store, whose queue ends at %d: messages due "
            "after %d (ms) are delivered",
            *(self._saved_read, self._read, delivered_ms),
        )
        self.load(json.dumps({"read": self._read, "deliveredMs": delivered_ms}))
        self.is_changed = True

    def to_json(self) -> bytes:
        """The content of timerProgress.json."""
        self.is_changed = False
        return json.dumps(self._copied if self._is_slave else self._progress())

    def progress(self) -> dict[str, int]:
        """The progress to send to slaves; empty before the first message with a time. On a slave: the last
        received progress."""
        if self._is_slave:
            return dict(self._copied)
        return self._progress() if self._read else {}

    def follow(self, progress: Mapping[str, int]) -> None:
        """A slave's: have the master's progress."""
        if self._copied != progress:
            self._copied, self.is_changed = dict(progress), True

    def _progress(self) -> dict[str, int]:
        first = next(iter(self._by_age), self._read)
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
        return progress | self._delivered_so_far.fields(progress["deliveredMs"])


def _copy_of(message: StoredMessage, offset: int, due_ms: int) -> Record:
    """A copy of a waiting record at the end of the log. A message without room for the mark of a copy, stored
    by an earlier version, has none: a master that begins with both delivers both."""
    properties = message.properties
    if PROPERTY_RECALLED not in properties:
        marked = properties | {PROPERTY_TIMER_REPLACES: str(offset)}
        record = record_of(message, TIMER_TOPIC, 0, marked, due_ms)
        if has_room(record):
            return record
    return record_of(message, TIMER_TOPIC, 0, properties, due_ms)


def _note(group: _Group, message: StoredMessage) -> None:
    """Keep which message of its group a recall or a copy takes away."""
    properties = message.properties
    named, replaced = properties.get(PROPERTY_RECALLED), replaced_offset(message)
    if replaced is not None:
        group.replaced.add(replaced)
    elif named is not None:
        topic = properties.get(PROPERTY_REAL_TOPIC, "")
        by = group.recalled.setdefault(message_key(topic, named[len(topic) + 1 :]), set())
        by.add(properties.get(PROPERTY_ACCOUNT, ""))
    handle_ms = properties.get(PROPERTY_TIMER_HANDLE_MS, "")
    if handle_ms.isascii() and handle_ms.isdigit() and int(handle_ms) != group.due_ms:
        group.handles[int(handle_ms)] = None
