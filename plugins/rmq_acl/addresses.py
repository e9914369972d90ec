"""White addresses: the addresses that a text of plain_acl.yml names.

    192.168.0.7   192.168.0.*   192.168.1-5.*   10.0.0.{1,3}   10.0.0.1,10.0.0.9   *   2001:db8::1-ff

Each part of an address may be a number, `*`, a range or a list in braces; commas separate addresses. Parts of
IPv6 are hexadecimal. Pinned by tests/golden/acl_rules.json, where it does not say that Java looks no further
than the first range: here every part counts.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from attrs import field, frozen

EVERYWHERE: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})

_V4: Final = (".", 4, 255, 10)
_V6: Final = (":", 8, 0xFFFF, 16)
_OUTSIDE_BRACES: Final = re.compile(r",(?![^{]*\})")

Part = tuple[tuple[int, int], ...]
"""The numbers that one part of an address may have, as (first, last)."""


@frozen
class WhiteAddress:
    """The addresses of a text; an empty text has none."""

    text: str = ""
    is_everywhere: bool = False
    choices: tuple[tuple[Part, ...], ...] = field(default=(), repr=False)

    def __contains__(self, host: str) -> bool:
        """True if an address, without its port, matches."""
        if self.is_everywhere:
            return True
        numbers = _numbers(host) if self.choices else None
        return numbers is not None and any(_fits(choice, numbers) for choice in self.choices)


def parse(text: str | None) -> WhiteAddress:
    """Read a text. Raises ValueError with the expected form."""
    text = (text or "").strip()
    if text in EVERYWHERE:
        return WhiteAddress(text, is_everywhere=True)
    pieces = _OUTSIDE_BRACES.split(text) if text else []
    return WhiteAddress(text, choices=tuple(_choice(piece.strip()) for piece in pieces))


def host_of(address: str) -> str:
    """The address without its port and brackets."""
    host = address.rpartition(":")[0] or address
    return host.strip("[]")


@lru_cache(maxsize=1024)
def _numbers(host: str) -> tuple[int, ...] | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return tuple(int(part, 16) for part in address.exploded.split(":"))
        address = address.ipv4_mapped  # a socket for both kinds shows IPv4 in this form
    return tuple(address.packed)


def _fits(choice: tuple[Part, ...], numbers: tuple[int, ...]) -> bool:
    return len(choice) == len(numbers) and all(
        any(low <= number <= high for low, high in part) for part, number in zip(choice, numbers, strict=True)
    )


def _choice(text: str) -> tuple[Part, ...]:
    form = _V6 if ":" in text else _V4
    parts = _expanded(text) if form is _V6 else text.split(".")
    if len(parts) != form[1]:
        raise ValueError(f"an address of {form[1]} parts, not {text[:60]!r}")
    return tuple(tuple(_ranges(part.strip(), form[2], form[3], text)) for part in parts)


def _expanded(text: str) -> list[str]:
    """The eight parts of an IPv6 text, `::` filled up."""
    head, mark, tail = text.partition("::")
    left, right = (side.split(":") if side else [] for side in (head, tail))
    return left + ["0"] * (8 - len(left) - len(right)) * bool(mark) + right


def _ranges(part: str, most: int, base: int, whole: str) -> Iterator[tuple[int, int]]:
    inner = part[1:-1] if part.startswith("{") and part.endswith("}") else part
    for piece in inner.split(",") if inner is not part else [inner]:
        low, dash, high = (
            ("0", "-", f"{most:x}" if base == 16 else str(most)) if piece == "*" else _ends(piece)
        )
        try:
            first = int(low, base)
            last = int(high, base) if dash else first
        except ValueError:
            raise ValueError(
                f"a number, a range, {{a,b}} or * instead of {piece[:20]!r} in {whole[:60]!r}"
            ) from None
        if not 0 <= first <= last <= most:
            raise ValueError(f"numbers from 0 to {most}, smaller first, in {whole[:60]!r}")
        yield first, last


def _ends(piece: str) -> tuple[str, str, str]:
    return piece.strip().partition("-")
