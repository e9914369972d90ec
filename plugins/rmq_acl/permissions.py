"""Permissions as RocketMQ writes them: DENY, PUB, SUB, PUB|SUB. Pinned by tests/golden/acl_rules.json."""

from __future__ import annotations

from typing import Final

DENY: Final = 1
ANY: Final = 2
"""A permission to ask for, never to give: either of PUB and SUB is enough."""
PUB: Final = 4
SUB: Final = 8

TEXTS: Final = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}
NAMES: Final = {DENY: "DENY", ANY: "PUB or SUB", PUB: "PUB", SUB: "SUB", PUB | SUB: "PUB|SUB"}


def parse(text: str | None) -> int:
    """The permission of a text; an empty text means DENY. Raises ValueError for an unclear text."""
    if not text:
        return DENY
    try:
        return TEXTS[text.strip()]
    except KeyError:
        raise ValueError(f"one of {', '.join(TEXTS)}, not {text[:40]!r}") from None


def allows(needed: int, owned: int) -> bool:
    """True if the permission `owned` includes `needed`."""
    if owned & DENY:
        return False
    if needed & ANY:
        return owned & (PUB | SUB) != 0
    return needed & owned != 0
