"""Requests as bytes, made by hand: what no client of ours would send. Used to ask two servers the same."""

from __future__ import annotations

import itertools
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

from attrs import frozen

_opaques = itertools.count(1)
SECONDS = 20.0


@frozen
class Answer:
    """A response: its code, remark, the fields of its header, its body."""

    code: int
    remark: str
    fields: Mapping[str, str]
    body: bytes


class Line:
    """A connection to a server. A server that ends it is told by the code -1."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket: socket.socket | None = None

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def ask(
        self, code: int, fields: Mapping[str, Any], body: bytes | None = None, *, binary: bool = False
    ) -> Answer:
        """Ask, and wait for the answer. `binary`: the header in RocketMQ's form, not JSON."""
        opaque = next(_opaques)
        header = _binary(code, opaque, fields) if binary else _json(code, opaque, fields)
        mark = (int(binary) << 24) | len(header)
        frame = struct.pack(">ii", 4 + len(header) + len(body or b""), mark) + header + (body or b"")
        try:
            if self._socket is None:
                host, _, port = self.address.rpartition(":")
                self._socket = socket.create_connection((host, int(port)), SECONDS)
            self._socket.sendall(frame)
            while True:
                answer, number = self._read()
                if number == opaque:
                    return answer
        except OSError as error:
            self.close()
            return Answer(-1, f"the connection ended: {error}", {}, b"")

    def _read(self) -> tuple[Answer, int]:
        (length,) = struct.unpack(">i", self._exactly(4))
        frame = self._exactly(length)
        (mark,) = struct.unpack_from(">i", frame)
        header, body = frame[4 : 4 + (mark & 0xFFFFFF)], frame[4 + (mark & 0xFFFFFF) :]
        if mark >> 24:
            return _read_binary(header, body)
        found = json.loads(header)
        fields = found.get("extFields") or {}
        return Answer(found["code"], found.get("remark") or "", fields, body), found["opaque"]

    def _exactly(self, count: int) -> bytes:
        assert self._socket is not None
        parts = []
        while count:
            part = self._socket.recv(min(count, 1 << 20))
            if not part:
                raise ConnectionResetError("no more bytes")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def _json(code: int, opaque: int, fields: Mapping[str, Any]) -> bytes:
    header = {"code": code, "language": "JAVA", "version": 401, "opaque": opaque, "flag": 0}
    header |= {"serializeTypeCurrentRPC": "JSON", "extFields": {k: _text(v) for k, v in fields.items()}}
    return json.dumps(header).encode()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _binary(code: int, opaque: int, fields: Mapping[str, Any]) -> bytes:
    ext = b""
    for key, value in fields.items():
        name, text = key.encode(), _text(value).encode()
        ext += struct.pack(">h", len(name)) + name + struct.pack(">i", len(text)) + text
    return struct.pack(">hbhiiii", code, 0, 401, opaque, 0, 0, len(ext)) + ext


def _read_binary(header: bytes, body: bytes) -> tuple[Answer, int]:
    code, _, _, opaque, _, length = struct.unpack_from(">hbhiii", header)
    at = 17
    remark, at = header[at : at + length].decode(), at + length
    (left,) = struct.unpack_from(">i", header, at)
    at += 4
    end, fields = at + left, {}
    while at < end:
        (size,) = struct.unpack_from(">h", header, at)
        key, at = header[at + 2 : at + 2 + size].decode(), at + 2 + size
        (size,) = struct.unpack_from(">i", header, at)
        fields[key], at = header[at + 4 : at + 4 + size].decode(), at + 4 + size
    return Answer(code, remark, fields, body), opaque


@frozen
class Record:
    """A message as the log has it, without what differs from server to server: places, times, ports, and the
    order of properties, which is that of a HashMap at Java's."""

    flag: int
    sys_flag: int
    born_ms: int
    reconsumed: int
    prepared: int
    body: bytes
    topic: bytes
    properties: Mapping[str, str]
    queue: int


def record(data: bytes) -> Record:
    """Read the bytes of a message of an IPv4 host."""
    queue, flag = struct.unpack_from(">ii", data, 12)
    sys_flag, born = struct.unpack_from(">iq", data, 36)
    reconsumed, prepared, length = struct.unpack_from(">iqi", data, 72)
    at = 88
    body, at = data[at : at + length], at + length
    topic, at = data[at + 1 : at + 1 + data[at]], at + 1 + data[at]
    (size,) = struct.unpack_from(">h", data, at)
    properties = properties_of(data[at + 2 : at + 2 + size].decode("utf-8", "replace"))
    return Record(flag, sys_flag, born, reconsumed, prepared, body, topic, properties, queue)


def properties_of(text: str) -> dict[str, str]:
    """The properties that Java's clients read: a name and a value, neither of them empty."""
    found = {}
    for part in text.split("\x02"):
        name, _, value = part.partition("\x01")
        if name and value:
            found[name] = value
    return found
