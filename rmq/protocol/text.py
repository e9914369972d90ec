"""Texts as Java reads and writes them where bytes and text do not fit.

Clients in C++ and PHP send what their source files hold: tags in GBK, say. Java's UTF-8 decoder reads on with
U+FFFD for each malformed piece, and its encoder writes `?` for half a surrogate pair. Python's "replace"
differs in one place: three bytes that encode a surrogate (CESU-8) are one malformed piece to Java and three
to Python. Pinned by tests/golden/utf8.json.
"""

from __future__ import annotations

import codecs
from typing import Final

JAVA: Final = "rmq_java"
"""The name of an error handler: `data.decode("utf-8", JAVA)` and `text.encode("utf-8", JAVA)` never fail."""


def java_text(data: bytes) -> str:
    """UTF-8 as Java reads it."""
    return data.decode("utf-8", JAVA)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if isinstance(error, UnicodeEncodeError):
        return "?" * (error.end - error.start), error.end
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, end = error.object, error.end
    if data[error.start] == 0xED and end < len(data) and 0xA0 <= data[end] <= 0xBF:
        end += 1
        if end < len(data) and 0x80 <= data[end] <= 0xBF:
            end += 1
    return "\ufffd", end


codecs.register_error(JAVA, _replace)
