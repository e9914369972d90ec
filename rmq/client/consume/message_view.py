"""PulledMessage: a message of a pull's response that is decoded only as far as its attributes are read.

A consumer with a backlog gets hundreds of thousands of messages a second, and of most it needs the body and
little else. Decoding a whole record costs 4 µs; finding its end and its offset costs 0.6, the body 0.6 more.
So a message keeps the bytes of the response and decodes a part of itself (body; names and properties;
numbers) when the first attribute of that part is read. In every other respect it is a `StoredMessage`.

The compiled engine, if available, does the work that every consumer needs (`compiled_kind`), for a tenth of
the cost; the functions of this module do the same work without the engine, and take over every record that is
not plain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import error as struct_error
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast
from zlib import crc32

from rmq.client.consume.process_queue import ProcessQueue
from rmq.errors import CorruptRecord, RemoteProtocolError
from rmq.message import PROPERTY_RETRY_TOPIC, PROPERTY_UNIQUE_KEY, StoredMessage
from rmq.protocol import engine
from rmq.protocol.codes import SYS_COMPRESSED, SYS_HOST_BITS
from rmq.protocol.json import JAVA
from rmq.protocol.properties import AlikeProperties
from rmq.protocol.record import FIXED_SIZE, MESSAGE_MAGIC, decompress, host_text, part, parts

if TYPE_CHECKING:
    from rmq.protocol._engine import PulledReader

_START = part("size", "magic", "queue_offset")
_BODY = part("crc", "sys_flag", "body_size")  # with two IPv4 hosts, the common case
_read_properties = AlikeProperties()
_BODY_SIZE = parts("body_size")
_BODY_AT = _BODY.size
_SYS_FLAG = part("sys_flag")
_DELIVERY = parts("queue_id", "reconsume_times")
_NUMBERS = parts(
    "crc",
    "queue_id",
    "flag",
    "physical_offset",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
)


class PulledMessage(StoredMessage):
    """A message that decodes itself on access. Attributes raise CorruptRecord when their part of the record
    is damaged.

    `window` is the consumer's window that the message was pulled for.
    """

    __slots__ = ("_at", "_body", "_buffer", "_properties", "_topic_at", "window")

    body_max: ClassVar[int | None] = None
    """Bytes that a compressed body may grow to; BODY_MAX when None. `limited` makes a class for each
    limit."""
    reader: ClassVar[PulledReader | None] = None
    """The compiled engine's reader; None for the functions of this module."""

    _buffer: bytes
    _at: int
    _body: bytes | None
    _properties: dict[str, str] | None
    _topic_at: int  # the end of its body; 0: unknown
    window: ProcessQueue | None

    @property
    def body(self) -> bytes:
        # Written out here, since this runs for every message: one call less is a tenth of a consumer's
        # work.
        body = self._body
        if body is None:
            buffer, at = self._buffer, self._at
            crc, sys_flag, length = _BODY.unpack_from(buffer, at)
            body_at = at + _BODY_AT
            if sys_flag & SYS_HOST_BITS:
                body_at, length = _body_after_v6(buffer, at, sys_flag)
            self._topic_at = topic_at = body_at + length
            body = buffer[body_at:topic_at]
            if crc32(body) & 0x7FFF_FFFF != crc or len(body) != length:
                raise CorruptRecord(f"the answer of {self.broker_name}", at, f"the body's CRC is not {crc}")
            if sys_flag & SYS_COMPRESSED:
                body = self._decompressed(body, sys_flag)
            self._body = body
        return body

    @body.setter
    def body(self, body: bytes) -> None:
        self._body = body

    @property
    def properties(self) -> dict[str, str]:
        # Written out for the same reason.
        properties = self._properties
        if properties is None:
            buffer, at = self._buffer, self._at
            try:
                topic_at = self._topic_at
                if not topic_at:
                    _, sys_flag, length = _BODY.unpack_from(buffer, at)
                    topic_at = at + _BODY_AT + length
                    if sys_flag & SYS_HOST_BITS:
                        topic_at = sum(_body_after_v6(buffer, at, sys_flag))
                start = topic_at + 3 + buffer[topic_at]
                end = start + (buffer[start - 2] << 8) + buffer[start - 1]
                if topic_at <= at or end != at + self.size:
                    raise IndexError("the lengths in the record do not agree")
            except (struct_error, IndexError) as error:
                raise self._damaged(error) from None
            properties = _read_properties(buffer[start:end])
            self._properties = properties
        return properties

    @properties.setter
    def properties(self, properties: dict[str, str]) -> None:
        self._properties = properties

    def _damaged(self, error: Exception) -> CorruptRecord:
        return CorruptRecord(f"the answer of {self.broker_name}", self._at, str(error))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Convert to a plain message: a class of `limited` has no name of its own."""
        make, kind, *rest = cast(tuple[Any, ...], super().__reduce_ex__(protocol))
        has_name = self.body_max is None and self.reader is None
        return (make, kind, *rest) if has_name else (_plain, (), *rest)

    def _decompressed(self, body: bytes, sys_flag: int) -> bytes:
        try:
            return decompress(body, sys_flag, self.body_max)
        except RemoteProtocolError as error:
            where = f"offset {self.queue_offset} of {self.topic}, queue {self.queue_id} of {self.broker_name}"
            raise RemoteProtocolError(f"{error} ({where}; a client's limit is max_body_size)") from None

    def __getattr__(self, name: str) -> Any:
        # Only called while the slot is empty.
        read = _PARTS.get(name)
        if read is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        try:
            read(self, self._buffer, self._at)
        except (struct_error, IndexError) as error:
            raise self._damaged(error) from None
        return getattr(self, name)


def _plain() -> PulledMessage:
    return PulledMessage.__new__(PulledMessage)


P = TypeVar("P", bound=PulledMessage)


def compiled_kind(module: ModuleType, kind: type[P]) -> type[P]:
    """Messages of `kind` that `module`, the compiled engine, reads."""
    reader: PulledReader = module.PulledReader(
        PulledMessage, _read_properties, PROPERTY_UNIQUE_KEY, MESSAGE_MAGIC
    )
    members = {
        "__slots__": (),
        "reader": reader,
        "body": property(reader.body, vars(PulledMessage)["body"].fset),
        "properties": property(reader.properties, vars(PulledMessage)["properties"].fset),
        "message_id": property(reader.message_id),
    }
    return type(kind.__name__, (kind,), members)


def quickest(kind: type[P]) -> type[P]:
    """Messages of `kind`, read by the compiled engine if available."""
    return kind if engine.compiled is None else compiled_kind(engine.compiled, kind)


_CHOSEN = quickest(PulledMessage)


@lru_cache(maxsize=16)
def limited(body_max: int, kind: type[PulledMessage] = _CHOSEN) -> type[PulledMessage]:
    """The class of messages whose bodies grow to `body_max` bytes at most."""
    return type("PulledMessage", (kind,), {"__slots__": (), "body_max": body_max})


class FoundMessage(PulledMessage):
    """A message of the answer to a query: many of them are kept, and few are looked at. So its body is
    decompressed on each access."""

    __slots__ = ()

    @property
    def body(self) -> bytes:
        if self._body is not None:  # it was set
            return self._body
        body = super().body
        self._body = None
        return body

    @body.setter
    def body(self, body: bytes) -> None:
        self._body = body


def found_messages(buffer: bytes, broker_name: str, kind: type[P]) -> list[P]:
    """The messages of an answer that holds whole records, as objects of `kind`. Raises CorruptRecord."""
    messages = []
    at, end = 0, len(buffer)
    while at < end:
        if end - at < FIXED_SIZE:
            raise CorruptRecord(f"the answer of {broker_name}", at, "no message begins here")
        size, magic, queue_offset = _START.unpack_from(buffer, at)
        if magic != MESSAGE_MAGIC or not FIXED_SIZE <= size <= end - at:
            raise CorruptRecord(f"the answer of {broker_name}", at, "no message begins here")
        message = kind.__new__(kind)
        message._buffer, message._at, message._body, message._properties = buffer, at, None, None
        message._topic_at, message.window = 0, None
        message.size, message.queue_offset, message.broker_name = size, queue_offset, broker_name
        messages.append(message)
        at += size
    return messages


def delivery_of(message: PulledMessage) -> tuple[int, int]:
    """The queue of a message, and the number of its delivery, from 1. Raises CorruptRecord."""
    buffer, at = message._buffer, message._at
    try:
        form = _DELIVERY[_SYS_FLAG.unpack_from(buffer, at)[0] & SYS_HOST_BITS]
        queue_id, times = form.unpack_from(buffer, at)
    except (struct_error, IndexError) as error:
        raise message._damaged(error) from None
    return queue_id, times + 1


def read_messages(
    buffer: bytes,
    broker_name: str,
    window: ProcessQueue | None = None,
    kind: type[PulledMessage] = _CHOSEN,
) -> tuple[list[PulledMessage], bool]:
    """The messages of a pull's response, and whether that is the whole response: messages behind a damaged
    record are lost. Raises CorruptRecord when the first is damaged."""
    end = len(buffer)
    reader = kind.reader
    messages, at = (
        _read(buffer, broker_name, window, kind)
        if reader is None
        else reader.messages(buffer, broker_name, window, kind)
    )
    if at < end and not messages:
        raise CorruptRecord(f"the answer of {broker_name}", at, "no message begins here")
    return messages, at == end


def _read(
    buffer: bytes, broker_name: str, window: ProcessQueue | None, kind: type[PulledMessage]
) -> tuple[list[PulledMessage], int]:
    """The messages, and the end of the readable ones."""
    messages: list[PulledMessage] = []
    add = messages.append
    new = kind.__new__
    start = _START.unpack_from
    at, end = 0, len(buffer)
    last = -1
    while end - at >= FIXED_SIZE:
        size, magic, queue_offset = start(buffer, at)
        if magic != MESSAGE_MAGIC or not FIXED_SIZE <= size <= end - at or queue_offset <= last:
            break
        message = new(kind)
        message._buffer = buffer
        message._at = at
        message._body = message._properties = None
        message._topic_at = 0
        message.window = window
        message.size = size
        message.queue_offset = last = queue_offset
        message.broker_name = broker_name
        add(message)
        at += size
    return messages, at


def to_original_topic(message: PulledMessage) -> None:
    """Give a message of a retry topic the topic that it was sent to."""
    message.topic = message.properties.get(PROPERTY_RETRY_TOPIC, message.topic)


def _body_after_v6(buffer: bytes, at: int, sys_flag: int) -> tuple[int, int]:
    form = _BODY_SIZE[sys_flag & SYS_HOST_BITS]
    return at + form.size, form.unpack_from(buffer, at)[0]


def _read_topic(message: PulledMessage, buffer: bytes, at: int) -> None:
    _, sys_flag, length = _BODY.unpack_from(buffer, at)
    topic_at = at + _BODY_AT + length
    if sys_flag & SYS_HOST_BITS:
        topic_at = sum(_body_after_v6(buffer, at, sys_flag))
    end = topic_at + 1 + buffer[topic_at]
    if topic_at <= at or end > at + message.size:
        raise IndexError("the lengths in the record do not agree")
    message.topic = buffer[topic_at + 1 : end].decode("utf-8", JAVA)


def _read_numbers(message: PulledMessage, buffer: bytes, at: int) -> None:
    (sys_flag,) = _SYS_FLAG.unpack_from(buffer, at)
    message.sys_flag = sys_flag
    (
        message.body_crc,
        message.queue_id,
        message.flag,
        message.physical_offset,
        message.born_timestamp,
        born_host,
        message.store_timestamp,
        store_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
    ) = _NUMBERS[sys_flag & SYS_HOST_BITS].unpack_from(buffer, at)
    message.born_host, message.store_host = host_text(born_host), host_text(store_host)


_PARTS: dict[str, Callable[[PulledMessage, bytes, int], None]] = {
    "topic": _read_topic,
    **dict.fromkeys(
        (
            "body_crc",
            "sys_flag",
            "queue_id",
            "flag",
            "physical_offset",
            "born_timestamp",
            "born_host",
            "store_timestamp",
            "store_host",
            "reconsume_times",
            "prepared_transaction_offset",
        ),
        _read_numbers,
    ),
}
