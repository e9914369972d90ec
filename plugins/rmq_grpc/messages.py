"""Messages: from the form of 5.x clients to the broker's, and back; and the rules for names and properties.

Limits, names and codes are those of RocketMQ 5.3.3's proxy. A body that a producer has compressed is stored
uncompressed, so that clients of 4.x read it as well.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any, Final

from rmq.errors import InvalidName, InvalidType
from rmq.message import (
    PROPERTY_CHECK_IMMUNITY_TIME,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    RESERVED_PROPERTIES,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    Message,
    java_hash,
    validate_group,
    validate_topic,
)
from rmq.protocol.properties import (
    INTERNAL_PROPERTIES,
    PROPERTY_DELAY_MS,
    PROPERTY_DELAY_SEC,
    PROPERTY_DELIVER_MS,
    PROPERTY_SHARDING_KEY,
)
from rmq_grpc import schema
from rmq_grpc.statuses import Refused

V2Message: Final = schema.message("Message")
MessageType: Final = schema.enum("MessageType")
_GZIP: Final = schema.enum("Encoding")["GZIP"]
_TRANSACTION: Final = MessageType["TRANSACTION"]

PROPERTY_BORN_HOST: Final = "__BORNHOST"
PROPERTY_BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
PROPERTY_TRACE_CONTEXT: Final = "__TRACE_CONTEXT"
PROPERTY_DEAD_LETTER_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
PROPERTY_DEAD_LETTER_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"

SYSTEM_PROPERTIES: Final = (
    RESERVED_PROPERTIES
    | INTERNAL_PROPERTIES
    | {
        PROPERTY_SHARDING_KEY,
        PROPERTY_BORN_HOST,
        PROPERTY_BORN_TIMESTAMP,
        PROPERTY_TRACE_CONTEXT,
        PROPERTY_DEAD_LETTER_TOPIC,
        PROPERTY_DEAD_LETTER_ID,
        PROPERTY_DELIVER_MS,
        PROPERTY_DELAY_MS,
        PROPERTY_DELAY_SEC,
        "TIMER_OUT_MS",
        "1ST_POP_TIME",
        "POP_CK",
    }
)
"""Properties that are RocketMQ's, and no application's."""

BODY_BYTES: Final = 4 << 20
PROPERTIES_MAX: Final = 128
PROPERTIES_BYTES: Final = 16_384
GROUP_BYTES: Final = 64
DELAY_MS: Final = 24 * 3600 * 1000
RECOVERY_SECONDS: Final = 3_600
KNOWN_NAMES: Final = 1_024
"""Number of checked names that are kept, of topics and of groups."""
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


@lru_cache(KNOWN_NAMES)
def checked_topic(name: str) -> str:
    """The name of a topic. Raises Refused for one that applications may not use."""
    try:
        validate_topic(name)
    except (InvalidName, InvalidType) as error:
        raise Refused("ILLEGAL_TOPIC", str(error)) from None
    if name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX):
        raise Refused("ILLEGAL_TOPIC", f"{name} is a topic of the system")
    return name


def topic_of(resource: Any) -> str:
    """The name of a topic. Raises Refused for one that applications may not use."""
    return checked_topic(resource.name)


@lru_cache(KNOWN_NAMES)
def checked_group(name: str) -> str:
    """The name of a consumer group. Raises Refused for one that applications may not use."""
    try:
        validate_group(name)
    except (InvalidName, InvalidType) as error:
        raise Refused("ILLEGAL_CONSUMER_GROUP", str(error)) from None
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise Refused("ILLEGAL_CONSUMER_GROUP", f"{name} is a group of the system")
    return name


def group_of(resource: Any) -> str:
    """The name of a consumer group. Raises Refused for one that applications may not use."""
    return checked_group(resource.name)


def has_control(text: str) -> bool:
    """True if a text has a control character, as Java counts them."""
    return not text.isprintable() and any(ord(one) < 32 or 127 <= ord(one) < 160 for one in text)


def _check_text(word: str, kind: str, text: str) -> None:
    if text and not text.strip():
        raise Refused(word, f"{kind} must not consist of blanks")
    if has_control(text):
        raise Refused(word, f"{kind} {text!r:.80} has a control character")


# ---- from a producer ----


def kind_of(message: Any) -> str:
    """The type of a message, by its properties: NORMAL, FIFO, DELAY or TRANSACTION."""
    system = message.system_properties
    if system.message_type == _TRANSACTION:
        return "TRANSACTION"
    if system.HasField("delivery_timestamp"):
        return "DELAY"
    return "FIFO" if system.message_group else "NORMAL"


def to_store(message: Any, now_ms: int, peer: str) -> Message:
    """The message that the broker stores. Raises Refused when it breaks a rule."""
    system = message.system_properties
    topic = checked_topic(message.topic.name)
    tag, keys, message_id = system.tag, list(system.keys), system.message_id
    properties = _user_properties(message, tag, keys)
    if not message_id.strip():
        raise Refused("ILLEGAL_MESSAGE_ID", "the message id is empty")
    properties[PROPERTY_UNIQUE_KEY] = message_id
    properties[PROPERTY_BORN_HOST] = system.born_host or peer.rpartition(":")[0]
    properties[PROPERTY_BORN_TIMESTAMP] = str(ms_of(system.born_timestamp) or now_ms)
    if system.message_type == _TRANSACTION:
        properties[PROPERTY_TRANSACTION_PREPARED] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            if seconds > RECOVERY_SECONDS:
                raise Refused("BAD_REQUEST", f"the recovery of a transaction is at most {RECOVERY_SECONDS} s")
            properties[PROPERTY_CHECK_IMMUNITY_TIME] = str(seconds)
    properties[PROPERTY_PRODUCER_GROUP] = topic  # a check-back may go to any producer of the topic
    if group := system.message_group:
        _check_text("ILLEGAL_MESSAGE_GROUP", "a message group", group)
        if len(group.encode()) >= GROUP_BYTES:
            raise Refused("ILLEGAL_MESSAGE_GROUP", f"a message group has less than {GROUP_BYTES} bytes")
        properties[PROPERTY_SHARDING_KEY] = group
    if system.trace_context:
        properties[PROPERTY_TRACE_CONTEXT] = system.trace_context
    deliver_at_ms = None
    if system.HasField("delivery_timestamp"):
        deliver_at_ms = ms_of(system.delivery_timestamp)
        if deliver_at_ms - now_ms > DELAY_MS:
            raise Refused("ILLEGAL_DELIVERY_TIME", f"a message is delayed by at most {DELAY_MS} ms")
    return Message(
        topic,
        _body(message.body, system.body_encoding),
        tags=tag or None,
        keys=tuple(filter(None, keys)),
        properties=properties,
        deliver_at_ms=deliver_at_ms,
    )


def _user_properties(message: Any, tag: str, keys: list[str]) -> dict[str, str]:
    """The application's properties, once all rules for texts hold."""
    properties = dict(sorted(message.user_properties.items()))  # a map has no order of its own
    if len(properties) > PROPERTIES_MAX:
        raise Refused("MESSAGE_PROPERTIES_TOO_LARGE", f"a message has at most {PROPERTIES_MAX} properties")
    length = len(tag)
    for name, value in properties.items():
        if name in SYSTEM_PROPERTIES or not (name and name.isprintable() and value.isprintable()):
            _check_property(name, value)
        length += len(name) + len(value)
    if not tag.isprintable() or "|" in tag or (tag and tag.isspace()):
        _check_tag(tag)
    for key in keys:
        if not key.isprintable() or " " in key:
            _check_key(key)
        length += len(key)
    if length > PROPERTIES_BYTES // 4:  # a character has at most 4 bytes
        _check_size([*properties, *properties.values(), tag, *keys])
    return properties


def _check_property(name: str, value: str) -> None:
    if name in SYSTEM_PROPERTIES:
        raise Refused("ILLEGAL_MESSAGE_PROPERTY_KEY", f"the property {name} is the system's")
    if not name:
        raise Refused("ILLEGAL_MESSAGE_PROPERTY_KEY", "the name of a property is empty")
    if has_control(name) or has_control(value):
        raise Refused("ILLEGAL_MESSAGE_PROPERTY_KEY", f"the property {name!r:.80} has a control character")


def _check_tag(tag: str) -> None:
    _check_text("ILLEGAL_MESSAGE_TAG", "a tag", tag)
    if "|" in tag:
        raise Refused("ILLEGAL_MESSAGE_TAG", "a tag must not contain |")


def _check_key(key: str) -> None:
    _check_text("ILLEGAL_MESSAGE_KEY", "a key", key)
    if " " in key:
        raise Refused("ILLEGAL_MESSAGE_KEY", f"the key {key!r:.80} has a blank")


def _check_size(texts: list[str]) -> None:
    size = sum(len(text.encode()) for text in texts)
    if size > PROPERTIES_BYTES:
        raise Refused(
            "MESSAGE_PROPERTIES_TOO_LARGE",
            f"properties, tag and keys have {size} bytes, at most {PROPERTIES_BYTES} are allowed",
        )


def _body(body: bytes, encoding: int) -> bytes:
    if encoding == _GZIP:
        unpacking = zlib.decompressobj(47)
        try:
            body = unpacking.decompress(body, BODY_BYTES + 1)
        except zlib.error as error:
            raise Refused("MESSAGE_CORRUPTED", f"the body cannot be decompressed: {error}") from None
    if not body:
        raise Refused("MESSAGE_BODY_EMPTY", "the body of a message must not be empty")
    if len(body) > BODY_BYTES:
        raise Refused("MESSAGE_BODY_TOO_LARGE", f"the body has more than {BODY_BYTES} bytes")
    return body


def queue_of(message_group: str, queues: int) -> int:
    """The queue of a message group, as RocketMQ's proxy chooses it: the jump consistent hash of Lamping and
    Veach over Java's hash of the text, with Guava's generator.
    """
    state = java_hash(message_group) & 0xFFFF_FFFF_FFFF_FFFF
    chosen = 0
    while True:
        state = (2862933555777941757 * state + 1) & 0xFFFF_FFFF_FFFF_FFFF
        fraction = ((state >> 33) + 1) / 2147483648.0
        following = int((chosen + 1) / fraction)
        if not 0 <= following < queues:
            return chosen
        chosen = following


# ---- times ----


def ms_of(time: Any) -> int:
    """Milliseconds of a Timestamp or Duration."""
    return int(time.seconds) * 1000 + int(time.nanos) // 1_000_000


def put_ms(time: Any, ms: int) -> None:
    """Set a Timestamp or Duration to milliseconds."""
    time.seconds, time.nanos = ms // 1000, ms % 1000 * 1_000_000
