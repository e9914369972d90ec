"""Selectors of JMS: conditions on the headers and properties of a message, of SQL-92's syntax and logic.

A condition is true, false or unknown (None); only true selects. A comparison of values of different kinds is
false, and no error. Texts and booleans are only equal or not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

LENGTH_MAX: Final = 8_192
DEPTH_MAX: Final = 60

Lookup = Callable[[str], Any]
"""Function from a name to its value: text, int, float, bool, or None."""
Node = Callable[[Lookup], Any]

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')"
    r"|(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?[fFdDlL]?)"
    r"|(?P<name>[^\W\d][\w$.]*)"
    r"|(?P<sign><>|<=|>=|[=<>()+\-*/,]))"
)
_WORDS: Final = frozenset(
    ["AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"]
)


class InvalidSelector(ValueError):
    """The error for a text that is not a selector; the message has the place."""


class Selector:
    """A parsed selector. Raises InvalidSelector."""

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise InvalidSelector(
                f"the selector has {len(text)} characters, at most {LENGTH_MAX} are allowed"
            )
        self.text = text
        self._node = _Parser(text).parse()

    def selects(self, lookup: Lookup) -> bool:
        """True if a message is selected, by the values of its names."""
        return self._node(lookup) is True


class _Parser:
    """Recursive descent over the tokens of a selector."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise InvalidSelector(f"selector {text!r:.200}: unknown word at {text[at:]!r:.20}")
            kind = match.lastgroup or ""
            word, place = match[kind], match.start(kind)
            if kind == "name" and word.upper() in _WORDS:
                kind, word = "word", word.upper()
            self._tokens.append((kind, word, place))
            at = match.end()
        self._at = 0
        self._depth = 0

    def parse(self) -> Node:
        """The condition of the whole text."""
        node = self._either()
        if self._at < len(self._tokens):
            raise self._error("the end is expected")
        return node

    def _error(self, expected: str) -> InvalidSelector:
        if self._at < len(self._tokens):
            _, word, place = self._tokens[self._at]
            return InvalidSelector(f"selector {self._text!r:.200}: {expected}, not {word!r} at {place}")
        return InvalidSelector(f"selector {self._text!r:.200}: {expected} behind its end")

    def _next(self, *words: str) -> str:
        """The next token if it is one of these words or signs; empty if not."""
        if self._at < len(self._tokens):
            kind, word, _ = self._tokens[self._at]
            if kind in ("word", "sign") and word in words:
                self._at += 1
                return word
        return ""

    def _need(self, word: str) -> None:
        if not self._next(word):
            raise self._error(f"{word} is expected")

    def _text_literal(self) -> str:
        if self._at < len(self._tokens) and self._tokens[self._at][0] == "text":
            self._at += 1
            return self._tokens[self._at - 1][1][1:-1].replace("''", "'")
        raise self._error("a text in quotes is expected")

    # ---- conditions ----

    def _either(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise InvalidSelector(f"selector {self._text!r:.200} is nested deeper than {DEPTH_MAX}")
        nodes = [self._both()]
        while self._next("OR"):
            nodes.append(self._both())
        self._depth -= 1
        return nodes[0] if len(nodes) == 1 else _decided_by(True, nodes)

    def _both(self) -> Node:
        nodes = [self._negated()]
        while self._next("AND"):
            nodes.append(self._negated())
        return nodes[0] if len(nodes) == 1 else _decided_by(False, nodes)

    def _negated(self) -> Node:
        negates = False
        while self._next("NOT"):
            negates = not negates
        node = self._comparison()
        return _not(node) if negates else node

    def _comparison(self) -> Node:
        left = self._sum()
        if sign := self._next("=", "<>", "<", "<=", ">", ">="):
            return _compared(sign, left, self._sum())
        if self._next("IS"):
            is_not = bool(self._next("NOT"))
            self._need("NULL")
            return lambda lookup: (left(lookup) is None) is not is_not
        negates = bool(self._next("NOT"))
        if self._next("BETWEEN"):
            low = self._sum()
            self._need("AND")
            node = _decided_by(False, [_compared(">=", left, low), _compared("<=", left, self._sum())])
        elif self._next("IN"):
            node = self._among(left)
        elif self._next("LIKE"):
            node = self._like(left)
        elif negates:
            raise self._error("BETWEEN, IN or LIKE is expected")
        else:
            return left
        return _not(node) if negates else node

    def _among(self, left: Node) -> Node:
        self._need("(")
        texts = {self._text_literal()}
        while self._next(","):
            texts.add(self._text_literal())
        self._need(")")

        def among(lookup: Lookup) -> Any:
            value = left(lookup)
            return None if value is None else value in texts

        return among

    def _like(self, left: Node) -> Node:
        pattern, escape = self._text_literal(), ""
        if self._next("ESCAPE"):
            escape = self._text_literal()
            if len(escape) != 1:
                raise InvalidSelector(f"selector {self._text!r:.200}: an escape is one character")
        matches = _pattern(pattern, escape).fullmatch

        def like(lookup: Lookup) -> Any:
            value = left(lookup)
            return None if value is None else isinstance(value, str) and matches(value) is not None

        return like

    # ---- values ----

    def _sum(self) -> Node:
        first, rest = self._product(), []
        while sign := self._next("+", "-"):
            rest.append((sign, self._product()))
        return _calculated(first, rest) if rest else first

    def _product(self) -> Node:
        first, rest = self._signed(), []
        while sign := self._next("*", "/"):
            rest.append((sign, self._signed()))
        return _calculated(first, rest) if rest else first

    def _signed(self) -> Node:
        negative = False
        while sign := self._next("+", "-"):
            negative ^= sign == "-"
        node = self._primary()
        return _calculated(lambda lookup: 0, [("-", node)]) if negative else node

    def _primary(self) -> Node:
        if self._next("("):
            node = self._either()
            self._need(")")
            return node
        if word := self._next("TRUE", "FALSE"):
            return lambda lookup: word == "TRUE"
        if self._at >= len(self._tokens):
            raise self._error("a value is expected")
        kind, word, _ = self._tokens[self._at]
        if kind == "text":
            text = self._text_literal()
            return lambda lookup: text
        if kind == "number":
            self._at += 1
            try:
                number = _number(word)
            except ValueError:  # an int of thousands of digits
                raise InvalidSelector(
                    f"selector {self._text!r:.200}: the number {word:.20}... is too long"
                ) from None
            return lambda lookup: number
        if kind == "name":
            self._at += 1
            return lambda lookup: lookup(word)
        raise self._error("a value is expected")


def _number(word: str) -> int | float:
    plain = word.rstrip("fFdDlL")
    return int(plain) if plain.isdecimal() and word[-1] not in "fFdD" else float(plain)


def _pattern(pattern: str, escape: str) -> re.Pattern[str]:
    """The regular expression of a pattern. Each part between two % is found at its first place, and no other
    place is tried: so the time is bounded."""
    parts, is_escaped = [""], False
    for letter in pattern:
        if is_escaped or letter not in ("%", "_", escape):
            parts[-1] += re.escape(letter)
            is_escaped = False
        elif letter == escape:
            is_escaped = True
        elif letter == "_":
            parts[-1] += "."
        else:
            parts.append("")
    first, *rest = parts
    if rest:
        *middle, last = rest
        first += "".join(f"(?>.*?{part})" for part in middle if part) + ".*" + last
    return re.compile(first, re.DOTALL)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": lambda left, right: left == right,
    "<>": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


def _compared(sign: str, left: Node, right: Node) -> Node:
    compare = _COMPARE[sign]
    is_order = sign not in ("=", "<>")

    def compared(lookup: Lookup) -> Any:
        one, two = left(lookup), right(lookup)
        if one is None or two is None:
            return None
        if _is_number(one) and _is_number(two):
            return compare(one, two)
        if is_order or isinstance(one, bool) is not isinstance(two, bool):
            return False
        return isinstance(one, str) is isinstance(two, str) and compare(one, two)

    return compared


def _calculated(first: Node, rest: list[tuple[str, Node]]) -> Node:
    """The value of a chain of operators from the left on, by a loop: a chain may be thousands long."""

    def calculated(lookup: Lookup) -> Any:
        value = first(lookup)
        for sign, node in rest:
            value = _result(sign, value, node(lookup))
        return value

    return calculated


def _result(sign: str, one: Any, two: Any) -> Any:
    if not _is_number(one) or not _is_number(two):
        return None
    try:
        if sign == "+":
            return one + two
        if sign == "-":
            return one - two
        if sign == "*":
            return one * two
        if isinstance(one, int) and isinstance(two, int):
            return abs(one) // abs(two) * (1 if (one < 0) is (two < 0) else -1)
        return one / two
    except (ZeroDivisionError, OverflowError):
        return None


def _decided_by(decisive: bool, nodes: list[Node]) -> Node:
    """OR where True decides, AND where False decides; unknown if a node is unknown and none decides."""

    def decided(lookup: Lookup) -> Any:
        result: Any = not decisive
        for node in nodes:
            value = node(lookup)
            if value is decisive:
                return decisive
            if value is not (not decisive):
                result = None
        return result

    return decided


def _not(node: Node) -> Node:
    def negated(lookup: Lookup) -> Any:
        value = node(lookup)
        return not value if isinstance(value, bool) else None

    return negated
