"""Marks of delivered messages of the timer queue, which hold although the wall clock is set back.

Timers save the time up to which all messages are delivered. A clock that is set back takes this time back,
because messages for the new time arrive and wait. But many delivered messages have later times. A mark keeps
these messages until the clock has passed the time of the mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MARKS_MAX: Final = 8
"""Marks of clocks that were set back. Beyond this number the oldest mark is forgotten, and its messages are
repeated after a restart."""

Mark = tuple[int, int]
"""A queue offset and a time in ms: all messages below the offset that were due by the time are delivered."""


class Delivered:
    """The present mark, and the marks of clocks that were set back."""

    def __init__(self) -> None:
        self._marks: list[Mark] = [(0, 0)]  # the present one is last

    def load(self, progress: Mapping[str, int], end: int) -> None:
        """Take the marks of timerProgress.json. The queue ends at `end`: messages from there on are new."""
        found = [(int(progress.get("read", 0)), int(progress.get("deliveredMs", 0)))]
        for number in range(MARKS_MAX):
            if (offset := progress.get(f"read{number}")) is not None:
                found.insert(-1, (int(offset), int(progress.get(f"deliveredMs{number}", 0))))
        self._marks = [(min(offset, end), ms) for offset, ms in found]

    def has(self, offset: int, due_ms: int) -> bool:
        """True if a message was delivered."""
        end, last_ms = self._marks[-1]  # a start asks for each unit, mostly with no other mark
        if offset < end and due_ms <= last_ms:
            return True
        return len(self._marks) > 1 and any(offset < end and due_ms <= ms for end, ms in self._marks)

    def note(self, end: int, now_ms: int) -> None:
        """All messages below the offset `end` that are due by now are delivered."""
        self._marks = [mark for mark in self._marks if mark[1] > now_ms][-MARKS_MAX:]
        self._marks.append((end, now_ms))

    def fields(self, delivered_ms: int) -> dict[str, int]:
        """The marks for timerProgress.json, beside everything up to `delivered_ms`."""
        marks = [mark for mark in self._marks if mark[0] and mark[1] > delivered_ms]
        found: dict[str, int] = {}
        for number, (offset, ms) in enumerate(marks[-MARKS_MAX:]):
            found |= {f"read{number}": offset, f"deliveredMs{number}": ms}
        return found
