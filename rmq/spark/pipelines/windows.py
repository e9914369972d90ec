"""Windows of time for tables and charts."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

_SECONDS: Final = (1, 10, 60, 300, 900, 3600, 6 * 3600, 24 * 3600)
WINDOWS_MS: Final = tuple(seconds * 1000 for seconds in (*_SECONDS, 7 * 24 * 3600))
"""Of these the first that gives no more than MOST windows is taken."""
MOST: Final = 240


def window_for(length_ms: int) -> int:
    """A length of window, in ms, for a chart of so long a time."""
    return next((window for window in WINDOWS_MS if length_ms <= window * MOST), WINDOWS_MS[-1])


def begin_of(at: str, window_ms: int) -> Column:
    """The start, as a timestamp `begin`, of the window that a column of ms since 1970 lies in."""
    return F.timestamp_millis(F.col(at) - F.pmod(F.col(at), F.lit(window_ms))).alias("begin")
