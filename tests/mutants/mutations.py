"""Single-line mutations of Python source, found in its syntax tree. Pure."""

from __future__ import annotations

import ast
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import evolve, frozen


@frozen
class Mutation:
    """One line that says something else. `line` counts from 1; `before` and `after` are whole lines."""

    path: str
    line: int
    kind: str
    before: str
    after: str
    number: int = 1
    """Which of those of this module that change such a line so."""

    @property
    def key(self) -> str:
        """Names it as long as the line stays as it is, wherever it moves."""
        key = f"{self.path}|{self.before.strip()}|{self.after.strip()}"
        return key if self.number == 1 else f"{key}|{self.number}"

    def apply(self, source: str) -> str:
        """The source with this line changed. Raises ValueError when the line is another one by now."""
        lines = source.splitlines(keepends=True)
        if lines[self.line - 1].rstrip("\n") != self.before:
            raise ValueError(f"{self.path}:{self.line} has changed")
        lines[self.line - 1] = self.after + "\n"
        return "".join(lines)

    def __str__(self) -> str:
        return f"{self.path}:{self.line} ({self.kind}): {self.before.strip()}  →  {self.after.strip()}"


_COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, tuple[str, ...]]]] = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
}
_ARITHMETIC: Final[dict[type[ast.operator], tuple[str, str]]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
_TYPES: Final = ("annotation", "returns", "decorator_list", "type_params")
_TWINS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_UNSEEN: Final = ("log", "logger", "warnings")
"""What is called on these is for people to read; a test of it would repeat it."""


def mutations(path: str, source: str) -> list[Mutation]:
    """All mutations of what a source's functions do, in the order of its lines.

    A few may not compile; `choose` leaves them out. What runs at import is left alone: no test is to blame
    for it.
    """
    lines = source.splitlines()
    found: dict[tuple[int, str], Mutation] = {}
    for kind, line, start, stop, text in _edits(ast.parse(source), lines):
        before = lines[line - 1]
        encoded = before.encode()
        after = (encoded[:start] + text.encode() + encoded[stop:]).decode()
        if after == before or (line, after) in found:
            continue
        found[line, after] = Mutation(path, line, kind, before, after)
    counts: Counter[str] = Counter()
    numbered = []
    for mutation in sorted(found.values(), key=lambda mutation: mutation.line):
        counts[mutation.key] += 1
        numbered.append(evolve(mutation, number=counts[mutation.key]))
    return numbered


def compiles(source: str) -> bool:
    """True if this text is Python."""
    try:
        compile(source, "<mutation>", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


_Edit = tuple[str, int, int, int, str]
"""Kind, line, first and last column in bytes, and what stands there instead."""


def _edits(tree: ast.Module, lines: Sequence[str]) -> Iterator[_Edit]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    pending: list[tuple[ast.AST, bool]] = [(tree, False)]
    while pending:
        node, inside = pending.pop()
        if _is_unseen(node):
            continue
        if inside:
            yield from _of_node(node, lines)
        for name, value in ast.iter_fields(node):
            if name in _TYPES or (name == "args" and isinstance(node, functions)):
                continue
            deeper = inside or (name == "body" and isinstance(node, functions))
            children = value if isinstance(value, list) else [value]
            pending += [(child, deeper) for child in children if isinstance(child, ast.AST)]


def _is_unseen(node: ast.AST) -> bool:
    """Log lines, messages of errors, asserts, what only type checkers read, and texts for people."""
    if isinstance(node, (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.Raise):  # of what another class defines
        return isinstance(node.exc, ast.Name) and node.exc.id == "NotImplementedError"
    if isinstance(node, ast.If) and not node.orelse and all(map(_is_unseen, node.body)):
        return True
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__"):
        return True
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        return isinstance(call.func.value, ast.Name) and call.func.value.id in _UNSEEN
    return False


def _of_node(node: ast.AST, lines: Sequence[str]) -> Iterator[_Edit]:
    if isinstance(node, ast.Compare):
        yield from _of_comparison(node, lines)
    elif isinstance(node, ast.BoolOp):
        word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _between(lines, left, right, word, other, "and/or")
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        word, other = _ARITHMETIC[type(node.op)]
        if not _is_text(node.left) and not _is_text(node.right):
            yield from _between(lines, node.left, node.right, word, other, "arithmetic")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", node.lineno, node.col_offset, node.col_offset + len("not "), ""
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield from _of_condition(node.test, lines)
    elif isinstance(node, ast.Constant):
        yield from _of_constant(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _TWINS:
        yield from _whole(node.func, _TWINS[node.func.id], "min/max")
    elif isinstance(node, ast.stmt):
        yield from _of_statement(node)


def _of_comparison(node: ast.Compare, lines: Sequence[str]) -> Iterator[_Edit]:
    operands = [node.left, *node.comparators]
    for number, operator in enumerate(node.ops):
        word, others = _COMPARISONS[type(operator)]
        for other in others:
            yield from _between(lines, operands[number], operands[number + 1], word, other, "comparison")


def _of_condition(test: ast.expr, lines: Sequence[str]) -> Iterator[_Edit]:
    if test.lineno == test.end_lineno and not isinstance(test, (ast.Compare, ast.UnaryOp)):
        line = lines[test.lineno - 1].encode()
        text = line[test.col_offset : test.end_col_offset].decode()
        yield from _whole(test, f"not ({text})", "condition")


def _of_constant(node: ast.Constant) -> Iterator[_Edit]:
    if node.value is True or node.value is False:
        yield from _whole(node, str(not node.value), "constant")
    elif isinstance(node.value, int) and 0 <= node.value < 10:  # one more of a large number is no fault
        yield from _whole(node, str(node.value + 1), "constant")


def _of_statement(node: ast.stmt) -> Iterator[_Edit]:
    if isinstance(node, ast.Expr):
        if isinstance(node.value, (ast.Call, ast.Await, ast.YieldFrom)):
            yield from _whole(node, "pass", "call left out")
    elif isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Assign) and not isinstance(node.targets[0], (ast.Name, ast.Tuple))
    ):
        yield from _whole(node, "pass", "assignment left out")
    elif isinstance(node, ast.Return) and node.value is not None:
        # Who asks for the truth of False sees no other answer in None; that it is True is another mutation.
        if not (
            isinstance(node.value, ast.Constant) and (node.value.value is None or node.value.value is False)
        ):
            yield from _whole(node, "return None", "result left out")
    elif isinstance(node, ast.Return):
        yield from _whole(node, "pass", "return left out")
    elif isinstance(node, (ast.Raise, ast.Delete)):
        yield from _whole(node, "pass", "raise left out")
    elif isinstance(node, ast.Break):
        yield from _whole(node, "continue", "break")
    elif isinstance(node, ast.Continue):
        yield from _whole(node, "break", "continue")


def _whole(node: ast.stmt | ast.expr, text: str, kind: str) -> Iterator[_Edit]:
    if node.lineno == node.end_lineno and node.end_col_offset is not None:
        yield kind, node.lineno, node.col_offset, node.end_col_offset, text


def _between(
    lines: Sequence[str], left: ast.expr, right: ast.expr, word: str, other: str, kind: str
) -> Iterator[_Edit]:
    """Change the operator between two operands, where one line holds all."""
    if left.end_lineno != right.lineno or left.end_col_offset is None:
        return
    gap = lines[right.lineno - 1].encode()[left.end_col_offset : right.col_offset]
    at = gap.find(word.encode())
    if at >= 0 and gap.count(word.encode()) == 1:
        start = left.end_col_offset + at
        yield kind, right.lineno, start, start + len(word), other


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple)) or (
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    )


def choose(found: Sequence[Mutation], count: int, seed: int, sources: Mapping[str, str]) -> list[Mutation]:
    """`count` of them that compile, by the seed, at most one of a line as long as lines last."""
    chance = random.Random(seed)
    shuffled = sorted(found, key=lambda mutation: (mutation.key, mutation.line))
    chance.shuffle(shuffled)
    first: dict[tuple[str, int], Mutation] = {}
    more = []
    for mutation in shuffled:
        place = (mutation.path, mutation.line)
        if place in first:
            more.append(mutation)
        else:
            first[place] = mutation
    usable = (m for m in [*first.values(), *more] if compiles(m.apply(sources[m.path])))
    return list(itertools.islice(usable, count))
