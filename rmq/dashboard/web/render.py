"""Templates, and their formats for values: numbers, bytes, times, and foreign texts."""

from __future__ import annotations

import pathlib
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rmq.dashboard.paths import link
from rmq.printable import counted, printable_lines

FOLDER: Final = pathlib.Path(__file__).parent.parent
STATIC: Final = FOLDER / "static"


def page_link(path: str, query: dict[str, object], page: int) -> str:
    """Another page of a list: a query, with the same search."""
    return link_query({**query, "page": page})


def link_query(query: dict[str, object]) -> str:
    """A query alone, which keeps the path."""
    return f"?{urlencode({name: value for name, value in query.items() if value not in ('', None, False)})}"


def number(value: float) -> str:
    """A count with separators, or -, where it is not known."""
    return "-" if value < 0 else f"{value:,.0f}"


def counted_noun(value: float, noun: str) -> str:
    """A count with its noun, which is in the plural unless the count is 1."""
    return counted(value, noun, ",.0f") if value >= 0 else f"- {counted(value, noun).partition(' ')[2]}"


def rate(value: float) -> str:
    """Messages a second."""
    return f"{value:,.1f}" if 0 < value < 100 else f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def duration(milliseconds: float) -> str:
    """A span of time."""
    seconds = milliseconds / 1000
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{milliseconds:,.0f} ms"


def moment(at_ms: int) -> Markup:
    """A time; the browser shows it in the viewer's zone."""
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        at_ms = 0
    if at_ms <= 0:
        return Markup('<span class="muted">-</span>')
    text = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}">{} UTC</time>').format(text, at.strftime("%Y-%m-%d %H:%M:%S"))


def _shown(value: Any) -> Any:
    """Text that others wrote: control characters and marks of direction show as escapes."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable_lines(value)
    return "" if value is None else value


def pretty(value: Any) -> str:
    """A result as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def environment() -> Environment:
    """The templates' environment: everything is escaped, unknown names are errors."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(number=number, counted=counted_noun, rate=rate, size=size)
    made.filters.update(duration=duration, moment=moment, pretty=pretty)
    made.globals.update(link=link, page_link=page_link, link_query=link_query)
    return made
