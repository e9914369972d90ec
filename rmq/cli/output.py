"""How commands print what they found: a table for people, JSON or YAML for programs."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

import click

from rmq.printable import printable, printable_json, printable_lines

T = TypeVar("T")
Format = Literal["table", "json", "yaml"]

WIDE: Final = 4096
"""Columns of a table that goes into a pipe or a file: nothing is folded there."""


def output_option(command: Callable[..., T]) -> Callable[..., T]:
    """Adds `-o table|json|yaml`; the command gets it as argument `output`."""
    option = click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json", "yaml"]),
        default="table",
        show_default=True,
        help="How to print it.",
    )
    return option(command)


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Prints a text of one or more lines: all that commands print goes through here, or through a table's
    `cell`. What others wrote, names, errors, bodies, must not steer the terminal."""
    click.echo(printable_lines(text), err=err, nl=nl)


def echo_json(value: object, *, indent: int | None = 2, separators: tuple[str, str] | None = None) -> None:
    """Prints a value as JSON, which has the same value after escaping."""
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False)
    click.echo(printable_json(text))


def _yaml(tree: object) -> str:
    import yaml

    text = str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
    # YAML lets some of them through: written in ASCII it has the same value.
    return text if text == printable_lines(text) else str(yaml.safe_dump(tree, sort_keys=False))


def show(
    value: object,
    output: Format = "table",
    *,
    columns: Mapping[str, str] | Sequence[str] | None = None,
    title: str = "",
) -> None:
    """Prints rows (a sequence of mappings or attrs values) or one such value.

    `columns` chooses what a table shows, in order: field names, or field name -> heading. JSON and YAML have
    all fields of all rows, under their field names.
    """
    tree = plain(value)
    if output == "json":
        echo_json(tree)
    elif output == "yaml":
        echo(_yaml(tree), nl=False)
    elif isinstance(tree, list):
        _print_rows(tree, columns, title)
    elif isinstance(tree, dict):
        _print_rows([{"name": key, "value": tree[key]} for key in columns or tree], None, title, header=False)
    else:
        echo(cell(tree))


def plain(value: object) -> Any:
    """`value` as JSON and YAML have it: mappings, lists, texts, numbers, booleans, None."""
    import attrs  # late: it takes longer to import than most commands to run

    kind = type(value)
    if attrs.has(kind):
        return {name: plain(getattr(value, name)) for name in attrs.fields_dict(kind)}
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (bytes, bytearray)):
        return body_text(bytes(value))
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=str)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int, float, type(None))) else str(value)


def _key(key: object) -> str:
    import attrs

    return "/".join(map(str, attrs.astuple(key))) if attrs.has(type(key)) else str(key)  # type: ignore[arg-type]


def body_text(body: bytes) -> str:
    """A message body as text; bytes that are no UTF-8 are shown as \\xNN."""
    return body.decode("utf-8", "backslashreplace")


def cell(value: object) -> str:
    """One value in a table: short, on one line."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, list):
        return ", ".join(map(cell, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}={cell(item)}" for key, item in value.items()) or "-"
    return printable(str(value))


def _print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str] | Sequence[str] | None,
    title: str,
    *,
    header: bool = True,
) -> None:
    from rich.table import Table
    from rich.text import Text

    if not rows:
        echo("nothing", err=True)
        return
    names = list(columns or rows[0])
    headings = columns if isinstance(columns, Mapping) else {name: name.replace("_", " ") for name in names}
    table = Table(box=None, pad_edge=False, show_header=header, header_style="bold", title_justify="left")
    table.title = Text(printable(title)) if title else None
    for name in names:
        numeric = all(_is_number(row.get(name)) for row in rows)
        table.add_column(headings[name].upper(), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(row.get(name))) for name in names))
    console().print(table)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def console(*, stderr: bool = False) -> Any:
    """A rich console; into a pipe or a file it folds no line."""
    from rich.console import Console

    wide = None if (sys.stderr if stderr else sys.stdout).isatty() else WIDE
    return Console(stderr=stderr, width=wide, highlight=False)
