"""Odd values for the fields of headers and for properties, and frames that carry them as any peer could."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, Final

from rmq.message import (
    DLQ_PREFIX,
    NAME_LENGTH_MAX,
    RETRY_PREFIX,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
)
from rmq.protocol.codes import LANGUAGE, VERSION, LanguageCode
from rmq.protocol.command import ROCKETMQ
from rmq.protocol.fields import Int32, Int64
from rmq.protocol.record import PROPERTIES_MAX

from .rig import ADDRESS

MISSING: Final = object()
"""The field is left out."""
NOT_UTF8: Final = "\ue000\ue001\ue002"
"""Stands for bytes that are not UTF-8; `frame` puts them in its place."""
_BYTES: Final = {"\ue000": b"\xff\xfe\xfd", "\ue001": b"\xc0\xaf\x80", "\ue002": b"\xed\xa0\x80"}
_NUMBERS: Final = (
    *("", " ", "x", "0x10", "1e3", "1.5", "12.0", "-0", "+7", " 5", "007", "1_000", "NaN", "Infinity"),
    *("9" * 19, "9" * 20, "9" * 5000, "-" * 40, "\u0667", "\0", "7\0", "true", "null"),
)
_JSON_ONLY: Final = (None, True, 7, 1.5, 10**30, [], [1], {"a": 1})


def integers(bits: int) -> Iterator[str]:
    """Each bit alone, those of a host's address together, borders, and numbers just past them."""
    top = 1 << bits - 1
    for bit in range(bits - 1):
        yield str(1 << bit)
    for number in (0, 3, 7, 12, 48, 60, -1, -2, -49, top - 1, -top, top, -top - 1, 2 * top - 1, 2 * top):
        yield str(number)


def texts(kind: str = "") -> Iterator[str]:
    """Texts that are odd for a field: `kind` is the name of the field."""
    yield from (
        "",
        " ",
        "\0",
        "\x01",
        "\x02",
        "\x01\x02",
        "a\x01b",
        "a\x02b",
        "\n",
        "\r\nx: y",
        "\x7f\x9b31m",
    )
    yield from ("\0" * 100, "\0" * 9_000, "a" + "\0" * 20_000, "\0" * 32_000 + "b", "\x02" * 2_000)
    yield from (NOT_UTF8, f"a{NOT_UTF8}b", "\ud800", "\U0001f600", "\ufeff", "e\u0301", "\u202e")
    yield from ("../../x", "a/b", "a\\b", ".", "$(x)", "%s%n", "null", "true", "-1", "9" * 30)
    yield from ("x" * NAME_LENGTH_MAX, "x" * (NAME_LENGTH_MAX + 1), "x" * 255, "x" * 256, "x" * 32_000)
    yield from ("x" * (PROPERTIES_MAX + 1), "x" * 65_536, "\u20ac" * 11_000, ADDRESS)
    if kind not in ("properties",):
        yield from (*sorted(SYSTEM_TOPICS), TIMER_TOPIC, "WireCluster", "wire-a", "WireCluster_REPLY_TOPIC")
        yield from (f"{RETRY_PREFIX}g", f"{DLQ_PREFIX}g", RETRY_PREFIX, DLQ_PREFIX, RETRY_PREFIX + "x" * 125)


def odd_values(hint: Any, name: str, *, binary: bool) -> Iterator[Any]:
    """Odd values for a header field of that type; the binary form of a header holds texts only."""
    kinds = {Int32: 32, Int64: 64}
    bits = next((number for kind, number in kinds.items() if hint in (kind, kind | None)), 0)
    yield MISSING
    if bits:
        yield from integers(bits)
        yield from _NUMBERS
    elif hint is bool:
        yield from ("true", "TRUE", "false", "yes", "1", "0", "", "\0", NOT_UTF8, "x" * 70_000)
    else:
        yield from texts(name)
    if not binary:
        yield from _JSON_ONLY


def odd_property_values(topic: str, key: str) -> Iterator[str]:
    """Odd values for a property; `topic` and `key` are those of another's message."""
    yield from ("", " ", "\0", "7\0", "\0" * 5_000, "a" + "\0" * 20_000, "x\x01y", "x\x02y", "\x02", "\x01")
    yield from (f"x\x02{name}" for name in ("\x01", "DELAY\x013", "TAGS\x01T", "TRAN_MSG\x01true"))
    yield from ("0", "1", "3", "18", "19", "-1", "1.5", "x", "\u0667", "true", "TRUE", "false", "null")
    yield from (str(2**31 - 1), str(2**31), str(-(2**31)), str(2**63 - 1), str(2**63), "9" * 5_000)
    yield from (NOT_UTF8, "\ud800", "\U0001f600", "\n", "x" * 255, "x" * 30_000, "x" * PROPERTIES_MAX)
    yield from (topic, key, f"{topic}_{key}", f"{RETRY_PREFIX}g", TIMER_TOPIC, "asker@1", "k1 k2  k3")
    yield from sorted(SYSTEM_TOPICS)


def frame(
    code: int,
    ext: dict[str, Any],
    body: bytes,
    opaque: int,
    binary: bool,
    flag: int = 0,
    **fields: Any,
) -> bytes:
    """A request's frame with header fields of any value; `fields` are other members of the header."""
    ext = {name: value for name, value in ext.items() if value is not MISSING}
    if binary:
        header, form = _binary_header(code, ext, opaque, flag, **fields), ROCKETMQ
    else:
        header, form = _json_header(code, ext, opaque, flag, **fields), 0
    return struct.pack(">iI", 4 + len(header) + len(body), form << 24 | len(header)) + header + body


def _json_header(code: int, ext: dict[str, Any], opaque: int, flag: int, **fields: Any) -> bytes:
    members = {
        "code": code,
        "extFields": ext,
        "flag": flag,
        "language": LANGUAGE,
        "opaque": opaque,
        "version": VERSION,
    }
    members |= {name: value for name, value in fields.items() if value is not MISSING}
    text = json.dumps(members, ensure_ascii=False, separators=(",", ":"))
    if not _is_encodable(text):  # half of a surrogate pair can be written as an escape only
        text = json.dumps(members, separators=(",", ":"))
    return raw(text)


def _binary_header(
    code: int,
    ext: dict[str, Any],
    opaque: int,
    flag: int,
    *,
    language: int = LanguageCode[LANGUAGE],
    version: int = VERSION,
    remark: str = "",
) -> bytes:
    fields = b""
    for name, value in ext.items():
        name_bytes, value_bytes = raw(name), raw(value)
        fields += struct.pack(">H", len(name_bytes)) + name_bytes
        fields += struct.pack(">i", len(value_bytes)) + value_bytes
    remark_bytes = raw(remark)
    head = struct.pack(">hBhiii", code, language & 0xFF, version, opaque, flag, len(remark_bytes))
    return head + remark_bytes + struct.pack(">i", len(fields)) + fields


def raw(text: str) -> bytes:
    """The bytes of a text that may hold NOT_UTF8 or half a surrogate pair."""
    data = text.encode("utf-8", "surrogatepass")
    for stand_in, wrong in _BYTES.items():
        data = data.replace(stand_in.encode(), wrong)
    return data


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
