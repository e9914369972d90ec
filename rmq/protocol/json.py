"""JSON and UTF-8 as RocketMQ's Java reads and writes them.

Java's bodies are often not strict JSON: maps with number keys have bare keys (`{0:"a"}`) and maps keyed by a
message queue have a JSON object as key (`{{"topic":"T"}:5}`). `loads` reads both; a bare key becomes its text
and an object key becomes its compact JSON text. `dumps` writes strict JSON, `dumps_java` Java's own form.

Clients in C++ and PHP send the bytes of their source files: tags in GBK, for example. Java's UTF-8 decoder
reads on with U+FFFD for each malformed piece, and its encoder writes `?` for half a surrogate pair. Python's
"replace" differs in one place: three bytes that encode a surrogate (CESU-8) are one malformed piece to Java
and three to Python. Pinned by tests/golden/utf8.json.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from json.encoder import encode_basestring
from typing import Any, Final

from rmq.errors import LocalProtocolError, RemoteProtocolError

# --- UTF-8 ---

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


# --- JSON ---

MAX_DEPTH: Final = 512
"""Depth of nesting past which a text is refused."""

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_TOKEN: Final = re.compile(
    r"[ \t\r\n\f]*+(?:"
    r"(?P<mark>[{}\[\]:,])"
    r'|"(?P<double>[^"\\]*+(?:\\.[^"\\]*+)*+)"'
    r"|'(?P<single>[^'\\]*+(?:\\.[^'\\]*+)*+)'"
    r"|(?P<bare>[^\s{}\[\]:,\"']++)"
    r"|(?P<end>\Z))",
    re.DOTALL,
)
_NAME: Final = r'"[^"\\\x00-\x1f]*+"'
_QUEUE: Final = rf'\{{"brokerName":{_NAME},"queueId":(?:0|-?[1-9]\d*+),"topic":{_NAME}\}}'
_LOOSE_KEY: Final = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
    rf"|([{{,][ \t\r\n\f]*+)(?:(-?\d++)|({_QUEUE}))(?=[ \t\r\n\f]*+:)",
    re.DOTALL | re.ASCII,
)
"""A string, to its end; or a key that is a bare number, or a message queue as Java and `dumps` write it."""
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_INTEGER: Final = re.compile(r"[+-]?\d{1,400}\Z", re.ASCII)
_FLOAT: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\Z", re.ASCII)
_WORDS: Final[dict[str, Any]] = {
    "true": True,
    "false": False,
    "null": None,
    "undefined": None,
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}


class ObjectKey(str):
    """JSON text as a key of a map: bare in Java's form, a quoted string in strict form."""

    __slots__ = ()


def loads(data: bytes | str, *, loose_values: int | None = None) -> Any:
    """Read one JSON value, strict or as Java writes it.

    Invalid UTF-8 and lone surrogates become U+FFFD. Raises RemoteProtocolError when the text is neither, is
    nested deeper than `MAX_DEPTH`, or is not strict and has more than `loose_values` values: a text that is
    not strict costs 20 times as much to read.
    """
    text = data if isinstance(data, str) else bytes(data).decode("utf-8", JAVA)
    text = text.removeprefix("\ufeff")
    if not _has_surrogate(text):
        try:
            value = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            return _read_loose(text, loose_values)
        if text.count("{") + text.count("[") <= MAX_DEPTH or not _is_deep(value):
            return value
    _check_loose(text, loose_values)
    return _Reader(text).read()


def _has_surrogate(text: str) -> bool:
    """True if a text may have a surrogate. The pattern takes as long as the whole reading, so it only runs on
    texts that may have one."""
    may_have = "\\ud" in text or "\\uD" in text or not text.isascii()
    return may_have and _SURROGATE.search(text) is not None


def count_values(text: bytes | str) -> int:
    """An upper bound for the number of values in a JSON text, without parsing it: each value is the first of
    its container or follows a comma. Commas and braces inside texts count too."""
    if isinstance(text, str):
        return text.count(",") + text.count("{") + text.count("[") + 1
    return text.count(b",") + text.count(b"{") + text.count(b"[") + 1


def _read_loose(text: str, most: int | None) -> Any:
    """Make keys that are numbers or message queues strict, in one pass: tables have very many of them."""
    _check_loose(text, most)
    try:
        value = json.loads(_LOOSE_KEY.sub(_quoted, text), strict=False)
    except (ValueError, RecursionError):
        return _Reader(text).read()
    if text.count("{") + text.count("[") <= MAX_DEPTH or not _is_deep(value):
        return value
    return _Reader(text).read()


def _check_loose(text: str, most: int | None) -> None:
    if most is not None and (count := count_values(text)) > most:
        raise RemoteProtocolError(
            f"the text is no strict JSON, and has {count} values: of such texts at most {most} are read"
        )


def _quoted(found: re.Match[str]) -> str:
    before, number, queue = found.groups()
    if number is not None:
        return f'{before}"{number}"'
    return found[0] if queue is None else f"{before}{encode_basestring(queue)}"


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if parent.__class__ is dict else parent)
            if child.__class__ is dict or child.__class__ is list
        ]
        if not level:
            return False
    return True


def dumps(value: Any) -> bytes:
    """Write strict, compact JSON as UTF-8; a character that UTF-8 cannot hold becomes `?`, as in Java.

    Raises LocalProtocolError for a value that JSON cannot hold.
    """
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise LocalProtocolError(f"cannot write JSON: {error}") from error
    return text.encode("utf-8", "replace")


def dumps_java(value: Any) -> bytes:
    """Write JSON as Java does: number keys and object keys are bare, NaN becomes null.

    Programs of other languages with parsers of their own depend on this form.
    """
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts).encode("utf-8", "replace")


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, dict):
        separator = "{"
        for key, item in value.items():
            parts.append(f"{separator}{_key(key)}:")
            _write(item, parts)
            separator = ","
        parts.append("}" if value else "{}")
    elif isinstance(value, (list, tuple)):
        separator = "["
        for item in value:
            parts.append(separator)
            _write(item, parts)
            separator = ","
        parts.append("]" if value else "[]")
    else:
        parts.append(_scalar(value))


def _key(key: Any) -> str:
    if isinstance(key, ObjectKey):
        return key
    return str(key) if isinstance(key, int) else _scalar(str(key))


def _scalar(value: Any) -> str:
    if value.__class__ is str:
        return encode_basestring(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "null"
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise LocalProtocolError(f"cannot write JSON: {error}") from error


class _Reader:
    """The lenient reader: one pass over the tokens, with a stack of its own instead of recursion."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._open: list[_Container] = []

    def read(self) -> Any:
        while True:
            kind, token = self._token()
            if kind == "mark" and token in "{[":
                self._enter(token)
                continue
            if kind == "mark" and token in "}]" and self._open and self._open[-1].may_close(token):
                value: Any = self._open.pop().value
            elif kind == "mark" or kind == "end":
                raise self._fault("a value or key expected")
            else:
                value = self._simple(kind, token)
            whole, value = self._place(value)
            if whole:
                return self._result(value)

    def _place(self, value: Any) -> tuple[bool, Any]:
        """Put a finished value into its container; (true, document) when no container is left open."""
        while self._open:
            container = self._open[-1]
            container.take(value)
            kind, mark = self._token()
            if kind != "mark" or mark not in container.follows():
                raise self._fault(f"{' or '.join(container.follows())} expected")
            if mark in ":,":
                container.after(mark)
                return False, None
            value = self._open.pop().value
        return True, value

    def _enter(self, token: str) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise RemoteProtocolError(f"JSON is nested deeper than {MAX_DEPTH} levels")
        outer = self._open[-1] if self._open else None
        in_key = outer is not None and (outer.in_key or outer.wants_key())
        if outer is not None and outer.in_key and outer.wants_key():
            raise self._fault("an object key inside an object key")  # its text would double at each level
        self._open.append(_Object(in_key) if token == "{" else _Array(in_key))

    def _simple(self, kind: str, token: str) -> Any:
        if kind == "double" or kind == "single":
            return _unescape(token)
        if self._open and self._open[-1].wants_key():
            return token
        return self._bare(token)

    def _bare(self, token: str) -> Any:
        if token in _WORDS:
            return _WORDS[token]
        if _INTEGER.match(token):
            return int(token)
        if _FLOAT.match(token):
            return float(token)
        raise self._fault(f"{token[:40]!r} is no value")

    def _result(self, value: Any) -> Any:
        if self._token()[0] != "end":
            raise self._fault("text after the end")
        return value

    def _token(self) -> tuple[str, str]:
        found = _TOKEN.match(self._text, self._at)
        if found is None or found.lastgroup is None:
            raise self._fault("unterminated string")
        self._at = found.end()
        return found.lastgroup, found[found.lastgroup]

    def _fault(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"bad JSON at character {self._at}: {what}")


class _Container:
    """An object or array that is still open; `in_key` when it is, or is inside, a key of a map."""

    value: Any
    in_key: bool

    def may_close(self, token: str) -> bool:
        raise NotImplementedError

    def wants_key(self) -> bool:
        return False

    def take(self, value: Any) -> None:
        raise NotImplementedError

    def follows(self) -> str:
        raise NotImplementedError

    def after(self, mark: str) -> None:
        raise NotImplementedError


class _Array(_Container):
    def __init__(self, in_key: bool) -> None:
        self.in_key = in_key
        self.value: list[Any] = []
        self._comma = False

    def may_close(self, token: str) -> bool:
        return token == "]" and not self._comma

    def take(self, value: Any) -> None:
        self.value.append(value)

    def follows(self) -> str:
        return ",]"

    def after(self, mark: str) -> None:
        self._comma = True


class _Object(_Container):
    def __init__(self, in_key: bool) -> None:
        self.in_key = in_key
        self.value: dict[str, Any] = {}
        self._key: str | None = None
        self._fresh = True  # no token yet: `}` may follow
        self._in_value = False

    def may_close(self, token: str) -> bool:
        return token == "}" and self._fresh

    def wants_key(self) -> bool:
        return not self._in_value

    def take(self, value: Any) -> None:
        self._fresh = False
        if self._in_value:
            assert self._key is not None
            self.value[self._key] = value
        else:
            self._key = value if isinstance(value, str) else _key_text(value)

    def follows(self) -> str:
        return ",}" if self._in_value else ":"

    def after(self, mark: str) -> None:
        self._in_value = mark == ":"


def _key_text(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    except RecursionError:
        raise RemoteProtocolError("JSON key is nested too deep") from None


def _unescape(text: str) -> str:
    if "\\" in text:
        text = _ESCAPE.sub(_escaped, text)
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escaped(found: re.Match[str]) -> str:
    if found[1] is not None:
        return chr(int(found[1], 16))
    return _ESCAPED.get(found[2], found[2])
