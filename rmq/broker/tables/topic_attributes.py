"""Attributes of topics, RocketMQ 5.x's: above all the type of the messages that a topic takes.

An administrator gives them as a text, `+name=value` to set one and `-name` to remove one, with commas
between. A topic without the attribute `message.type` takes any message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq.errors import for_code
from rmq.message import PROPERTY_DELAY_LEVEL, PROPERTY_TRANSACTION_PREPARED
from rmq.protocol.codes import RETENTION_BYTES, RETENTION_MS, ResponseCode
from rmq.protocol.properties import (
    PROPERTY_DELAY_MS,
    PROPERTY_DELAY_SEC,
    PROPERTY_DELIVER_MS,
    PROPERTY_SHARDING_KEY,
)

MESSAGE_TYPE: Final = "message.type"
NORMAL, FIFO, DELAY, TRANSACTION, MIXED = "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"
TYPES: Final = (NORMAL, FIFO, DELAY, TRANSACTION, MIXED)
ATTRIBUTES_MAX: Final = 32
_TEXT_MAX: Final = 256
_DELAYS: Final = (PROPERTY_DELAY_LEVEL, PROPERTY_DELAY_MS, PROPERTY_DELAY_SEC, PROPERTY_DELIVER_MS)


def changed_attributes(before: Mapping[str, str] | None, text: str | None) -> dict[str, str] | None:
    """The attributes of a topic after a change by `text`; None for none. Raises ResponseError for a text that
    is no such change.
    """
    attributes = dict(before or {})
    for word in (text or "").split(","):
        word = word.strip()
        name, equals, value = word[1:].partition("=")
        if not word:
            continue
        if word[0] == "-" and name and not equals:
            attributes.pop(name, None)
        elif word[0] == "+" and name and value and len(word) <= _TEXT_MAX:
            attributes[name] = value
        else:
            raise _refused(f"{word[:80]!r} is not an attribute: +name=value sets one, -name removes one")
    kind = attributes.get(MESSAGE_TYPE)
    if kind is not None and kind not in TYPES:
        raise _refused(f"{MESSAGE_TYPE} is {kind[:80]!r}: expected {', '.join(TYPES)}")
    for limit in (RETENTION_MS, RETENTION_BYTES):
        if limit in attributes and not _is_limit(attributes[limit]):
            raise _refused(f"{limit} is {attributes[limit][:80]!r}: expected a whole number, at least 1")
    if len(attributes) > ATTRIBUTES_MAX:
        raise _refused(f"a topic has {len(attributes)} attributes, at most {ATTRIBUTES_MAX} are kept")
    return attributes or None


def _is_limit(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 63


def limits_of(attributes: Mapping[str, str]) -> tuple[int, int]:
    """`retention.ms` and `retention.bytes` of a topic; 0 where there is no limit. A value that is no number,
    as another program may have saved it, is no limit."""
    age, size = attributes.get(RETENTION_MS, ""), attributes.get(RETENTION_BYTES, "")
    return (int(age) if _is_limit(age) else 0), (int(size) if _is_limit(size) else 0)


def _refused(reason: str) -> Exception:
    return for_code(ResponseCode.SYSTEM_ERROR, reason)


def type_of(properties: Mapping[str, str]) -> str:
    """The type of a message with these properties."""
    if properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() == "true":
        return TRANSACTION
    if any(name in properties for name in _DELAYS) and properties.get(PROPERTY_DELAY_LEVEL) != "0":
        return DELAY
    return FIFO if PROPERTY_SHARDING_KEY in properties else NORMAL


def check_type(topic: str, kind: str, properties: Mapping[str, str]) -> None:
    """Raises ResponseError when a message is not of the type that its topic takes."""
    found = type_of(properties)
    if kind not in (found, MIXED):
        raise for_code(
            ResponseCode.MESSAGE_ILLEGAL,
            f"topic {topic} takes {kind} messages ({MESSAGE_TYPE}), this one is {found}: send it to a topic "
            f"of that type, or set the attribute to {MIXED}",
        )
