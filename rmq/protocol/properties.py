"""The properties of a message: name 0x01 value, joined by 0x02; no escaping.

Applications see them as text, records hold them as bytes. Of a repeated name the last counts, and a property
without a value is dropped, as in Java's map. The inputs of queues and index, the tags code and the keys, are
read in this module from either form, and cached for messages that differ in little.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Final

from rmq.message import (
    DLQ_PREFIX,
    KEY_SEPARATOR,
    PROPERTY_KEYS,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT_STORE,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    tags_code,
)
from rmq.protocol.codes import SYS_PREPARED, SYS_ROLLBACK
from rmq.protocol.json import JAVA

if TYPE_CHECKING:
    from rmq.message import StoredMessage

PROPERTY_SHARDING_KEY: Final = "__SHARDINGKEY"
"""Messages with the same value are kept in order: the sharding key of 4.x, the message group of 5.x."""

# --- any delivery time, in RocketMQ 5.x's form ---

PROPERTY_IDEMPOTENT_SEND: Final = "IDEMPOTENT_SEND"
"""Of the first message of such a batch: where it lies, its number and its producer."""
PROPERTY_DELIVER_MS: Final = "TIMER_DELIVER_MS"
"""Time of delivery, in ms since 1970."""
PROPERTY_DELAY_MS: Final = "TIMER_DELAY_MS"
PROPERTY_DELAY_SEC: Final = "TIMER_DELAY_SEC"

# --- as text ---

_UNIQUE_BYTES: Final = PROPERTY_UNIQUE_KEY.encode() + b"\x01"
_ALIKE_MAX: Final = 64
_ALIKE_REST: Final = 4096
"""Records that are read without a new entry after this many different ones."""


def encode_properties(properties: Mapping[str, str | None]) -> str:
    """name 0x01 value, joined by 0x02, none at the end; pairs without a value are left out.

    There is no escaping: the caller keeps 0x01 and 0x02 out of names and values.
    """
    return "\x02".join([f"{name}\x01{value}" for name, value in properties.items() if value is not None])


def decode_properties(text: str | None) -> dict[str, str]:
    """The map of a properties text; a piece that is not name and value is dropped."""
    if not text:
        return {}
    found = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            found[name] = value
    return found


class AlikeProperties:
    """Reads the properties of many records. They differ in little but their unique keys, so the text around
    that key is read once, which halves the work of making a map."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], dict[str, str]] = {}
        self._rest = 0
        # The entry of the last record: neighbours are mostly alike, and comparing is cheaper than hashing.
        self._before: bytes | tuple[()] = ()  # no text begins with it
        self._after = b""
        self._last: dict[str, str] = {}

    def __call__(self, data: bytes) -> dict[str, str]:
        """The result of `decode_properties` for the text of `data`; the caller owns the map."""
        before, after = self._before, self._after
        if data.startswith(before) and data.endswith(after):
            key = data[len(before) : len(data) - len(after)]
            if key and b"\x02" not in key:
                found = self._last.copy()
                found[PROPERTY_UNIQUE_KEY] = key.decode("utf-8", JAVA)
                return found
        start = data.find(_UNIQUE_BYTES) + len(_UNIQUE_BYTES)
        stop = data.find(b"\x02", start)
        if stop < 0:
            stop = len(data)
        around = data[:start], data[stop:]
        known = self._known.get(around)
        if known is None or start >= stop:
            return self._learn(data, around)
        self._before, self._after = around
        self._last = known
        found = known.copy()
        found[PROPERTY_UNIQUE_KEY] = data[start:stop].decode("utf-8", JAVA)
        return found

    def _learn(self, data: bytes, around: tuple[bytes, bytes]) -> dict[str, str]:
        found = decode_properties(data.decode("utf-8", JAVA))
        if self._rest:
            self._rest -= 1
        elif len(self._known) >= _ALIKE_MAX:
            # The records differ, for example by their keys. Learning each would cost more than reading it.
            self._known.clear()
            self._rest = _ALIKE_REST
        elif (
            len(data) <= _KNOWN_LENGTH_MAX
            and data.count(_UNIQUE_BYTES) == 1
            and (around[0] == _UNIQUE_BYTES or around[0].endswith(b"\x02" + _UNIQUE_BYTES))
            and PROPERTY_UNIQUE_KEY in found
        ):
            self._known[around] = found.copy()
        return found


def record_keys(properties: Mapping[str, str]) -> tuple[str, ...]:
    """The index keys of a message: its unique key first, then its keys, split at single blanks."""
    unique = properties.get(PROPERTY_UNIQUE_KEY)
    text = properties.get(PROPERTY_KEYS)
    if not text:
        return (unique,) if unique else ()
    keys = [key for key in text.split(KEY_SEPARATOR) if key]
    return (unique, *keys) if unique else tuple(keys)


# --- in a send ---

PROPERTY_ACCOUNT: Final = "rmqAccount"
"""Property of a half message, and of a message that waits for its time: the account that sent it, where
accounts exist; of a recall: the account that sent the message. RocketMQ ignores it."""
PROPERTY_TIMER_REPLACES: Final = "rmqTimerReplaces"
"""Property of a copy of a message that waits for its time: the queue offset of the original; also of the
recall of a message whose time was corrected."""
PROPERTY_TIMER_HANDLE_MS: Final = "rmqTimerHandleMs"
"""Property of a copy with a corrected time: the time in the producer's handle."""
PROPERTY_DECISION: Final = "rmqDecision"
"""Property of an op message: whether the half message was committed or rolled back. RocketMQ ignores it."""

INTERNAL_PROPERTIES: Final = frozenset(
    (
        PROPERTY_ACCOUNT,
        PROPERTY_REAL_TOPIC,
        PROPERTY_REAL_QUEUE_ID,
        PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
        PROPERTY_TRANSACTION_CHECK_TIMES,
        PROPERTY_TIMER_REPLACES,
        PROPERTY_TIMER_HANDLE_MS,
        "TIMER_OUT_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_DELAY_LEVEL",
        "TIMER_DEL_MS",
    )
)
"""Names whose values only brokers set. A consumer that sends a received message again sends them along, so
the broker removes them and does not refuse the message."""
_RETURNED_TO: Final = (RETRY_PREFIX, DLQ_PREFIX)
_WAIT: Final = f"{PROPERTY_WAIT_STORE}\x01"
_WAIT_TRUE: Final = f"\x02{_WAIT}true"
_UNIQUE: Final = f"{PROPERTY_UNIQUE_KEY}\x01"
_KNOWN_MAX: Final = 2048
_KNOWN_LENGTH_MAX: Final = 1024


def join_properties(text: str, suffix: str) -> str:
    """Two properties texts as one; some producers end theirs with a separator."""
    if not text:
        return suffix
    return text + suffix if text[-1] == "\x02" else f"{text}\x02{suffix}"


def without_wait(text: str, properties: dict[str, str]) -> str:
    """`text` without the property that only decides about waiting for the disk; `properties` is its map.
    RocketMQ does not store this property either: it has no later use, and every message has it."""
    if properties[PROPERTY_WAIT_STORE] == "true":
        shorter = text.replace(_WAIT_TRUE, "", 1)
        if len(shorter) != len(text) and _WAIT not in shorter:  # else the property is there twice
            return shorter
    return encode_properties(
        {name: value for name, value in properties.items() if name != PROPERTY_WAIT_STORE}
    )


Sent = tuple[str, bool, int, tuple[str, ...], bool]
"""Result of reading a sent properties text: the text to store, whether its producer waits for the disk, the
tags code, the keys for the index, and whether it has a property that needs a slower path."""


class SentProperties:
    """Reads the properties texts of sends. They differ in little but their unique keys, so the text around
    that key is read once. `suffix` follows each stored text, `rare` are the names of properties that need a
    slower path."""

    def __init__(self, suffix: str, rare: Set[str]) -> None:
        self._suffix = suffix
        self._rare = rare
        self._known: dict[tuple[str, str], tuple[str, str, bool, int, bool]] = {}

    def __call__(self, text: str) -> Sent:
        start = text.find(_UNIQUE) + len(_UNIQUE)
        stop = text.find("\x02", start)
        if stop < 0:
            stop = len(text)
        known = self._known.get((text[:start], text[stop:]))
        if known is None or start >= stop:
            return self._learn(text, start, stop)
        before, after, waits, code, rare = known
        key = text[start:stop]
        return f"{before}{key}{after}", waits, code, (key,), rare

    def read(self, text: str) -> Sent:
        """The result for any text, read from scratch."""
        properties = decode_properties(text)
        waits = properties.get(PROPERTY_WAIT_STORE)
        stored = without_wait(text, properties) if waits else text
        return (
            f"{stored}\x02{self._suffix}" if stored else self._suffix,
            waits is None or waits.lower() == "true",
            tags_code(properties.get(PROPERTY_TAGS)),
            record_keys(properties),
            not self._rare.isdisjoint(properties),
        )

    def _learn(self, text: str, start: int, stop: int) -> Sent:
        """Read a text, and remember the text around its unique key if nothing else depends on that key."""
        sent = stored, waits, code, found, rare = self.read(text)
        key, at = text[start:stop], start - len(_UNIQUE)
        alone = found == (key,) and text.count(_UNIQUE) == 1 and (at == 0 or text[at - 1] == "\x02")
        if alone and len(text) <= _KNOWN_LENGTH_MAX:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            middle = stored.index(_UNIQUE) + len(_UNIQUE)
            before, after = stored[:middle], stored[middle + len(key) :]
            self._known[text[:start], text[stop:]] = before, after, waits, code, rare
        return sent


def send_back_properties(message: StoredMessage) -> dict[str, str]:
    """The properties of a message that is sent back: its first topic, and its first id."""
    properties = dict(message.properties)
    if not message.topic.startswith(_RETURNED_TO):  # the sender's values of an earlier delivery do not count
        properties[PROPERTY_RETRY_TOPIC] = message.topic
    properties.setdefault(PROPERTY_RETRY_TOPIC, message.topic)
    properties[PROPERTY_WAIT_STORE] = "false"
    if not properties.get(PROPERTY_ORIGIN_MESSAGE_ID):
        properties[PROPERTY_ORIGIN_MESSAGE_ID] = message.offset_message_id
    return properties


# --- of dead letters ---
#
# A dead letter has its history: its origin, the number of its deliveries, and the reason of its end.
# The first two names are RocketMQ 5.x's. A consumer may give its reason in the header field `reason` of
# CONSUMER_SEND_MSG_BACK; RocketMQ's own brokers ignore that field.

DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
DLQ_RECONSUME_TIMES: Final = "DLQ_RECONSUME_TIMES"
DLQ_REASON: Final = "DLQ_REASON"
DLQ_REDRIVE_KEY: Final = "DLQ_REDRIVE_KEY"
"""Property of a message that was sent from the dead letters to a topic again: the id of the letter."""
REASON: Final = "reason"
"""The header field."""
RETRY_DELAY_MS: Final = "delayMs"
"""Another header field of CONSUMER_SEND_MSG_BACK that RocketMQ's brokers ignore: the ms after which the
message is redelivered. Beside it the request has the next longer level, which they use."""

REASON_LENGTH_MAX: Final = 500

_ONE_LINE: Final = dict.fromkeys(range(32), " ")


def reason_of(error: BaseException | None) -> str:
    """A consumer's words about the last error of a message; empty without one."""
    if error is None:
        return ""
    text = "".join(traceback.format_exception_only(error)).strip()  # also for errors that cannot be printed
    return _shortened(text.encode("utf-8", "backslashreplace").decode())


def _shortened(reason: str) -> str:
    return reason.translate(_ONE_LINE)[:REASON_LENGTH_MAX]


def dead_letter_properties(properties: Mapping[str, str], times: int, reason: str = "") -> dict[str, str]:
    """The properties of a dead letter for a message that was delivered `times` times.

    A message that was a dead letter before keeps its first origin.
    """
    unique = properties.get(PROPERTY_UNIQUE_KEY) or properties.get(PROPERTY_ORIGIN_MESSAGE_ID)
    life = {
        DLQ_ORIGIN_TOPIC: properties.get(DLQ_ORIGIN_TOPIC) or properties.get(PROPERTY_RETRY_TOPIC),
        DLQ_ORIGIN_MESSAGE_ID: properties.get(DLQ_ORIGIN_MESSAGE_ID) or unique,
        DLQ_RECONSUME_TIMES: str(times),
        DLQ_REASON: _shortened(reason),
    }
    return {name: value for name, value in life.items() if value}


# --- in a record ---

_SCHEDULE = SCHEDULE_TOPIC.encode()
_TIMER = TIMER_TOPIC.encode()

MARKERS = (b"TAGS\x01", b"KEYS\x01", b"UNIQ_KEY\x01")
"""The names, with 0x01, from which a unit's code and a record's keys are made."""


def property_value(properties: bytes, marker: bytes) -> bytes | None:
    """The value of a property in `name 0x01 value 0x02 …`, or None. `marker` is the name and 0x01. Of a
    repeated name the last counts, and a property without a value is dropped, as in Java's map."""
    at = properties.rfind(marker)
    while at >= 0:
        if at == 0 or properties[at - 1] == 2:
            start = at + len(marker)
            stop = properties.find(b"\x02", start)
            value = properties[start:] if stop < 0 else properties[start:stop]
            if value:
                return value
        at = properties.rfind(marker, 0, at)
    return None


def unit_code(topic: bytes, properties: bytes, store_timestamp: int, delays: Mapping[int, int]) -> int:
    """The tags code of a record's queue unit; for a delayed record, its due time."""
    if topic == _SCHEDULE:
        due = due_time(property_value(properties, b"DELAY\x01"), store_timestamp, delays)
        if due is not None:
            return due
    elif topic == _TIMER:
        return timer_due(property_value(properties, b"TIMER_OUT_MS\x01"))
    tags = property_value(properties, b"TAGS\x01")
    return tags_code(tags.decode("utf-8", JAVA)) if tags else 0


class TagsAndKeys:
    """Tags code and index keys of many messages that differ in little but their unique keys: the text around
    that key is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], tuple[int, bool]] = {}
        self._before = self._after = b""  # the text around the last unique key
        self._length = -1
        self._code = 0

    def of_all(self, texts: Iterable[bytes]) -> tuple[list[int], list[tuple[str, ...]]]:
        """The results of `of` for many messages. The messages of a batch mostly have keys of the same length
        as well."""
        codes: list[int] = []
        keys: list[tuple[str, ...]] = []
        before, after, length, code = self._before, self._after, self._length, self._code
        start, stop = len(before), length - len(after)
        for text in texts:
            key = text[start:stop]
            if len(text) == length and text[:start] == before and text[stop:] == after and 2 not in key:
                codes.append(code)
                keys.append((key.decode("utf-8", JAVA),))
            else:
                mark = self.of(text)
                codes.append(mark[0])
                keys.append(mark[1])
                before, after, length, code = self._before, self._after, self._length, self._code
                start, stop = len(before), length - len(after)
        return codes, keys

    def of(self, properties: bytes) -> tuple[int, tuple[str, ...]]:
        """(tags code, keys as `index_keys` gives them) of a message that is not delayed."""
        start = properties.find(b"UNIQ_KEY\x01") + 9
        if start < 9 or (start > 9 and properties[start - 10] != 2):
            return unit_code(b"", properties, 0, {}), index_keys(properties)
        stop = properties.find(b"\x02", start)
        if stop < 0:
            stop = len(properties)
        if start == stop:
            return unit_code(b"", properties, 0, {}), index_keys(properties)
        around = properties[:start], properties[stop:]
        known = self._known.get(around)
        if known is None:
            known = self._learn(around, properties)
        if known[1]:
            return known[0], index_keys(properties)
        self._code, self._length = known[0], len(properties)
        self._before, self._after = around
        return known[0], (properties[start:stop].decode("utf-8", JAVA),)

    def _learn(self, around: tuple[bytes, bytes], properties: bytes) -> tuple[int, bool]:
        if len(self._known) >= _KNOWN_MAX:  # the whole cache is dropped: senders choose the texts
            self._known.clear()
        several = properties.count(b"UNIQ_KEY\x01") > 1 or len(index_keys(properties)) != 1
        known = unit_code(b"", properties, 0, {}), several
        self._known[around] = known
        return known


def timer_due(text: bytes | None) -> int:
    """The due time of a record of the timer's topic, in ms since 1970, from its property TIMER_OUT_MS; 0
    without a valid one."""
    return int(text) if text is not None and text.isdigit() else 0


def due_time(level: bytes | None, store_timestamp: int, delays: Mapping[int, int]) -> int | None:
    """The due time of a record of that delay level; None without a level. A level above the table's counts as
    its highest."""
    try:
        number = min(int(level or b"0"), max(delays))
    except ValueError:
        return None
    return store_timestamp + delays[number] if number > 0 else None


def index_keys(properties: bytes) -> tuple[str, ...]:
    """The keys of a record in the index: the unique key, then KEYS split at blanks."""
    unique = property_value(properties, b"UNIQ_KEY\x01")
    keys = property_value(properties, b"KEYS\x01")
    if keys is None:
        return () if unique is None else (unique.decode("utf-8", JAVA),)
    names = [key for key in keys.split(b" ") if key]
    if unique is not None:
        names.insert(0, unique)
    return tuple([name.decode("utf-8", JAVA) for name in names])


def has_unit(sys_flag: int) -> bool:
    """True if a record gets a queue unit: not a PREPARED or ROLLBACK one (ROLLBACK has both bits). Holds for
    numpy arrays too."""
    return sys_flag & SYS_PREPARED == 0


def is_indexed(sys_flag: int) -> bool:
    """True if a record's keys are indexed: all but ROLLBACK records."""
    return sys_flag & SYS_ROLLBACK != SYS_ROLLBACK
