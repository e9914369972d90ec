"""ClockWatch: whether the wall clock is reliable enough to delete files by their age.

A wall clock that is ahead makes every file look expired, if only for seconds. So the watch compares it with a
clock that cannot be set, at every check, and at the start with the store time of the last record. If the
clocks differ, nothing is deleted by age for an hour, or until the clock is set back, or until an
administrator requests the deletion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

HOLD_SECONDS: Final = 3600.0
TOLERANCE_MS: Final = 60_000
"""Milliseconds by which the two clocks may drift apart between two looks: more than any slow correction of a
clock."""
GAP_MS: Final = 3_600_000
"""At the start: how much younger than now the last record is where nothing is suspected."""


class ClockWatch:
    """`clock` is in seconds and never set; None without such a clock: the wall clock is trusted."""

    def __init__(self, clock: Callable[[], float] | None) -> None:
        self._clock = clock
        self._offset_ms: int | None = None  # of the wall clock to the other one, as believed
        self._since = 0.0  # since when it has been another one
        self._suspected_ms: int | None = None  # the offset that is not believed
        self._why = ""

    def begin(self, last_ms: int, now_ms: int) -> None:
        """The store is open; its last record was stored at `last_ms`, 0 when it has none."""
        if self._clock is None:
            return
        offset_ms = self._offset(now_ms)
        if last_ms and now_ms - last_ms > GAP_MS:
            hours = (now_ms - last_ms) / 3_600_000
            self._suspect(offset_ms, f"at the start it was {hours:.1f} h later than the last message")
        else:
            self._believe(offset_ms)

    def held(self, now_ms: int) -> str:
        """Why nothing is to be deleted by age now; empty when it may be."""
        if self._clock is None:
            return ""
        offset_ms = self._offset(now_ms)
        believed = self._offset_ms
        if believed is not None and abs(offset_ms - believed) <= TOLERANCE_MS:
            self._believe(offset_ms)
        elif self._suspected_ms is None or abs(offset_ms - self._suspected_ms) > TOLERANCE_MS:
            step_ms = offset_ms - (believed or 0)
            self._suspect(offset_ms, f"it was set by {step_ms / 1000:+.0f} s while the broker ran")
        elif self._clock() - self._since >= HOLD_SECONDS:
            self._believe(offset_ms)
        else:
            self._suspected_ms = offset_ms
        return self._why

    def believe(self, now_ms: int) -> None:
        """Take an administrator's word that the wall clock is right."""
        if self._clock is not None:
            self._believe(self._offset(now_ms))

    def _offset(self, now_ms: int) -> int:
        assert self._clock is not None
        return now_ms - round(self._clock() * 1000)

    def _believe(self, offset_ms: int) -> None:
        self._offset_ms, self._suspected_ms, self._why = offset_ms, None, ""

    def _suspect(self, offset_ms: int, why: str) -> None:
        assert self._clock is not None
        self._suspected_ms, self._since, self._why = offset_ms, self._clock(), why
