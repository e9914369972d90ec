"""Requests whose frames cannot be read: their code and opaque, if the bytes of the header show them.

A header may be too long, or no JSON. Its frame still has a length, so the stream can be read behind it, and
mostly an opaque, by which its sender finds the response: then that request fails alone, and its connection,
which other senders share, stays open.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Final

from rmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from rmq.protocol.command import JSON, MESSAGES, ROCKETMQ, Command

EDGE_BYTES: Final = 1024
"""Bytes kept of the start and of the end of a header that is too long: Java writes `opaque` behind the
fields, Go before them."""
_BINARY = Struct(">hBhii")


def _member(name: bytes) -> re.Pattern[bytes]:
    """A number of the header itself: inside a JSON text a quote would have a backslash before it."""
    return re.compile(rb'(?<!\\)"' + name + rb'"\s*:\s*(-?[0-9]{1,10})\s*[,}]')


_CODE: Final = _member(b"code")
_OPAQUE: Final = _member(b"opaque")
_FLAG: Final = _member(b"flag")


def request_of(kind: int, first: bytes, last: bytes = b"") -> Command | None:
    """The request of a header that cannot be read, without its fields; None for a response, and where the
    bytes do not show it. `first` and `last` are the edges of the header; all of it may be in `first`."""
    if kind == ROCKETMQ:
        if len(first) < _BINARY.size:
            return None
        code, _, _, opaque, flag = _BINARY.unpack_from(first)
    else:
        opaque = _number(_OPAQUE, last, first)
        code, flag = _number(_CODE, first) or 0, _number(_FLAG, last, first) or 0
    if opaque is None or flag & FLAG_RESPONSE or not all(map(_is_int32, (code, opaque))):
        return None
    return Command(code, opaque, flag & FLAG_ONEWAY, serialization=kind)


def _number(member: re.Pattern[bytes], *texts: bytes) -> int | None:
    """The last number in the first of the texts that has any."""
    for text in texts:
        if found := member.findall(text):
            return int(found[-1])
    return None


def _is_int32(number: int) -> bool:
    return -(2**31) <= number < 2**31


class LongHeader:
    """The edges of a header that is too long to be kept, collected as its bytes come."""

    __slots__ = ("_first", "_kind", "_last", "left", "remark")

    def __init__(self, kind: int, size: int, remark: str) -> None:
        """`size` is the header's, in bytes; `remark` is the reason why its request fails."""
        self._kind = kind
        self._first = self._last = b""
        self.left = size
        self.remark = remark

    def add(self, data: bytes) -> None:
        """Take the part of `data`, the next bytes of the frame, that belongs to the header."""
        part = data[: self.left]
        self.left -= len(part)
        self._first += part[: EDGE_BYTES - len(self._first)]
        self._last = (self._last + part[-EDGE_BYTES:])[-EDGE_BYTES:]

    def request(self) -> Command | None:
        """The request, when the whole header has come; None as in `request_of`."""
        return request_of(self._kind, self._first, self._last)


def refusal(request: Command, remark: str, *, is_too_long: bool) -> Command:
    """The response: MESSAGE_ILLEGAL, as in RocketMQ, for a message that is too long, else SYSTEM_ERROR."""
    illegal = is_too_long and request.code in MESSAGES
    return request.reply(ResponseCode.MESSAGE_ILLEGAL if illegal else ResponseCode.SYSTEM_ERROR, remark)


KINDS: Final = (JSON, ROCKETMQ)
