"""Checks of a file's values: each error names the place in the file, the value, and the expected form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rmq.errors import ConfigError

_DURATION: Final = re.compile(r"([0-9]{1,6})\s*(ms|s|m|h|d)")
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def mapping(place: str, tree: object, known: Sequence[str] | None = None) -> Mapping[str, Any]:
    """The tree, if it is a mapping with `known` names only. Raises ConfigError."""
    if not isinstance(tree, Mapping):
        raise ConfigError(place, "" if tree is None else tree, "names with values")
    if known is not None and (unknown := [str(name) for name in tree if name not in known]):
        raise ConfigError(f"{place}.{unknown[0]}", "***", f"one of {', '.join(known)}")
    return tree


def texts(place: str, tree: object) -> dict[str, str]:
    """Options in Spark's form: numbers and booleans as texts, nested values as JSON. Raises ConfigError."""
    found = {}
    for name, value in mapping(place, tree).items():
        if value is None:
            raise ConfigError(f"{place}.{name}", "", "a value")
        found[str(name)] = value if isinstance(value, str) else json.dumps(value)
    return found


def text(place: str, value: object, expected: str, *, default: str | None = None) -> str:
    """A text that is not empty; None becomes `default`. Raises ConfigError."""
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(place, "" if value is None else value, expected)
    return value


def choice(place: str, value: object, known: Sequence[str], *, default: str = "") -> str:
    """One of the known words; None becomes `default`. Raises ConfigError."""
    found = default if value is None and default else value
    if found not in known:
        raise ConfigError(place, "" if found is None else found, f"one of {', '.join(known)}")
    return str(found)


def names(place: str, value: object, expected: str) -> tuple[str, ...]:
    """A list of texts; a single text is a list of one, None an empty one. Raises ConfigError."""
    if value is None:
        return ()
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, Sequence) or not all(isinstance(one, str) and one.strip() for one in found):
        raise ConfigError(place, value, expected)
    return tuple(found)


def truth(place: str, value: object, *, default: bool = False) -> bool:
    """true or false; None becomes `default`. Raises ConfigError."""
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigError(place, value, "true or false")
    return value


def count(place: str, value: object, *, default: int) -> int:
    """A whole number from 0 on; None becomes `default`. Raises ConfigError."""
    if value is None:
        return default
    if type(value) is not int or value < 0:
        raise ConfigError(place, value, "a whole number, 0 or more")
    return value


def milliseconds(place: str, value: object, *, default: str) -> int:
    """A duration in ms; None becomes `default`. Raises ConfigError."""
    match = _DURATION.fullmatch(str(default if value is None else value))
    if match is None:
        raise ConfigError(place, value, "a time such as 500ms, 10s, 5m or 1h")
    return int(match[1]) * _UNITS_MS[match[2]]


@contextmanager
def placed(place: str) -> Iterator[None]:
    """Let errors of options name their place in the file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.key}", error.value, error.expected) from None
