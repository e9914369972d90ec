"""Times and durations as people type them."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final, Literal

import click

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WORDS: Final[dict[str, Literal["first", "last"]]] = {
    "first": "first",
    "earliest": "first",
    "last": "last",
    "latest": "last",
    "end": "last",
}

Place = Literal["first", "last"] | int
"""Where to begin in a queue: its oldest message, its end, or a time in ms since 1970."""


def duration_ms(text: str) -> int:
    """``250ms``, ``10s``, ``1.5h``, ``1d12h`` in ms. Raises ValueError."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no duration; write 250ms, 10s, 5m, 2h, 1d or 1h30m")
    return round(sum(float(number) * _UNITS[unit] for number, unit in parts))


def place(text: str, now_ms: int) -> Place:
    """``first``/``earliest``, ``last``/``latest``/``end``, ``-10m`` (that long ago), ms since 1970, or a date
    and time as ISO 8601 has it, local where it names no zone. Raises ValueError."""
    if text in _WORDS:
        return _WORDS[text]
    if text.startswith("-"):
        return now_ms - duration_ms(text[1:])
    if text.isascii() and text.isdigit() and len(text) > 8:
        return int(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise ValueError(
            f"{text!r} is no place in time; write earliest, latest, -10m, 2026-11-21T10:00 or ms since 1970"
        ) from None


def as_duration(context: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    """An option's duration, in ms."""
    try:
        return None if given is None else duration_ms(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def as_place(context: click.Context, parameter: click.Parameter, given: str | None) -> Place | None:
    """An option's place in time, see `place`."""
    try:
        return None if given is None else place(given, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def clock_text(ms: int) -> str:
    """A time in ms since 1970 as local ``2026-11-21 10:00:00.000``; ``-`` for none."""
    if ms <= 0:
        return "-"
    return datetime.fromtimestamp(ms / 1000).isoformat(" ", "milliseconds")
