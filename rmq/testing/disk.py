"""MemoryDisk: a disk in memory that forgets unsynced bytes, fills up, breaks and flips bits, all from a seed.

It keeps the contract of `rmq.store.files.disk.Disk`, proved by the tests that run on both. `crash()` is a
power cut: synced bytes stay, and a random part of the 4 KiB pages written since the sync; with `tears` also
parts of pages, in sectors of 512 bytes. A file whose creation was never synced may be gone. Names (`replace`,
`remove`) are kept in order and at once, as by a journal.
"""

from __future__ import annotations

import builtins
import mmap
import os
import random
from collections.abc import Callable
from typing import TypeVar

from attrs import define

from rmq.errors import DiskFull, StoreError, StoreLocked
from rmq.store.files.disk import Bytes, DiskUsage, wrong_size
from rmq.testing import hanging

T = TypeVar("T")

PAGE = 4096
SECTOR = 512


class _File:
    """The content of a file: `live` is the content for readers; a crash keeps the pages in `synced`, and may
    lose the pages in `dirty`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.live = memoryview(mmap.mmap(-1, max(size, 1)))  # takes memory only for written pages
        self.synced: dict[int, bytes] = {}
        self.dirty: set[int] = set()
        self.used: set[int] = set()  # pages that have space on the disk
        self.made = False  # True if a crash keeps the file itself

    def page(self, number: int) -> bytes:
        return bytes(self.live[number * PAGE : min((number + 1) * PAGE, self.size)])

    def sync(self) -> None:
        for number in self.dirty:
            self.synced[number] = self.page(number)
        self.dirty.clear()
        self.made = True

    def mark(self, start: int, stop: int) -> None:
        pages = range(start // PAGE, -(-stop // PAGE))
        self.dirty.update(pages)
        self.used.update(pages)

    def after_crash(self, chance: random.Random, tears: bool) -> _File:
        """The file after a power cut."""
        kept = _File(self.size)
        pages = dict(self.synced)
        for number in sorted(self.dirty):
            if chance.random() < 0.5:
                pages[number] = self.page(number)
            elif tears and chance.random() < 0.5:
                pages[number] = self._torn(number, chance)
        for number, page in pages.items():
            kept.live[number * PAGE : number * PAGE + len(page)] = page
            kept.mark(number * PAGE, number * PAGE + len(page))
        kept.sync()
        return kept

    def _torn(self, number: int, chance: random.Random) -> bytes:
        """A page after a write of only some sectors."""
        new = self.page(number)
        old = self.synced.get(number, bytes(len(new)))
        sectors = range(0, len(new), SECTOR)
        return b"".join((old, new)[chance.random() < 0.5][at : at + SECTOR] for at in sectors)


class MemorySegment:
    """One file of a MemoryDisk."""

    def __init__(self, disk: MemoryDisk, path: str, file: _File) -> None:
        self._disk = disk
        self._path = path
        self._file = file
        self._open = True
        self._views = False

    @property
    def size(self) -> int:
        return self._file.size

    def write(self, at: int, data: Bytes) -> None:
        assert self._open, f"{self._path} is closed"
        if at + len(data) > self._file.size:
            raise ValueError(f"{self._path}: {len(data)} bytes at {at} go past the end of the file")
        error = self._disk.take_fault("write", self._path)
        fits = self._disk.take_space(self._file, at, at + len(data))
        if error is not None:
            fits = min(fits, self._disk.chance.randrange(len(data) + 1))
        self._file.live[at : at + fits] = bytes(data[:fits])
        self._file.mark(at, at + fits)
        if error is not None:
            raise error
        if fits < len(data):
            raise DiskFull(f"{self._path}: no space left")
        self._disk.changed()

    def read(self, at: int, size: int) -> memoryview:
        return self._file.live[at : min(at + size, self._file.size)].toreadonly()

    def copy(self, at: int, size: int) -> bytes:
        return bytes(self.read(at, size))

    def writable(self, size: int) -> memoryview:
        size = min(size, self._file.size)
        if self._disk.take_space(self._file, 0, size) < size:
            raise DiskFull(f"{self._path}: no space left")
        self._file.mark(0, size)
        self._views = True
        return self._file.live[: self._file.size]

    def clear(self, at: int) -> None:
        error = self._disk.take_fault("clear", self._path)
        if error is not None:
            raise error
        file = self._file
        for number in sorted(page for page in file.used if (page + 1) * PAGE > at):
            start = max(number * PAGE, at)
            stop = min((number + 1) * PAGE, file.size)
            file.live[start:stop] = bytes(stop - start)
            file.dirty.add(number)
            if start == number * PAGE:
                file.used.discard(number)
        self._disk.changed()

    def relax(self, at: int) -> None:
        pass

    def data_after(self, at: int) -> tuple[int, int]:
        if self._views:
            return at, self.size
        used = self._file.used
        start = min((page for page in used if (page + 1) * PAGE > at), default=None)
        if start is None:
            return self.size, self.size
        stop = start + 1
        while stop in used:
            stop += 1
        return max(start * PAGE, at), min(stop * PAGE, self.size)

    def is_there(self) -> bool:
        return self._disk.holds(self._path, self._file)

    def sync(self) -> None:
        self._disk.sync(self._path)

    def close(self) -> None:
        self._open = False


class _Lock:
    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.unlock(self._path, self)


@define(eq=False)
class _Fault:
    """A fault for the next operations of a kind, on paths that contain `path`."""

    operation: str
    path: str
    error: StoreError
    left: float


class MemoryDisk:
    """A disk in memory. `seed` decides the remains of a crash and the end of a failing write.

    Faults, to be set at any time: `capacity` (bytes, for full disks), `fail` and `hang` (see their
    docstrings), `flip` (a bit), `tears`. `on_change` is called after each change, `on_sync` before each sync
    (a slow sync sleeps in it).
    """

    def __init__(self, seed: int = 0, capacity: int | None = None) -> None:
        self.chance = random.Random(seed)
        self.capacity = capacity
        self.tears = False
        self.on_change: Callable[[], None] | None = None
        self.on_sync: Callable[[str], None] | None = None
        self._files: dict[str, _File] = {}
        self._faults: builtins.list[_Fault] = []
        self._hanging: builtins.list[str] = []
        self._working = 0  # work that may hang
        self._locks: dict[str, _Lock] = {}

    # ---- faults ----

    def crash(self) -> None:
        """Cut the power: open segments and locks become invalid, and unsynced bytes are kept in part."""
        self._files = self.image(self.chance.random())._files
        self._locks = {}

    def image(self, seed: float) -> MemoryDisk:
        """The disk after a power cut now, as another disk; this disk continues."""
        other = MemoryDisk()
        other.chance = random.Random(seed)
        other.capacity = self.capacity
        for path, file in self._files.items():
            if file.made or other.chance.random() < 0.5:
                other._files[path] = file.after_crash(other.chance, self.tears)
        return other

    def copy(self) -> MemoryDisk:
        """The disk after a kill of the process, with all bytes that a reader sees now, as another disk. A
        power cut still takes unsynced bytes."""
        other = MemoryDisk(self.chance.randrange(1 << 30))
        other.capacity = self.capacity
        for path, file in self._files.items():
            kept = other._files[path] = _File(file.size)
            for number in file.used:
                page = file.page(number)
                kept.live[number * PAGE : number * PAGE + len(page)] = page
                kept.used.add(number)
            kept.synced, kept.dirty, kept.made = dict(file.synced), set(file.dirty), file.made
        return other

    def write_back(self) -> None:
        """Write a random part of the unsynced pages to the medium, as a kernel may do at any time."""
        for file in self._files.values():
            for number in sorted(file.dirty):
                if self.chance.random() < 0.5:
                    file.synced[number] = file.page(number)

    def fail(self, operation: str, path: str = "", times: float = 1) -> None:
        """Make the next `times` operations ("write", "sync", "clear", "move") on paths that contain `path`
        fail like EIO, or "open" as when all descriptors are used up.
        """
        reason = "Too many open files" if operation == "open" else "Input/output error"
        error = StoreError(f"{path or 'disk'}: {operation} failed: {reason}")
        self._faults.append(_Fault(operation, path, error, times))

    def hang(self, path: str = "") -> None:
        """Let syncs of paths that contain `path` neither end nor fail from now on, until `heal`. Syncs
        outside of `run` end at once, because they cannot wait."""
        self._hanging.append(path)

    def heal(self) -> None:
        """Forget the faults that did not happen yet, and let hanging operations continue."""
        self._faults.clear()
        self.resume()

    def resume(self) -> None:
        """Let hanging operations continue."""
        self._hanging.clear()

    async def run(self, work: Callable[[], T]) -> T:
        """Run work that may wait for this disk, as a broker does in threads."""
        if not self._hanging and not self._working:
            return work()
        self._working += 1
        try:
            return await hanging.run(work)
        finally:
            self._working -= 1

    def guard(self) -> hanging.Guard:
        """See Disk."""
        return hanging.Guard()

    def _wait(self, path: str) -> None:
        if self._hanging:
            hanging.hang_until(lambda: not any(part in path for part in self._hanging))

    def flip(self, path: str, at: int, bit: int = 0) -> None:
        """Flip one bit, on the medium and for readers."""
        file = self._files[path]
        file.live[at] ^= 1 << bit
        if at // PAGE in file.synced:
            file.synced[at // PAGE] = file.page(at // PAGE)

    def take_fault(self, operation: str, path: str) -> StoreError | None:
        """The error that this operation must raise, if any."""
        for fault in self._faults:
            if fault.operation == operation and fault.path in path:
                fault.left -= 1
                if fault.left <= 0:
                    self._faults.remove(fault)
                return fault.error
        return None

    def take_space(self, file: _File, start: int, stop: int) -> int:
        """The number of bytes in start..stop that have room; their pages count as used from now on."""
        if self.capacity is None:
            return stop - start
        room = (self.capacity - self.used) // PAGE
        for number in range(start // PAGE, -(-stop // PAGE)):
            if number not in file.used:
                if room <= 0:
                    return max(number * PAGE - start, 0)
                room -= 1
        return stop - start

    @property
    def used(self) -> int:
        """Bytes in use by files."""
        return sum(len(file.used) for file in self._files.values()) * PAGE

    def holds(self, path: str, file: _File) -> bool:
        """True if that file is the one at that path."""
        return self._files.get(path) is file

    def changed(self) -> None:
        """Note a write."""
        if self.on_change is not None:
            self.on_change()

    def unlock(self, path: str, lock: _Lock) -> None:
        """Give a lock back, unless a crash did."""
        if self._locks.get(path) is lock:
            del self._locks[path]

    # ---- Disk ----

    def open(self, path: str, size: int, *, mapped: bool = True) -> MemorySegment:
        """See Disk."""
        error = self.take_fault("open", path)
        if error is not None:
            raise error
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = _File(size)
            self.changed()
        elif file.size != size:
            raise wrong_size(path, file.size, size)
        return MemorySegment(self, path, file)

    def list(self, folder: str) -> builtins.list[str]:
        """See Disk."""
        prefix = folder.rstrip("/") + "/"
        names = {path[len(prefix) :].split("/")[0] for path in self._files if path.startswith(prefix)}
        return sorted(names)

    def exists(self, path: str) -> bool:
        """See Disk."""
        return path in self._files or any(other.startswith(path + "/") for other in self._files)

    def size(self, path: str) -> int:
        """See Disk."""
        if path not in self._files:
            raise StoreError(f"{path}: No such file or directory")
        return self._files[path].size

    def head(self, path: str, count: int) -> tuple[int, bytes]:
        """See Disk."""
        error = self.take_fault("open", path)
        if error is not None:
            raise error
        size = self.size(path)
        return size, bytes(self._files[path].live[: min(count, size)])

    def load(self, path: str) -> bytes | None:
        """See Disk."""
        file = self._files.get(path)
        return None if file is None else bytes(file.live[: file.size])

    def replace(self, path: str, data: Bytes) -> None:
        """See Disk."""
        self._wait(path)
        error = self.take_fault("write", path)
        if error is not None:
            raise error
        file = _File(len(data))
        if self.take_space(file, 0, len(data)) < len(data):
            raise DiskFull(f"{path}: no space left")
        file.live[: len(data)] = bytes(data)
        file.mark(0, len(data))
        file.sync()
        self._files[path] = file
        self.changed()

    def remove(self, path: str) -> None:
        """See Disk."""
        for other in [name for name in self._files if name == path or name.startswith(path + "/")]:
            del self._files[other]
        self.changed()

    def move(self, path: str, to: str, *, sync: bool = True) -> None:
        """See Disk."""
        error = self.take_fault("move", path)
        if error is not None:
            raise error
        moved = [name for name in self._files if name == path or name.startswith(path + "/")]
        if not moved:
            raise StoreError(f"{path}: No such file or directory")
        for name in moved:
            self._files[to + name[len(path) :]] = self._files.pop(name)
        self.changed()

    def sync(self, path: str) -> None:
        """See Disk."""
        if self.on_sync is not None:
            self.on_sync(path)
        self._wait(path)
        error = self.take_fault("sync", path)
        file = self._files.get(path)
        if error is not None:
            if file is not None:
                file.dirty.clear()  # as in kernels: no later sync will write these pages
            raise error
        if file is not None:
            file.sync()

    def sync_all(self, path: str) -> None:
        """See Disk."""
        for name in builtins.list(self._files):
            self.sync(name)

    def usage(self, path: str) -> DiskUsage:
        """See Disk."""
        if self.capacity is None:
            return DiskUsage(0.01, 1 << 50)
        used = self.used
        free = max(self.capacity - used, 0)
        return DiskUsage(-(-used * 100 // (used + free)) / 100 if free else 1.0, free, self.capacity)

    def lock(self, path: str) -> _Lock:
        """See Disk."""
        if path in self._locks:
            raise StoreLocked(os.path.dirname(path))
        lock = self._locks[path] = _Lock(self, path)
        return lock
