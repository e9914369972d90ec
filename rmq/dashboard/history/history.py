"""History: sampled figures in a small SQLite file, so that charts need no other system.

A sample is (cluster, figure, subject, time, value): for example the figure `group_lag` of the subject
`billing`. Samples are kept for `FINE_HOURS`, after that a sample for every `COARSE_SECONDS`, for `days` days
in all. Without a file there are at most `ROWS_IN_MEMORY`: of more, all samples but those of the last hour are
thinned out, and then the oldest samples go.
"""

from __future__ import annotations

import math
import pathlib
import sqlite3
from collections.abc import Iterable
from typing import Final

from attrs import frozen

from rmq.errors import RmqError

FINE_HOURS: Final = 24
COARSE_SECONDS: Final = 300
DAY_MS: Final = 86_400_000
POINTS_MAX: Final = 720
HOUR_MS: Final = 3_600_000
ROWS_IN_MEMORY: Final = 750_000
"""Samples without a file: about 30 MiB."""
SERIES_MAX: Final = 10_000
"""Figures of subjects of all clusters. Of more, those that were not sampled for the longest time go: anyone
may make groups under new names."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS series (
  id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, figure TEXT NOT NULL, subject TEXT NOT NULL,
  UNIQUE (cluster, figure, subject));
CREATE TABLE IF NOT EXISTS samples (
  series INTEGER NOT NULL, at INTEGER NOT NULL, value REAL NOT NULL, PRIMARY KEY (series, at)) WITHOUT ROWID;
"""


@frozen
class Sample:
    """A figure of a subject, now."""

    figure: str
    subject: str
    value: float


@frozen
class Series:
    """The points of a figure: times in ms since 1970, and values."""

    figure: str
    subject: str
    times: list[int]
    values: list[float]


class HistoryError(RmqError):
    """The file of the history cannot be used."""

    hint = "check the file's folder and the disk, or name another file with --history"


class History:
    """The samples of all clusters. Its methods may be called in any thread, one at a time."""

    def __init__(
        self, path: pathlib.Path | None = None, days: int = 14, rows_max: int = ROWS_IN_MEMORY
    ) -> None:
        """`rows_max` is the bound without a file."""
        self._days, self._rows_max = days, math.inf if path is not None else rows_max
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("PRAGMA cache_size=-2000")
            self._db.executescript(_TABLES)
        except (sqlite3.Error, OSError) as error:
            raise HistoryError(f"the history {path} cannot be opened: {error}") from error
        self._ids: dict[tuple[str, str, str], int] = {
            (cluster, figure, subject): number
            for number, cluster, figure, subject in self._db.execute("SELECT * FROM series")
        }
        self._thinned_at, self._rows = 0, 0

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def add(self, cluster: str, at_ms: int, samples: Iterable[Sample]) -> None:
        """Keep the samples of one moment, and from time to time thin out old ones."""
        try:
            self._db.execute("BEGIN")
            rows = [(self._id(cluster, one), at_ms, one.value) for one in samples]
            self._db.executemany("INSERT OR REPLACE INTO samples VALUES (?, ?, ?)", rows)
            self._rows += len(rows)
            if at_ms - self._thinned_at > HOUR_MS or len(self._ids) > 2 * SERIES_MAX:
                self._thin(at_ms)
            if self._rows > self._rows_max:
                self._bound(at_ms)
            self._db.execute("COMMIT")
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise HistoryError(f"the history cannot be written: {error}") from error

    def _id(self, cluster: str, sample: Sample) -> int:
        key = (cluster, sample.figure, sample.subject)
        number = self._ids.get(key)
        if number is None:
            number = self._db.execute(
                "INSERT INTO series (cluster, figure, subject) VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET subject = subject RETURNING id",
                key,
            ).fetchone()[0]
            self._ids[key] = number
        return number

    def _thin(self, now_ms: int) -> None:
        """Remove old samples, thin out samples of more than a day, and remove series that have none, or are
        too many. Each statement is short: a page that reads at the same time waits for one at most."""
        self._remove(now_ms - self._days * DAY_MS)
        fine = now_ms - FINE_HOURS * HOUR_MS
        self._coarsen(self._thinned_at - FINE_HOURS * HOUR_MS, fine)
        self._thinned_at = now_ms
        last = {
            key: self._db.execute("SELECT MAX(at) FROM samples WHERE series = ?", (number,)).fetchone()[0]
            for key, number in self._ids.items()
        }
        newest = sorted((key for key, at in last.items() if at is not None), key=lambda key: -last[key])
        for key in self._ids.keys() - newest[:SERIES_MAX]:
            number = self._ids.pop(key)
            self._db.execute("DELETE FROM samples WHERE series = ?", (number,))
            self._db.execute("DELETE FROM series WHERE id = ?", (number,))
        self._count()

    def _bound(self, now_ms: int) -> None:
        """Thin out all but the last hour; if that is not enough, remove the oldest samples."""
        self._coarsen(0, now_ms - HOUR_MS)
        self._count()
        while self._rows > 0.9 * self._rows_max:
            (oldest,) = self._db.execute("SELECT MIN(at) FROM samples").fetchone()
            self._remove(oldest + max((now_ms - oldest) // 10, 1))
            self._count()

    def _count(self) -> None:
        (self._rows,) = self._db.execute("SELECT COUNT(*) FROM samples").fetchone()

    def _remove(self, before_ms: int) -> None:
        """Remove the samples before a time."""
        for number in self._ids.values():
            self._db.execute("DELETE FROM samples WHERE series = ? AND at < ?", (number, before_ms))

    def _coarsen(self, since_ms: int, until_ms: int) -> None:
        """Leave a sample for each `COARSE_SECONDS`, the first one, between two times."""
        step = COARSE_SECONDS * 1000
        span = max(since_ms, 0) // step * step, until_ms // step * step
        for number in self._ids.values():
            self._db.execute(
                "DELETE FROM samples WHERE series = ? AND at >= ? AND at < ? AND at NOT IN "
                "(SELECT MIN(at) FROM samples WHERE series = ? AND at >= ? AND at < ? GROUP BY at / ?)",
                (number, *span, number, *span, step),
            )

    def read(self, cluster: str, figure: str, subject: str, since_ms: int, until_ms: int) -> Series:
        """The points of a span of time, at most `POINTS_MAX`: of more, the mean of each step."""
        number = self._ids.get((cluster, figure, subject))
        if number is None:
            return Series(figure, subject, [], [])
        step = max((until_ms - since_ms) // POINTS_MAX, 1)
        rows = self._db.execute(
            "SELECT MAX(at), AVG(value) FROM samples WHERE series = ? AND at BETWEEN ? AND ? "
            "GROUP BY at / ? ORDER BY 1",
            (number, since_ms, until_ms, step),
        ).fetchall()
        return Series(figure, subject, [int(at) for at, _ in rows], [round(value, 3) for _, value in rows])
