"""Output of commands: lines, tables, JSON and YAML, messages, the progress of long work; and their ends, with
an exit status and a line on the error output.

All output is escaped in this module: names, errors and bodies from strangers may hold control sequences,
which a terminal would obey. `rmq --help` imports this module: it imports nothing heavy itself.
"""

from __future__ import annotations

import enum
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeVar

import click

from rmq.errors import ConfigError, InvalidName, PortInUse, StoreLocked
from rmq.printable import printable, printable_json, printable_lines

if TYPE_CHECKING:
    from rmq.message import StoredMessage

T = TypeVar("T")
Format = Literal["table", "json", "yaml"]
Style = Literal["body", "line", "json"]
Step = Callable[[int], None]
"""Called with the number of items done since the last call."""

WIDE: Final = 4096
"""Columns of a table in a pipe or a file: no line is folded."""

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
"""Exit status: wrong usage, settings or input."""
EXIT_TAKEN: Final = 3
"""Exit status: another process has a port or a data folder."""
EXIT_INTERRUPTED: Final = 130


def output_option(command: Callable[..., T]) -> Callable[..., T]:
    """Add `-o table|json|yaml`; the command gets it as argument `output`."""
    option = click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json", "yaml"]),
        default="table",
        show_default=True,
        help="Output format.",
    )
    return option(command)


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text of any number of lines, with control characters escaped."""
    click.echo(printable_lines(text), err=err, nl=nl)


def echo_json(value: object, *, indent: int | None = 2, separators: tuple[str, str] | None = None) -> None:
    """Print a value as JSON, which has the same value after escaping."""
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False)
    click.echo(printable_json(text))


def _yaml(tree: object) -> str:
    import yaml

    text = str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
    # YAML lets some of these characters through: written in ASCII it has the same value.
    return text if text == printable_lines(text) else str(yaml.safe_dump(tree, sort_keys=False))


def show(
    value: object,
    output: Format = "table",
    *,
    columns: Mapping[str, str] | Sequence[str] | None = None,
    title: str = "",
) -> None:
    """Print rows (a sequence of mappings or attrs values) or a single such value. `columns` chooses the
    columns of a table, in order: field names, or field name -> heading. JSON and YAML have all fields of all
    rows, under their field names."""
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
    """`value` in the types of JSON and YAML: mappings, lists, texts, numbers, booleans, None."""
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
    """A message body as text; bytes that are not UTF-8 are shown as \\xNN."""
    return body.decode("utf-8", "backslashreplace")


def cell(value: object) -> str:
    """A value in a table: short, in a single line."""
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


def clock_text(ms: int) -> str:
    """A time in ms since 1970 as local ``2026-11-21 10:00:00.000``; ``-`` for None."""
    if ms <= 0:
        return "-"
    return datetime.fromtimestamp(ms / 1000).isoformat(" ", "milliseconds")


# --- messages ---


def style_option(default: Style) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `-o body|line|json`; the command gets it as argument `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["body", "line", "json"]),
        default=default,
        show_default=True,
        help="body: the body only; line: with time, place, tags and keys; json: one object a line.",
    )


def print_message(message: StoredMessage, style: Style) -> None:
    """Print a message and flush. Raises BrokenPipeError when the reader of the output has closed the pipe."""
    if style == "body" and not sys.stdout.isatty():
        sys.stdout.flush()
        sys.stdout.buffer.write(message.body + b"\n")
        sys.stdout.buffer.flush()
        return
    echo({"body": _body, "line": _line, "json": _json}[style](message))


def _body(message: StoredMessage) -> str:
    return "\n".join(map(printable, body_text(message.body).split("\n")))


def _line(message: StoredMessage) -> str:
    place = f"{message.broker_name}/{message.queue_id}@{message.queue_offset}"
    marks = [f"tags={message.tags}"] if message.tags else []
    marks += [f"keys={','.join(message.keys)}"] if message.keys else []
    text = " ".join([clock_text(message.store_timestamp), place, *marks, body_text(message.body)])
    return printable(text)


def _json(message: StoredMessage) -> str:
    return printable_json(json.dumps(message_row(message), ensure_ascii=False))


def message_row(message: StoredMessage) -> dict[str, Any]:
    """A message in the form of JSON and YAML; a body that is not UTF-8 is in `body_base64`."""
    import base64

    from rmq.message import PROPERTY_KEYS, PROPERTY_TAGS

    row: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id if message.store_host else "",
        "tags": message.tags,
        "keys": list(message.keys),
        "properties": {
            name: value
            for name, value in message.properties.items()
            if name not in (PROPERTY_TAGS, PROPERTY_KEYS)
        },
        "born_timestamp": message.born_timestamp,
        "born_host": message.born_host,
        "store_timestamp": message.store_timestamp,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "flag": message.flag,
    }
    try:
        row["body"] = message.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(message.body).decode()
    return row


# --- progress ---


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Step]:
    """A bar for `total` items (None: unknown) on the error output, if that is a terminal. The bar disappears
    when the block ends."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    with progress(console(stderr=True)) as bars:
        task = bars.add_task(what, total=total)
        yield lambda count: bars.advance(task, count)


def progress(shown_on: Any, *, transient: bool = True, redirect_stderr: bool = True) -> Any:
    """rich's Progress with our columns, on a console of rich; shows nothing unless that is a terminal.
    `transient`: the bars disappear at the end. `redirect_stderr`: lines on the error output go above the
    bars."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=shown_on,
        transient=transient,
        redirect_stderr=redirect_stderr,
        disable=not shown_on.is_terminal,
    )


# --- end of a command ---


def status_of(error: BaseException) -> int:
    """The exit status of an error, as `rmq --help` lists it."""
    if isinstance(error, (ConfigError, InvalidName)):
        return EXIT_USAGE
    return EXIT_TAKEN if isinstance(error, (PortInUse, StoreLocked)) else EXIT_FAILED


def fail(error: BaseException) -> NoReturn:
    """Print a problem and its remedy, and end with the status of `error`."""
    echo(explained(error).replace("\n", "\n  "), err=True)  # no line of its text may look like a line of rmq
    sys.exit(status_of(error))


def explained(error: BaseException) -> str:
    """One line: ``rmq: fault and place; remedy``."""
    hint = getattr(error, "hint", "")
    return f"rmq: {error}" + (f"; {hint}" if hint else "")


def refuse(text: str) -> NoReturn:
    """Print the reason of a refusal and end with 1."""
    echo(f"rmq: {text}", err=True)
    sys.exit(EXIT_FAILED)


def end_quietly() -> NoReturn:
    """End with 0 after the reader closed our output (`rmq tail | head`). The content of the buffer is
    dropped: Python's own flush at the end would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(EXIT_DONE)
