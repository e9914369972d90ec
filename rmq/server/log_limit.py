"""Log of a service: its destination, its format, and a bound, so that strangers cannot fill a disk.

A port scan, a client with a wrong secret or a loop of refused requests writes the same line repeatedly. The
log has the first lines of a second, and the number of further lines.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from attrs import frozen

from rmq.config import at_least, between, one_of, setting
from rmq.errors import ConfigError
from rmq.printable import printable

LINES_MAX: Final = 50
"""Lines a second of one kind: of one logger and one format."""
KINDS_MAX: Final = 1000
LINE_CHARACTERS: Final = 2000
TRACE_LINES: Final = 60


class LogLimit(logging.Filter):
    """A filter for `most` lines of a kind in a second. The next line has the number of lines that were left
    out."""

    def __init__(self, most: int = LINES_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = most
        self._clock = clock
        self._second = -1
        self._counts: dict[tuple[str, object], int] = {}
        self._missed: dict[tuple[str, object], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """True if a line is written."""
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
        if len(self._counts) > KINDS_MAX:  # whose text is not a format but different each time
            self._counts.clear()
            self._missed.clear()
        return True

    def leaves_out(self, name: str, form: str) -> bool:
        """True if a line of the logger `name` with the format `form` would not be written now."""
        return int(self._clock()) == self._second and self._counts.get((name, form), 0) >= self._most

    def count_missed(self, name: str, form: str) -> None:
        """Count a line that was left out before it was made."""
        self._missed[name, form] = self._missed.get((name, form), 0) + 1


def leaves_out(log: logging.Logger, form: str) -> bool:
    """True if no handler would write a line of `log` with this format now; the line counts as left out.

    For lines that a crowd of clients causes: a line that is dropped by a filter was made before, which
    costs five times this call.
    """
    limits = []
    place: logging.Logger | None = log
    while place is not None:
        for handler in place.handlers:
            limit = next((one for one in handler.filters if isinstance(one, LogLimit)), None)
            if limit is None or not limit.leaves_out(log.name, form):
                return False
            limits.append(limit)
        place = place.parent if place.propagate else None
    for limit in limits:
        limit.count_missed(log.name, form)
    return bool(limits)


class LogFormat(logging.Formatter):
    """A line for each record, of `LINE_CHARACTERS` at most, with unprintable characters escaped.

    Client ids, names and remarks come from strangers: no such text may make a line of its own. A traceback
    follows in lines that begin with ``|``.
    """

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Times in logs: ISO 8601, UTC, ms."""
        text = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return text.replace("+00:00", "Z")

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, and the traceback if any."""
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
        if len(lines) > TRACE_LINES:  # the end of a traceback has the error
            lines = [f"... {len(lines) - TRACE_LINES} lines ...", *lines[-TRACE_LINES:]]
        return "".join(f"\n| {_cut(printable(line), LINE_CHARACTERS)}" for line in lines)


def _cut(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[:most]} ... ({len(line)} characters)"


FORM: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


@frozen
class LogConfig:
    """Destination and format of a service's log."""

    log_level: str = setting("INFO", help="The least that is logged", validator=one_of(*LEVELS))
    log_file: str = setting("", help="File for the log, with the banner; empty: the error output")
    log_file_bytes: int = setting(
        64 << 20,
        help="A log file of this size is renamed to FILE.1, and so on; 0: never, as for logrotate",
        unit="bytes",
        validator=at_least(0),
    )
    log_files: int = setting(10, help="How many renamed log files are kept", validator=between(1, 1000))
    log_format: str = setting(
        "text",
        help="text: a line; json: an object a line, for log collectors",
        validator=one_of("text", "json"),
    )


class JsonFormat(LogFormat):
    """One JSON object a line: time, level, logger, message, and the traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _cut(printable(record.getMessage()), LINE_CHARACTERS),
        }
        if trace := self._trace(record):
            fields["trace"] = trace.lstrip("\n")
        return json.dumps(fields, ensure_ascii=False)


def start_log(config: LogConfig | None = None) -> None:
    """Write the log of a service to the error output, within the bound, or as `config` says, once it is
    known. Handlers that another caller installed stay. Raises ConfigError for a file that cannot be
    written."""
    root = logging.getLogger()
    if config is None:
        if not root.handlers:
            root.addHandler(_dressed(logging.StreamHandler(), "text"))
            root.setLevel(logging.INFO)
        return
    ours = [handler for handler in root.handlers if isinstance(handler.formatter, LogFormat)]
    if root.handlers and not ours and not config.log_file:
        return
    made: logging.Handler = logging.StreamHandler()
    if config.log_file:
        from logging.handlers import RotatingFileHandler  # 3 ms, only for services with a file

        most, kept = config.log_file_bytes, config.log_files
        try:
            made = RotatingFileHandler(config.log_file, maxBytes=most, backupCount=kept, encoding="utf-8")
        except OSError as error:
            wanted = f"a file to write to ({error.strerror}); correct the path, or make its folder"
            raise ConfigError("logFile", config.log_file, wanted) from None
    root.addHandler(_dressed(made, config.log_format))
    root.setLevel(config.log_level)
    for handler in ours:
        root.removeHandler(handler)
        handler.close()


def _dressed(handler: logging.Handler, form: str) -> logging.Handler:
    handler.addFilter(LogLimit())
    handler.setFormatter(JsonFormat() if form == "json" else LogFormat(FORM))
    return handler


def reopen_log() -> None:
    """Continue in a new file when the log's file was renamed, as by logrotate before SIGHUP. The next line
    opens the new file."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            handler.acquire()
            try:
                handler.close()
                handler.stream = None
            finally:
                handler.release()


def write_dump(config: LogConfig, text: str) -> str:
    """Write a dump of a server's state to its log; returns where it was written. Raises OSError."""
    if not config.log_file:
        sys.stderr.write(text)
        sys.stderr.flush()
        return "the error output"
    path = f"{config.log_file}.dump"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path
