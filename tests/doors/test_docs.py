"""docs/design/doors.md against the interface that it describes."""

from __future__ import annotations

import pathlib

from rmq import doors

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "design" / "doors.md"
OF_THE_BROKER = {"fault"}
"""For the broker that opens a door, not for its authors."""


def names_of(cls: type) -> set[str]:
    """The public functions and fields of a class."""
    names = {*vars(cls), *vars(cls).get("__annotations__", {})}
    return {name for name in names if not name.startswith("_")}


def test_the_page_names_all_that_a_door_may_use() -> None:
    text = PAGE.read_text()
    for cls in (doors.DoorHost, doors.DoorStream, doors.Door):
        missing = {
            name
            for name in names_of(cls) - OF_THE_BROKER
            if not any(f"{before}{name}{after}" in text for before in "`." for after in "`(=")
            and f"{name}=" not in text
        }
        assert not missing, f"{PAGE.name} says nothing of {cls.__name__}'s {sorted(missing)}"
