"""Comparing the logs of replicas, byte by byte in the part that all have: the first difference, the ends.

Of a folder on another machine digests will do, of pieces of 4 MiB: they say in which piece the first
difference lies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from attrs import define, field, frozen

from rmq.errors import RemoteProtocolError, StoreError
from rmq.protocol import json
from rmq.store.audit.audit import Report, log_runs
from rmq.store.files.disk import Disk
from rmq.store.files.scan import Scan, Scanned
from rmq.store.files.segments import Segments

PIECE: Final = 4 << 20
_FORM: Final = "rmq log digests 1"
Step = Callable[[str, int, int], None]


@frozen
class Difference:
    """The first difference: from `start` on, in the record that begins at `record.position`, if known. `stop`
    is the end of the differing range, `start` + 1 for a known byte."""

    start: int
    stop: int
    record: Scanned | None = None


@define
class Log:
    """The log of a replica: from `start` to the `end` of its last good record, in files of `file_size` bytes.
    Either its `files` are given, or `digests` of its pieces, by their begins."""

    name: str
    start: int
    end: int
    file_size: int
    files: Segments | None = None
    digests: dict[int, str] = field(factory=dict)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Begins and ends of the pieces from `start` to `stop`; no piece crosses a file."""
        at = start
        while at < stop:
            base = at - at % self.file_size
            in_file = at - base
            end = min(base + in_file - in_file % PIECE + PIECE, base + self.file_size, stop)
            yield at, end
            at = end

    def bytes_of(self, start: int, stop: int) -> bytes:
        """The bytes of a range within a file. Raises StoreError."""
        assert self.files is not None
        return self.files.copy(start, stop - start)

    def digest(self, start: int, stop: int) -> str:
        """The digest of a piece; empty when unknown. Raises StoreError."""
        if self.files is None:
            return self.digests.get(start, "") if stop in self._ends(start) else ""
        return hashlib.blake2b(self.bytes_of(start, stop), digest_size=16).hexdigest()

    def _ends(self, start: int) -> list[int]:
        return [end for at, end in self.pieces(start, self.end) if at == start][:1]

    def close(self) -> None:
        """Close the files."""
        if self.files is not None:
            self.files.close()


def open_log(disk: Disk, folder: str, commit_log: str = "") -> Log:
    """The log of a store's folder. Raises StoreError without a log, and for missing files."""
    runs = log_runs(disk, Report(folder, commit_log))
    if len(runs) != 1:
        for run in runs:
            run.close()
        raise StoreError(f"{folder}: files of the log are missing in the middle: see rmq store check")
    (run,) = runs
    end = run.start
    for base in reversed(run.bases):
        scan = Scan(run, base)
        if next(iter(scan), None) is not None:
            for _ in scan:
                pass
            end = scan.position
            break
    return Log(folder, run.start, end, run.file_size, run)


def write_digests(log: Log, step: Step = lambda stage, done, total: None) -> bytes:
    """The digests of all pieces, as text. Raises StoreError."""
    digests = {}
    for start, stop in log.pieces(log.start, log.end):
        digests[str(start)] = log.digest(start, stop)
        step("log", stop - log.start, log.end - log.start)
    fields = {"start": log.start, "end": log.end, "fileSize": log.file_size, "piece": PIECE}
    return json.dumps({"form": _FORM, "name": log.name, **fields, "digests": digests})


def read_digests(name: str, data: bytes) -> Log:
    """A log that is known by digests only. Raises StoreError for any other text."""
    try:
        table: Any = json.loads(data)
        if table["form"] != _FORM or table["piece"] != PIECE:
            raise ValueError(f"it is of another form: {table['form']}")
        digests = {int(start): str(digest) for start, digest in table["digests"].items()}
        return Log(name, int(table["start"]), int(table["end"]), int(table["fileSize"]), digests=digests)
    except (RemoteProtocolError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{name} has no digests of a log: {error!r}") from None


def first_difference(
    one: Log, other: Log, step: Step = lambda stage, done, total: None
) -> tuple[int, int, Difference | None]:
    """Compare two logs. Return the compared range, and the first difference in it. Raises StoreError for logs
    in files of different sizes."""
    if one.file_size != other.file_size:
        raise StoreError(
            f"{one.name} has log files of {one.file_size} bytes, {other.name} of {other.file_size}: they"
            " are not replicas of each other"
        )
    start, stop = max(one.start, other.start), min(one.end, other.end)
    compared = start
    for at, end in one.pieces(start, stop):
        step("log", at - start, stop - start)
        mine, theirs = one.digest(at, end), other.digest(at, end)
        if not mine or not theirs:
            break  # the end of one, of which only digests are there
        if mine != theirs:
            return start, stop, _where(one, other, at, end)
        compared = end
    return start, max(compared, start), None


def _where(one: Log, other: Log, start: int, stop: int) -> Difference:
    if one.files is not None and other.files is not None:
        pairs = zip(one.bytes_of(start, stop), other.bytes_of(start, stop), strict=True)
        start += next(at for at, (mine, theirs) in enumerate(pairs) if mine != theirs)
        stop = start + 1
    log = one if one.files is not None else other
    return Difference(start, stop, None if log.files is None else _record(log.files, start))


def _record(files: Segments, address: int) -> Scanned | None:
    """The last record that begins at `address` or before."""
    found = None
    for record in Scan(files, address - address % files.file_size, check_crc=False):
        if record.position > address:
            break
        found = record
    return found
