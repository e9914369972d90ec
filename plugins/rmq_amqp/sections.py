"""Sections of an AMQP message: header, annotations, properties, application properties and body."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from attrs import define, field

from rmq_amqp.values import Malformed, Symbol, Timestamp, UByte, UInt, decode, encode

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

PRIORITY: Final = 4
_BODIES: Final = (DATA, SEQUENCE, VALUE)


@define
class Sections:
    """A message of AMQP. `kind` is the section of the body (DATA, SEQUENCE or VALUE; 0 without a body), and
    `body` its bytes, list or value. Times are ms since 1970.
    """

    kind: int = 0
    body: Any = None
    durable: bool = False
    priority: int = PRIORITY
    ttl: int | None = None
    delivery_count: int = 0
    annotations: dict[Any, Any] = field(factory=dict)
    message_id: Any = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: Any = None
    content_type: str | None = None
    content_encoding: str | None = None
    expires: int | None = None
    created: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group: str | None = None
    properties: dict[Any, Any] = field(factory=dict)


_ENDS: Final[dict[str, int]] = {
    "priority": 1 << 8,
    **dict.fromkeys(("ttl", "delivery_count", "group_sequence"), 1 << 32),
}
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "durable": (bool,),
    "priority": (int,),
    "ttl": (int,),
    "delivery_count": (int,),
    "user_id": (bytes,),
    "expires": (int,),
    "created": (int,),
    "group_sequence": (int,),
    "message_id": (str, int, bytes, object),
    "correlation_id": (str, int, bytes, object),
}


def _typed(*names: str) -> tuple[tuple[str, tuple[type, ...]], ...]:
    """The fields of a section, each with its classes; a field without a name is not read."""
    return tuple((name, _TYPES.get(name, (str,))) for name in names)


_HEADER: Final = _typed("durable", "priority", "ttl", "", "delivery_count")
_PROPERTIES: Final = _typed(
    *("message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type"),
    *("content_encoding", "expires", "created", "group_id", "group_sequence", "reply_to_group"),
)
_SHORT: Final = (0xC0, 0xC1)
"""Codes of lists and maps whose length is one byte."""

_repeated: Final = lru_cache(maxsize=256)(decode)
"""Decoder of values that most messages of a producer share; all of them are short."""


def parse(data: bytes) -> Sections:
    """The sections of an encoded message. Raises Malformed."""
    made = Sections()
    at = 0
    while at < len(data):
        if data[at : at + 2] == b"\x00\x53" and at + 2 < len(data):
            code, at = data[at + 2], at + 3
        else:
            if data[at] != 0:
                raise Malformed(f"no section of a message begins at byte {at}")
            code, at = decode(data, at + 1)
        if code in (HEADER, ANNOTATIONS) and at + 1 < len(data) and data[at] in _SHORT:
            end = at + 2 + data[at + 1]
            value, size = _repeated(data[at:end])
            at += size
            if code == ANNOTATIONS:
                value = dict(value) if isinstance(value, dict) else value
        else:
            value, at = decode(data, at)
        _take(made, code, value)
    if type(made.body) is bytearray:
        made.body = bytes(made.body)
    return made


def _take(made: Sections, code: Any, value: Any) -> None:
    if code in _BODIES:
        expected = {DATA: bytes, SEQUENCE: list}.get(code, object)
        if not isinstance(value, expected) or (made.kind and (made.kind != code or code == VALUE)):
            raise Malformed("the body of a message is not data, a sequence or one value")
        if not made.kind:
            made.body, made.kind = value, code
            return
        if code == DATA and type(made.body) is not bytearray:
            made.body = bytearray(made.body)
        made.body += value  # in place: a message may have a million parts
    elif code == HEADER:
        _fields(made, _HEADER, value)
    elif code == PROPERTIES:
        _fields(made, _PROPERTIES, value)
    elif code in (ANNOTATIONS, APPLICATION_PROPERTIES):
        if not isinstance(value, dict):
            raise Malformed(f"section 0x{code:02x} of a message is not a map")
        if code == ANNOTATIONS:
            made.annotations = value
        else:
            made.properties = value
    elif code not in (DELIVERY_ANNOTATIONS, FOOTER):
        raise Malformed(f"a message has no section {code!r:.80}")


def _fields(made: Sections, fields: Iterable[tuple[str, tuple[type, ...]]], values: Any) -> None:
    if not isinstance(values, list):
        raise Malformed("a section of a message is not a list")
    for (name, types), value in zip(fields, values, strict=False):
        if value is not None and name:
            if not isinstance(value, types):
                raise Malformed(f"the field {name} of a message is {type(value).__name__}")
            if name in _ENDS and value not in range(_ENDS[name]):
                raise Malformed(f"the field {name} of a message is out of its range")
            setattr(made, name, value)


def _section(code: int, value: bytes) -> bytes:
    return bytes((0, 0x53, code)) + value


def _listed(values: list[Any]) -> bytes:
    while values and values[-1] is None:
        values.pop()
    return encode(values)


def build(message: Sections) -> bytes:
    """The bytes of a message."""
    header = [
        message.durable,
        UByte(message.priority),
        None if message.ttl is None else UInt(message.ttl),
        None if message.delivery_count else True,
        UInt(message.delivery_count),
    ]
    parts = [_section(HEADER, _listed(header))]
    if message.annotations:
        parts.append(_section(ANNOTATIONS, encode(message.annotations)))
    properties = [
        message.message_id,
        message.user_id,
        message.to,
        message.subject,
        message.reply_to,
        message.correlation_id,
        _symbol(message.content_type),
        _symbol(message.content_encoding),
        None if message.expires is None else Timestamp(message.expires),
        None if message.created is None else Timestamp(message.created),
        message.group_id,
        None if message.group_sequence is None else UInt(message.group_sequence),
        message.reply_to_group,
    ]
    parts.append(_section(PROPERTIES, _listed(properties)))
    if message.properties:
        parts.append(_section(APPLICATION_PROPERTIES, encode(message.properties)))
    if message.kind == DATA:
        body = message.body
        parts.append(struct.pack(">BBBBI", 0, 0x53, DATA, 0xB0, len(body)) + body)
    elif message.kind:
        parts.append(_section(message.kind, encode(message.body)))
    return b"".join(parts)


def _symbol(text: str | None) -> Symbol | None:
    return None if text is None else Symbol(text)
