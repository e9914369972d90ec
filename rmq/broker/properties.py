"""The properties text of messages on their way into the store: name 0x01 value, joined by 0x02."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmq.message import (
    PROPERTY_KEYS,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT_STORE,
)
from rmq.protocol import engine
from rmq.protocol.record import encode_properties, record_keys

if TYPE_CHECKING:
    from rmq.message import StoredMessage

_WAIT_TRUE: Final = f"\x02{PROPERTY_WAIT_STORE}\x01true"


def parse(text: str) -> dict[str, str]:
    """The map of a properties text."""
    try:
        return dict([piece.split("\x01", 1) for piece in text.split("\x02")])
    except ValueError:  # a piece without a value, such as after a separator at the end
        return engine.parse_properties(text)


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


def returned(message: StoredMessage) -> dict[str, str]:
    """The properties of a message that comes back: where it came from first, and as which message."""
    properties = dict(message.properties)
    properties.setdefault(PROPERTY_RETRY_TOPIC, message.topic)
    properties[PROPERTY_WAIT_STORE] = "false"
    if not properties.get(PROPERTY_ORIGIN_MESSAGE_ID):
        properties[PROPERTY_ORIGIN_MESSAGE_ID] = message.offset_message_id
    return properties
