"""The quota of an account: the messages and bytes that it may send and receive in a second, as values and as
text."""

from __future__ import annotations

import re
from typing import Final

from attrs import frozen

_NUMBER: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([kmg]?)")


@frozen
class Quota:
    """Messages and bytes a second of an account, sent and received; 0: no limit."""

    produce_messages: float = 0.0
    produce_bytes: float = 0.0
    consume_messages: float = 0.0
    consume_bytes: float = 0.0

    @property
    def limits_produce(self) -> bool:
        """True if sends are limited."""
        return bool(self.produce_messages or self.produce_bytes)


QUOTA_NAMES: Final = ("produceMessages", "produceBytes", "consumeMessages", "consumeBytes")
_QUOTA_FIELDS: Final = ("produce_messages", "produce_bytes", "consume_messages", "consume_bytes")
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_quota(text: str) -> Quota | None:
    """Read ``produceMessages=1000,consumeBytes=10m``, figures a second; None for an empty text. Raises
    ValueError."""
    given: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, mark, number = (word.strip() for word in part.partition("="))
        match = _NUMBER.fullmatch(number.lower())
        if not mark or name not in QUOTA_NAMES or name in given or match is None or not float(match[1]):
            names = ", ".join(QUOTA_NAMES)
            raise ValueError(
                f"name=number a second, above 0, such as produceBytes=10m, of each of {names} once"
            )
        given[name] = float(match[1]) * _UNITS[match[2]]
    if not given:
        return None
    return Quota(
        **{
            field: given[name]
            for name, field in zip(QUOTA_NAMES, _QUOTA_FIELDS, strict=True)
            if name in given
        }
    )
