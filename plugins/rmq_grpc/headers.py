"""Headers of a call: decoded, checked by the rules of HTTP/2, and encoded.

The libraries h2 and hpack look at each byte of a header in Python, and write an unused line of a log for each
header: half of the cost of a short call. This module has the same rules of a request (RFC 9113, 8.2 and 8.3),
by regular expressions, and remembers headers that it has seen. `HeaderDecoder` and `HeaderEncoder` are
hpack's with a short way for the headers that all calls have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import hpack

from rmq.errors import RemoteProtocolError

_NAME: Final = re.compile(rb":?[!-9;-@\[-~]+").fullmatch
"""Printable ASCII without capital letters and blanks; a colon only at the beginning."""
_BAD_VALUE: Final = re.compile(rb"[\0\r\n]|\A[ \t]|[ \t]\Z").search
_PSEUDO: Final = frozenset({":method", ":scheme", ":path", ":authority"})
_NEEDED: Final = (":method", ":scheme", ":path")
_OF_A_CONNECTION: Final = frozenset(
    {"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"}
)
KNOWN: Final = 2_048
KNOWN_BYTES: Final = 128
"""Number of remembered headers, and the length of the longest."""


def checked(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers of a request; of several with the same name the last. Raises RemoteProtocolError for
    headers that no request may have."""
    found: dict[str, str] = {}
    is_regular = False
    for name_bytes, value_bytes in headers:
        if len(value_bytes) <= KNOWN_BYTES and len(name_bytes) <= KNOWN_BYTES:
            name, value = _known(name_bytes, value_bytes)
        else:
            name, value = _decoded(name_bytes, value_bytes)
        if name[0] == ":":
            if is_regular or name in found or name not in _PSEUDO:
                raise RemoteProtocolError(f"HTTP/2: the pseudo-header {name!r} is out of place or unknown")
        else:
            is_regular = True
            if name == "host" and name in found:
                raise RemoteProtocolError("HTTP/2: the request has two headers `host`")
        found[name] = value
    for name in _NEEDED:
        if not found.get(name):
            raise RemoteProtocolError(f"HTTP/2: the request lacks the pseudo-header {name}")
    authority, host = found.get(":authority"), found.get("host")
    if authority is None and host is None:
        raise RemoteProtocolError("HTTP/2: the request has neither :authority nor host")
    if authority is not None and host is not None and authority != host:
        raise RemoteProtocolError("HTTP/2: :authority and host of the request differ")
    return found


def _decoded(name: bytes, value: bytes) -> tuple[str, str]:
    """A header as texts. Raises RemoteProtocolError for bytes or a header that is not allowed."""
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
    return texts


_known = lru_cache(KNOWN)(_decoded)


class HeaderDecoder(hpack.Decoder):
    """hpack's decoder, which is faster for headers in the first places of the peer's table."""

    def decode(self, data: bytes, raw: bool = False) -> list[Any]:
        """As hpack's with `raw`: names and values are bytes."""
        headers: list[Any] = []
        by_index = self.header_table.get_by_index
        at, end, size = 0, len(data), 0
        while at < end:
            byte = data[at]
            if 0x80 < byte < 0xFF:
                header: Any = by_index(byte & 0x7F)
                at += 1
            elif not headers and byte & 0xE0 == 0x20:
                at += self._update_encoding_context(data[at:])
                continue
            elif byte & 0xE0 == 0x20:
                raise hpack.HPACKDecodingError("Table size update not at the start of the block")
            else:
                if byte & 0x80:
                    header, used = self._decode_indexed(data[at:])
                else:
                    header, used = self._decode_literal(data[at:], bool(byte & 0x40))
                at += used
            headers.append(header)
            size += 32 + len(header[0]) + len(header[1])
            if size > self.max_header_list_size:
                text = f"A header list larger than {self.max_header_list_size} has been received"
                raise hpack.OversizedHeaderListError(text)
        self._assert_valid_table_size()
        return headers


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
