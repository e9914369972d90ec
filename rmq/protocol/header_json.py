"""The JSON form of a frame header; msgspec reads it.

Java writes ``{"code":N`` first, so the first twelve bytes choose a decoder that makes the typed header at
once. Headers unknown to that decoder go to `read_general`, and from there to `read_json`, which reads the
header of any client and reports faults.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, get_type_hints

import attrs
import msgspec

from rmq.errors import RemoteProtocolError
from rmq.protocol.command import JSON, Command
from rmq.protocol.fields import Int32, Int64, is_required, java_name, read_int32, short_name
from rmq.protocol.header_binary import LANGUAGES, OTHER
from rmq.protocol.headers import (
    PullMessageRequestHeader,
    SendMessageRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmq.protocol.json import JAVA


def _number(text: str) -> float:
    """A JSON number; NaN, Infinity and 1e999 are no JSON."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:80]} is out of range")
    return number


_decode_json = json.JSONDecoder(parse_constant=_number, parse_float=_number).decode


def _json_fields(header: bytes, *, is_odd: bool) -> dict[str, Any]:
    try:
        fields = _lenient_loads(header) if is_odd else _loads(header)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"the JSON header cannot be read: {error}: {header[:80]!r}") from None
    if not isinstance(fields, dict):
        raise RemoteProtocolError(f"the JSON header is not an object: {header[:80]!r}")
    return fields


def _is_odd(header: bytes) -> bool:
    """True if some text may not be UTF-8: malformed bytes, or an escaped half of a surrogate pair."""
    try:
        header.decode()
    except UnicodeDecodeError:
        return True
    return b"\\ud" in header or b"\\uD" in header


def _lenient_loads(header: bytes) -> Any:
    """The value of a JSON text whose strings are read as Java reads them. Raises ValueError and
    RecursionError."""
    value = _decode_json(header.decode("utf-8", JAVA))
    if b"\\u" in header:
        value = _decode_json(json.dumps(value, ensure_ascii=False).encode("utf-8", JAVA).decode())
    return value


def _texts_only(header: bytes) -> dict[str, str] | None:
    """The text map if all values are texts, as with every known client; else None. Access control needs the
    map with every request, and this takes a third of the time."""
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
    """A command whose typed header was made at once, and its text map was not."""

    __slots__ = ()

    def _read_ext(self, raw: bytes) -> dict[str, str]:
        return _texts_only(raw) or _json_ext(_json_fields(raw, is_odd=_is_odd(raw)), raw)


class _OddCommand(Command):
    """A command with texts that may not be UTF-8."""

    __slots__ = ()

    def ext_as_sent(self) -> dict[str, str] | None:
        raw = self._raw
        if b"\\ud" in raw or b"\\uD" in raw:
            return None  # an escaped surrogate would be taken for a byte
        return _json_ext(_decode_json(raw.decode("utf-8", "surrogateescape")), raw)


def read_json(header: bytes) -> Command:
    """The command of any JSON header, without its body. Raises RemoteProtocolError."""
    is_odd = _is_odd(header)
    fields = _json_fields(header, is_odd=is_odd)
    remark = fields.get("remark")
    return (_OddCommand if is_odd else Command)(
        _int(fields, "code"),
        _int(fields, "opaque", 0),
        _int(fields, "flag", 0),
        _json_ext(fields, header),
        b"",
        None if remark is None else str(remark),
        _language(fields.get("language")),
        _int(fields, "version", 0),
        raw=header if is_odd else b"",
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


# --- the typed fast path ---

_Reader = Callable[[bytes], Command | None]
"""Makes a command of a JSON header, or gives None when the header has another shape."""
TYPED_READERS: dict[bytes, _Reader] = {}
"""The first twelve bytes of a header -> its reader."""

_loads: Callable[[bytes], Any] = msgspec.json.decode
_dumps: Callable[[Any], bytes] = msgspec.json.encode
_MISFIT = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


def _members(header_class: type[Any]) -> list[Any]:
    """The fields of a header class as fields of a struct, whose required fields must come first. An optional
    field has the plain type: a null is left to the general reader."""
    hints = get_type_hints(header_class, include_extras=True)
    kinds = {Int32: _Int32, Int64: _Int64, str: str, bool: bool}
    members: list[Any] = []
    for field in sorted(attrs.fields(header_class), key=is_required, reverse=True):
        hint = hints[field.name]
        kind = next(kind for known, kind in kinds.items() if hint in (known, known | None))
        members.append((field.name, kind) if is_required(field) else (field.name, kind, field.default))
    return members


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
_read_texts: Callable[[bytes], Any] = msgspec.json.Decoder(_Texts).decode


def _typed_reader(
    header_class: type[Any], name_of: Callable[[attrs.Attribute[Any]], str] = java_name
) -> _Reader:
    """Reads the header into a value that looks like one of `header_class`, several times as fast."""
    members = _members(header_class)
    alike = msgspec.defstruct(
        header_class.__name__,
        members,
        gc=False,
        rename={field.name: name_of(field) for field in attrs.fields(header_class)},
        namespace={"stands_for": header_class},
    )
    decode = _frame_decoder(("extFields", alike), strict=False)
    flags = header_class is SendMessageRequestHeader  # the only type here that has any
    assert flags or not any(kind is bool for _, kind, *_ in members)

    def read(header: bytes) -> Command | None:
        try:
            header.decode()  # msgspec does not check the bytes that it skips
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
            header.decode()  # msgspec does not check the bytes that it skips
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


def _add_typed_reader(
    starts: Sequence[bytes],
    header_class: type[Any],
    name_of: Callable[[attrs.Attribute[Any]], str] = java_name,
) -> None:
    """Read headers with this beginning as `header_class`. The reader is made for the first of them: clients,
    which do not get such requests, need none."""

    def read_first(header: bytes) -> Command | None:
        reader = _typed_reader(header_class, name_of)
        TYPED_READERS.update(dict.fromkeys(starts, reader))
        return reader(header)

    TYPED_READERS.update(dict.fromkeys(starts, read_first))


# Java writes the code first, and twelve bytes show it: two digits are followed by the next name's quote.
_add_typed_reader([b'{"code":310,', b'{"code":320,'], SendMessageRequestHeader, short_name)
_add_typed_reader([b'{"code":10,"'], SendMessageRequestHeader)
_add_typed_reader([b'{"code":11,"'], PullMessageRequestHeader)
_add_typed_reader([b'{"code":15,"'], UpdateConsumerOffsetRequestHeader)
read_general = _general_reader()


# --- writing ---


def write_json(command: Command) -> bytes:
    """The JSON header of any command. Raises ValueError or TypeError for a command that cannot be encoded."""
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
    return _dumps(members)
