"""Epochs: the offset in a broker's log where each master's time began, and the offset up to which two logs
are the same."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter
from typing import Final

FILE: Final = "config/controller.json"
"""In the store's folder: the file with the epochs of a broker that belongs to a set with controllers."""

Epochs = tuple[tuple[int, int], ...]
"""(epoch, physical offset at which it begins), ascending in both. A first epoch UNKNOWN stands for dropped
earlier epochs (`since`): it equals no other epoch."""

UNKNOWN: Final = 0
"""The first epoch."""


def begun(epochs: Epochs, epoch: int, start: int) -> Epochs:
    """The epochs of a log whose next record, at `start`, is of `epoch`; an epoch without a record is
    dropped."""
    return (*(one for one in epochs if one[1] < start), (epoch, start))


def since(epochs: Epochs, start: int) -> Epochs:
    """The epochs that a log from `start` on needs: the epoch of its first byte, or of the byte before, and
    all later epochs. A log that shares none of these epochs shares no remaining byte."""
    first = bisect_left(epochs, start, key=itemgetter(1)) - 1
    if first < 1:
        return epochs
    return ((UNKNOWN, epochs[first - 1][1]), *epochs[first:])


def common_end(mine: Epochs, my_end: int, others: Epochs, other_end: int) -> int | None:
    """The physical offset up to which two logs are equal; None when they share no known epoch.

    An epoch has a single master, which never cuts its log within the epoch: two logs are equal where both
    have the epoch.
    """
    last = _last_shared(mine, others)
    if last is None:
        return None
    return min(_end(mine, last[0], my_end), _end(others, last[1], other_end))


def before_all(mine: Epochs, others: Epochs) -> int | None:
    """Same as `common_end`, for logs that share no epoch. An epoch without a record in a log is not in the
    log's list, and the part before the first epoch of both logs was the same when they came to the set. None
    when earlier epochs were dropped."""
    if UNKNOWN in (mine[0][0], others[0][0]):
        return None
    return min(mine[0][1], others[0][1])


def joined(mine: Epochs, others: Epochs) -> Epochs:
    """The epochs of a log that continues with another log from their common end. It may begin before the
    other log, and knows its own epochs from its own start on."""
    last = _last_shared(mine, others)
    return others if last is None else mine[: last[0]] + others[last[1] :]


def _last_shared(mine: Epochs, others: Epochs) -> tuple[int, int] | None:
    """The indexes, in both lists, of the last epoch that both have."""
    places = {one: number for number, one in enumerate(others)}
    for number in range(len(mine) - 1, -1, -1):
        if mine[number][0] != UNKNOWN and mine[number] in places:
            return number, places[mine[number]]
    return None


def _end(epochs: Epochs, number: int, end: int) -> int:
    return min(end, epochs[number + 1][1]) if number + 1 < len(epochs) else end


def as_epochs(pairs: Iterable[tuple[int, int]]) -> Epochs:
    """Epochs from a file or a message. Raises ValueError unless they ascend."""
    epochs = tuple((int(epoch), int(start)) for epoch, start in pairs)
    if any(one[0] >= two[0] or one[1] >= two[1] for one, two in itertools.pairwise(epochs)):
        raise ValueError(f"epochs do not ascend: {epochs}")
    return epochs
