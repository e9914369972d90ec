"""Epochs: where in a broker's log each master's time began, and up to where two logs are the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

FILE: Final = "config/controller.json"
"""In the store's folder: the file of a broker that was of a controlled set, which says where they begin."""

Epochs = tuple[tuple[int, int], ...]
"""(epoch, physical offset at which it begins), ascending in both."""


def begun(epochs: Epochs, epoch: int, start: int) -> Epochs:
    """The epochs of a log whose next record, at `start`, is of `epoch`; one without any record goes."""
    return (*(one for one in epochs if one[1] < start), (epoch, start))


def common_end(mine: Epochs, my_end: int, others: Epochs, other_end: int) -> int | None:
    """Up to where two logs are the same; None when they share no epoch, so that nothing is known.

    An epoch has one master, which never cuts its log within it: what two logs have of it is the same.
    """
    for number in range(len(mine) - 1, -1, -1):
        if mine[number] in others:
            other = others.index(mine[number])
            return min(_end(mine, number, my_end), _end(others, other, other_end))
    return None


def _end(epochs: Epochs, number: int, end: int) -> int:
    return min(end, epochs[number + 1][1]) if number + 1 < len(epochs) else end


def as_epochs(pairs: Iterable[tuple[int, int]]) -> Epochs:
    """Epochs from a file or a message. Raises ValueError unless they ascend."""
    epochs = tuple((int(epoch), int(start)) for epoch, start in pairs)
    if any(one[0] >= two[0] or one[1] >= two[1] for one, two in itertools.pairwise(epochs)):
        raise ValueError(f"epochs do not ascend: {epochs}")
    return epochs
