"""Writes docs/reference/api.md: the public names of rmq, from their docstrings.

python docs/reference/make_api.py
"""

from __future__ import annotations

import ast
import inspect
import pathlib
import textwrap
from collections.abc import Iterator
from typing import Any

import rmq
from rmq.errors import RmqError

PAGE = pathlib.Path(__file__).with_name("api.md")

SECTIONS = {
    "Connecting": "connect Client ClientConfig Credentials TlsConfig",
    "Messages": "Message StoredMessage MessageQueue",
    "Sending": "Producer SendResult",
    "Transactions": "TransactionalProducer Transaction Decision COMMIT ROLLBACK UNKNOWN DiscardedHalf",
    "Consuming": "Consumer Delivery Retry Backoff Sql sql Assigned",
    "Reading where one likes": "PullConsumer PullResult",
    "Dead letters": "DeadLetter Letters Redriven",
    "Applications": "App Codec MsgspecCodec PydanticCodec",
    "Looking on": "Observer MessageTrace",
}
"""Headings, and what stands below each; errors come last, and what is named nowhere before them."""

HEAD = """# API

Written by `make_api.py` from the docstrings: what `import rmq` gives. The same without async is
`rmq.client.blocking`, whose names and arguments are these; `client.admin` is in [admin.md](admin.md),
settings in [settings.md](settings.md), and [which call raises which error](errors.md) in a table.

"""

MADE = {"App", "Retry", "MsgspecCodec", "PydanticCodec", "MessageTrace"}
"""Classes that applications make objects of by calling them, beside those whose fields say how."""
SETTINGS = {"ClientConfig", "TlsConfig"}
"""Whose fields stand on the page of settings."""


def sections() -> dict[str, list[str]]:
    """All public names below their headings."""
    errors = [name for name in rmq.__all__ if _is_error(getattr(rmq, name))]
    table = {
        heading: [name for name in names.split() if name in rmq.__all__]
        for heading, names in SECTIONS.items()
    }
    placed = {name for names in table.values() for name in names} | set(errors)
    table["More"] = [name for name in rmq.__all__ if name not in placed]
    table["Errors"] = sorted(errors, key=lambda name: (name != "RmqError", name))
    return {heading: names for heading, names in table.items() if names}


def _is_error(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, RmqError)


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for heading, names in sections().items():
        parts.append("- [" + f"{heading}](#{heading.lower().replace(' ', '-')}): ")
        parts.append(", ".join(f"[{name}](#rmq{name.lower()})" for name in names) + "\n")
    for heading, names in sections().items():
        parts.append(f"\n## {heading}\n")
        parts += [entry(name, getattr(rmq, name)) for name in names]
    return "".join(parts)


def entry(name: str, thing: Any) -> str:
    """One public name: its heading, what it is called with, what it says, its fields and methods."""
    lines = [f"\n### rmq.{name}\n"]
    if isinstance(thing, type):
        made = _signature(thing.__init__).removesuffix(" -> None") if name in MADE else ""
        lines += [_code(f"class {name}{made or _bases(thing)}"), _text(thing.__doc__)]
        lines += ["\nIts fields are [settings](settings.md).\n" if name in SETTINGS else _fields(thing)]
        lines += [_method(name, attribute, method) for attribute, method in _methods(thing)]
    elif inspect.isfunction(thing):
        lines += [_code(f"{name}{_signature(thing)}"), _text(thing.__doc__)]
    else:
        lines += [f"\n`{thing!r}`\n"]
    return "".join(lines)


def _bases(kind: type) -> str:
    names = [
        base.__name__
        for base in kind.__bases__
        if base is not object and base.__name__ not in ("Generic", "Protocol")
    ]
    return f"({', '.join(names)})" if names else ""


def _code(text: str) -> str:
    return f"\n```text\n{text}\n```\n"


def _text(docstring: str | None) -> str:
    return f"\n{inspect.cleandoc(docstring)}\n" if docstring else ""


def _fields(kind: type) -> str:
    """The fields that the source of a class, or of those that it inherits from, annotates."""
    rows: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("rmq."):
            rows |= dict(_annotated(base))
    return "\n" + "".join(rows.values()) if rows else ""


def _annotated(kind: type) -> Iterator[tuple[str, str]]:
    body = _tree(kind).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        name, annotation = node.target.id, ast.unparse(node.annotation)
        if name.startswith("_") or annotation.startswith(("ClassVar", "Final")):
            continue
        told = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            told = ": " + " ".join(str(after.value.value).split())
        yield name, f"- `{name}: {annotation}`{told}\n"


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, those that it inherits from ours too."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("rmq."):
            found |= vars(base)
    for name, thing in found.items():
        inner = getattr(thing, "__func__", thing)
        if not name.startswith("_") and (inspect.isfunction(inner) or isinstance(inner, property)):
            yield name, inner


def _method(owner: str, name: str, thing: Any) -> str:
    if isinstance(thing, property):
        returns = _tree(thing.fget).returns
        what = f"{owner}.{name}: {ast.unparse(returns)}" if returns else f"{owner}.{name}"
        return f"\n#### {owner}.{name}\n{_code(what)}{_text(thing.__doc__)}"
    inner = inspect.unwrap(thing)
    prefix = "await " if inspect.iscoroutinefunction(inner) else ""
    if inspect.isasyncgenfunction(inner):
        prefix = "async with "
    return (
        f"\n#### {owner}.{name}\n{_code(f'{prefix}{owner}.{name}{_signature(inner)}')}{_text(inner.__doc__)}"
    )


def _signature(function: Any) -> str:
    """What a function is called with, and what it returns, as its source says."""
    node = _tree(function)
    pieces = list(_arguments(node.args))
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    whole = f"({', '.join(pieces)}){returns}"
    return (
        whole if len(whole) < 90 else "(\n" + "".join(f"    {piece},\n" for piece in pieces) + f"){returns}"
    )


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    plain = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(plain) - len(arguments.defaults)) + arguments.defaults
    for one, default in zip(plain, defaults, strict=True):
        if one.arg not in ("self", "cls"):
            yield _argument(one, default)
    if arguments.vararg or arguments.kwonlyargs:
        yield "*" + (_argument(arguments.vararg, None) if arguments.vararg else "")
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _argument(one, default)
    if arguments.kwarg:
        yield "**" + _argument(arguments.kwarg, None)


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    text = f"{one.arg}: {ast.unparse(one.annotation)}" if one.annotation else one.arg
    return text if default is None else f"{text} = {ast.unparse(default)}"


def _tree(thing: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
