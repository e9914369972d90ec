"""Values as people type them: durations, times, permissions, KEY=VALUE, and secrets in files of their own.

The functions `as_...` are click's callbacks of options and arguments.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

import click

from rmq.clock import wall_clock_ms
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
"""Where to begin in a queue: its oldest message, its end, or a time in ms since 1970."""


def duration_ms(text: str) -> int:
    """``250ms``, ``10s``, ``1.5h``, ``1d12h`` in ms. Raises ValueError."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no duration; write 250ms, 10s, 5m, 2h, 1d or 1h30m")
    return round(sum(float(number) * _UNITS[unit] for number, unit in parts))


def position(text: str, now_ms: int) -> Position:
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


def as_position(context: click.Context, parameter: click.Parameter, given: str | None) -> Position | None:
    """An option's place in time, see `position`."""
    try:
        return None if given is None else position(given, wall_clock_ms())
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def time_of(position: Position, option: str) -> int:
    """The time that an option names, in ms since 1970. Raises click's usage error for earliest and latest."""
    if isinstance(position, int):
        return position
    raise click.BadParameter("a time is wanted, such as -2h or 2026-11-21T10:00", param_hint=option)


PERMS: Final = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE, "none": 0}
"""What a topic allows, as people write it -> RocketMQ's number."""


def as_perm(context: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    """``rw``, ``r``, ``w``, ``none`` or RocketMQ's number as a permission."""
    words = PERMS | {str(number): number for number in PERMS.values()}
    if given is None:
        return None
    if given not in words:
        raise click.BadParameter("rw, r, w or none")
    return words[given]


def perm_text(perm: int) -> str:
    """A permission as ``rw``, ``r``, ``w`` or ``none``."""
    return ("r" if perm & PERM_READ else "") + ("w" if perm & PERM_WRITE else "") or "none"


def pairs(given: Iterable[str], form: str = "KEY=VALUE", *, option: str | None = None) -> dict[str, str]:
    """Texts of this form as a dict. Raises click's usage error, which names the `option`."""
    parts = [text.partition("=") for text in given]
    for name, mark, _ in parts:
        if not mark or not name:
            raise click.BadParameter(f"{name!r} is not {form}", param_hint=option)
    return {name: value for name, _, value in parts}


def read_secret(path: pathlib.Path, option: str = "--secret-key-file") -> str:
    """The secret in a file of its own. Raises click's usage error."""
    try:
        secret = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"cannot read {path}: {error}", param_hint=option) from None
    if not secret:
        raise click.BadParameter(f"{path} is empty", param_hint=option)
    return secret
