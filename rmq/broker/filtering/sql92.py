"""SQL92 message filters: text -> a compiled expression over a message's properties.

The language and its quirks are those of RocketMQ 4.9.7 (the broker's `SQL92` expression type), checked
against vectors captured from the real filter. The ones that surprise:

- The parser does not demand the end of the text: what follows a complete expression is ignored
  (``a > 1)``, ``region LIKE 'x%'``), but the one token it looks ahead must be a token.
- ``NOT`` binds tighter than a comparison: ``NOT a > 1`` is refused, ``NOT (a > 1)`` works.
- A property is a string. Compared with an integer it must be an integer, compared with a decimal it must
  be a number: anything else is an `EvaluationError`, and the message is not delivered.
- ``>`` and its kin refuse string and boolean constants; two properties are compared as numbers.
- A lone property as a condition is false when present and unknown when absent.
- ``IN`` takes string constants only; ``= NULL`` is refused, ``IS NULL`` is the form.

Expressions are compiled to closures once for a subscription; no text is ever evaluated by Python.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rmq.errors import RmqError

if TYPE_CHECKING:
    from attrs import frozen
else:
    from rmq.lazy_attrs import frozen

Properties = Mapping[str, str]
Value = bool | int | float | str | None
Evaluate = Callable[[Properties], Value]
Compare = Callable[[int], bool]

MAX_DEPTH = 80
"""Nesting of parentheses and unary operators, and links of a comparison chain. Java's limit is its stack."""

MAX_HEIGHT = 300
"""Calls within calls that an evaluation may need: chains in parentheses in chains multiply the two above."""

MAX_LENGTH = 8192
"""Characters of an expression: it is compiled while others wait, and kept as long as its group."""

_SHOWN = 200  # characters of an expression that an error quotes

_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_LONG_DIGITS = 19


class FilterSyntaxError(RmqError):
    """The expression cannot be compiled; the text says where and why."""

    hint = "correct the expression"


class EvaluationError(RmqError):
    """The expression cannot be evaluated for this message (the message is not delivered).

    `kind` is the class that Java's filter throws in the same case: RuntimeException or ClassCastException.
    """

    hint = "let the expression fit the properties of the messages"

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Long(int):
    """A 64-bit integer constant; a plain `int` is a 32-bit one. The kind decides how strings convert."""


@frozen(slots=True)
class Expression:
    """A compiled filter: `evaluate` gives True, False, None (unknown) or another value of the expression."""

    text: str
    evaluate: Evaluate

    def matches(self, properties: Properties) -> bool:
        """True only when the expression is certainly true; unknown and evaluation errors are False."""
        try:
            return self.evaluate(properties) is True
        except EvaluationError:
            return False


def compile_sql(text: str) -> Expression:
    """Compile `text`, in time that grows as its length.

    Raises FilterSyntaxError where the Java filter refuses it, and for what is too long or too deep.
    """
    if len(text) > MAX_LENGTH:
        raise FilterSyntaxError(
            f"SQL filter: {len(text)} characters, at most {MAX_LENGTH} are allowed: {_quoted(text)}"
        )
    return Expression(text, _Parser(text).condition())


# --- tokens ---

# Quantifiers are possessive: what one has taken is never looked at again. Only characters are repeated so:
# Python before 3.11.5 goes on at a wrong place when a possessive group fails in its middle.
_BLANK = re.compile(r"[ \t\n\r\f]++|--[^\n\r]*+(?:\r\n|\n|\r)|/\*(?s:.*?)\*/")
_TOKEN = re.compile(
    r"(?P<float>[0-9]++\.[0-9]*+(?:[eE][+-]?[0-9]++)?|\.[0-9]++(?:[eE][+-]?[0-9]++)?|[0-9]++[eE][+-]?[0-9]++)"
    r"|(?P<int>0|[1-9][0-9]*+[lL]?)"
    r"|(?P<string>'(?:''|[^'])*')"
    r"|(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<sign><>|>=|<=|[(),=<>+-])"
)
_KEYWORDS = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"})


@frozen(slots=True)
class _Token:
    kind: str  # int, float, string, name, end, or the keyword or sign itself
    text: str
    at: int


def _quoted(text: str, at: int = 0) -> str:
    """The part of an expression around a position, for errors and logs."""
    if len(text) <= _SHOWN:
        return repr(text)
    start = max(0, min(at - _SHOWN // 2, len(text) - _SHOWN))
    part = repr(text[start : start + _SHOWN])
    return f"{'...' if start else ''}{part}{'...' if start + _SHOWN < len(text) else ''}"


def _lex(text: str, start: int) -> tuple[_Token, int]:
    at = start
    while blank := _BLANK.match(text, at):
        at = blank.end()
    if at >= len(text):
        return _Token("end", "", at), at
    match = _TOKEN.match(text, at)
    if match is None:
        raise FilterSyntaxError(
            f"SQL filter: unexpected character {text[at]!r} at position {at} of {_quoted(text, at)}"
        )
    kind, word = match.lastgroup or "", match.group()
    if kind == "sign":
        kind = word
    elif kind == "word":
        kind = word.upper() if word.upper() in _KEYWORDS else "name"
    return _Token(kind, word, at), match.end()


# --- the tree: what the parser must know of a node beside its closure ---


@frozen(slots=True)
class _Node:
    evaluate: Evaluate
    boolean: bool = False  # may stand where a condition is wanted
    constant: bool = False
    value: Value = None  # of a constant
    name: str | None = None  # of a property
    height: int = 1  # calls within calls of `evaluate`, at most

    @property
    def number(self) -> bool:
        return isinstance(self.value, int | float) and not isinstance(self.value, bool)


def _constant(value: Value) -> _Node:
    return _Node(lambda _: value, value is None or isinstance(value, bool), True, value)


def _property(name: str) -> _Node:
    return _Node(lambda properties: properties.get(name), name=name)


class _Parser:
    """Recursive descent with one token of look-ahead, which is read only when it is needed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.ahead: list[_Token] = []
        self.depth = 0

    def peek(self, distance: int = 0) -> str:
        while len(self.ahead) <= distance:
            token, self.at = _lex(self.text, self.at)
            self.ahead.append(token)
        return self.ahead[distance].kind

    def take(self, kind: str) -> str:
        if self.peek() != kind:
            raise self.refused(f"expected {kind}")
        return self.ahead.pop(0).text

    def refused(self, why: str) -> FilterSyntaxError:
        self.peek()
        token = self.ahead[0]
        found = token.text or "the end"
        return FilterSyntaxError(
            f"SQL filter: {why}, found {_quoted(found)} at position {token.at} of "
            f"{_quoted(self.text, token.at)}"
        )

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.refused(f"nested deeper than {MAX_DEPTH}")

    def condition(self) -> Evaluate:
        return self.as_condition(self.any_of()).evaluate

    def as_condition(self, node: _Node) -> _Node:
        if node.boolean:
            return node
        if node.name is not None:
            return self.over(_cast(node.evaluate), node)
        raise self.refused("expected a condition, not a value")

    def over(self, evaluate: Evaluate, *parts: _Node, boolean: bool = True) -> _Node:
        """A node that evaluates its parts, by two calls at most."""
        height = 2 + max(part.height for part in parts)
        if height > MAX_HEIGHT:
            raise self.refused("too many comparisons within comparisons")
        return _Node(evaluate, boolean, height=height)

    def any_of(self) -> _Node:
        return self.chain(self.all_of, "OR", _any)

    def all_of(self) -> _Node:
        return self.chain(self.equality, "AND", _all)

    def chain(
        self, part: Callable[[], _Node], joint: str, join: Callable[[list[Evaluate]], Evaluate]
    ) -> _Node:
        first = part()
        if self.peek() != joint:
            return first
        parts = [self.as_condition(first)]
        while self.peek() == joint:
            self.take(joint)
            parts.append(self.as_condition(part()))
        return self.over(join([one.evaluate for one in parts]), *parts)

    def equality(self) -> _Node:
        left, links = self.comparison(), 0
        while (kind := self.peek()) in ("=", "<>", "IS"):
            links += 1
            if links > MAX_DEPTH:
                raise self.refused(f"more than {MAX_DEPTH} comparisons in a chain")
            self.take(kind)
            if kind == "IS":
                left = self.null_test(left)
                continue
            right = self.comparison()
            self.check_equal(left, right)
            equal = _equal(left.evaluate, right.evaluate)
            left = self.over(equal if kind == "=" else _not(equal), left, right)
        return left

    def null_test(self, left: _Node) -> _Node:
        equal = _equal(left.evaluate, lambda _: None)
        if self.peek() == "NOT":
            self.take("NOT")
            equal = _not(equal)
        self.take("NULL")
        return self.over(equal, left)

    def check_equal(self, left: _Node, right: _Node) -> None:
        if any(side.constant and side.value is None for side in (left, right)):
            raise self.refused("NULL cannot be compared by = or <>, use IS NULL")
        if left.constant and left.boolean and right.constant and not right.boolean:
            raise self.refused("a boolean cannot be compared with that constant")

    def comparison(self) -> _Node:
        left, links = self.unary(), 0
        while (kind := self.peek()) in _ORDER or kind in ("BETWEEN", "IN", "NOT"):
            links += 1
            if links > MAX_DEPTH:
                raise self.refused(f"more than {MAX_DEPTH} comparisons in a chain")
            self.take(kind)
            negated = kind == "NOT"
            if negated:
                kind = self.peek()
                if kind not in ("BETWEEN", "IN"):
                    raise self.refused("expected BETWEEN or IN after NOT")
                self.take(kind)
            if kind == "BETWEEN":
                left = self.between(left, negated)
            elif kind == "IN":
                left = self.within(left, negated)
            else:
                left = self.ordered(left, kind, self.unary())
        return left

    def ordered(self, left: _Node, sign: str, right: _Node) -> _Node:
        for side in (left, right):
            if side.boolean or (side.constant and not side.number):
                raise self.refused(f"{sign} compares numbers only")
        return self.over(_ordered(left.evaluate, _ORDER[sign], right.evaluate), left, right)

    def between(self, value: _Node, negated: bool) -> _Node:
        low = self.unary()
        self.take("AND")
        high = self.unary()
        if not negated and low.constant and high.constant and not _rising(low.value, high.value):
            raise self.refused("BETWEEN expects low AND high with low <= high")
        signs, join = (("<", ">"), _any) if negated else ((">=", "<="), _all)
        parts = [self.ordered(value, signs[0], low), self.ordered(value, signs[1], high)]
        return self.over(join([part.evaluate for part in parts]), *parts)

    def within(self, left: _Node, negated: bool) -> _Node:
        self.take("(")
        texts = [self.string()]
        while self.peek() == ",":
            self.take(",")
            texts.append(self.string())
        self.take(")")
        if left.name is None:
            raise self.refused("IN expects a property on its left")
        return self.over(_within(left.evaluate, frozenset(texts), negated), left)

    def unary(self) -> _Node:
        kind = self.peek()
        if kind not in ("+", "-", "NOT"):
            return self.primary()
        self.deeper()
        self.take(kind)
        operand = self.unary()
        self.depth -= 1
        if kind == "+":
            return operand
        if kind == "-":
            return self.over(_negated(operand.evaluate), operand, boolean=False)
        operand = self.as_condition(operand)
        return self.over(_not(operand.evaluate), operand)

    def primary(self) -> _Node:
        kind = self.peek()
        if kind == "(":
            self.deeper()
            self.take("(")
            inner = self.any_of()
            self.take(")")
            self.depth -= 1
            return inner
        if kind == "string":
            return _constant(self.string())
        if kind not in ("int", "float", "name", *_WORDS):
            raise self.refused("expected a property, a constant or (")
        text = self.take(kind)
        if kind == "name":
            return _property(text)
        return _constant(self.number(kind, text) if kind in ("int", "float") else _WORDS[kind])

    def string(self) -> str:
        return self.take("string")[1:-1].replace("''", "'")

    def number(self, kind: str, text: str) -> int | float:
        if kind == "int":
            digits = text.rstrip("lL")
            value = int(digits) if len(digits) <= _LONG_DIGITS else _LONG_MAX + 1
            if value > _LONG_MAX:
                raise self.refused(f"{_quoted(text)} is above {_LONG_MAX}")
            return value if value <= _INT_MAX else Long(value)
        decimal = float(text)
        if not math.ulp(0.0) <= decimal <= 1.7976931348623157e308:
            raise self.refused(f"{_quoted(text)} is not a positive 64-bit decimal")
        return decimal


_WORDS: dict[str, Value] = {"TRUE": True, "FALSE": False, "NULL": None}

_ORDER: dict[str, Compare] = {
    ">": lambda answer: answer > 0,
    ">=": lambda answer: answer >= 0,
    "<": lambda answer: answer < 0,
    "<=": lambda answer: answer <= 0,
}


# --- closures ---


def _cast(inner: Evaluate) -> Evaluate:
    def cast(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else value is True

    return cast


def _not(inner: Evaluate) -> Evaluate:
    def negation(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else not value

    return negation


def _all(parts: list[Evaluate]) -> Evaluate:
    def conjunction(properties: Properties) -> Value:
        unknown = False
        for part in parts:
            value = part(properties)
            if value is False:
                return False
            unknown = unknown or value is None
        return None if unknown else True

    return conjunction


def _any(parts: list[Evaluate]) -> Evaluate:
    def disjunction(properties: Properties) -> Value:
        unknown = False
        for part in parts:
            value = part(properties)
            if value is True:
                return True
            unknown = unknown or value is None
        return None if unknown else False

    return disjunction


def _equal(left: Evaluate, right: Evaluate) -> Evaluate:
    def equality(properties: Properties) -> Value:
        one, other = left(properties), right(properties)
        if one is None:
            return True if other is None else None
        return False if other is None else compare(one, other) == 0

    return equality


def _ordered(left: Evaluate, holds: Compare, right: Evaluate) -> Evaluate:
    def order(properties: Properties) -> Value:
        one = left(properties)
        if one is None:
            return None
        other = right(properties)
        if other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            return holds(_compare_texts_as_numbers(one, other))
        return holds(compare(one, other))

    return order


def _within(inner: Evaluate, texts: frozenset[str], negated: bool) -> Evaluate:
    def within(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else (value in texts) is not negated

    return within


def _negated(inner: Evaluate) -> Evaluate:
    def negated(properties: Properties) -> Value:
        value = inner(properties)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return Long(_wrap(-value)) if isinstance(value, Long) else -value

    return negated


# --- comparison with Java's conversions ---


def compare(one: bool | int | float | str, other: bool | int | float | str) -> int:
    """Negative, zero or positive as Java's filter orders two values after its conversions.

    Values that cannot be brought to one type count as smaller. Raises EvaluationError when a string is not
    a number of the type on the other side.
    """
    if isinstance(one, str):
        if isinstance(other, str):
            return (one > other) - (one < other)
        one = one.lower() == "true" if isinstance(other, bool) else _number(one, other)
        return _order(one, other)
    if isinstance(one, bool):
        if isinstance(other, str):
            raise EvaluationError("ClassCastException", f"a boolean is compared with the string {other!r}")
        return _order(one, other) if isinstance(other, bool) else -1
    if isinstance(other, bool):
        return -1
    return _order(one, _number(other, one) if isinstance(other, str) else other)


def _rising(low: Value, high: Value) -> bool:
    return low is not None and high is not None and compare(high, low) >= 0


def _order(one: int | float, other: int | float) -> int:
    if not isinstance(one, float) and not isinstance(other, float):
        return (one > other) - (one < other)
    left, right = _rank(float(one)), _rank(float(other))
    return (left > right) - (left < right)


def _rank(value: float) -> tuple[int, float, float]:
    """Java orders NaN above all else and -0.0 below 0.0."""
    return (1, 0.0, 0.0) if math.isnan(value) else (0, value, math.copysign(1.0, value))


def _compare_texts_as_numbers(one: str, other: str) -> int:
    try:
        return _order(java_double(one), java_double(other))
    except ValueError:
        raise EvaluationError(
            "RuntimeException",
            f"It's illegal to compare string by '>=', '>', '<', '<='. lv={one[:_SHOWN]}, rv={other[:_SHOWN]}",
        ) from None


def _number(text: str, kind: int | float) -> int | float:
    """`text` as a number of the type of `kind`: double, long or int."""
    try:
        if isinstance(kind, float):
            return java_double(text)
        low, high = (_LONG_MIN, _LONG_MAX) if isinstance(kind, Long) else (_INT_MIN, _INT_MAX)
        if not _JAVA_INTEGER.fullmatch(text) or not low <= int(text) <= high:
            raise ValueError(f'For input string: "{text}"')
        return Long(text) if isinstance(kind, Long) else int(text)
    except ValueError as error:
        raise EvaluationError("RuntimeException", f"java.lang.NumberFormatException: {error}") from None


_JAVA_INTEGER = re.compile(r"[+-]?\d{1,40}")
_JAVA_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[fFdD]?"
    r"|0[xX](?:[0-9a-fA-F]++(?:\.[0-9a-fA-F]*+)?|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++[fFdD]?)"
)
_JAVA_BLANKS = "".join(map(chr, range(33)))


def java_double(text: str) -> float:
    """The text as Java's Double.valueOf reads it. Raises ValueError with Java's words."""
    stripped = text.strip(_JAVA_BLANKS)
    if not stripped:
        raise ValueError("empty String")
    if not _JAVA_DOUBLE.fullmatch(stripped):
        raise ValueError(f'For input string: "{text}"')
    if stripped.endswith("Infinity"):
        return -math.inf if stripped[0] == "-" else math.inf
    if "x" in stripped or "X" in stripped:
        return _hex_double(stripped)
    return float(stripped.rstrip("fFdD"))


def _hex_double(text: str) -> float:
    digits, exponent = re.split("[pP]", text)
    try:
        return float.fromhex(digits + "p" + exponent.rstrip("fFdD"))
    except OverflowError:
        return -math.inf if text[0] == "-" else math.inf


def _wrap(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63
