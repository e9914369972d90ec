"""Settings with secret values, by their names: brokers of RocketMQ 5.x send such values with the others."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "(not shown)"
_SECRET: Final = re.compile(r"secret|password|credential|initAuthenticationUser", re.IGNORECASE)
_PLACE: Final = re.compile(r"(file|path)$", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """True for the name of a setting whose value is a secret; the path of a file with a secret is none."""
    return _SECRET.search(name) is not None and _PLACE.search(name) is None


def shown(name: str, value: str) -> str:
    """The value of a setting for people: `HIDDEN` for a secret."""
    return HIDDEN if value and is_secret(name) else value
