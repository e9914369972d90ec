"""A bound on the log of a service: what strangers can cause must not fill a disk.

A port scan, a client with a wrong secret or a loop of refused requests write the same line again and again.
The first of a second are written, the others counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

LINES_MAX: Final = 50
"""Lines a second of one kind, that is of one logger and one format."""
KINDS_MAX: Final = 1000


class LogLimit(logging.Filter):
    """Lets `most` lines of a kind through in a second. The next one says how many were left out."""

    def __init__(self, most: int = LINES_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = most
        self._clock = clock
        self._second = -1
        self._counts: dict[tuple[str, object], int] = {}
        self._missed: dict[tuple[str, object], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._counts.clear()
        kind = (record.name, record.msg)
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count > self._most:
            self._missed[kind] = self._missed.get(kind, 0) + 1
            return False
        missed = self._missed.pop(kind, 0)
        if missed:
            record.msg = f"{record.msg} ({missed} lines like this one were left out)"
        if len(self._counts) > KINDS_MAX:  # whose text is no format but made anew each time
            self._counts.clear()
            self._missed.clear()
        return True


def start_log() -> None:
    """Write the log of a service to the error output, within the bound; a log that there is already stays."""
    handler = logging.StreamHandler()
    handler.addFilter(LogLimit())
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(format=form, level=logging.INFO, handlers=[handler])
