"""Values in the form in which users write them: durations, times and permissions."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, Literal

from rmq.protocol.codes import PERM_READ, PERM_WRITE

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WORDS: Final[dict[str, Literal["first", "last"]]] = {
    "first": "first",
    "earliest": "first",
    "last": "last",
    "latest": "last",
    "end": "last",
}

Position = Literal["first", "last"] | int
"""A start in a queue: its oldest message, its end, or a time in ms since 1970."""


def duration_ms(text: str) -> int:
    """``250ms``, ``10s``, ``1.5h``, ``1d12h`` in ms. Raises ValueError."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no duration; write 250ms, 10s, 5m, 2h, 1d or 1h30m")
    return round(sum(float(number) * _UNITS[unit] for number, unit in parts))


_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size_bytes(text: str) -> int:
    """``1048576``, ``512m``, ``10g``, ``1.5t``, also with ``b`` or ``ib``, in bytes. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower(), re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is no size; write 1048576, 512m, 10g or 1.5t")
    return round(float(match[1]) * _SIZES[match[2]])


def position(text: str, now_ms: int) -> Position:
    """``first``/``earliest``, ``last``/``latest``/``end``, ``-10m`` (that long ago), ms since 1970, or a date
    and time as in ISO 8601, local without a time zone. Raises ValueError."""
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


PERMS: Final = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE, "none": 0}
"""Permissions of a topic, as users write them -> RocketMQ's number."""


def perm_text(perm: int) -> str:
    """A permission as ``rw``, ``r``, ``w`` or ``none``."""
    return ("r" if perm & PERM_READ else "") + ("w" if perm & PERM_WRITE else "") or "none"
