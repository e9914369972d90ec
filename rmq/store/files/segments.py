"""Segments: equal-size files as a single address space.

A file's name is the address of its first byte, 20 digits. Files follow each other without a hole; they are
opened on demand. `OpenFiles` bounds the open files, so that 10,000 queues do not need 10,000 descriptors.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator

from rmq.errors import CorruptRecord
from rmq.store.files.disk import Disk, Segment, wrong_size

_PIECE = 1 << 20
_NAME = re.compile(r"[0-9]{20}")

Progress = Callable[[str, int, int], None]
"""Called now and then by what takes long: with its stage, and how much of it is done of how much. What it
raises ends the work, which the next start begins with again."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Report nothing."""


class OpenFiles:
    """Bounds the open files of many Segments: past `limit` the one that was opened first is closed."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._order: OrderedDict[tuple[int, int], Segments] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def add(self, owner: Segments, base: int) -> None:
        """Note that `owner` opened a file; may close another one."""
        self._order[id(owner), base] = owner
        while len(self._order) > self.limit:
            (_, oldest), other = self._order.popitem(last=False)
            other.let_go(oldest)

    def discard(self, owner: Segments, base: int) -> None:
        """Note that `owner` closed a file."""
        self._order.pop((id(owner), base), None)


class Segments:
    """The files of a folder. Addresses are bytes from the start of the first file ever made.

    `mapped`: reads are views of mappings (the log); otherwise copies (queues: small reads, many files).
    `ordered`: a new file is on the medium before it is used, so that a crash leaves no file missing in the
    middle.
    """

    __slots__ = ("_disk", "_limit", "_mapped", "_opened", "_ordered", "bases", "file_size", "folder")

    def __init__(
        self, disk: Disk, folder: str, file_size: int, *, limit: OpenFiles, mapped: bool, ordered: bool
    ) -> None:
        self.folder = folder
        self.file_size = file_size
        self.bases: list[int] = []
        self._disk = disk
        self._mapped = mapped
        self._ordered = ordered
        self._limit = limit
        self._opened: dict[int, Segment] = {}

    @property
    def start(self) -> int:
        """The address of the first existing byte; 0 without files."""
        return self.bases[0] if self.bases else 0

    @property
    def stop(self) -> int:
        """The address after the last byte of the last file; 0 without files."""
        return self.bases[-1] + self.file_size if self.bases else 0

    def load(self, head: int = 0) -> bytes:
        """Find the files; return the first `head` bytes of the last file, or less when it is short. Raises
        StoreError for a file of another size, CorruptRecord for a missing file in the middle."""
        self.bases = bases = [int(name) for name in self._disk.list(self.folder) if _NAME.fullmatch(name)]
        if not bases:
            return b""
        if len(bases) > 1:
            bases.sort()
            self._check(bases[:-1])
        # A crash right after its making leaves the last file empty; opening it gives it its size.
        path, data = self.path(bases[-1]), b""
        if head:
            size, data = self._disk.head(path, head)
        else:
            size = self._disk.size(path)
        if size != self.file_size and size:
            raise wrong_size(path, size, self.file_size)
        return data

    def _check(self, bases: list[int]) -> None:
        """Compare the files, which all have one behind them, with the rules of `load`."""
        for before, base in zip(bases, self.bases[1:], strict=True):
            if base != before + self.file_size:
                missing = self.path(before + self.file_size)
                reason = f"file {missing} is missing: restore it from a backup or a replica"
                raise CorruptRecord(self.path(before), before + self.file_size, reason)
        for base in bases:
            found = self._disk.size(self.path(base))
            if found != self.file_size:
                raise wrong_size(self.path(base), found, self.file_size)

    def keep(self, bases: list[int]) -> None:
        """Forget the files that are not among `bases`, which were removed."""
        self.bases = bases

    def path(self, address: int) -> str:
        """The path of the file that holds, or would hold, `address`."""
        return f"{self.folder}{os.sep}{address - address % self.file_size:020d}"

    def at(self, address: int) -> Segment | None:
        """The open file that holds `address`; None without a file."""
        base = address - address % self.file_size
        segment = self._opened.get(base)
        if segment is None and self.bases and self.bases[0] <= base <= self.bases[-1]:
            segment = self._open(base)
        return segment

    def make(self, address: int) -> Segment:
        """The file that holds `address`, created if next (or first). Raises StoreError, DiskFull."""
        segment = self.at(address)
        if segment is None:
            base = address - address % self.file_size
            assert not self.bases or base == self.stop, "files are made in order"
            segment = self._open(base)
            self.bases.append(base)
            if self._ordered:
                # A crash must not leave a later file without an earlier one.
                segment.sync()
        return segment

    def _open(self, base: int) -> Segment:
        segment = self._disk.open(self.path(base), self.file_size, mapped=self._mapped)
        self._opened[base] = segment
        self._limit.add(self, base)
        return segment

    def read(self, address: int, size: int) -> memoryview | None:
        """`size` bytes, which must lie in a single file; None without that file."""
        at = address % self.file_size
        if at + size > self.file_size:
            return None
        segment = self.at(address)
        return None if segment is None else segment.read(at, size)

    def pieces(self, address: int) -> Iterator[tuple[int, bytes]]:
        """The content from `address` to the end of its file, without holes, as (position in the file, bytes).
        Pieces that follow each other overlap by 7 bytes, so that a magic and the bytes before are in a single
        piece."""
        segment = self.at(address)
        assert segment is not None, "there is such a file"
        at = address % self.file_size
        while True:
            start, stop = segment.data_after(at)
            stop = min(start + _PIECE, stop)
            if start >= self.file_size:
                return
            yield start, segment.copy(start, stop - start)
            at = stop if stop - start < _PIECE else stop - 7

    def copy(self, address: int, size: int) -> bytes:
        """At most `size` bytes of the file that holds `address`, read past the mapping; b"" without it."""
        at = address % self.file_size
        segment = self.at(address)
        return b"" if segment is None else segment.copy(at, min(size, self.file_size - at))

    def has(self, base: int) -> bool:
        """True if a file starts at `base`."""
        return bool(self.bases) and self.bases[0] <= base <= self.bases[-1]

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Write over as many files as needed, making new files. Raises StoreError, after any prefix was
        written."""
        at = address % self.file_size
        if at + len(data) <= self.file_size:
            self.make(address).write(at, data)
            return
        view = memoryview(data)
        while view:
            at = address % self.file_size
            part = view[: self.file_size - at]
            self.make(address).write(at, part)
            address += len(part)
            view = view[len(part) :]

    def sync(self, start: int, stop: int, *, progress: Progress = no_progress) -> None:
        """Sync the files that hold start..stop. Addresses before the first file are left out. Thread-safe:
        the state of this object stays unchanged."""
        first = self.bases[:1]  # the other thread may remove it
        start = max(start, first[0]) if first else stop
        for base in range(start - start % self.file_size, stop, self.file_size):
            progress("log synced", max(0, base - start), stop - start)
            segment = self._opened.get(base)
            if segment is not None:
                segment.sync()
            else:  # closed or removed in between
                self._disk.sync(self.path(base))

    def replaced_file(self, address: int) -> str:
        """The path of the open file that holds `address`, if another file or none is at that path now; else
        empty. Thread-safe. Raises StoreError.
        """
        segment = self._opened.get(address - address % self.file_size)
        return "" if segment is None or segment.is_there() else self.path(address)

    def relax(self) -> None:
        """`Segment.relax` for all open files."""
        for segment in self._opened.values():
            segment.relax(0)

    def truncate(self, address: int) -> None:
        """Remove the files past `address`, and zero the rest of its file. The first file stays even when it
        becomes empty, since its name is the first address."""
        while len(self.bases) > 1 and self.bases[-1] >= address:
            self._disk.remove(self._take(self.bases.pop()))
        segment = self.at(address)
        if segment is not None:
            segment.clear(address % self.file_size)

    def remove_first(self) -> None:
        """Remove the oldest file."""
        self._disk.remove(self.take_first())

    def take_first(self) -> str:
        """Take the oldest file out of the address space and close it; return its path, for removal. The file
        is closed first: a mapped file keeps its blocks until it is unmapped, and this thread frees them."""
        return self._take(self.bases.pop(0))

    def remove_all(self) -> None:
        """Remove every file and the folder."""
        self.close()
        self.bases.clear()
        self._disk.remove(self.folder)

    def _take(self, base: int) -> str:
        self.let_go(base)
        self._limit.discard(self, base)
        return self.path(base)

    def let_go(self, base: int) -> None:
        """Close an open file; views of its bytes stay valid."""
        segment = self._opened.pop(base, None)
        if segment is not None:
            segment.close()

    def close(self) -> None:
        """Close all files."""
        for base in list(self._opened):
            self.let_go(base)
            self._limit.discard(self, base)
