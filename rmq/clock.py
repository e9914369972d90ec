"""The machine's clocks, read here and nowhere else: cores take `now_ms` or `now` as an argument."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Milliseconds since 1970, as stamped on messages. It may be set, back too: no deadline goes by it."""
    return time.time_ns() // 1_000_000


_SINCE_START = getattr(time, "CLOCK_BOOTTIME", None)


def lease_clock() -> float:
    """Seconds of a clock that nobody sets and that goes on while the machine sleeps, where the system has one
    (Linux: CLOCK_BOOTTIME); elsewhere one that nobody sets. Leases count by it."""
    return time.monotonic() if _SINCE_START is None else time.clock_gettime(_SINCE_START)
