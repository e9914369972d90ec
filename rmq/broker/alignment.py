"""Whether a slave's log goes on with its master's, and what is to be done when it does not.

A slave cuts no more by itself than the end of its log that nobody was told is stored. Below that it gives
nothing up, whatever its master has or lacks: a master that lost its disk, came back with an old one, or is
another one altogether is `Diverged`, and an operator decides.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from rmq.errors import RmqError

if TYPE_CHECKING:
    from rmq.broker.ha import MasterLog
    from rmq.store.store import Store

Search = Generator[int, bool, "int | None"]
"""Yields physical offsets; is sent whether the master has the record that we have there."""


class Diverged(RmqError):
    """A slave's log does not go on with its master's; the text says why."""


class Expired(RmqError):
    """The master has deleted what comes after a slave's log; the text has the offsets."""


def begin(store: Store, master: MasterLog, log_id: str) -> None:
    """Whether it makes sense to compare records at all. `log_id` is our log's, empty when it has none.

    Raises Diverged, Expired.
    """
    if log_id and master.log_id and log_id != master.log_id:
        raise Diverged(
            f"the master's log ({master.log_id}, {master.start} to {master.end}) is another one than ours"
            f" ({log_id}, {store.min_physical_offset} to {store.max_physical_offset}): it lost its disk, or"
            " it is not our master"
        )
    size = store.config.mapped_file_size_commit_log
    if master.file_size and master.file_size != size:
        raise Diverged(
            f"the master's log files have {master.file_size} bytes, ours {size}: mappedFileSizeCommitLog must"
            " be the same"
        )
    if store.max_physical_offset < master.start:
        raise Expired(
            f"our log ends at {store.max_physical_offset}, the master's begins at {master.start}: what is"
            " between has expired there"
        )


def check_cut(store: Store, master: MasterLog, cut: int, kept: int) -> None:
    """Whether our log may be cut at `cut`. `kept` is up to where somebody may have been told that messages
    are stored. Raises Diverged.
    """
    if cut < kept:
        raise Diverged(
            f"our log, which reaches {store.max_physical_offset}, is the same as the master's, which reaches"
            f" {master.end}, only up to {cut}, but messages up to {kept} may have been acknowledged"
        )


def find_cut(store: Store, theirs: int) -> Search:
    """Where our log must end so that the master's, which reaches `theirs`, can follow; None when it can now.

    Logs that differ somewhere differ in all that follows, so the last common record is found by halving.
    """
    reach = store.max_physical_offset
    last = last_record(store, min(reach, theirs))
    if last is not None and (yield last[0]):
        return None if reach <= theirs else last[1]
    cut = low = store.min_physical_offset
    high = 0 if last is None else last[0]  # where the first record starts that is known to differ
    while low < high:
        # Every record that ends at `low` or before is known to be common.
        limit = (low + high + 1) // 2
        middle = last_record(store, limit)
        if middle is None or middle[0] < cut:
            low = limit
        elif (yield middle[0]):
            low, cut = limit, middle[1]
        else:
            high = middle[0]
    return cut


def last_record(store: Store, limit: int) -> tuple[int, int] | None:
    """Start and end of the last record that a queue knows and that ends at or before `limit`."""
    found = None
    for topic, queue_id in store.queues():
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        while low < high:
            middle = (low + high) // 2
            unit = store.unit(topic, queue_id, middle)
            if unit is not None and unit[0] + unit[1] <= limit:
                low = middle + 1
                if found is None or unit[0] > found[0]:
                    found = unit[0], unit[0] + unit[1]
            else:
                high = middle
    return found
