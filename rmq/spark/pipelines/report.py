"""Reports as a single HTML file: tables and charts, drawn as SVG in it; and the windows of time for the
counts. Nothing is loaded from other servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from attrs import frozen
from pyspark.sql import Column
from pyspark.sql import functions as F

from rmq.files import replace_file

WIDTH: Final = 860
HEIGHT: Final = 230
LEFT: Final = 70
RIGHT: Final = 12
TOP: Final = 12
BOTTOM: Final = 34
_SECONDS: Final = (1, 10, 60, 300, 900, 3600, 6 * 3600, 24 * 3600)
WINDOWS_MS: Final = tuple(seconds * 1000 for seconds in (*_SECONDS, 7 * 24 * 3600))
"""Lengths of windows: the first one that gives at most MOST windows is chosen."""
MOST: Final = 240
_COLOURS: Final = ("#2f6fde", "#e0802b", "#2a9d6f", "#c0392b", "#7d5bbe", "#8a8a8a")
_STYLE: Final = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}h3{font-size:1em;margin-bottom:.2em}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92em}
th,td{padding:.2em .8em;text-align:left;border-bottom:1px solid #8884}
td.n,th.n{text-align:right}
svg{width:100%;height:auto;font:12px system-ui,sans-serif;fill:currentColor}
.grid{stroke:#8884}.note{opacity:.7}
"""


@frozen
class Line:
    """A line of a chart: (time in ms since 1970, value), ascending."""

    name: str
    points: Sequence[tuple[int, float]]


def page(title: str, parts: Iterable[str]) -> str:
    """The whole file; `parts` are HTML from the functions below."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def write_page(path: Path, title: str, parts: Iterable[str]) -> None:
    """Write the page, all or nothing. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, page(title, parts).encode())


def heading(text: str, note: str = "") -> str:
    """The title of a section, and a line on its content."""
    more = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<h2>{escape(text)}</h2>{more}"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table; the columns are those of the first row."""
    if not rows:
        return '<p class="note">nothing</p>'
    names = list(rows[0])
    numeric = {name for name in names if any(isinstance(row[name], (int, float)) for row in rows)}
    cells = [[_cell(_text(row[name]), name in numeric) for name in names] for row in rows]
    head = "".join(_cell(name, name in numeric, "th") for name in names)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    return f"<table><tr>{head}</tr>{body}</table>"


def line_chart(title: str, lines: Sequence[Line], unit: str) -> str:
    """Lines over time (UTC), from 0 up."""
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    begin, end = min(at for at, _ in points), max(at for at, _ in points)
    top = _round_up(max(value for _, value in points))

    def place(at: int, value: float) -> str:
        x = LEFT + (at - begin) / max(end - begin, 1) * (WIDTH - LEFT - RIGHT)
        return f"{x:.1f},{_y(value, top):.1f}"

    drawn = [_grid(top, unit), *(_time_label(at, begin, end) for at in (begin, (begin + end) // 2, end))]
    for line, colour in zip(lines, _COLOURS, strict=False):
        path = " ".join(place(*point) for point in line.points)
        drawn.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.7" points="{path}"/>')
        drawn += [_dot(place(*point), colour) for point in line.points[:1] if len(line.points) == 1]
    return _figure(title, drawn, [line.name for line in lines])


def bar_chart(title: str, bars: Sequence[tuple[str, float]], unit: str) -> str:
    """A bar for each (name, value), side by side."""
    if not bars:
        return ""
    top = _round_up(max(value for _, value in bars))
    step = (WIDTH - LEFT - RIGHT) / len(bars)
    drawn = [_grid(top, unit)]
    for number, (name, value) in enumerate(bars):
        x, y = LEFT + number * step, _y(value, top)
        height = HEIGHT - BOTTOM - y
        drawn.append(
            f'<rect x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" height="{height:.1f}"'
            f' fill="{_COLOURS[0]}"><title>{escape(name)}: {_text(value)}</title></rect>'
        )
        if number % (len(bars) // 16 + 1) == 0:
            label = escape(name if len(name) < 14 else name[:12] + "…")
            drawn.append(
                f'<text x="{x + step / 2:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{label}</text>'
            )
    return _figure(title, drawn, [])


# --- parts of a chart ---


def _figure(title: str, drawn: Iterable[str], names: Sequence[str]) -> str:
    shown: list[str] = []
    x = LEFT + 8
    for name, colour in zip(names, _COLOURS, strict=False):
        shown.append(f'<text x="{x}" y="{TOP + 10}" style="fill:{colour}">{escape(name)}</text>')
        x += max(90, 8 * len(name) + 16)
    view = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
    return f"<h3>{escape(title)}</h3>{view}{''.join(drawn)}{''.join(shown)}</svg>"


def _grid(top: float, unit: str) -> str:
    right = WIDTH - RIGHT
    lines = [f'<text x="{right}" y="{TOP + 14}" text-anchor="end">{escape(unit)}</text>']
    for part in range(5):
        value = top * part / 4
        y = _y(value, top)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_text(value)}</text>')
    return "".join(lines)


def _time_label(at: int, begin: int, end: int) -> str:
    x = LEFT + (at - begin) / max(end - begin, 1) * (WIDTH - LEFT - RIGHT)
    anchor = "start" if at == begin else "end" if at == end else "middle"
    text = datetime.fromtimestamp(at / 1000, UTC).strftime("%m-%d %H:%M:%S")
    return f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="{anchor}">{text}</text>'


def _dot(place: str, colour: str) -> str:
    x, y = place.split(",")
    return f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>'


def _y(value: float, top: float) -> float:
    return TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM) if value > 0 else HEIGHT - BOTTOM


def _round_up(value: float) -> float:
    """The next of 1, 2, 4 and 8 times a power of ten; 1 for a chart of nothing but zeros."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 8 < value:
        power *= 10
    while power > 1e-6 and power >= value * 10:
        power /= 10
    return next(power * step for step in (1, 2, 4, 8, 10) if power * step >= value)


def _cell(text: str, numeric: bool, tag: str = "td") -> str:
    kind = ' class="n"' if numeric else ""
    return f"<{tag}{kind}>{escape(text)}</{tag}>"


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


# --- windows of time for tables and charts ---


def window_for(length_ms: int) -> int:
    """The length of window, in ms, for a chart over this time."""
    return next((window for window in WINDOWS_MS if length_ms <= window * MOST), WINDOWS_MS[-1])


def begin_of(at: str, window_ms: int) -> Column:
    """The start, as a timestamp `begin`, of the window of a column in ms since 1970."""
    return F.timestamp_millis(F.col(at) - F.pmod(F.col(at), F.lit(window_ms))).alias("begin")
