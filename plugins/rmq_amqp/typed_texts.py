"""Typed values as texts: a letter for the type, and a text from which the same value is read again.

RocketMQ's properties are texts. The letter of a property that is no plain text stands in the property `TYPES`
of its message, so that clients of RocketMQ read the value, and clients of AMQP get the type as well.
"""

from __future__ import annotations

import base64
import math
import re
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from rmq_amqp.values import (
    Byte,
    Char,
    Float,
    Int,
    Malformed,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    encode,
)

TEXT: Final = "s"
NULL: Final = "n"
ENCODED: Final = "v"
"""Any other value: its encoding in base64."""
ESCAPED: Final = "e"
"""A text that a property cannot hold unchanged: empty, or with the characters 0x00 to 0x02."""

_UNFIT: Final = re.compile("[\0-\2]")

_INTEGERS: Final[dict[type, str]] = {
    Byte: "b",
    Short: "h",
    Int: "i",
    int: "l",
    UByte: "B",
    UShort: "H",
    UInt: "I",
    ULong: "L",
    Timestamp: "t",
}
_BOUNDS: Final[dict[str, tuple[int, int]]] = {
    "b": (-(1 << 7), 1 << 7),
    "h": (-(1 << 15), 1 << 15),
    "i": (-(1 << 31), 1 << 31),
    "l": (-(1 << 63), 1 << 63),
    "B": (0, 1 << 8),
    "H": (0, 1 << 16),
    "I": (0, 1 << 32),
    "L": (0, 1 << 64),
    "t": (-(1 << 63), 1 << 63),
}
_CLASS_OF: Final[dict[str, Callable[[int], Any]]] = {letter: kind for kind, letter in _INTEGERS.items()}


def to_text(value: Any) -> tuple[str, str]:
    """The letter of a value's type, and its text. The text is never empty."""
    kind = type(value)
    if kind is str:
        return (
            (TEXT, value) if value and not _UNFIT.search(value) else (ESCAPED, "%" + quote(value, safe=" "))
        )
    letter = _INTEGERS.get(kind)
    if letter is not None:
        return letter, str(int(value))
    if kind is bool:
        return "z", "true" if value else "false"
    if kind is float:
        return "d", repr(value)
    if kind is Float:
        return "f", _float_text(value)
    if value is None:
        return NULL, "null"
    if kind is bytes:
        return "x", base64.b64encode(value).decode() or "="
    if kind is uuid.UUID:
        return "u", str(value)
    if kind is Char and value.isprintable():
        return "c", str(value)
    if kind is Symbol and value and value.isprintable():
        return "y", str(value)
    return ENCODED, base64.b64encode(encode(value)).decode()


def _float_text(value: float) -> str:
    text = f"{value:.9g}"
    if math.isfinite(value):
        for digits in range(6, 9):
            shorter = f"{value:.{digits}g}"
            if struct.pack(">f", float(shorter)) == struct.pack(">f", value):
                return shorter
    return text


def from_text(letter: str, text: str) -> Any:
    """The value of a letter and a text. Raises ValueError when the text does not fit the type."""
    if letter == TEXT:
        return text
    if letter == ESCAPED:
        return unquote(text[1:], errors="strict")
    if letter in _BOUNDS:
        number = int(text)
        low, high = _BOUNDS[letter]
        if not low <= number < high:
            raise ValueError(f"{text} is out of the range of {letter}")
        return _CLASS_OF[letter](number)
    return _READERS[letter](text)


def _encoded(text: str) -> Any:
    return decode(base64.b64decode(text))[0]


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "z": lambda text: text == "true",
    "d": float,
    "f": lambda text: Float(struct.unpack(">f", struct.pack(">f", float(text)))[0]),
    NULL: lambda text: None,
    "x": lambda text: base64.b64decode(text) if text != "=" else b"",
    "u": uuid.UUID,
    "c": lambda text: Char(text[:1]),
    "y": Symbol,
    ENCODED: _encoded,
}


def or_text(letter: str, text: str) -> Any:
    """Same as `from_text`; returns the text itself if it does not fit its type any longer."""
    try:
        return from_text(letter, text)
    except (ValueError, KeyError, OverflowError, Malformed):
        return text


def join(types: Mapping[str, str]) -> str:
    """The text of names and letters: `letter` and name of each, with commas between."""
    return ",".join(f"{letter}{quote(name, safe=' ')}" for name, letter in types.items())


def split(text: str) -> dict[str, str]:
    """The letters of names, from a text of `join`."""
    return {unquote(part[1:]): part[0] for part in text.split(",") if part}
