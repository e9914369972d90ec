"""The engine in pure Python; header decoding goes through msgspec where it is installed."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from struct import error as struct_error
from typing import Annotated, Any, Final

from rmq.errors import RemoteProtocolError
from rmq.protocol.codes import LANGUAGE, VERSION, LanguageCode
from rmq.protocol.frame import JSON, ROCKETMQ, Command

try:
    if os.environ.get("RMQ_NO_MSGSPEC"):
        raise ImportError("switched off by RMQ_NO_MSGSPEC")
    import msgspec
except ImportError:  # pragma: no cover - the suite runs once without it
    msgspec = None  # type: ignore[assignment]

_PREFIX = Struct(">iI")
_LENGTH = Struct(">i")
_LANGUAGES: Final = {int(language): language.name for language in LanguageCode}
_LANGUAGE_NUMBERS: Final = {language.name: int(language) for language in LanguageCode}
_OTHER: Final = int(LanguageCode.OTHER)

# --- frames in ---


def split_frames(data: bytes, max_frame: int) -> tuple[list[Command], int]:
    """The whole frames at the start of `data` as commands, and how many bytes they took.

    Raises RemoteProtocolError for lengths that cannot be and for headers that cannot be read.
    """
    commands: list[Command] = []
    add = commands.append
    fast = _FAST
    unpack = _PREFIX.unpack_from
    at, end = 0, len(data)
    while end - at >= 8:
        length, word = unpack(data, at)
        header_length = word & 0xFF_FFFF
        if not header_length + 4 <= length <= max_frame:
            raise _bad_length(length, header_length, max_frame)
        stop = at + 4 + length
        if stop > end:
            break
        body_at = at + 8 + header_length
        header = data[at + 8 : body_at]
        kind = word >> 24
        if kind == JSON:
            reader = fast.get(header[:12])
            command = (reader(header) if reader else None) or _json_command(header)
        elif kind == ROCKETMQ:
            command = _binary_command(header)
        else:
            raise RemoteProtocolError(f"serialization type {kind} is neither 0 (JSON) nor 1 (ROCKETMQ)")
        command.body = data[body_at:stop]
        add(command)
        at = stop
    if end - at >= 4:
        frame_size(data, at, max_frame)
    return commands, at


def frame_size(data: bytes, at: int, max_frame: int = 0x7FFF_FFFF) -> int:
    """Bytes of the frame that begins at `at`, its length field included. Raises RemoteProtocolError."""
    length: int = _LENGTH.unpack_from(data, at)[0]
    if not 4 <= length <= max_frame:
        raise _bad_length(length, 0, max_frame)
    return length + 4


def _bad_length(length: int, header_length: int, max_frame: int) -> RemoteProtocolError:
    if length > max_frame:
        return RemoteProtocolError(f"a frame of {length} bytes is over the limit of {max_frame}")
    if length < 4:
        return RemoteProtocolError(f"a frame of {length} bytes cannot be")
    return RemoteProtocolError(f"a header of {header_length} bytes does not fit a frame of {length} bytes")


def _json_fields(header: bytes) -> dict[str, Any]:
    try:
        fields = _loads(header)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"the JSON header cannot be read: {error}: {header[:80]!r}") from None
    if not isinstance(fields, dict):
        raise RemoteProtocolError(f"the JSON header is not an object: {header[:80]!r}")
    return fields


def json_ext(header: bytes) -> dict[str, str]:
    """The text map (`extFields`) of a JSON header; numbers and flags become texts, null is left out."""
    return _json_ext(_json_fields(header), header)


def _json_ext(fields: dict[str, Any], header: bytes) -> dict[str, str]:
    ext = fields.get("extFields") or {}
    if not isinstance(ext, dict):
        raise RemoteProtocolError(f"extFields is not an object: {header[:80]!r}")
    return {
        key: value if value.__class__ is str else _text(value)
        for key, value in ext.items()
        if value is not None
    }


def _json_command(header: bytes) -> Command:
    fields = _json_fields(header)
    remark = fields.get("remark")
    return Command(
        _int(fields, "code"),
        _int(fields, "opaque", 0),
        _int(fields, "flag", 0),
        _json_ext(fields, header),
        b"",
        None if remark is None else str(remark),
        _language(fields.get("language")),
        _int(fields, "version", 0),
    )


def _int(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = fields.get(name, default)
    if value is None and default is not None:
        return default
    try:
        number = int(value) if value.__class__ in (int, str) else None
    except ValueError:
        number = None
    if number is None or not -0x8000_0000 <= number <= 0x7FFF_FFFF:
        raise RemoteProtocolError(f"header field {name} is not a 32-bit number: {str(value)[:80]!r}")
    return number


def _text(value: Any) -> str:
    if value is True or value is False:
        return "true" if value else "false"
    return (
        value
        if isinstance(value, str)
        else json.dumps(value)
        if isinstance(value, dict | list)
        else str(value)
    )


def _language(value: Any) -> str:
    if isinstance(value, str):
        return value
    return _LANGUAGES.get(value, "OTHER") if isinstance(value, int) else "OTHER"


_BINARY_HEAD = Struct(">hBhiii")
_SHORT_ENTRY = Struct(">HcI")
_SHORT_NAMES = {bytes([letter]): chr(letter) for letter in range(ord("a"), ord("z") + 1)}
_NAMES: dict[bytes, str] = {}
_NAMES_MAX = 1024


def _binary_command(header: bytes) -> Command:
    try:
        return _read_binary(header)
    except (struct_error, UnicodeDecodeError, IndexError) as error:
        raise RemoteProtocolError(f"the binary header cannot be read: {error}: {header[:80]!r}") from None


def _read_binary(header: bytes) -> Command:
    code, language, version, opaque, flag, remark_length = _BINARY_HEAD.unpack_from(header)
    at = 17
    remark = None
    if remark_length > 0:
        remark = _slice(header, at, remark_length).decode()
        at += remark_length
    elif remark_length < 0:
        raise RemoteProtocolError(f"a remark of {remark_length} bytes cannot be")
    ext_length: int = _LENGTH.unpack_from(header, at)[0]
    at += 4
    if ext_length < 0 or at + ext_length > len(header):
        raise RemoteProtocolError(f"header fields of {ext_length} bytes do not fit the header")
    ext = _binary_fields(header, at, at + ext_length) if ext_length else {}
    name = _LANGUAGES.get(language, "OTHER")
    return Command(code, opaque, flag, ext, b"", remark, name, version, ROCKETMQ)


def _slice(data: bytes, at: int, length: int) -> bytes:
    part = data[at : at + length]
    if len(part) != length:
        raise RemoteProtocolError(f"a text of {length} bytes does not fit the header")
    return part


def _binary_fields(header: bytes, at: int, end: int) -> dict[str, str]:
    ext: dict[str, str] = {}
    unpack = _SHORT_ENTRY.unpack_from
    short = _SHORT_NAMES
    names = _NAMES
    while at < end:
        key_length, letter, length = unpack(header, at)
        if key_length == 1:
            at += 7
            name = short.get(letter) or letter.decode()
        else:
            key = header[at + 2 : at + 2 + key_length]
            name = names.get(key) or _new_name(key)
            at += 2 + key_length
            length = _LENGTH.unpack_from(header, at)[0]
            at += 4
        stop = at + length
        if not at <= stop <= end:
            raise RemoteProtocolError(f"header field {name} of {length} bytes does not fit the header")
        ext[name] = header[at:stop].decode()
        at = stop
    return ext


def _new_name(key: bytes) -> str:
    name = key.decode()
    if len(_NAMES) < _NAMES_MAX and len(key) < 64:
        _NAMES[key] = name
    return name


# --- the typed fast path: Java writes {"code":N first, so twelve bytes choose a decoder ---

_Reader = Callable[[bytes], Command | None]
_FAST: dict[bytes, _Reader] = {}

if msgspec is not None:
    _loads: Callable[[bytes], Any] = msgspec.json.decode
    _dumps: Callable[[Any], bytes] = msgspec.json.encode
    _MISFIT = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
    _Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
    _Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

    _SEND: list[Any] = [
        ("producer_group", str),
        ("topic", str),
        ("default_topic", str),
        ("default_topic_queue_nums", _Int32),
        ("queue_id", _Int32),
        ("sys_flag", _Int32),
        ("born_timestamp", _Int64),
        ("flag", _Int32),
        ("properties", str | None, None),
        ("reconsume_times", _Int32 | None, None),
        ("unit_mode", bool, False),
        ("batch", bool, False),
        ("max_reconsume_times", _Int32 | None, None),
        ("bname", str | None, None),
    ]
    _SHORT = dict(zip([entry[0] for entry in _SEND], "abcdefghijkmln", strict=True))
    _SendV1: type[Any] = msgspec.defstruct("SendV1", _SEND, gc=False, rename="camel")
    _SendV2: type[Any] = msgspec.defstruct("SendV2", _SEND, gc=False, rename=_SHORT)

    class _Pull(msgspec.Struct, gc=False, rename="camel"):
        consumer_group: str
        topic: str
        queue_id: _Int32
        queue_offset: _Int64
        max_msg_nums: _Int32
        sys_flag: _Int32
        commit_offset: _Int64
        suspend_timeout_millis: _Int64
        sub_version: _Int64
        subscription: str | None = None
        expression_type: str | None = None
        bname: str | None = None

    class _UpdateOffset(msgspec.Struct, gc=False, rename="camel"):
        consumer_group: str
        topic: str
        queue_id: _Int32
        commit_offset: _Int64
        bname: str | None = None

    def _fast_reader(header_class: type[Any]) -> _Reader:
        frame = msgspec.defstruct(
            f"{header_class.__name__}Frame",
            [
                ("code", _Int32),
                ("opaque", _Int32),
                ("extFields", header_class),
                ("flag", _Int32, 0),
                ("language", str, "OTHER"),
                ("version", _Int32, 0),
                ("remark", str | None, None),
            ],
            gc=False,
        )
        decode = msgspec.json.Decoder(frame, strict=False).decode

        def read(header: bytes) -> Command | None:
            try:
                made = decode(header)
            except _MISFIT:
                return None
            return Command(
                made.code,
                made.opaque,
                made.flag,
                None,
                b"",
                made.remark,
                made.language,
                made.version,
                JSON,
                made.extFields,
                header,
            )

        return read

    _FAST[b'{"code":310,'] = _FAST[b'{"code":320,'] = _fast_reader(_SendV2)
    _FAST[b'{"code":10,"'] = _fast_reader(_SendV1)
    _FAST[b'{"code":11,"'] = _fast_reader(_Pull)
    _FAST[b'{"code":15,"'] = _fast_reader(_UpdateOffset)
else:
    _loads = json.loads

    def _dumps(value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


# --- frames out ---


def encode_frame(command: Command) -> bytes:
    """The frame of any command, in its own serialization."""
    if command.serialization == ROCKETMQ:
        return _frame(_binary_header(command), command.body, ROCKETMQ)
    fields: dict[str, Any] = {"code": command.code}
    if command.ext:
        fields["extFields"] = command.ext
    fields["flag"] = command.flag
    fields["language"] = command.language
    fields["opaque"] = command.opaque
    if command.remark is not None:
        fields["remark"] = command.remark
    fields["serializeTypeCurrentRPC"] = "JSON"
    fields["version"] = command.version
    return _frame(_dumps(fields), command.body, JSON)


def _frame(header: bytes, body: bytes, kind: int) -> bytes:
    size = len(header)
    return b"".join((_PREFIX.pack(4 + size + len(body), kind << 24 | size), header, body))


def _binary_header(command: Command) -> bytes:
    remark = command.remark.encode() if command.remark else b""
    ext = _binary_ext(command.ext.items())
    return b"".join(
        (
            _BINARY_HEAD.pack(
                command.code,
                _LANGUAGE_NUMBERS.get(command.language, _OTHER),
                command.version,
                command.opaque,
                command.flag,
                len(remark),
            ),
            remark,
            _LENGTH.pack(len(ext)),
            ext,
        )
    )


def _binary_ext(items: Iterable[tuple[str, str]]) -> bytes:
    parts = []
    for name, text in items:
        key, value = name.encode(), text.encode()
        parts.append(len(key).to_bytes(2, "big") + key + len(value).to_bytes(4, "big") + value)
    return b"".join(parts)


_SEND_REPLY = (
    '{"code":0,"extFields":{"queueId":"%d","TRACE_ON":"%s","MSG_REGION":"%s","msgId":"%s","queueOffset":"%d"},'
    f'"flag":1,"language":"{LANGUAGE}","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
)


def encode_send_reply(
    request: Command, msg_id: str, queue_id: int, queue_offset: int, region: str, trace_on: str
) -> bytes:
    """The frame that says a message is stored. `region` is the broker's, `trace_on` is "true" or "false"."""
    if request.serialization == JSON:
        header = (_SEND_REPLY % (queue_id, trace_on, region, msg_id, queue_offset, request.opaque)).encode()
        size = len(header)
        return _PREFIX.pack(4 + size, size) + header
    ext = {
        "msgId": msg_id,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "TRACE_ON": trace_on,
        "MSG_REGION": region,
    }
    return encode_frame(Command(0, request.opaque, 1, ext, serialization=ROCKETMQ))


_PULL_REPLY = (
    '{"code":%d,"extFields":{"suggestWhichBrokerId":"%d","maxOffset":"%d","nextBeginOffset":"%d",'
    f'"minOffset":"%d"}},"flag":1,"language":"{LANGUAGE}","opaque":%d,"remark":"%s",'
    f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
)


def encode_pull_reply_head(
    request: Command,
    code: int,
    remark: str,
    offsets: tuple[int, int, int, int],
    body_length: int,
) -> bytes:
    """The frame of a pull's answer up to its body, which the caller sends after it.

    `offsets` are (broker id to ask next, next begin, min, max); `remark` is plain ASCII without quotes.
    """
    suggest, next_begin, low, high = offsets
    if request.serialization == JSON:
        header = (_PULL_REPLY % (code, suggest, high, next_begin, low, request.opaque, remark)).encode()
        size = len(header)
        return _PREFIX.pack(4 + size + body_length, size) + header
    ext = {
        "suggestWhichBrokerId": str(suggest),
        "nextBeginOffset": str(next_begin),
        "minOffset": str(low),
        "maxOffset": str(high),
    }
    head = _binary_header(Command(code, request.opaque, 1, ext, remark=remark, serialization=ROCKETMQ))
    return _PREFIX.pack(4 + len(head) + body_length, ROCKETMQ << 24 | len(head)) + head


# --- messages ---

_RECORD_V4 = Struct(">iIiiiqqiq8sq8siqi")
_RECORD = {
    (born, stored): Struct(f">iIiiiqqiq{born}sq{stored}siqi") for born in (8, 20) for stored in (8, 20)
}
_PROPERTIES_LENGTH = Struct(">h")
MESSAGE_MAGIC: Final = 0xDAA320A7
BLANK_MAGIC: Final = 0xCBD43194


def crc32(body: bytes) -> int:
    """The body checksum of a record: CRC-32 without its top bit."""
    return zlib.crc32(body) & 0x7FFF_FFFF


def build_record(
    place: tuple[int, int, int, int, int, int],
    born: tuple[int, bytes],
    stored: tuple[int, bytes],
    retry: tuple[int, int],
    body: bytes,
    tail: tuple[bytes, bytes],
) -> bytes:
    """One record of the commit log.

    `place` = (size, queue id, flag, queue offset, physical offset, sys flag); `born` and `stored` = (ms, host
    of 8 or 20 bytes); `retry` = (reconsume times, prepared transaction offset); `tail` = (topic after its
    length byte, properties).
    """
    size, queue_id, flag, queue_offset, physical_offset, sys_flag = place
    born_at, born_host = born
    stored_at, store_host = stored
    topic, properties = tail
    form = _RECORD_V4 if len(born_host) == 8 == len(store_host) else _RECORD[len(born_host), len(store_host)]
    head = form.pack(
        size,
        MESSAGE_MAGIC,
        zlib.crc32(body) & 0x7FFF_FFFF,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_at,
        born_host,
        stored_at,
        store_host,
        retry[0],
        retry[1],
        len(body),
    )
    return b"".join((head, body, topic, _PROPERTIES_LENGTH.pack(len(properties)), properties))


_BATCH_HEAD = Struct(">iiiii")


def split_batch(body: bytes) -> list[tuple[int, bytes, str]]:
    """The messages of a batch body as (flag, body, properties text). Raises RemoteProtocolError."""
    messages = []
    at, end = 0, len(body)
    try:
        while at < end:
            size, _, _, flag, length = _BATCH_HEAD.unpack_from(body, at)
            text_at = at + 20 + length
            text_length = _PROPERTIES_LENGTH.unpack_from(body, text_at)[0]
            stop = text_at + 2 + text_length
            if length < 0 or text_length < 0 or stop != at + size or stop > end:
                raise RemoteProtocolError(f"the message at byte {at} of a batch has inconsistent lengths")
            messages.append((flag, body[at + 20 : text_at], body[text_at + 2 : stop].decode()))
            at = stop
    except (struct_error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"the message at byte {at} of a batch cannot be read: {error}") from None
    return messages


def parse_properties(text: str) -> dict[str, str]:
    """The map of a properties text: name 0x01 value, joined by 0x02. A piece without both is dropped."""
    found = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            found[name] = value
    return found


_QUEUE_UNIT = Struct(">qiq")


def encode_queue_units(units: Iterable[tuple[int, int, int]]) -> bytes:
    """Consume queue units of (physical offset, size, tags code), 20 bytes each."""
    pack = _QUEUE_UNIT.pack
    return b"".join([pack(*unit) for unit in units])
