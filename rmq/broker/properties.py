"""The properties text of messages on their way into the store: name 0x01 value, joined by 0x02."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Final

from rmq.message import (
    DLQ_PREFIX,
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
    tags_code,
)
from rmq.protocol import engine
from rmq.protocol.record import encode_properties, record_keys

if TYPE_CHECKING:
    from rmq.message import StoredMessage

INTERNAL: Final = frozenset(
    (
        PROPERTY_REAL_TOPIC,
        PROPERTY_REAL_QUEUE_ID,
        PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
        PROPERTY_TRANSACTION_CHECK_TIMES,
        "TIMER_OUT_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_DELAY_LEVEL",
        "TIMER_DEL_MS",
    )
)
"""Names that brokers alone give values to. Who sends a message again that it was given, as a consumer does,
sends them along, so they are taken out and not refused."""
_RETURNED_TO: Final = (RETRY_PREFIX, DLQ_PREFIX)
_WAIT_TRUE: Final = f"\x02{PROPERTY_WAIT_STORE}\x01true"
_UNIQUE: Final = f"{PROPERTY_UNIQUE_KEY}\x01"
_KNOWN_MAX: Final = 2048
_KNOWN_LENGTH_MAX: Final = 1024


def parse(text: str) -> dict[str, str]:
    """The map of a properties text; of several of a name the last counts, and what has no value is none."""
    try:
        found = dict([piece.split("\x01", 1) for piece in text.split("\x02")])
    except ValueError:  # a piece without a separator, such as after one at the end
        return engine.parse_properties(text)
    return found if "" not in found.values() and "" not in found else engine.parse_properties(text)


def joined(text: str, suffix: str) -> str:
    """Two properties texts as one; some producers end theirs with a separator."""
    if not text:
        return suffix
    return text + suffix if text[-1] == "\x02" else f"{text}\x02{suffix}"


def without_wait(text: str, properties: dict[str, str]) -> str:
    """`text` without the property that only tells whether to wait for the disk; `properties` is its map.

    RocketMQ does not store it either: nobody reads it any more, and it stands in every message.
    """
    if properties[PROPERTY_WAIT_STORE] == "true":
        shorter = text.replace(_WAIT_TRUE, "", 1)
        if len(shorter) != len(text):
            return shorter
    return encode_properties(
        {name: value for name, value in properties.items() if name != PROPERTY_WAIT_STORE}
    )


def keys(properties: dict[str, str]) -> tuple[str, ...]:
    """What the index holds of a message: its unique key, then its keys."""
    if properties.get(PROPERTY_KEYS):
        return record_keys(properties)
    unique = properties.get(PROPERTY_UNIQUE_KEY)
    return (unique,) if unique else ()


Sent = tuple[str, bool, int, tuple[str, ...], bool]
"""What a sent properties text comes to: the text to store, whether its producer waits for the disk, the tags
code, the keys for the index, whether it has a property that takes a way of its own."""


class SentTexts:
    """Reads the properties texts of sends. They differ in little but their unique keys, so what is around
    that key is read once.

    `suffix` comes after each stored text, `rare` are the names of properties that take a way of their own.
    """

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
        """What any text comes to, read from scratch."""
        properties = parse(text)
        waits = properties.get(PROPERTY_WAIT_STORE)
        stored = without_wait(text, properties) if waits else text
        return (
            f"{stored}\x02{self._suffix}" if stored else self._suffix,
            waits is None or waits.lower() == "true",
            tags_code(properties.get(PROPERTY_TAGS)),
            keys(properties),
            not self._rare.isdisjoint(properties),
        )

    def _learn(self, text: str, start: int, stop: int) -> Sent:
        """Read a text, and remember what is around its unique key if nothing else depends on that."""
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


def returned(message: StoredMessage) -> dict[str, str]:
    """The properties of a message that comes back: where it came from first, and as which message."""
    properties = dict(message.properties)
    if not message.topic.startswith(_RETURNED_TO):  # what its sender says of an earlier life does not count
        properties[PROPERTY_RETRY_TOPIC] = message.topic
    properties.setdefault(PROPERTY_RETRY_TOPIC, message.topic)
    properties[PROPERTY_WAIT_STORE] = "false"
    if not properties.get(PROPERTY_ORIGIN_MESSAGE_ID):
        properties[PROPERTY_ORIGIN_MESSAGE_ID] = message.offset_message_id
    return properties
