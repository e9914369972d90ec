"""Values as people type them."""

from __future__ import annotations

import click
import pytest

from rmq.cli.values import as_perm, pairs
from rmq.operate.values import PERMS, duration_ms, perm_text, position, size_bytes

PERM = click.Argument(["perm"])


@pytest.mark.parametrize(
    ("text", "ms"), [("250ms", 250), ("10s", 10_000), ("1.5h", 5_400_000), ("1d12h", 129_600_000), ("0s", 0)]
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "10", "s", "10 s", "-5s", "10s!"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        duration_ms(text)


def test_places_in_time() -> None:
    assert [position(text, 100_000) for text in ("earliest", "end", "-10s", "1700000000000")] == [
        "first",
        "last",
        90_000,
        1_700_000_000_000,
    ]
    assert position("2026-11-21T10:00+00:00", 0) == 1_795_255_200_000
    for text in ("yesterday", "-soon", "12"):
        with pytest.raises(ValueError, match="is no"):
            position(text, 0)


def test_permissions_are_written_as_they_are_read() -> None:
    context = click.Context(click.Command("perm"))
    assert {text: as_perm(context, PERM, text) for text in PERMS} == {"rw": 6, "r": 4, "w": 2, "none": 0}
    assert [as_perm(context, PERM, text) for text in ("6", "4", "2", "0", None)] == [6, 4, 2, 0, None]
    assert [perm_text(number) for number in PERMS.values()] == list(PERMS)
    with pytest.raises(click.BadParameter):
        as_perm(context, PERM, "7")


def test_pairs_name_what_is_none() -> None:
    assert pairs(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for text in ("a", "=1", ""):
        with pytest.raises(click.BadParameter, match="is not NAME=VALUE"):
            pairs([text], "NAME=VALUE")


@pytest.mark.parametrize(
    ("text", "size"),
    [("1048576", 1 << 20), ("512m", 512 << 20), ("10g", 10 << 30), ("1.5GiB", 3 << 29), ("2 TB", 2 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "g", "-1", "10 apples", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        size_bytes(text)
