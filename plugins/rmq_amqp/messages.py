"""Messages: the conversion between AMQP's sections and the broker's records.

A text, or the bytes of a BytesMessage, is the unchanged body; a map or stream is JSON. Application properties
keep their names, as texts; the property `TYPES` has the types of properties that are not texts. The headers
of JMS are properties under their JMS names, so that selectors and clients of RocketMQ see them.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final
from urllib.parse import quote, unquote

from rmq.message import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    RESERVED_PROPERTIES,
    Message,
    StoredMessage,
)
from rmq.protocol.properties import (
    INTERNAL_PROPERTIES,
    PROPERTY_DELAY_MS,
    PROPERTY_DELAY_SEC,
    PROPERTY_DELIVER_MS,
    PROPERTY_SHARDING_KEY,
)
from rmq_amqp import typed_texts
from rmq_amqp.conditions import INVALID_FIELD, PRECONDITION_FAILED, Refused
from rmq_amqp.sections import DATA, SEQUENCE, VALUE, Sections, build
from rmq_amqp.values import Byte, Malformed, Symbol, decode, encode

log = logging.getLogger("rmq.amqp")

BODY: Final = "JMS_AMQP_Body"
"""The kind of body, a word of `_MESSAGE_TYPES`."""
TYPES: Final = "JMS_AMQP_Types"
"""The types of properties, ids and values of a map or stream that are not texts."""
BODY_TYPES: Final = "JMS_AMQP_BodyTypes"
CONTENT_TYPE: Final = "JMS_AMQP_ContentType"
CONTENT_ENCODING: Final = "JMS_AMQP_ContentEncoding"
REPLY_TO_GROUP: Final = "JMS_AMQP_ReplyToGroupID"
REPLY_TYPE: Final = "JMS_AMQP_ReplyToType"
MESSAGE_ID: Final = "JMSMessageID"
CORRELATION_ID: Final = "JMSCorrelationID"
TYPE: Final = "JMSType"
REPLY_TO: Final = "JMSReplyTo"
PRIORITY: Final = "JMSPriority"
DELIVERY_MODE: Final = "JMSDeliveryMode"
EXPIRATION: Final = "JMSExpiration"
TIMESTAMP: Final = "JMSTimestamp"
DELIVERY_TIME: Final = "JMSDeliveryTime"
CLIENT: Final = "JMS_AMQP_Client"
"""The client id (container id) of the producer, for subscriptions that leave out their own messages."""
USER_ID: Final = "JMSXUserID"
GROUP_SEQUENCE: Final = "JMSXGroupSeq"

ESCAPE: Final = "JMS_AMQP_P_"
"""Prefix of an application property whose own name RocketMQ needs, or cannot hold."""

_OURS: Final = frozenset(
    {BODY, TYPES, BODY_TYPES, CONTENT_TYPE, CONTENT_ENCODING, REPLY_TO_GROUP, REPLY_TYPE, MESSAGE_ID}
    | {CORRELATION_ID, TYPE, REPLY_TO, PRIORITY, DELIVERY_MODE, EXPIRATION, TIMESTAMP, USER_ID}
    | {GROUP_SEQUENCE, DELIVERY_TIME, CLIENT}
)
_TIMER: Final = frozenset({PROPERTY_DELIVER_MS, PROPERTY_DELAY_MS, PROPERTY_DELAY_SEC, "TIMER_OUT_MS"})
_BROKERS: Final = (
    (RESERVED_PROPERTIES - {PROPERTY_KEYS, PROPERTY_TAGS})
    | INTERNAL_PROPERTIES
    | _TIMER
    | {PROPERTY_SHARDING_KEY, "__BORNHOST", "BORN_TIMESTAMP", "__TRACE_CONTEXT", "POP_CK", "1ST_POP_TIME"}
)
"""Properties that are RocketMQ's: no client of AMQP sees them or sets them by their own names."""

QUEUE_DELAY_MAX_MS: Final = 40 * 86_400_000
OBJECT_TYPE: Final = "application/x-java-serialized-object"
LETTERS_MAX: Final = 8_192
"""Values of a map or stream whose types fit into a property: all properties together have 32,767 bytes."""
EMPTY_BODY: Final = b"\0"
"""Body of a message without content: RocketMQ stores no empty body."""

_MESSAGE: Final = Symbol("x-opt-jms-msg-type")
_DESTINATION: Final = Symbol("x-opt-jms-dest")
_REPLY: Final = Symbol("x-opt-jms-reply-to")
_DELIVER_AT: Final = Symbol("x-opt-delivery-time")
_DELAY: Final = Symbol("x-opt-delivery-delay")

_MESSAGE_TYPES: Final = {"message": 0, "object": 1, "map": 2, "bytes": 3, "stream": 4, "text": 5}
_WORDS: Final = {number: word for word, number in _MESSAGE_TYPES.items()}


# ---- to the broker ----


def to_store(message: Sections, topic: str, now_ms: int, client: str) -> Message:
    """The message that the broker stores. Raises Refused when it cannot be stored."""
    types: dict[str, str] = {}
    properties: dict[str, str] = {}
    for name, value in message.properties.items():
        if not isinstance(name, str):
            raise Refused(INVALID_FIELD, f"the name of an application property, {name!r:.80}, is no string")
        stored = _stored_name(name)
        properties[stored] = _put(types, stored, value)
    body = _body(message, properties)
    _put_headers(message, properties, types, now_ms)
    properties[CLIENT] = _put(types, CLIENT, client)
    deliver_at = _deliver_at(message, now_ms)
    if deliver_at is not None:
        properties[DELIVERY_TIME] = str(deliver_at)
    if types:
        properties[TYPES] = typed_texts.join(types)
    tags = properties.pop(PROPERTY_TAGS, None)
    keys = properties.pop(PROPERTY_KEYS, "").split()
    return Message(
        topic,
        body,
        tags=tags,
        keys=tuple(keys),
        properties=properties,
        deliver_at_ms=deliver_at,
    )


def _put(types: dict[str, str], name: str, value: Any) -> str:
    letter, text = typed_texts.to_text(value)
    if letter != typed_texts.TEXT:
        types[name] = letter
    return text


def _stored_name(name: str) -> str:
    if name in _BROKERS or name in _OURS or name.startswith(ESCAPE) or not name or not name.isprintable():
        return ESCAPE + quote(name, safe=" ")
    return name


def _put_headers(message: Sections, properties: dict[str, str], types: dict[str, str], now_ms: int) -> None:
    """Set the properties of the headers of JMS."""
    if message.message_id is not None:
        properties[PROPERTY_UNIQUE_KEY] = _put(types, MESSAGE_ID, message.message_id)
    if message.correlation_id is not None:
        text = properties[CORRELATION_ID] = _put(types, CORRELATION_ID, message.correlation_id)
        if CORRELATION_ID not in types and text.split() == [text] and PROPERTY_KEYS not in properties:
            properties[PROPERTY_KEYS] = text
    texts = (
        (TYPE, message.subject),
        (REPLY_TO, message.reply_to),
        (CONTENT_ENCODING, message.content_encoding),
        (REPLY_TO_GROUP, message.reply_to_group),
        (PROPERTY_SHARDING_KEY, message.group_id),
    )
    for name, field in texts:
        if field is not None:
            properties[name] = _put(types, name, field)
    if message.subject and TYPE not in types and "|" not in message.subject:
        properties.setdefault(PROPERTY_TAGS, message.subject)
    if message.user_id is not None:
        properties[USER_ID] = _put(types, USER_ID, _text_or_bytes(message.user_id))
    if message.group_sequence is not None:
        properties[GROUP_SEQUENCE] = str(int(message.group_sequence))
    if isinstance(kind := message.annotations.get(_REPLY), int):
        properties[REPLY_TYPE] = str(int(kind))
    properties[PRIORITY] = str(int(message.priority))
    properties[DELIVERY_MODE] = "PERSISTENT" if message.durable else "NON_PERSISTENT"
    created = now_ms if message.created is None else int(message.created)
    properties[TIMESTAMP] = str(created)
    expires = message.expires
    if expires is None and message.ttl:
        expires = now_ms + message.ttl
    if expires:
        properties[EXPIRATION] = str(int(expires))


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _deliver_at(message: Sections, now_ms: int) -> int | None:
    at = message.annotations.get(_DELIVER_AT)
    delay = message.annotations.get(_DELAY)
    if isinstance(delay, int) and not isinstance(at, int):
        at = now_ms + delay
    if not isinstance(at, int) or at <= now_ms:
        return None
    if at - now_ms > QUEUE_DELAY_MAX_MS:
        raise Refused(
            PRECONDITION_FAILED, f"the delivery time is {at - now_ms} ms ahead, at most 40 days are possible"
        )
    return int(at)


def _body(message: Sections, properties: dict[str, str]) -> bytes:
    """The body of the stored message; its kind goes into the properties."""
    said = message.annotations.get(_MESSAGE)
    word = _WORDS.get(said, "") if isinstance(said, int) else ""
    kind, value = message.kind, message.body
    if message.content_type:
        properties[CONTENT_TYPE] = str(
            message.content_type
        )  # no Symbol: a message of plain texts is checked faster
    if kind == DATA:
        properties[BODY] = "object" if word == "object" else "bytes"
        return value or _no_body(properties, "data")
    if kind == VALUE and type(value) is str and word in ("", "text"):
        properties[BODY] = "text"
        return value.encode() or _no_body(properties, "string")
    if not kind or (value is None and kind == VALUE):
        properties[BODY] = word or "message"
        return _no_body(properties, "null" if kind else "none")
    if kind == VALUE and isinstance(value, dict) and (plain := _json_map(value, properties)):
        properties[BODY] = "map"
        return plain
    if kind == SEQUENCE and (plain := _json_list(value, properties)):
        properties[BODY] = "stream"
        return plain
    properties[BODY] = word or "message"
    properties[BODY_TYPES] = "sequence" if kind == SEQUENCE else "value"
    return encode(value)


def _no_body(properties: dict[str, str], why: str) -> bytes:
    properties[BODY_TYPES] = why
    return EMPTY_BODY


_JSON_OWN: Final = {"s": str, "l": int, "d": float, "z": bool, "n": type(None)}


def _json_value(value: Any) -> tuple[str, Any]:
    """The letter of a value's type, and its form in JSON."""
    letter, text = typed_texts.to_text(value)
    if letter == typed_texts.ESCAPED:
        return typed_texts.TEXT, value
    if letter in ("l", "i", "h", "b") or letter in ("z", "n"):
        return letter, None if value is None else (bool(value) if letter == "z" else int(value))
    if letter == "d":
        return (letter, value) if value - value == 0 else ("D", text)
    return letter, text


def _json_map(values: dict[Any, Any], properties: dict[str, str]) -> bytes:
    """The JSON of a map with texts as names; nothing for another map, and for too many types."""
    if not all(type(name) is str for name in values):
        return b""
    letters, plain = [], {}
    for name, value in values.items():
        letter, plain[name] = _json_value(value)
        letters.append(letter)
    if not _put_letters(letters, properties):
        return b""
    return json.dumps(plain, ensure_ascii=False).encode()


def _json_list(values: list[Any], properties: dict[str, str]) -> bytes:
    pairs = [_json_value(value) for value in values]
    if not _put_letters([letter for letter, _ in pairs], properties):
        return b""
    return json.dumps([value for _, value in pairs], ensure_ascii=False).encode()


def _put_letters(letters: list[str], properties: dict[str, str]) -> bool:
    """Note the types of values; False if they are too many for a property."""
    if set(letters) <= set(_JSON_OWN):
        return True
    if len(letters) > LETTERS_MAX:
        return False
    properties[BODY_TYPES] = "".join(letters)
    return True


# ---- to a client ----


def encoded(stored: StoredMessage, attempt: int, address: str, destination: int, now_ms: int) -> bytes:
    """A stored message in the bytes of AMQP; `destination` is 0 for a queue, 1 for a topic.

    A producer of RocketMQ may have set properties of JMS to values that fit no field of AMQP: such a message
    has its body as bytes, and all of its properties as texts.
    """
    try:
        return build(to_client(stored, attempt, address, destination, now_ms))
    except Exception as error:
        log.debug("a message of %s is given as it is stored: %s", stored.topic, error)
    properties = stored.properties
    plain = Sections(DATA, stored.body, durable=True, delivery_count=attempt - 1, to=address)
    plain.annotations = {_MESSAGE: Byte(_MESSAGE_TYPES["bytes"]), _DESTINATION: Byte(destination)}
    plain.message_id = _utf8(properties.get(PROPERTY_UNIQUE_KEY) or stored.message_id)
    plain.properties = {_utf8(name): _utf8(text) for name, text in properties.items() if name not in _BROKERS}
    return build(plain)


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def to_client(stored: StoredMessage, attempt: int, address: str, destination: int, now_ms: int) -> Sections:
    """A stored message in the form of AMQP; `destination` is 0 for a queue, 1 for a topic."""
    properties = stored.properties
    types = typed_texts.split(properties.get(TYPES, ""))
    made = Sections(durable=properties.get(DELIVERY_MODE) != "NON_PERSISTENT", delivery_count=attempt - 1)
    word = _take_body(made, stored)
    made.annotations[_MESSAGE] = Byte(_MESSAGE_TYPES.get(word, 0))
    made.annotations[_DESTINATION] = Byte(destination)
    made.to = address
    made.message_id = _value(properties, types, PROPERTY_UNIQUE_KEY, MESSAGE_ID) or stored.message_id
    made.correlation_id = _value(properties, types, CORRELATION_ID)
    made.subject = _value(properties, types, TYPE)
    if made.subject is None:
        made.subject = properties.get(PROPERTY_TAGS)
    made.reply_to = _value(properties, types, REPLY_TO)
    if made.reply_to is not None and REPLY_TYPE in properties:
        made.annotations[_REPLY] = Byte(_number(properties, REPLY_TYPE) or 0)
    made.content_type = _ascii(properties.get(CONTENT_TYPE))
    made.content_encoding = _ascii(_value(properties, types, CONTENT_ENCODING))
    made.reply_to_group = _value(properties, types, REPLY_TO_GROUP)
    made.group_id = _value(properties, types, PROPERTY_SHARDING_KEY)
    made.group_sequence = _number(properties, GROUP_SEQUENCE)
    user = _value(properties, types, USER_ID)
    made.user_id = user.encode() if isinstance(user, str) else user
    priority = _number(properties, PRIORITY)
    made.priority = 4 if priority is None else min(priority, 255)
    created = _number(properties, TIMESTAMP)
    made.created = stored.born_timestamp if created is None else created
    made.expires = _number(properties, EXPIRATION)
    if made.expires is not None:
        made.ttl = min(max(0, made.expires - now_ms), (1 << 32) - 1)
    if (deliver_at := _number(properties, DELIVERY_TIME)) is not None:
        made.annotations[_DELIVER_AT] = deliver_at
    made.properties = _application_properties(properties, types)
    return made


def _application_properties(properties: dict[str, str], types: dict[str, str]) -> dict[Any, Any]:
    found = {}
    is_ours = BODY in properties
    for name, text in properties.items():
        if name in _BROKERS or name in _OURS:
            continue
        if is_ours and (
            (name == PROPERTY_TAGS and text == properties.get(TYPE))
            or (name == PROPERTY_KEYS and text == properties.get(CORRELATION_ID))
        ):
            continue
        own = unquote(name[len(ESCAPE) :]) if name.startswith(ESCAPE) else name
        letter = types.get(name)
        found[own] = text if letter is None else typed_texts.or_text(letter, text)
    return found


def _value(properties: dict[str, str], types: dict[str, str], name: str, typed: str = "") -> Any:
    text = properties.get(name)
    letter = types.get(typed or name)
    return text if text is None or letter is None else typed_texts.or_text(letter, text)


def _number(properties: dict[str, str], name: str) -> int | None:
    text = properties.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def _ascii(text: str | None) -> str | None:
    return text if text is None or text.isascii() else None


def expires_ms(properties: dict[str, str]) -> int | None:
    """The time at which a message expires; None if it does not expire."""
    return _number(properties, EXPIRATION) or None


def _take_body(made: Sections, stored: StoredMessage) -> str:
    """Set the body; returns the word for its kind."""
    word = stored.properties.get(BODY, "bytes")
    letters = stored.properties.get(BODY_TYPES, "")
    body = stored.body
    try:
        made.kind, made.body = _read_body(word, letters, body)
    except (ValueError, TypeError, KeyError, Malformed):
        made.kind, made.body, word = DATA, body, "bytes"  # another program wrote the property
    return word


def _read_body(word: str, letters: str, body: bytes) -> tuple[int, Any]:
    empty: dict[str, tuple[int, Any]] = {"data": (DATA, b""), "string": (VALUE, ""), "null": (VALUE, None)}
    empty["none"] = (0, None)
    if letters in empty:
        return empty[letters]
    if letters in ("value", "sequence"):
        return (SEQUENCE if letters == "sequence" else VALUE), decode(body)[0]
    if word == "text":
        return VALUE, body.decode()
    if word == "map":
        return VALUE, _of_json_map(json.loads(body), letters)
    if word == "stream":
        return SEQUENCE, _of_json_list(json.loads(body), letters)
    return DATA, body


def _of_json(value: Any, letter: str) -> Any:
    if letter in _JSON_OWN or not letter:
        if isinstance(value, (dict, list)):
            raise ValueError("values of a map or stream are no maps or lists")
        return value if letter != "d" else float(value)
    return typed_texts.from_text("d" if letter == "D" else letter, str(value))


def _of_json_map(values: Any, letters: str) -> dict[str, Any]:
    if not isinstance(values, dict) or (letters and len(letters) != len(values)):
        raise ValueError("the body is no map of its types")
    each = letters or [""] * len(values)
    return {name: _of_json(value, letter) for (name, value), letter in zip(values.items(), each, strict=True)}


def _of_json_list(values: Any, letters: str) -> list[Any]:
    if not isinstance(values, list) or (letters and len(letters) != len(values)):
        raise ValueError("the body is no list of its types")
    each = letters or [""] * len(values)
    return [_of_json(value, letter) for value, letter in zip(values, each, strict=True)]
