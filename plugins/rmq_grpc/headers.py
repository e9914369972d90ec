"""Headers of a call: decoded, checked by the rules of HTTP/2, and encoded.

The libraries h2 and hpack look at each byte of a header in Python, and write an unused line of a log for each
header: half of the cost of a short call. This module has the same rules of a request (RFC 9113, 8.2 and 8.3),
by regular expressions, and remembers headers that it has seen. `HeaderDecoder` and `HeaderEncoder` are
hpack's with a short way for the headers that all calls have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

import hpack
from hpack.huffman_table import decode_huffman

from rmq.errors import RemoteProtocolError

_NAME: Final = re.compile(rb":?[!-9;-@\[-~]+").fullmatch
"""Printable ASCII without capital letters and blanks; a colon only at the beginning."""
_BAD_VALUE: Final = re.compile(rb"[\0\r\n]|\A[ \t]|[ \t]\Z").search
_PSEUDO: Final = frozenset({":method", ":scheme", ":path", ":authority"})
_NEEDED: Final = (":method", ":scheme", ":path")
_OF_A_CONNECTION: Final = frozenset(
    {"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"}
)
_FIRST_ADDED: Final = 0x80 + len(hpack.table.HeaderTable.STATIC_TABLE) + 1
"""The byte of the first header that a peer has added to the table."""
KNOWN: Final = 2_048
KNOWN_BYTES: Final = 128
"""Number of remembered headers, and the length of the longest."""


def checked(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers of a request; of several with the same name the last. Raises RemoteProtocolError for
    headers that no request may have."""
    found: dict[str, str] = {}
    for header in headers:
        name, value = _known.get(header) or _learned(header)
        found[name] = value
    # As all clients send them: each once, and the pseudo-headers first.
    is_plain = 4 <= len(found) == len(headers) and _PSEUDO.issuperset(islice(found, 4))
    if not is_plain:
        _check_order(headers)
    for name in _NEEDED:
        if not found.get(name):
            raise RemoteProtocolError(f"HTTP/2: the request lacks the pseudo-header {name}")
    if not is_plain or "host" in found:
        authority, host = found.get(":authority"), found.get("host")
        if authority is None and host is None:
            raise RemoteProtocolError("HTTP/2: the request has neither :authority nor host")
        if authority is not None and host is not None and authority != host:
            raise RemoteProtocolError("HTTP/2: :authority and host of the request differ")
    return found


def _check_order(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise RemoteProtocolError if a pseudo-header is behind another header, or if one comes twice."""
    names: set[str] = set()
    is_regular = False
    for header in headers:
        name, _ = _decoded(header)
        if name[0] == ":":
            if is_regular or name in names:
                raise RemoteProtocolError(f"HTTP/2: the pseudo-header {name!r} is out of place")
        else:
            is_regular = True
            if name == "host" and name in names:
                raise RemoteProtocolError("HTTP/2: the request has two headers `host`")
        names.add(name)


def _decoded(header: tuple[bytes, bytes]) -> tuple[str, str]:
    """A header as texts. Raises RemoteProtocolError for bytes or a header that is not allowed."""
    name, value = header
    if _NAME(name) is None:
        raise RemoteProtocolError(f"HTTP/2: the name of the header {name!r:.100} is not allowed")
    if _BAD_VALUE(value) is not None:
        raise RemoteProtocolError(f"HTTP/2: the value of the header {name!r:.100} is not allowed")
    try:
        texts = name.decode("ascii"), value.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError(f"HTTP/2: the value of the header {name!r:.100} is no UTF-8") from None
    if texts[0] in _OF_A_CONNECTION or (texts[0] == "te" and texts[1].lower() != "trailers"):
        raise RemoteProtocolError(f"HTTP/2: the header {texts[0]}: {texts[1]!r:.100} is not allowed")
    if texts[0][0] == ":" and texts[0] not in _PSEUDO:
        raise RemoteProtocolError(f"HTTP/2: the pseudo-header {texts[0]!r} is unknown")
    return texts


_known: Final[dict[tuple[bytes, bytes], tuple[str, str]]] = {}


def _learned(header: tuple[bytes, bytes]) -> tuple[str, str]:
    """A header as texts, which are known from now on. Raises as `_decoded`."""
    texts = _decoded(header)
    if len(header[0]) <= KNOWN_BYTES and len(header[1]) <= KNOWN_BYTES:
        if len(_known) >= KNOWN:
            _known.clear()
        _known[header] = texts
    return texts


class HeaderDecoder(hpack.Decoder):
    """hpack's decoder, which is faster for headers in the first places of the peer's table."""

    def decode(self, data: bytes, raw: bool = False) -> list[Any]:
        """As hpack's with `raw`: names and values are bytes."""
        headers: list[Any] = []
        static, added = hpack.table.HeaderTable.STATIC_TABLE, self.header_table.dynamic_entries
        at, end, size, most = 0, len(data), 0, self.max_header_list_size
        while at < end:
            byte = data[at]
            if 0x80 < byte < 0xFF:
                index = byte - _FIRST_ADDED
                if index < 0:
                    header: Any = static[index]
                elif index < len(added):
                    header = added[index]
                else:
                    header = self.header_table.get_by_index(byte & 0x7F)  # which raises
                at += 1
            elif not headers and byte & 0xE0 == 0x20:
                at += self._update_encoding_context(data[at:])
                continue
            elif byte & 0xE0 == 0x20:
                raise hpack.HPACKDecodingError("Table size update not at the start of the block")
            elif byte & 0x80:
                header, used = self._decode_indexed(data[at:])
                at += used
            elif (short := self._short_literal(data, at, end)) is not None:
                header, at = short
            else:
                header, used = self._decode_literal(data[at:], bool(byte & 0x40))
                at += used
            headers.append(header)
            size += 32 + len(header[0]) + len(header[1])
            if size > most:
                raise hpack.OversizedHeaderListError(f"A header list larger than {most} has been received")
        self._assert_valid_table_size()
        return headers

    def _short_literal(self, data: bytes, at: int, end: int) -> tuple[tuple[bytes, bytes], int] | None:
        """The literal header at a place, and the place behind it; None if hpack must decode it: if a number
        has more than one byte, or its bytes are not all there."""
        byte, table, at = data[at], self.header_table, at + 1
        index, most = (byte & 0x3F, 0x3F) if byte & 0x40 else (byte & 0x0F, 0x0F)
        if index == most or at + 1 >= end:
            return None
        if index:
            name = table.get_by_index(index)[0]
        else:
            size = data[at]
            at += 1 + (size & 0x7F)
            if size & 0x7F == 0x7F or at >= end:
                return None
            name = data[at - (size & 0x7F) : at]
            if size & 0x80:
                name = decode_huffman(name)
        size = data[at]
        at += 1 + (size & 0x7F)
        if size & 0x7F == 0x7F or at > end:
            return None
        value = data[at - (size & 0x7F) : at]
        if size & 0x80:
            value = decode_huffman(value)
        if byte & 0x40:
            table.add(name, value)
        return (name, value), at


Headers = tuple[tuple[str, str], ...]
HEAD: Final[Headers] = ((":status", "200"), ("content-type", "application/grpc"))
DONE: Final[Headers] = (("grpc-status", "0"),)


def _literal(name: str, value: str) -> bytes:
    """A header in a form that does not use the table."""
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


HEAD_BLOCK: Final = b"\x88" + _literal(*HEAD[1])  # 8 is ":status: 200" in the table of all connections
DONE_BLOCK: Final = _literal(*DONE[0])
_BLOCKS: Final = {
    tuple((name.encode(), value.encode()) for name, value in headers): block
    for headers, block in ((HEAD, HEAD_BLOCK), (DONE, DONE_BLOCK), (HEAD + DONE, HEAD_BLOCK + DONE_BLOCK))
}
"""Ready blocks, by their headers in bytes, as h2 gives headers to its encoder."""


class HeaderEncoder(hpack.Encoder):
    """hpack's encoder, with the headers of a good answer ready."""

    def encode(self, headers: Iterable[Any], huffman: bool = True) -> bytes:
        """As hpack's."""
        known = tuple((each[0], each[1]) for each in headers)
        if not self.table_size_changes and (block := _BLOCKS.get(known)) is not None:
            return block
        made: bytes = super().encode(known, huffman)
        return made
