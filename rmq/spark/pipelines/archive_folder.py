"""The folder of an archive: Parquet files by date and topic, with each message only once.

    PATH/date=2026-11-21/topic=Orders/<query>-<batch>-<number>.parquet
    PATH/_rmq/     the stream's checkpoint, files being written, the record of the last batch, the lock

A batch is written aside. Next its record is written, with the destination of each file, and the files are
moved to their destinations. Killed before the record: nothing of the batch is visible, and it is written
again. Killed after the record: the next run moves the rest, and skips the batch when Spark repeats it.

Files are replaced by fewer files through their whole folder: the new folder is made aside (unchanged files
are linked into it) and swapped with the old folder.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote

from attrs import asdict, frozen

from rmq.errors import ConfigError, RmqError
from rmq.files import read_file, replace_file

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_OWN: Final = "_rmq"
COMPRESSION: Final = "zstd"
"""Compression of the Parquet files."""


class ArchiveInUse(RmqError):
    """Another process writes to the archive in `path`."""

    hint = "wait for it or stop it"

    def __init__(self, path: Path) -> None:
        super().__init__(f"the archive in {path} is in use by another process")
        self.path = path


@frozen
class File:
    """A file of a batch: its present place and its destination below the archive's folder."""

    staged: str
    place: str
    rows: int
    bytes: int

    @property
    def partition(self) -> str:
        """``date=.../topic=...``."""
        return str(Path(self.place).parent)


class ArchiveFolder:
    """The folder, locked for this process: `with ArchiveFolder(path) as folder`.

    Entering completes or removes the remains of a killed process. Raises ArchiveInUse, and ConfigError for a
    folder with other content, and on Windows, which has no file locks of this kind. Any file system of a
    single machine works; object stores do not, because they cannot rename a file in a single step.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.own = self.path / _OWN
        self.checkpoint = self.own / "checkpoint"
        self.state = self.own / "state"

    def __enter__(self) -> Self:
        if sys.platform == "win32":
            raise ConfigError("path", str(self.path), "a system with file locks: use WSL or a container")
        self._check()
        self.own.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._recover()
        except BlockingIOError:
            os.close(self._lock)
            raise ArchiveInUse(self.path) from None
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._lock)

    def _check(self) -> None:
        if self.path.exists() and not self.own.exists() and next(self.path.iterdir(), None) is not None:
            raise ConfigError("path", str(self.path), "an empty or new folder, or one that has an archive")

    # --- batches ---

    def aside(self) -> Path:
        """A new place for writes; the folder itself is not made."""
        return self.own / "staging" / uuid.uuid4().hex

    def has(self, batch: str) -> bool:
        """True if this batch is in the archive (only the last one is remembered)."""
        return self._record(batch).exists()

    def publish(self, batch: str, files: Iterable[tuple[Path, int]]) -> list[File]:
        """Move files with their numbers of rows, written aside, to their partitions; all or none, also after
        a kill. `batch` must be a name that no other batch has had."""
        found = [self._file(batch, number, *one) for number, one in enumerate(files)]
        record = json.dumps([asdict(file) for file in found])
        replace_file(self._record(batch), record.encode())
        self._move(found)
        for other in self._record(batch).parent.glob("*.json"):
            if other != self._record(batch):
                other.unlink()  # Spark brings back only the last batch
        return found

    def _file(self, batch: str, number: int, staged: Path, rows: int) -> File:
        inside = staged.relative_to(self.path)
        date, topic = inside.parts[-3:-1]
        place = Path(date, topic, f"{batch}-{number:04}.parquet")
        return File(str(inside), str(place), rows, staged.stat().st_size)

    def _record(self, batch: str) -> Path:
        return self.own / "batches" / f"{batch}.json"

    def _move(self, files: Iterable[File]) -> None:
        for file in files:
            staged, place = self.path / file.staged, self.path / file.place
            if staged.exists():  # else it was moved before, and may have been merged with other files since
                place.parent.mkdir(parents=True, exist_ok=True)
                os.rename(staged, place)

    # --- partitions ---

    def partitions(self) -> list[Path]:
        """The folders of dates and topics."""
        return sorted(self.path.glob("date=*/topic=*"))

    def replace(self, partition: Path, old: Iterable[Path], new: Iterable[Path]) -> None:
        """Replace the files `old` by the files `new`, written aside, in a single step.

        Without the system call for a swap (Linux has it) the folder is missing for the moment between two
        renames. A reader that has listed the old files and not yet opened them will not find them.
        """
        replaced_names = {path.name for path in old}
        fresh = self.aside()
        fresh.mkdir(parents=True)
        for path in partition.iterdir():
            if path.name not in replaced_names and path.is_file():
                _link(path, fresh / path.name)
        for path in new:
            os.rename(path, fresh / path.name)
        if not exchange(fresh, partition):
            replaced = self._replaced(partition)
            replaced.parent.mkdir(parents=True, exist_ok=True)
            os.rename(partition, replaced)
            os.rename(fresh, partition)
            fresh = replaced
        shutil.rmtree(fresh)

    def _replaced(self, partition: Path) -> Path:
        return self.own / "replaced" / partition.relative_to(self.path)

    # --- after a kill ---

    def _recover(self) -> None:
        for record in (self.own / "batches").glob("*.json"):
            self._move(File(**one) for one in json.loads(read_file(record) or b"[]"))
        for replaced in (self.own / "replaced").glob("date=*/topic=*"):
            place = self.path / replaced.relative_to(self.own / "replaced")
            if not place.exists():
                os.rename(replaced, place)
        shutil.rmtree(self.own / "replaced", ignore_errors=True)
        shutil.rmtree(self.own / "staging", ignore_errors=True)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False if the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    names = os.fsencode(one), os.fsencode(other)
    return bool(renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)


def _link(path: Path, to: Path) -> None:
    try:
        os.link(path, to)
    except OSError:  # a file system without hard links
        shutil.copy2(path, to)


# --- Parquet files of messages, written by Spark ---


def write_parquet(frame: DataFrame, folder: Path, *, partition: Sequence[str] = ()) -> None:
    """Write rows as Parquet files into a folder that does not exist yet."""
    frame.write.mode("error").option("compression", COMPRESSION).parquet(
        str(folder), partitionBy=[*partition]
    )


def row_counts(folder: Path) -> Iterator[tuple[Path, int]]:
    """The files of a folder, with their numbers of rows."""
    for path in sorted(folder.rglob("*.parquet")):
        yield path, row_count(path)


def row_count(path: Path) -> int:
    """The number of rows in a file, by its footer."""
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def names_of(partition: str) -> tuple[str, str]:
    """(date, topic) of ``date=.../topic=...``."""
    date, topic = (unquote(part.partition("=")[2]) for part in partition.split("/")[-2:])
    return date, topic
