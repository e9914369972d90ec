"""Values of AMQP 1.0's type system: bytes to Python values and back, each with its exact type.

Null, booleans, longs, doubles, strings, binaries, UUIDs, lists and maps are Python's own; every other type
has a class here, so that a decoded value is encoded as the same bytes.
"""

from __future__ import annotations

import struct
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

DEPTH_MAX: Final = 32
"""Compound values in compound values."""
ALIKE_MAX: Final = 100
"""Keys of a map with the same hash: each costs a comparison with all before it."""


class Malformed(ValueError):
    """Bytes that are no AMQP value, or end within one."""


class UByte(int):
    """ubyte"""


class UShort(int):
    """ushort"""


class UInt(int):
    """uint"""


class ULong(int):
    """ulong"""


class Byte(int):
    """byte"""


class Short(int):
    """short"""


class Int(int):
    """int; Python's own int is a long"""


class Timestamp(int):
    """timestamp: ms since 1970"""


class Float(float):
    """float; Python's own float is a double"""


class Char(str):
    """char"""


class Symbol(str):
    """symbol"""


class Decimal(bytes):
    """decimal32, decimal64 or decimal128, as its 4, 8 or 16 bytes."""


class Array(bytes):
    """An array, in its encoded form."""


class Described:
    """A value with a descriptor."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: Any, value: Any) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Described):
            return NotImplemented
        return (self.descriptor, self.value) == (other.descriptor, other.value)

    def __hash__(self) -> int:
        return hash((self.descriptor, encode(self.value)))

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


# ---- to values ----

_FIXED: Final[dict[int, tuple[int, Callable[[bytes], Any]]]] = {
    0x40: (0, lambda data: None),
    0x41: (0, lambda data: True),
    0x42: (0, lambda data: False),
    0x43: (0, lambda data: UInt(0)),
    0x44: (0, lambda data: ULong(0)),
    0x45: (0, lambda data: []),
    0x50: (1, lambda data: UByte(data[0])),
    0x51: (1, lambda data: Byte(int.from_bytes(data, "big", signed=True))),
    0x52: (1, lambda data: UInt(data[0])),
    0x53: (1, lambda data: ULong(data[0])),
    0x54: (1, lambda data: Int(int.from_bytes(data, "big", signed=True))),
    0x55: (1, lambda data: int.from_bytes(data, "big", signed=True)),
    0x56: (1, lambda data: data[0] != 0),
    0x60: (2, lambda data: UShort(int.from_bytes(data, "big"))),
    0x61: (2, lambda data: Short(int.from_bytes(data, "big", signed=True))),
    0x70: (4, lambda data: UInt(int.from_bytes(data, "big"))),
    0x71: (4, lambda data: Int(int.from_bytes(data, "big", signed=True))),
    0x72: (4, lambda data: Float(struct.unpack(">f", data)[0])),
    0x73: (4, lambda data: _char(data)),
    0x74: (4, lambda data: Decimal(data)),
    0x80: (8, lambda data: ULong(int.from_bytes(data, "big"))),
    0x81: (8, lambda data: int.from_bytes(data, "big", signed=True)),
    0x82: (8, lambda data: struct.unpack(">d", data)[0]),
    0x83: (8, lambda data: Timestamp(int.from_bytes(data, "big", signed=True))),
    0x84: (8, lambda data: Decimal(data)),
    0x94: (16, lambda data: Decimal(data)),
    0x98: (16, lambda data: uuid.UUID(bytes=data)),
}


def _char(data: bytes) -> Char:
    try:
        return Char(chr(int.from_bytes(data, "big")))
    except (ValueError, OverflowError):
        raise Malformed(f"0x{data.hex()} is not a character") from None


def decode(data: bytes, at: int = 0, depth: int = 0) -> tuple[Any, int]:
    """The value that begins at `at`, and where it ends. Raises Malformed."""
    try:
        code = data[at]
    except IndexError:
        raise Malformed("the bytes end before a value") from None
    at += 1
    fixed = _FIXED.get(code)
    if fixed is not None:
        size, read = fixed
        end = at + size
        if end > len(data):
            raise Malformed(f"the bytes end within a value of the type 0x{code:02x}")
        return read(data[at:end]), end
    if code == 0x00:
        if depth >= DEPTH_MAX:
            raise Malformed(f"values are nested deeper than {DEPTH_MAX}")
        descriptor, at = decode(data, at, depth + 1)
        value, at = decode(data, at, depth + 1)
        return Described(descriptor, value), at
    width = 4 if code & 0x10 else 1
    if code >> 4 not in (0xA, 0xB, 0xC, 0xD, 0xE, 0xF):
        raise Malformed(f"there is no type 0x{code:02x}")
    start = at + width
    end = start + int.from_bytes(data[at:start], "big")
    if end > len(data) or start > len(data):
        raise Malformed(f"the bytes end within a value of the type 0x{code:02x}")
    return _variable(data, code, start, end, width, depth), end


def _variable(data: bytes, code: int, start: int, end: int, width: int, depth: int) -> Any:
    kind = code & 0xEF
    if kind == 0xA1:
        try:
            return data[start:end].decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"a string is not UTF-8: {error}") from None
    if kind == 0xA0:
        return bytes(data[start:end])
    if kind == 0xA3:
        try:
            return Symbol(data[start:end].decode("ascii"))
        except UnicodeDecodeError as error:
            raise Malformed(f"a symbol is not ASCII: {error}") from None
    if kind == 0xE0:
        return Array(data[start - width - 1 : end])
    if kind not in (0xC0, 0xC1):
        raise Malformed(f"there is no type 0x{code:02x}")
    return _compound(data, kind, start, end, width, depth)


def _compound(data: bytes, kind: int, start: int, end: int, width: int, depth: int) -> Any:
    if depth >= DEPTH_MAX:
        raise Malformed(f"values are nested deeper than {DEPTH_MAX}")
    count = int.from_bytes(data[start : start + width], "big")
    at = start + width
    if at > end or count > end - at:
        raise Malformed(f"{count} values do not fit into {max(0, end - at)} bytes")
    values: list[Any] = []
    for _ in range(count):
        # Nulls and short texts, which most values are, are read here; `decode` is right for all.
        code = data[at] if at < end else -1
        if code == 0x40:
            at += 1
            values.append(None)
            continue
        if code == 0xA1 and at + 1 < end and (stop := at + 2 + data[at + 1]) <= end:
            try:
                values.append(data[at + 2 : stop].decode())
            except UnicodeDecodeError as error:
                raise Malformed(f"a string is not UTF-8: {error}") from None
            at = stop
            continue
        value, at = decode(data, at, depth + 1)
        values.append(value)
    if at > end:
        raise Malformed("a value ends after the value that contains it")
    if kind == 0xC0:
        return values
    if count % 2:
        raise Malformed("a map has a key without a value")
    try:
        keys = values[::2]
        if len(keys) > ALIKE_MAX and max(Counter(map(hash, keys)).values()) > ALIKE_MAX:
            raise Malformed(f"more than {ALIKE_MAX} keys of a map have the same hash")
        return dict(zip(keys, values[1::2], strict=True))
    except TypeError:
        raise Malformed("a key of a map is a list or a map") from None


def symbols(value: Any) -> list[str]:
    """The symbols of a field that is a symbol or an array of symbols; none of any other field."""
    if isinstance(value, Symbol):
        return [value]
    if isinstance(value, Array):
        width = 4 if value[0] & 0x10 else 1
        count = int.from_bytes(value[1 + width : 1 + 2 * width], "big")
        at = 1 + 2 * width
        if at < len(value) and value[at] in (0xA3, 0xB3) and count <= len(value):
            each = 4 if value[at] == 0xB3 else 1
            at, found = at + 1, []
            for _ in range(count):
                size = int.from_bytes(value[at : at + each], "big")
                found.append(value[at + each : at + each + size].decode("ascii", "replace"))
                at += each + size
            return found
    return []


# ---- to bytes ----


def _sized(code: int, data: bytes) -> bytes:
    """A value of variable width; `code` is that of its short form."""
    if len(data) < 256:
        return bytes((code, len(data))) + data
    return bytes((code | 0x10,)) + len(data).to_bytes(4, "big") + data


def _long(value: int) -> bytes:
    if -128 <= value < 128:
        return b"\x55" + value.to_bytes(1, "big", signed=True)
    return b"\x81" + value.to_bytes(8, "big", signed=True)


def _int(value: int) -> bytes:
    if -128 <= value < 128:
        return b"\x54" + value.to_bytes(1, "big", signed=True)
    return b"\x71" + value.to_bytes(4, "big", signed=True)


def _uint(value: int) -> bytes:
    if value < 256:
        return bytes((0x52, value)) if value else b"\x43"
    return b"\x70" + value.to_bytes(4, "big")


def _ulong(value: int) -> bytes:
    if value < 256:
        return bytes((0x53, value)) if value else b"\x44"
    return b"\x80" + value.to_bytes(8, "big")


def _list(values: list[Any]) -> bytes:
    return _joined(0xC0, [encode(value) for value in values]) if values else b"\x45"


def _map(values: dict[Any, Any]) -> bytes:
    parts: list[bytes] = []
    for key, value in values.items():
        parts += (encode(key), encode(value))
    return _joined(0xC1, parts)


def _joined(code: int, parts: list[bytes]) -> bytes:
    data = b"".join(parts)
    if len(data) < 255 and len(parts) < 256:
        return bytes((code, len(data) + 1, len(parts))) + data
    return struct.pack(">BII", code | 0x10, len(data) + 4, len(parts)) + data


_ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda value: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    int: _long,
    float: lambda value: b"\x82" + struct.pack(">d", value),
    str: lambda value: _sized(0xA1, value.encode()),
    bytes: lambda value: _sized(0xA0, value),
    bytearray: lambda value: _sized(0xA0, bytes(value)),
    uuid.UUID: lambda value: b"\x98" + value.bytes,
    list: _list,
    dict: _map,
    UByte: lambda value: bytes((0x50, value)),
    UShort: lambda value: b"\x60" + value.to_bytes(2, "big"),
    UInt: _uint,
    ULong: _ulong,
    Byte: lambda value: b"\x51" + value.to_bytes(1, "big", signed=True),
    Short: lambda value: b"\x61" + value.to_bytes(2, "big", signed=True),
    Int: _int,
    Timestamp: lambda value: b"\x83" + value.to_bytes(8, "big", signed=True),
    Float: lambda value: b"\x72" + struct.pack(">f", value),
    Char: lambda value: b"\x73" + ord(value).to_bytes(4, "big"),
    Symbol: lambda value: _sized(0xA3, value.encode("ascii")),
    Decimal: lambda value: {4: b"\x74", 8: b"\x84", 16: b"\x94"}[len(value)] + value,
    Array: bytes,
    Described: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
}


def encode(value: Any) -> bytes:
    """The bytes of a value. Raises TypeError for a value of any other class."""
    try:
        encoder = _ENCODERS[type(value)]
    except KeyError:
        raise TypeError(f"{type(value).__name__} is no type of AMQP") from None
    return encoder(value)


def symbol_array(names: list[str]) -> Array:
    """An array of symbols."""
    data = b"".join(len(name).to_bytes(4, "big") + name.encode("ascii") for name in names)
    return Array(struct.pack(">BIIB", 0xF0, len(data) + 5, len(names), 0xB3) + data)
