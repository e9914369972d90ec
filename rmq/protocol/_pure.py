"""The engine in pure Python; header decoding goes through msgspec where it is installed."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from struct import error as struct_error
from typing import Annotated, Any, Final

from rmq.errors import LocalProtocolError, RemoteProtocolError
from rmq.protocol._binary import (
    LANGUAGE_NUMBERS,
    LANGUAGES,
    OTHER,
    binary_fields,
    read_binary,
    write_binary,
)
from rmq.protocol.codes import LANGUAGE, VERSION
from rmq.protocol.fields import read_int32
from rmq.protocol.frame import JSON, ROCKETMQ, Command
from rmq.protocol.headers import (
    PullMessageRequestHeader,
    SendMessageRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

try:
    if os.environ.get("RMQ_NO_MSGSPEC"):
        raise ImportError("switched off by RMQ_NO_MSGSPEC")
    import msgspec
except ImportError:  # pragma: no cover - the suite runs once without it
    msgspec = None  # type: ignore[assignment]

_PREFIX = Struct(">iI")
_LENGTH = Struct(">i")

# --- frames in ---


def split_frames(data: bytes, max_frame: int) -> tuple[list[Command], int]:
    """The whole frames at the start of `data` as commands, and how many bytes they took.

    Raises RemoteProtocolError for lengths that cannot be and for headers that cannot be read.
    """
    commands: list[Command] = []
    add = commands.append
    fast, general = _FAST.get, _read_general
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
            command = fast(header[:12], general)(header) or _json_command(header)
        elif kind == ROCKETMQ:
            command = read_binary(header)
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


def _texts_only(header: bytes) -> dict[str, str] | None:
    """The text map where all of it is text, as with every known client; else None. Access control asks for it
    with every request, and this takes a third of the time."""
    if _read_texts is None:
        return None
    try:
        found: dict[str, str] | None = _read_texts(header).ext
    except _MISFIT:
        return None
    return found


def _json_ext(fields: dict[str, Any], header: bytes) -> dict[str, str]:
    ext = fields.get("extFields") or {}
    if not isinstance(ext, dict):
        raise RemoteProtocolError(f"extFields is not an object: {header[:80]!r}")
    return {
        key: value if value.__class__ is str else _text(value)
        for key, value in ext.items()
        if value is not None
    }


class _JsonCommand(Command):
    """One whose typed header was made at once, and its text map not."""

    __slots__ = ()

    def _read_ext(self, raw: bytes) -> dict[str, str]:
        return _texts_only(raw) or _json_ext(_json_fields(raw), raw)


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
        return read_int32(int(value) if value.__class__ is float and value.is_integer() else value)
    except ValueError:
        raise RemoteProtocolError(f"header field {name} is no 32-bit number: {str(value)[:80]!r}") from None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _language(value: Any) -> str:
    if isinstance(value, str):
        return value
    return LANGUAGES.get(value, OTHER) if isinstance(value, int) else OTHER


# --- the typed fast path: Java writes {"code":N first, so twelve bytes choose a decoder ---

_Reader = Callable[[bytes], Command | None]
"""Makes a command of a JSON header, or gives None when the header does not have the shape it knows."""
_FAST: dict[bytes, _Reader] = {}

if msgspec is not None:
    _loads: Callable[[bytes], Any] = msgspec.json.decode
    _dumps: Callable[[Any], bytes] = msgspec.json.encode
    _MISFIT = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
    _Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
    _Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

    # A field that may be missing has the plain type and the default None: a null is for the general reader.
    _SEND: list[Any] = [
        ("producer_group", str),
        ("topic", str),
        ("default_topic", str),
        ("default_topic_queue_nums", _Int32),
        ("queue_id", _Int32),
        ("sys_flag", _Int32),
        ("born_timestamp", _Int64),
        ("flag", _Int32),
        ("properties", str, None),
        ("reconsume_times", _Int32, None),
        ("unit_mode", bool, False),
        ("batch", bool, False),
        ("max_reconsume_times", _Int32, None),
        ("bname", str, None),
    ]
    _PULL: list[Any] = [
        ("consumer_group", str),
        ("topic", str),
        ("queue_id", _Int32),
        ("queue_offset", _Int64),
        ("max_msg_nums", _Int32),
        ("sys_flag", _Int32),
        ("commit_offset", _Int64),
        ("suspend_timeout_millis", _Int64),
        ("sub_version", _Int64),
        ("subscription", str, None),
        ("expression_type", str, None),
        ("bname", str, None),
    ]
    _UPDATE: list[Any] = [
        ("consumer_group", str),
        ("topic", str),
        ("queue_id", _Int32),
        ("commit_offset", _Int64),
        ("bname", str, None),
    ]
    _SHORT = dict(zip([entry[0] for entry in _SEND], "abcdefghijkmln", strict=True))

    def _frame_decoder(ext: tuple[Any, ...], *, strict: bool) -> Callable[[bytes], Any]:
        members: list[Any] = [
            ("code", _Int32),
            ext,
            ("opaque", _Int32, 0),
            ("flag", _Int32, 0),
            ("language", str, OTHER),
            ("version", _Int32, 0),
            ("remark", str | None, None),
        ]
        frame = msgspec.defstruct("Frame", members, gc=False, kw_only=True)
        return msgspec.json.Decoder(frame, strict=strict).decode

    _Texts = msgspec.defstruct("Texts", [("ext", dict[str, str] | None, None)], rename={"ext": "extFields"})
    _read_texts: Callable[[bytes], Any] | None = msgspec.json.Decoder(_Texts).decode

    def _typed_reader(header_class: type[Any], fields: list[Any], rename: Any = "camel") -> _Reader:
        """Reads the header into a value that looks like one of `header_class`, several times as fast."""
        alike = msgspec.defstruct(
            header_class.__name__, fields, gc=False, rename=rename, namespace={"stands_for": header_class}
        )
        decode = _frame_decoder(("extFields", alike), strict=False)
        flags = fields is _SEND

        def read(header: bytes) -> Command | None:
            try:
                header.decode()  # msgspec does not look at the bytes of what it skips
                made = decode(header)
            except _MISFIT:
                return None
            value = made.extFields
            # Only the text "true" is true in Java; msgspec takes "1" too.
            if (
                flags
                and (value.batch or value.unit_mode)
                and header.count(b':"true"') != value.batch + value.unit_mode
            ):
                return None
            return _JsonCommand(
                made.code,
                made.opaque,
                made.flag,
                None,
                b"",
                made.remark,
                made.language,
                made.version,
                JSON,
                value,
                header,
            )

        return read

    def _general_reader() -> _Reader:
        decode = _frame_decoder(("extFields", dict[str, str] | None, None), strict=True)

        def read(header: bytes) -> Command | None:
            try:
                header.decode()  # msgspec does not look at the bytes of what it skips
                made = decode(header)
            except _MISFIT:
                return None
            return Command(
                made.code,
                made.opaque,
                made.flag,
                made.extFields,
                b"",
                made.remark,
                made.language,
                made.version,
            )

        return read

    _FAST[b'{"code":310,'] = _FAST[b'{"code":320,'] = _typed_reader(SendMessageRequestHeader, _SEND, _SHORT)
    _FAST[b'{"code":10,"'] = _typed_reader(SendMessageRequestHeader, _SEND)
    _FAST[b'{"code":11,"'] = _typed_reader(PullMessageRequestHeader, _PULL)
    _FAST[b'{"code":15,"'] = _typed_reader(UpdateConsumerOffsetRequestHeader, _UPDATE)
    _read_general = _general_reader()
else:

    def _number(text: str) -> float:
        """A number, but for NaN, Infinity and 1e999, which are no JSON."""
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"{text[:80]} is out of range")
        return number

    _decode_json = json.JSONDecoder(parse_constant=_number, parse_float=_number).decode

    _read_texts = None

    def _loads(header: bytes) -> Any:
        text = header.decode()
        value = _decode_json(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # raises for half a surrogate pair
        return value

    def _dumps(value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    def _read_general(header: bytes) -> Command | None:
        return None


# --- frames out ---


def encode_frame(command: Command) -> bytes:
    """The frame of any command, in its own serialization. Raises LocalProtocolError when it has none."""
    try:
        if command.serialization == ROCKETMQ:
            return _frame(write_binary(command), command.body, ROCKETMQ)
        return _frame(_dumps(_members(command)), command.body, JSON)
    except (ValueError, TypeError, struct_error) as error:
        raise LocalProtocolError(f"command {command.code} has no frame: {error}") from error


def _members(command: Command) -> dict[str, Any]:
    members: dict[str, Any] = {"code": command.code}
    if command.ext:
        members["extFields"] = command.ext
    members["flag"] = command.flag
    members["language"] = command.language
    members["opaque"] = command.opaque
    if command.remark is not None:
        members["remark"] = command.remark
    members["serializeTypeCurrentRPC"] = "JSON"
    members["version"] = command.version
    return members


def _frame(header: bytes, body: bytes, kind: int) -> bytes:
    size = len(header)
    return b"".join((_PREFIX.pack(4 + size + len(body), kind << 24 | size), header, body))


_inside_json: dict[str, str] = {}


def _escaped(text: str) -> str:
    """`text` as it stands between the quotes of a JSON text; remembered, for the few texts of replies."""
    known = _inside_json.get(text)
    if known is None:
        if len(_inside_json) >= _TEXTS_MAX:
            _inside_json.clear()
        known = _inside_json[text] = json.dumps(text, ensure_ascii=False)[1:-1]
    return known


_TEXTS_MAX: Final = 1024
_REPLY_END: Final = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
_LANGUAGE: Final = f'"flag":1,"language":"{LANGUAGE}","opaque":'
_PYTHON: Final = LANGUAGE_NUMBERS[LANGUAGE]


def encode_send_reply(
    request: Command, msg_id: str, queue_id: int, queue_offset: int, region: str, trace_on: str
) -> bytes:
    """The frame that says a message is stored.

    `msg_id` is an id of hex digits, `region` the broker's, `trace_on` "true" or "false".
    """
    if request.serialization == ROCKETMQ:
        return _binary_send_reply(request.opaque, msg_id, queue_id, queue_offset, (region, trace_on))
    header = (
        f'{{"code":0,"extFields":{{"queueId":"{queue_id}","TRACE_ON":"{trace_on}",'
        f'"MSG_REGION":"{_inside_json.get(region) or _escaped(region)}","msgId":"{msg_id}",'
        f'"queueOffset":"{queue_offset}"}},{_LANGUAGE}{request.opaque}{_REPLY_END}'
    ).encode()
    size = len(header)
    return _PREFIX.pack(4 + size, size) + header


_SEND_REPLY_HEAD = Struct(">iIhBhiiii7sI")
_tails: dict[tuple[str, str], bytes] = {}


def _binary_send_reply(
    opaque: int, msg_id: str, queue_id: int, queue_offset: int, tail_of: tuple[str, str]
) -> bytes:
    tail = _tails.get(tail_of)
    if tail is None:
        if len(_tails) >= _TEXTS_MAX:
            _tails.clear()
        tail = _tails[tail_of] = binary_fields({"TRACE_ON": tail_of[1], "MSG_REGION": tail_of[0]})
    id_text, queue, offset = msg_id.encode(), b"%d" % queue_id, b"%d" % queue_offset
    # Names with their lengths and the lengths of the values are 11 + 13 + 17 bytes.
    fields = 41 + len(id_text) + len(queue) + len(offset) + len(tail)
    head = _SEND_REPLY_HEAD.pack(
        25 + fields,
        ROCKETMQ << 24 | 21 + fields,
        0,
        _PYTHON,
        VERSION,
        opaque,
        1,
        0,
        fields,
        b"\0\5msgId",
        len(id_text),
    )
    return b"%b%b\0\7queueId\0\0\0%c%b\0\x0bqueueOffset\0\0\0%c%b%b" % (
        head,
        id_text,
        len(queue),
        queue,
        len(offset),
        offset,
        tail,
    )


def encode_pull_reply_head(
    request: Command,
    code: int,
    remark: str,
    offsets: tuple[int, int, int, int],
    body_length: int,
) -> bytes:
    """The frame of a pull's answer up to its body of `body_length` bytes, which the caller sends after it.

    `offsets` are (broker id to ask next, next begin, min, max).
    """
    suggest, next_begin, low, high = offsets
    if request.serialization == ROCKETMQ:
        ext = {
            "suggestWhichBrokerId": str(suggest),
            "nextBeginOffset": str(next_begin),
            "minOffset": str(low),
            "maxOffset": str(high),
        }
        reply = Command(code, request.opaque, 1, ext, remark=remark, serialization=ROCKETMQ)
        head = write_binary(reply)
        return _PREFIX.pack(4 + len(head) + body_length, ROCKETMQ << 24 | len(head)) + head
    header = (
        f'{{"code":{code:d},"extFields":{{"suggestWhichBrokerId":"{suggest}","maxOffset":"{high}",'
        f'"nextBeginOffset":"{next_begin}","minOffset":"{low}"}},{_LANGUAGE}{request.opaque},'
        f'"remark":"{_inside_json.get(remark) or _escaped(remark)}"{_REPLY_END}'
    ).encode()
    size = len(header)
    return _PREFIX.pack(4 + size + body_length, size) + header


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
    size: int,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_at: int,
    born_host: bytes,
    stored_at: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: bytes,
    topic: bytes,
    properties: bytes,
) -> bytes:
    """One record of the commit log: its fields in their order. Times are ms, hosts have 8 or 20 bytes,
    `topic` comes after its length byte.
    """
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
        reconsume_times,
        prepared_transaction_offset,
        len(body),
    )
    return b"".join((head, body, topic, _PROPERTIES_LENGTH.pack(len(properties)), properties))


_BATCH_HEAD = Struct(">iiiii")
_SHARED = {
    (born, stored): (Struct(f">q{born}sq{stored}siq"), Struct(f">iIiiiqqi{28 + born + stored}si"))
    for born in (8, 20)
    for stored in (8, 20)
}
"""What the heads of a batch's records have in common, from the born time on, and such a head around it."""


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


def build_batch(
    batch: bytes,
    suffix: bytes,
    place: tuple[int, int, int, int],
    born: tuple[int, bytes],
    stored: tuple[int, bytes],
    reconsume_times: int,
    topic: bytes,
) -> tuple[list[bytes], list[int], list[int], list[bytes]]:
    """The records of a batch body, one after the other: their pieces, their physical offsets, their sizes,
    and the properties that they were sent with.

    Each record gets `suffix` after its properties. `place` = (queue id, queue offset, physical offset, sys
    flag) of the first; the rest as for `build_record`. Raises RemoteProtocolError.
    """
    queue_id, queue_offset, position, sys_flag = place
    born_at, born_host = born
    stored_at, store_host = stored
    shared_form, form = _SHARED[len(born_host), len(store_host)]
    shared = shared_form.pack(born_at, born_host, stored_at, store_host, reconsume_times, 0)
    pack, read, read_length, pack_length = (
        form.pack,
        _BATCH_HEAD.unpack_from,
        _PROPERTIES_LENGTH.unpack_from,
        _PROPERTIES_LENGTH.pack,
    )
    crc, fixed = zlib.crc32, form.size + len(topic) + 2
    suffix_after = b"\x02" + suffix
    middles: dict[int, bytes] = {}  # topic and length of the properties
    pieces: list[bytes] = []
    positions: list[int] = []
    sizes: list[int] = []
    texts: list[bytes] = []
    at, end = 0, len(batch)
    try:
        while at < end:
            size, _, _, flag, length = read(batch, at)
            text_at = at + 20 + length
            text_length = read_length(batch, text_at)[0]
            stop = text_at + 2 + text_length
            if length < 0 or text_length < 0 or stop != at + size or stop > end:
                raise RemoteProtocolError(f"the message at byte {at} of a batch has inconsistent lengths")
            body, text = batch[at + 20 : text_at], batch[text_at + 2 : stop]
            if not text.isascii():
                text.decode()
            after = suffix if not text or text[-1] == 2 else suffix_after
            text_length += len(after)
            size = fixed + length + text_length
            head = pack(
                size,
                MESSAGE_MAGIC,
                crc(body) & 0x7FFF_FFFF,
                queue_id,
                flag,
                queue_offset,
                position,
                sys_flag,
                shared,
                length,
            )
            middle = middles.get(text_length)
            if middle is None:
                middle = middles[text_length] = topic + pack_length(text_length)
            pieces += (head, body, middle, text, after)
            positions.append(position)
            sizes.append(size)
            texts.append(text)
            queue_offset += 1
            position += size
            at = stop
    except (struct_error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"the message at byte {at} of a batch cannot be read: {error}") from None
    return pieces, positions, sizes, texts


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
