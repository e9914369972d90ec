"""The machine's wall clock, read here and nowhere else: cores take `now_ms` as an argument."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Milliseconds since 1970, as stamped on messages. It may be set, back too: no deadline goes by it."""
    return time.time_ns() // 1_000_000
