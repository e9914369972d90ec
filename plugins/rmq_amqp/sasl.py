"""SASL of AMQP 1.0, the server's side: ANONYMOUS, PLAIN and EXTERNAL, as frames in bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rmq_amqp.values import Described, Malformed, Symbol, UByte, ULong, decode, encode, symbol_array

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
FRAME_BYTES: Final = 4096
"""Bytes of the longest frame before a login; AMQP's minimum is 512."""
FRAMES_MAX: Final = 4

MECHANISMS: Final = 0x40
INIT: Final = 0x41
OUTCOME: Final = 0x44
OK: Final = 0
DENIED: Final = 1

ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"
EXTERNAL: Final = "EXTERNAL"


def frame(code: int, fields: list[object]) -> bytes:
    """A frame of SASL."""
    body = encode(Described(ULong(code), fields))
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body


def read_frame(data: bytes) -> Described:
    """The content of a frame of SASL. Raises Malformed."""
    start = data[4] * 4
    if data[5] != 1 or start < 8:
        raise Malformed("the frame is none of SASL")
    value, _ = decode(data, start)
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise Malformed("the frame of SASL has no fields")
    return value


class Login:
    """The login of one connection: bytes in, bytes out.

    `check(mechanism, user, secret)` returns whether the peer is admitted. When `is_done`, the bytes behind
    the login are in `rest`. When `has_failed`, the connection must end behind the answer.
    """

    def __init__(self, mechanisms: list[str], check: Callable[[str, str, str], bool]) -> None:
        self._mechanisms = mechanisms
        self._check = check
        self._inbox = bytearray()
        self._has_begun = False
        self.is_done = False
        self.has_failed = False
        self.hostname = ""

    @property
    def rest(self) -> bytes:
        """The bytes behind the login, from the protocol header of AMQP on."""
        return bytes(self._inbox)

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the peer; returns the bytes of the answer."""
        self._inbox += data
        answer = bytearray()
        if not self._has_begun:
            if len(self._inbox) < 8:
                return b""
            header = bytes(self._inbox[:8])
            if header == AMQP_HEADER and ANONYMOUS in self._mechanisms:
                # Without SASL: anonymous.
                self.is_done = self._check(ANONYMOUS, "", "")
                self.has_failed = not self.is_done
                return b""
            if header != SASL_HEADER:
                self.has_failed = True
                return SASL_HEADER
            del self._inbox[:8]
            self._has_begun = True
            answer += SASL_HEADER + frame(MECHANISMS, [symbol_array(self._mechanisms)])
        while not self.is_done and not self.has_failed and len(self._inbox) >= 8:
            size = int.from_bytes(self._inbox[:4], "big")
            if not 8 <= size <= FRAME_BYTES:
                self.has_failed = True
                break
            if len(self._inbox) < size:
                break
            content = bytes(self._inbox[:size])
            del self._inbox[:size]
            answer += self._take(content)
        return bytes(answer)

    def _take(self, content: bytes) -> bytes:
        try:
            value = read_frame(content)
        except Malformed:
            self.has_failed = True
            return b""
        fields = value.value
        if value.descriptor != INIT or not fields or not isinstance(fields[0], Symbol):
            self.has_failed = True
            return b""
        response = fields[1] if len(fields) > 1 and isinstance(fields[1], bytes) else b""
        if len(fields) > 2 and isinstance(fields[2], str):
            self.hostname = fields[2]
        if self._is_let_in(str(fields[0]), response):
            self.is_done = True
            return frame(OUTCOME, [UByte(OK)])
        self.has_failed = True
        return frame(OUTCOME, [UByte(DENIED)])

    def _is_let_in(self, mechanism: str, response: bytes) -> bool:
        if mechanism not in self._mechanisms:
            return False
        user = secret = ""
        if mechanism == PLAIN:
            parts = response.split(b"\0")
            if len(parts) != 3:
                return False
            try:
                acts_for, user, secret = (part.decode() for part in parts)
            except UnicodeDecodeError:
                return False
            if acts_for and acts_for != user:
                return False
        elif mechanism == EXTERNAL:
            try:
                user = response.decode()  # the name for which the peer wants to act; empty: its own
            except UnicodeDecodeError:
                return False
        return self._check(mechanism, user, secret)
