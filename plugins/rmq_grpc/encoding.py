"""Stored messages and acknowledgements, written as protobuf's bytes field by field.

The library makes an object of each message and of each part of a message, sets its fields, and visits all
fields again for the bytes: a third of the work of a receive of 32 messages. The functions of this module
write the same bytes directly. A field is its key (number and type), and a varint, or a length and so many
bytes (the encoding guide of protobuf). The numbers of fields come from the schema.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor import FieldDescriptor

from rmq.message import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    StoredMessage,
)
from rmq.protocol import engine
from rmq.protocol.properties import PROPERTY_DELAY_SEC, PROPERTY_DELIVER_MS, PROPERTY_SHARDING_KEY
from rmq_grpc import schema
from rmq_grpc.messages import (
    PROPERTY_BORN_HOST,
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_DEAD_LETTER_ID,
    PROPERTY_DEAD_LETTER_TOPIC,
    PROPERTY_TRACE_CONTEXT,
    SYSTEM_PROPERTIES,
    V2Message,
)
from rmq_grpc.statuses import status

if TYPE_CHECKING:
    from types import ModuleType

    from rmq.gateway import Sent
    from rmq.plugin import TakenMessage
    from rmq.protocol._engine import CallMessages

_ONE_BYTE: Final = tuple(bytes((number,)) for number in range(128))
_VARINT, _SIZED = 0, 2
"""Types of fields."""
KNOWN: Final = 1_024
"""Number of topics and of hosts whose fields are kept."""


def varint(number: int) -> bytes:
    """A number in groups of seven bits, the lowest first; of a negative number its 64 bits."""
    if 0 <= number < 128:
        return _ONE_BYTE[number]
    number &= 0xFFFF_FFFF_FFFF_FFFF
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def _keys(name: str) -> dict[str, bytes]:
    """The keys of a message's fields by their names."""
    fields = schema.message(name).DESCRIPTOR.fields
    sized = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)
    return {one.name: varint(one.number << 3 | (_SIZED if one.type in sized else _VARINT)) for one in fields}


_OF_MESSAGE: Final = _keys("Message")
_OF_SYSTEM: Final = _keys("SystemProperties")
_OF_ENTRY: Final = _keys("AckMessageResultEntry")
_RECEIVED: Final = _keys("ReceiveMessageResponse")["message"]
_NAME, _VALUE = b"\x0a", b"\x12"
"""Keys of a map's entry."""
_SECONDS, _NANOS = b"\x08", b"\x10"
"""Keys of Timestamp and Duration."""


def _bytes(key: bytes, data: bytes) -> bytes:
    return key + varint(len(data)) + data


def _text(key: bytes, text: str) -> bytes:
    data = text.encode()
    size = len(data)
    return key + (_ONE_BYTE[size] if size < 128 else varint(size)) + data


@lru_cache(KNOWN)
def _seconds(seconds: int) -> bytes:
    return _SECONDS + varint(seconds) if seconds else b""


@lru_cache(KNOWN)
def _milliseconds(ms: int) -> bytes:
    return _NANOS + varint(ms * 1_000_000) if ms else b""


def _time(key: bytes, ms: int) -> bytes:
    """A Timestamp or Duration; a zero is left out, as protobuf does."""
    data = _seconds(ms // 1000) + _milliseconds(ms % 1000)
    return key + _ONE_BYTE[len(data)] + data


@lru_cache(KNOWN)
def _topic(name: str) -> bytes:
    return _bytes(_OF_MESSAGE["topic"], _text(_keys("Resource")["name"], name))


@lru_cache(KNOWN)
def _host(key: bytes, host: str) -> bytes:
    return _text(key, host) if host else b""


@lru_cache(KNOWN)
def _delivery(queue_id: int, attempt: int, invisible_ms: int | None) -> bytes:
    """The fields of a delivery that many messages share. Without a handle there is no invisible time."""
    data = _QUEUE + varint(queue_id) if queue_id else b""
    if invisible_ms is not None:
        data += _time(_OF_SYSTEM["invisible_duration"], invisible_ms)
    return data + _ATTEMPT + varint(attempt)


def _digest_head() -> bytes:
    """The field of an MD5 up to its 32 digits."""
    head = _keys("Digest")
    data = head["type"] + varint(schema.enum("DigestType")["MD5"]) + head["checksum"] + varint(32)
    return _OF_SYSTEM["body_digest"] + varint(len(data) + 32) + data


_DIGEST: Final = _digest_head()
_KINDS: Final = {
    word: _OF_SYSTEM["body_encoding"]
    + varint(schema.enum("Encoding")["IDENTITY"])
    + _OF_SYSTEM["message_type"]
    + varint(schema.enum("MessageType")[word])
    for word in ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
}
"""The fields of a body as it is, and of the message's type."""
_TAG, _KEYS, _ID = (_OF_SYSTEM[name] for name in ("tag", "keys", "message_id"))
_BORN, _BORN_HOST = (_OF_SYSTEM[name] for name in ("born_timestamp", "born_host"))
_STORED, _STORE_HOST = (_OF_SYSTEM[name] for name in ("store_timestamp", "store_host"))
_HANDLE, _QUEUE, _OFFSET = (_OF_SYSTEM[name] for name in ("receipt_handle", "queue_id", "queue_offset"))
_ATTEMPT, _GROUP = (_OF_SYSTEM[name] for name in ("delivery_attempt", "message_group"))
_PROPERTY, _SYSTEM, _BODY = (_OF_MESSAGE[name] for name in ("user_properties", "system_properties", "body"))


def encode(message: StoredMessage, *, handle: str = "", attempt: int = 1, invisible_ms: int = 0) -> bytes:
    """A stored message as a `Message` of 5.x clients. The invisible time comes with a handle only."""
    return _head(message, handle, attempt, invisible_ms) + message.body


def received(found: Iterable[TakenMessage], invisible_ms: int) -> list[bytes]:
    """A `ReceiveMessageResponse` for each message that was taken."""
    made = []
    for one in found:
        if one.records and _writer is not None:
            data = _writer.message(one.records, one.at, one.handle, one.attempt, invisible_ms)
            if data is not None:
                made.append(data)
                continue
        head, body = _head(one.message, one.handle, one.attempt, invisible_ms), one.message.body
        made.append(b"".join((_RECEIVED, varint(len(head) + len(body)), head, body)))
    return made


def _head(message: StoredMessage, handle: str, attempt: int, invisible_ms: int) -> bytes:
    """All of a message but the bytes of its body, which come last."""
    properties, body = message.properties, message.body
    get = properties.get
    kind, rest = "NORMAL", b""
    parts = [_topic(message.topic)]
    for name, value in properties.items():
        if name in _SILENT:
            continue
        if name in _SPECIAL:
            kind = _kind(properties)
            rest += _special(name, value, properties)
        else:
            entry = _text(_NAME, name) + _text(_VALUE, value)
            parts += (_PROPERTY, varint(len(entry)), entry)
    if tags := get(PROPERTY_TAGS):
        rest += _text(_TAG, tags)
    for key in get(PROPERTY_KEYS, "").split():
        rest += _text(_KEYS, key)
    if handle:
        rest += _text(_HANDLE, handle)
    made = b"".join(
        (
            rest,
            _text(_ID, get(PROPERTY_UNIQUE_KEY) or message.message_id),
            _DIGEST,
            hashlib.md5(body, usedforsecurity=False).hexdigest().upper().encode(),
            _KINDS[kind],
            _time(_BORN, number_of(get(PROPERTY_BORN_TIMESTAMP)) or message.born_timestamp),
            _host(_BORN_HOST, get(PROPERTY_BORN_HOST) or message.born_host),
            _time(_STORED, message.store_timestamp),
            _host(_STORE_HOST, message.store_host),
            _OFFSET,
            varint(message.queue_offset),
            _delivery(message.queue_id, attempt, invisible_ms if handle else None),
        )
    )
    parts += (_SYSTEM, varint(len(made)), made)
    if body:
        parts += (_BODY, varint(len(body)))
    return b"".join(parts)


_SPECIAL: Final = frozenset(
    {
        PROPERTY_SHARDING_KEY,
        PROPERTY_TRACE_CONTEXT,
        PROPERTY_DEAD_LETTER_TOPIC,
        PROPERTY_DELAY_LEVEL,
        PROPERTY_DELAY_SEC,
        PROPERTY_DELIVER_MS,
        PROPERTY_TRANSACTION_PREPARED,
    }
)
"""Properties that tell the type of a message, or have a field in few messages."""
_SILENT: Final = SYSTEM_PROPERTIES - _SPECIAL
MESSAGE_PARTS: Final = (
    *(_RECEIVED, _OF_MESSAGE["topic"], _keys("Resource")["name"], _PROPERTY, _SYSTEM, _BODY, _TAG, _KEYS),
    *(_HANDLE, _ID, _DIGEST, _KINDS["NORMAL"], _KINDS["FIFO"], _BORN, _BORN_HOST, _STORED, _STORE_HOST),
    *(_OFFSET, _QUEUE, _OF_SYSTEM["invisible_duration"], _ATTEMPT, _GROUP),
)
"""The constant parts of a message, for the compiled engine."""


def _make_writer(compiled: ModuleType | None) -> CallMessages | None:
    """The compiled writer of messages; None without the compiled engine."""
    if compiled is None:
        return None
    md5 = partial(hashlib.md5, usedforsecurity=False)
    made: CallMessages = compiled.CallMessages(MESSAGE_PARTS, _SILENT, _SPECIAL, md5)
    return made


_writer: Final = _make_writer(engine.compiled)


def _special(name: str, value: str, properties: dict[str, str]) -> bytes:
    """The field of a property that few messages have."""
    if name == PROPERTY_DELIVER_MS and (deliver_ms := number_of(value)):
        return _time(_OF_SYSTEM["delivery_timestamp"], deliver_ms)
    if name == PROPERTY_SHARDING_KEY and value:
        return _text(_GROUP, value)
    if name == PROPERTY_TRACE_CONTEXT and value:
        return _text(_OF_SYSTEM["trace_context"], value)
    if name == PROPERTY_DEAD_LETTER_TOPIC and value:
        place = _keys("DeadLetterQueue")
        data = _text(place["topic"], value)
        if origin_id := properties.get(PROPERTY_DEAD_LETTER_ID):
            data += _text(place["message_id"], origin_id)
        return _bytes(_OF_SYSTEM["dead_letter_queue"], data)
    return b""


def to_client(message: StoredMessage) -> Any:
    """A stored message as a `Message` of the library, without a handle."""
    return V2Message.FromString(encode(message))


def _kind(properties: dict[str, str]) -> str:
    """The type of a stored message."""
    if properties.get(PROPERTY_TRANSACTION_PREPARED) == "true":
        return "TRANSACTION"
    if (
        PROPERTY_DELAY_LEVEL in properties
        or PROPERTY_DELIVER_MS in properties
        or PROPERTY_DELAY_SEC in properties
    ):
        return "DELAY"
    return "FIFO" if PROPERTY_SHARDING_KEY in properties else "NORMAL"


def number_of(text: str | None) -> int:
    """The number of a property; 0 for none, and for text that is none."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 18 else 0


_OK: Final = _bytes(_keys("AckMessageResponse")["status"], status().SerializeToString())
_ENTRIES: Final = _keys("AckMessageResponse")["entries"]
_OK_OF_ENTRY: Final = _bytes(_OF_ENTRY["status"], status().SerializeToString())
_ID_OF_ENTRY, _HANDLE_OF_ENTRY = _OF_ENTRY["message_id"], _OF_ENTRY["receipt_handle"]


def acknowledged(entries: Iterable[tuple[str, str]]) -> bytes:
    """The `AckMessageResponse` to a request, after all its entries were acknowledged: the message id and the
    handle of each."""
    parts = [_OK]
    for message_id, handle in entries:
        data = _text(_ID_OF_ENTRY, message_id) if message_id else b""
        if handle:
            data += _text(_HANDLE_OF_ENTRY, handle)
        parts += (_ENTRIES, varint(len(data) + len(_OK_OF_ENTRY)), data, _OK_OF_ENTRY)
    return b"".join(parts)


_OK_OF_SEND: Final = _bytes(_keys("SendMessageResponse")["status"], status().SerializeToString())
_SENT: Final = _keys("SendMessageResponse")["entries"]
_OF_SENT: Final = _keys("SendResultEntry")
_OK_OF_SENT: Final = _bytes(_OF_SENT["status"], status().SerializeToString())
_ID_OF_SENT, _OFFSET_OF_SENT = _OF_SENT["message_id"], _OF_SENT["offset"]


SEND_PARTS: Final = (_OK_OF_SEND, _SENT, _OK_OF_SENT, _ID_OF_SENT, _OFFSET_OF_SENT)
"""The constant parts of an answer to a send, for the compiled engine."""


def sent(entries: Iterable[tuple[str, Sent]]) -> bytes:
    """The `SendMessageResponse` to a request, after all its messages were stored: the id and the outcome of
    each."""
    parts = [_OK_OF_SEND]
    for message_id, outcome in entries:
        data = _OK_OF_SENT + _text(_ID_OF_SENT, message_id)
        if outcome.transaction_id:
            data += _text(_OF_SENT["transaction_id"], outcome.transaction_id)
        if outcome.queue_offset:
            data += _OFFSET_OF_SENT + varint(outcome.queue_offset)
        if outcome.recall_handle:
            data += _text(_OF_SENT["recall_handle"], outcome.recall_handle)
        parts.append(_bytes(_SENT, data))
    return b"".join(parts)
