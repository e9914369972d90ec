"""Records of the timer queue: which time a message asks for, and which other record a recall or a copy names.

The properties are RocketMQ 5.x's but for those that begin with `rmq`, which are ours.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from rmq.errors import CorruptRecord, LocalProtocolError, for_code
from rmq.message import PROPERTY_UNIQUE_KEY, TIMER_TOPIC
from rmq.protocol.codes import ResponseCode
from rmq.protocol.properties import (
    PROPERTY_ACCOUNT,
    PROPERTY_DELAY_MS,
    PROPERTY_DELAY_SEC,
    PROPERTY_DELIVER_MS,
    PROPERTY_TIMER_HANDLE_MS,
    PROPERTY_TIMER_REPLACES,
)
from rmq.protocol.record import PROPERTIES_MAX, decode_record, property_bytes

if TYPE_CHECKING:
    from rmq.message import StoredMessage
    from rmq.protocol.record import Record
    from rmq.store.store import Store

PROPERTY_OUT_MS: Final = "TIMER_OUT_MS"
PROPERTY_RECALLED: Final = "TIMER_DEL_UNIQKEY"
TIMER_PROPERTIES: Final = (PROPERTY_DELAY_SEC, PROPERTY_DELAY_MS, PROPERTY_DELIVER_MS)

MAX_AHEAD_MS: Final = 40 * 86_400_000

HIDDEN_PROPERTIES: Final = (PROPERTY_ACCOUNT, PROPERTY_TIMER_REPLACES, PROPERTY_TIMER_HANDLE_MS)
"""Properties that no consumer is shown."""

COPY_ROOM: Final = 128
"""Bytes of properties that a waiting message leaves for those that a copy adds to it."""

log = logging.getLogger("rmq.broker")

_MARKS: Final = tuple(f"{name}\x01".encode() for name in (PROPERTY_RECALLED, PROPERTY_TIMER_REPLACES))


def deliver_time(properties: Mapping[str, str], now_ms: int) -> int | None:
    """The delivery time (ms) that a message asks for, None without a time and for a time in the past.

    Of several properties for a time the delay in seconds wins, and next the delay in milliseconds, as in 5.x.
    Raises ResponseError(MESSAGE_ILLEGAL) for a time that is no number or more than 40 days ahead.
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


def delay_ms(properties: Mapping[str, str], due_ms: int) -> int:
    """The delay that a message asked for; no less than its time if it asked for a time."""
    for name, factor in ((PROPERTY_DELAY_SEC, 1000), (PROPERTY_DELAY_MS, 1)):
        text = properties.get(name)
        if text is not None:
            return int(text) * factor if text.isascii() and text.isdigit() else due_ms
    return due_ms


def is_marked(data: memoryview) -> bool:
    """True if a record may be a recall or a copy."""
    try:
        properties = property_bytes(data)
    except CorruptRecord:  # its delivery says so
        return False
    return any(mark in properties for mark in _MARKS)


def has_key(data: memoryview, unique_key: str) -> bool:
    """True if the properties of a record may name this unique key."""
    try:
        return f"{PROPERTY_UNIQUE_KEY}\x01{unique_key}".encode() in property_bytes(data)
    except CorruptRecord:
        return False


def replaced_offset(message: StoredMessage) -> int | None:
    """The queue offset of the original of a copy, or of the recall of an original; None if there is none."""
    text = message.properties.get(PROPERTY_TIMER_REPLACES, "")
    return int(text) if text.isascii() and text.isdigit() and int(text) < message.queue_offset else None


def message_key(topic: str, unique_key: str) -> bytes:
    """The short name of a message for its recall, for keys of any length."""
    return blake2b(f"{topic}+{unique_key}".encode(), digest_size=16).digest()


def timer_message(store: Store, offset: int) -> StoredMessage | None:
    """A record of the timer queue; None, with an error in the log, when it cannot be read."""
    unit = store.unit(TIMER_TOPIC, 0, offset)
    data = None if unit is None else store.read(unit[0])
    try:
        if data is None:
            raise LocalProtocolError("it is no longer in the log")
        return decode_record(data, decompressed=False)
    except (CorruptRecord, LocalProtocolError) as error:
        log.error("timer message %d cannot be delivered: %r", offset, error)
        return None


def marked_message(store: Store, offset: int) -> StoredMessage | None:
    """A record of the timer queue if it is a recall or a copy."""
    unit = store.unit(TIMER_TOPIC, 0, offset)
    data = None if unit is None else store.read(unit[0])
    return timer_message(store, offset) if data is not None and is_marked(data) else None


def has_room(copy: Record) -> bool:
    """True if the properties of a copy fit a record: an original of an earlier version may leave no room."""
    return len(copy.properties.encode()) <= PROPERTIES_MAX
