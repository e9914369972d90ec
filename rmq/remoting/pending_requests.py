"""Which pending requests of a connection have timed out. Pure."""

from __future__ import annotations

from typing import Any, Final

PendingRequest = tuple[Any, float, int, float, int]
"""Waiter, deadline, code, timeout, and where the frame ends in all that was queued."""

LATE_SECONDS: Final = 0.1
"""A timer that wakes so long after its time tells of a loop that was busy with something else."""
SPARED_SECONDS: Final = 3.0


def timed_out(
    pending: dict[int, PendingRequest], now: float, late: float, spared: set[int]
) -> tuple[list[int], float]:
    """The requests whose time is over, and the earliest deadline of the others.

    A loop that was busy has perhaps not even written the request, nor read the answer that lies there: fifty
    thousand sends begun at once keep it so for seconds. So when the timer itself wakes `late`, requests get
    their time again, at most `SPARED_SECONDS` and once: those that had it are `spared`.
    """
    over, earliest = list[int](), float("inf")
    is_late = late > LATE_SECONDS
    for opaque, (waiter, deadline, code, seconds, end) in pending.items():
        if deadline <= now:
            if not is_late or opaque in spared:
                over.append(opaque)
                continue
            spared.add(opaque)
            deadline = now + min(seconds, SPARED_SECONDS)
            pending[opaque] = (waiter, deadline, code, seconds, end)
        earliest = min(earliest, deadline)
    spared.intersection_update(pending)
    return over, earliest
