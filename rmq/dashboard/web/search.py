"""Search: a list that is read in parts, since few of many messages fit. The page shows the first part at once
and asks for the others."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen


@frozen
class Search:
    """A list as far as it is read. `shown` counts its rows in all parts. `following` is the query of the next
    page; None after the last one. `part` is the query of the next part of this page; None when the page has
    all its rows, or nothing is left."""

    shown: int
    following: dict[str, str] | None
    part: dict[str, str] | None


def search_of(query: Mapping[str, str], found: int, cursor: str, rows: int) -> Search:
    """The list after a part with `found` rows. `query` is that of the part: its `rest` counts the rows that
    the page still has room for, its `count` those of a page, `rows` if not given."""
    size = _number(query.get("count", ""), rows)
    rest = _number(query.get("rest", ""), size)
    shown = max(0, size - rest) + found
    following = {name: value for name, value in query.items() if name != "rest"} | {"cursor": cursor}
    if not cursor:
        return Search(shown, None, None)
    return Search(shown, following, following | {"rest": str(rest - found)} if found < rest else None)


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else otherwise
