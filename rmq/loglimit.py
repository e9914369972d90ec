"""A bound on the log of a service: what strangers can cause must not fill a disk.

A port scan, a client with a wrong secret or a loop of refused requests write the same line again and again.
The first of a second are written, the others counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from rmq.printable import printable

LINES_MAX: Final = 50
"""Lines a second of one kind, that is of one logger and one format."""
KINDS_MAX: Final = 1000
LINE_CHARACTERS: Final = 2000
TRACE_LINES: Final = 60


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


class LogFormat(logging.Formatter):
    """A line for each record, of `LINE_CHARACTERS` at most, with what is not printable escaped.

    Client ids, names and remarks come from strangers: none of them may make a line of its own. A traceback
    follows in lines that begin with ``|``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the traceback if there is one."""
        trace = self._trace(record)
        kept = record.exc_info, record.exc_text, record.stack_info
        record.exc_info = record.exc_text = record.stack_info = None
        try:
            line = _cut(printable(super().format(record)), LINE_CHARACTERS)
        finally:
            record.exc_info, record.exc_text, record.stack_info = kept
        return line + trace

    def _trace(self, record: logging.LogRecord) -> str:
        text = self.formatException(record.exc_info) if record.exc_info else record.exc_text or ""
        whole = "\n".join(part for part in (text, record.stack_info) if part)
        lines = whole.split("\n") if whole else []
        if len(lines) > TRACE_LINES:  # its end says what went wrong
            lines = [f"... {len(lines) - TRACE_LINES} lines ...", *lines[-TRACE_LINES:]]
        return "".join(f"\n| {_cut(printable(line), LINE_CHARACTERS)}" for line in lines)


def _cut(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[:most]} ... ({len(line)} characters)"


FORM: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def start_log() -> None:
    """Write the log of a service to the error output, within the bound; a log that there is already stays."""
    handler = logging.StreamHandler()
    handler.addFilter(LogLimit())
    handler.setFormatter(LogFormat(FORM))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
