"""The ROCKETMQ form of a frame header: code, language, version, opaque, flag, remark, and the fields.

Big-endian: code (2 bytes), language (1), version (2), opaque (4), flag (4), remark (length 4 + text), length
of all fields (4), and for each field its name (length 2 + text) and value (length 4 + text).

The headers of a code from the same sender differ in few places: opaque, time, offset, properties. The bytes
between those places are kept with their meaning, as a template, so that the next header costs a single
look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, get_type_hints

import attrs

from rmq.errors import RemoteProtocolError
from rmq.protocol import headers
from rmq.protocol.codes import LanguageCode, RequestCode
from rmq.protocol.command import ROCKETMQ, SEND_V2_CODES, Command
from rmq.protocol.fields import java_name, short_name
from rmq.protocol.json import java_text

LANGUAGES: Final = {int(language): language.name for language in LanguageCode}
LANGUAGE_NUMBERS: Final = {language.name: int(language) for language in LanguageCode}
OTHER: Final = LanguageCode.OTHER.name

_HEAD = Struct(">hBhiii")
_HEAD_AND_FIELDS = Struct(">hBhiiii")
_LENGTH = Struct(">i")
_UNSIGNED = Struct(">I")
_SHORT_LENGTH = Struct(">H")
_SHORT_ENTRY = Struct(">HcI")
_FIELDS_AT: Final = _HEAD_AND_FIELDS.size
_SHORT_NAMES: Final = {bytes([letter]): chr(letter) for letter in range(ord("a"), ord("z") + 1)}
_NAMES: dict[bytes, str] = {}
_KEYS: dict[str, bytes] = {}
_NAMES_MAX: Final = 1024
_Text = Callable[[bytes], str]


def read_binary(header: bytes) -> Command:
    """The command of a binary header, without its body. Texts that are not UTF-8 are read as Java reads them.
    Raises RemoteProtocolError.
    """
    try:
        try:
            return _by_template(header) or _general(header)
        except UnicodeDecodeError:
            return _general(header, java_text, _OddCommand, header)
    except (struct_error, IndexError) as error:
        raise RemoteProtocolError(f"the binary header cannot be read: {error}: {header[:80]!r}") from None


class _BinaryCommand(Command):
    """A command whose typed header was made at once, and its text map was not."""

    __slots__ = ()

    def _read_ext(self, raw: bytes) -> dict[str, str]:
        at, end = _fields_of(raw, _HEAD.size, _HEAD.unpack_from(raw)[5])
        return _fields(raw, at, end)


class _OddCommand(Command):
    """A command with texts that are not UTF-8."""

    __slots__ = ()

    def ext_as_sent(self) -> dict[str, str] | None:
        at, end = _fields_of(self._raw, _HEAD.size, _HEAD.unpack_from(self._raw)[5])
        return _fields(self._raw, at, end, _escaped)


def _escaped(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def _general(
    header: bytes, text: _Text = bytes.decode, kind: type[Command] = Command, raw: bytes = b""
) -> Command:
    code, language, version, opaque, flag, remark_length = _HEAD.unpack_from(header)
    begin, end = _fields_of(header, _HEAD.size, remark_length)
    remark = text(header[_HEAD.size : begin - 4]) if remark_length else None
    ext = _fields(header, begin, end, text)
    name = LANGUAGES.get(language, OTHER)
    return kind(code, opaque, flag, ext, b"", remark, name, version, ROCKETMQ, raw=raw)


def _fields_of(header: bytes, at: int, remark_length: int) -> tuple[int, int]:
    """Begin and end of the fields, behind a remark that begins at `at`."""
    if remark_length < 0 or at + remark_length > len(header):
        raise RemoteProtocolError(f"a remark of {remark_length} bytes does not fit the header")
    at += remark_length + 4
    length: int = _LENGTH.unpack_from(header, at - 4)[0]
    if length < 0 or at + length > len(header):
        raise RemoteProtocolError(f"fields of {length} bytes do not fit the header")
    return at, at + length


def _fields(header: bytes, at: int, end: int, text: _Text = bytes.decode) -> dict[str, str]:
    ext: dict[str, str] = {}
    unpack = _SHORT_ENTRY.unpack_from
    names = _NAMES
    while at < end:
        # One call reads name and length of the one-letter fields of a send; longer names take two.
        key_length, letter, length = unpack(header, at)
        if key_length == 1:
            at += 7
            name = _SHORT_NAMES.get(letter) or text(letter)
        else:
            key = header[at + 2 : at + 2 + key_length]
            name = names.get(key) or _new_name(key, text)
            at += key_length + 6
            length = _UNSIGNED.unpack_from(header, at - 4)[0]
        stop = at + length
        if stop > end:
            raise RemoteProtocolError(f"field {name[:80]} of {length} bytes does not fit the header")
        ext[name] = text(header[at:stop])
        at = stop
    return ext


def _new_name(key: bytes, text: _Text) -> str:
    name = text(key)
    if len(_NAMES) < _NAMES_MAX and len(key) < 64:
        _NAMES[key] = name
    return name


def write_binary(command: Command) -> bytes:
    """The binary header of any command."""
    remark = command.remark.encode() if command.remark else b""
    ext = binary_fields(command.ext)
    number = LANGUAGE_NUMBERS.get(command.language, LanguageCode.OTHER)
    head = _HEAD.pack(command.code, number, command.version, command.opaque, command.flag, len(remark))
    return b"".join((head, remark, _LENGTH.pack(len(ext)), ext))


def binary_fields(ext: Mapping[str, str]) -> bytes:
    """Names and values with their lengths."""
    parts: list[bytes] = []
    pack, known = _LENGTH.pack, _KEYS
    for name, text in ext.items():
        value = text.encode()
        parts += (known.get(name) or _new_key(name), pack(len(value)), value)
    return b"".join(parts)


def _new_key(name: str) -> bytes:
    key = name.encode()
    entry = _SHORT_LENGTH.pack(len(key)) + key
    if len(_KEYS) < _NAMES_MAX and len(key) < 64:
        _KEYS[name] = entry
    return entry


# --- templates of headers ---
#
# Why: field by field a send's header costs three times as much. A template must never give a result that
# differs from the general reader's, for any bytes: all bytes but the values of varying fields must equal
# those of a header that the general reader has read, and the values are the same kind of text. Tests compare
# both readers over mutated headers.

_TEMPLATES_MAX: Final = 2048
_TEMPLATE_BYTES_MAX: Final = 1024
_TEMPLATES_BYTES_MAX: Final = 1 << 20
_ORDERS_MAX: Final = 4
_DROPPED: Final = -1  # the spare last value of a template takes what no header class has
_DIGITS_MAX: Final = 18  # any such number is inside 64 bits; longer ones go to the general reader

_SIGNED_NAMES: Final = (b"Signature", b"RmqTime", b"RmqNonce", b"RmqProof")

_Place = tuple[bytes, int, bool]
"""A field that differs from message to message: its first bytes (name with length, and the two zero bytes
that begin any value length below 64 KiB), its value's place in the header class, and whether the value is a
number."""
_Places = tuple[_Place, ...]


class _Templates:
    """The templates of the headers of a request code.

    For each order of the varying fields: the bytes between the fields, and the values of these bytes, in the
    positional order of the header class, and a spare.
    """

    __slots__ = ("header_class", "orders", "read", "size", "varying")

    def __init__(
        self, header_class: type[Any], read: Callable[[Mapping[str, str]], Any], varying: dict[bytes, _Place]
    ) -> None:
        self.header_class = header_class
        self.read = read
        self.varying = varying
        self.orders: dict[_Places, dict[tuple[bytes, ...], list[Any]]] = {}
        self.size = 0  # bytes in `orders`

    def learn(self, header: bytes, value: Any) -> None:
        """Remember a whole header whose fields were read as `value`."""
        found = _varying_fields(header, self.varying)
        at, rest = _FIELDS_AT, []
        for start, stop, _ in found:
            rest.append(header[at:start])
            at = stop
        rest.append(header[at:])
        size = sum(map(len, rest))
        if size > _TEMPLATE_BYTES_MAX:
            return
        self.size += size
        if self.size > _TEMPLATES_BYTES_MAX:  # many senders, or one that invents names
            self.orders.clear()
            self.size = size
        places = tuple([place for _, _, place in found])
        if places not in self.orders and len(self.orders) >= _ORDERS_MAX:
            self.orders.clear()
        known = self.orders.setdefault(places, {})
        if len(known) >= _TEMPLATES_MAX:
            known.clear()
        assert len(rest) == len(places) + 1, "bytes before, between and after the varying values"
        template = known[tuple(rest)] = [*attrs.astuple(value, recurse=False), None]
        for _, index, _ in places:
            template[index] = None  # it may be long, and differs in each header


def _varying_fields(header: bytes, varying: dict[bytes, _Place]) -> list[tuple[int, int, _Place]]:
    """Start, stop and kind of the varying fields of a good header, in their order, repeated ones included."""
    at, end = _FIELDS_AT, len(header)
    found = []
    while at < end:
        key = header[at + 2 : at + 2 + int.from_bytes(header[at : at + 2], "big")]
        value_at = at + len(key) + 6
        stop = value_at + int.from_bytes(header[value_at - 4 : value_at], "big")
        if key in varying:
            found.append((at, stop, varying[key]))
        at = stop
    return found


def _by_template(header: bytes) -> Command | None:
    """The command with its typed header, for the hot codes; None when the general reader is needed."""
    code, language, version, opaque, flag, remark_length, length = _HEAD_AND_FIELDS.unpack_from(header)
    templates = _TEMPLATES[code] if code in _VARYING else None
    if templates is None or flag & 1 or remark_length or length != len(header) - _FIELDS_AT:
        return None
    for places, known in templates.orders.items():
        value = _known(header, places, known, templates.header_class)
        if value is not None:
            name = LANGUAGES.get(language, OTHER)
            return _BinaryCommand(code, opaque, flag, None, b"", None, name, version, ROCKETMQ, value, header)
    return _learned(header, templates)


def _known(
    header: bytes, places: _Places, known: dict[tuple[bytes, ...], list[Any]], header_class: type[Any]
) -> Any:
    """The typed header when all bytes except the varying values are those of a template.

    `find` may find a field's name inside another value, by chance or on purpose. That is harmless: in this
    case the bytes before the name end inside a field, and no template has such bytes, since `learn` cuts
    whole headers at the beginnings of values.
    """
    at, end = _FIELDS_AT, len(header)
    rest, texts = [], []
    for start, _, _ in places:
        found = header.find(start, at, end - 2)
        if found < 0:
            return None
        rest.append(header[at:found])
        found += len(start) + 2
        at = found + _SHORT_LENGTH.unpack_from(header, found - 2)[0]
        if at > end:
            return None
        texts.append(header[found:at])
    rest.append(header[at:])
    template = known.get(tuple(rest))
    if template is None:
        return None
    values = template.copy()
    for (_, index, is_number), text in zip(places, texts, strict=True):
        if not is_number:
            values[index] = text.decode()
        elif len(text) <= _DIGITS_MAX and text.isdigit():
            values[index] = int(text)
        else:
            return None
    return header_class(*values[:-1])


def _learned(header: bytes, templates: _Templates) -> Command:
    command = _general(header)
    try:
        command.header = templates.read(command.ext)
    except RemoteProtocolError:
        return command  # a caller of `read` gets the error
    templates.learn(header, command.header)
    return command


def _new_templates(code: int, varying: Collection[str]) -> _Templates:
    header_class = headers.REQUEST_HEADERS[code]
    assert header_class is not None
    short = code in SEND_V2_CODES
    read = headers.decode_send_v2 if short else partial(headers.decode, header_class)
    hints = get_type_hints(header_class)
    places: dict[bytes, _Place] = {}
    for index, field in enumerate(attrs.fields(header_class)):
        if field.name in varying:
            key = (short_name(field) if short else java_name(field)).encode()
            places[key] = (_start(key), index, hints[field.name] is int)
    # Signed requests also differ in these fields, which no header class has.
    for name in _SIGNED_NAMES:
        places[name] = (_start(name), _DROPPED, False)
    return _Templates(header_class, read, places)


def _start(key: bytes) -> bytes:
    return _SHORT_LENGTH.pack(len(key)) + key + b"\0\0"


_VARYING_IN_A_SEND: Final = ("born_timestamp", "properties")
_VARYING: Final[dict[int, Collection[str]]] = {
    RequestCode.SEND_MESSAGE: _VARYING_IN_A_SEND,
    RequestCode.SEND_MESSAGE_V2: _VARYING_IN_A_SEND,
    RequestCode.SEND_BATCH_MESSAGE: _VARYING_IN_A_SEND,
    RequestCode.PULL_MESSAGE: ("queue_offset", "commit_offset"),
    RequestCode.UPDATE_CONSUMER_OFFSET: ("commit_offset",),
}


class _TemplatesByCode(dict[int, _Templates]):
    """Templates by request code, made when the first request of a code comes: clients, which get none, need
    none."""

    def __missing__(self, code: int) -> _Templates:
        made = self[code] = _new_templates(code, _VARYING[code])
        return made


_TEMPLATES: Final = _TemplatesByCode()
