"""Values in the form in which users type them: durations, times, permissions, KEY=VALUE, and secrets in files
of their own.

The functions `as_...` are click's callbacks of options and arguments.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

import click

from rmq.clock import wall_clock_ms
from rmq.operate.values import PERMS, Position, duration_ms, position, size_bytes


def as_duration(context: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    """An option's duration, in ms."""
    try:
        return None if given is None else duration_ms(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def as_limit_duration(context: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    """An option's duration in ms, at least 1; 0 for ``none``."""
    limit = 0 if given == "none" else as_duration(context, parameter, given)
    if limit == 0 and given != "none":
        raise click.BadParameter("expected at least 1ms, or none for no limit")
    return limit


def as_limit_size(context: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    """An option's size in bytes, at least 1; 0 for ``none``."""
    try:
        limit = None if given is None else 0 if given == "none" else size_bytes(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if limit == 0 and given != "none":
        raise click.BadParameter("at least one byte, or none for no limit")
    return limit


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
    raise click.BadParameter("expected a time such as -2h or 2026-11-21T10:00", param_hint=option)


def as_perm(context: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    """``rw``, ``r``, ``w``, ``none`` or RocketMQ's number as a permission."""
    words = PERMS | {str(number): number for number in PERMS.values()}
    if given is None:
        return None
    if given not in words:
        raise click.BadParameter("rw, r, w or none")
    return words[given]


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
