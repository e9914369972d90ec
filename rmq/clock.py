"""The machine's clocks, read only in this module: cores take `now_ms` or `now` as an argument."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Milliseconds since 1970, for the stamps of messages. The clock can be set, also back, so no deadline
    uses this time."""
    return time.time_ns() // 1_000_000


_SINCE_START = getattr(time, "CLOCK_BOOTTIME", None)


def lease_clock() -> float:
    """Seconds of a clock that nobody sets and that goes on while the machine sleeps, where the system has
    such a clock (Linux: CLOCK_BOOTTIME); otherwise the monotonic clock. For leases."""
    return time.monotonic() if _SINCE_START is None else time.clock_gettime(_SINCE_START)
