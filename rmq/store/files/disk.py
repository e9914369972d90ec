"""Disk and Segment: the only module of the store that touches files.

Everything above works on the two protocols, so that a whole store runs on `rmq.testing.disk.MemoryDisk`,
which can lose unsynced pages, fill up, or flip bits. `RealDisk` is files: writes go through ``pwrite``
(a full disk is then an error that can be answered, where a write through a mapping would kill the
process), reads through one shared mapping.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import mmap
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final, Protocol, Self

from attrs import frozen

from rmq.errors import DiskFull, StoreError, StoreLocked
from rmq.files import replace_file, sync_folder
from rmq.protocol import engine

if sys.platform != "win32":
    import fcntl

Bytes = bytes | bytearray | memoryview


@frozen
class DiskUsage:
    """The usage of the file system under the store; `ratio` in 0..1, rounded up to whole per cents as the
    Java broker does.
    """

    ratio: float
    free_bytes: int
    total_bytes: int = 0


class Segment(Protocol):
    """One file of a fixed size. Positions are bytes from the start of the file."""

    @property
    def size(self) -> int:
        """The size of the file in bytes; it never changes."""
        ...

    def write(self, at: int, data: Bytes) -> None:
        """Write all of `data`; readers see it at once. Raises DiskFull or StoreError, after any prefix was
        written."""
        ...

    def copy(self, at: int, size: int) -> bytes:
        """Bytes read past the mapping: for ranges with holes (a page of a hole needs space on some file
        systems, and a mapping cannot report a lack of space). Raises StoreError."""
        ...

    def read(self, at: int, size: int) -> memoryview:
        """Bytes of the mapping. A view stays valid for as long as it is held, even after the segment was
        closed or removed."""
        ...

    def writable(self, size: int) -> memoryview:
        """A writable view of the whole file, of which the first `size` bytes have disk blocks for certain.
        Raises DiskFull.
        """
        ...

    def clear(self, at: int) -> None:
        """Make everything from `at` to the end zero, without needing disk space. Raises StoreError."""
        ...

    def relax(self, at: int) -> None:
        """Give the memory of the mapped pages from `at` on back to the system (madvise DONTNEED); they stay
        readable.
        """
        ...

    def data_after(self, at: int) -> tuple[int, int]:
        """Start and end of the next piece at or after `at` that may hold anything but zeros; both are the
        size when there is none. A search need not read the holes of a sparse file, which is slow.
        """
        ...

    def is_there(self) -> bool:
        """True if the segment is still the file at its path: that may have been deleted, or replaced.
        Thread-safe. Raises StoreError.
        """
        ...

    def sync(self) -> None:
        """Return when all that was written before the call is on the medium, also when the segment was closed
        since; having been removed is fine. Thread-safe. Raises StoreError.
        """
        ...

    def close(self) -> None:
        """Close the file; a sync that runs in another thread ends first. Closing twice is fine."""
        ...


class Lock(Protocol):
    """A folder's lock; `release` gives it back."""

    def release(self) -> None:
        """Give the lock back; twice is fine."""
        ...


class Disk(Protocol):
    """Paths are plain strings; a folder comes into being with its first file."""

    def open(self, path: str, size: int, *, mapped: bool = True) -> Segment:
        """Create the file at full size (sparse), or open it. Raises StoreError for an existing file of
        another size."""
        ...

    def list(self, folder: str) -> builtins.list[str]:
        """The names in `folder`, sorted; empty when there is no such folder."""
        ...

    def exists(self, path: str) -> bool:
        """True if there is a file or folder at `path`."""
        ...

    def size(self, path: str) -> int:
        """The size of the file in bytes. Raises StoreError for a missing file."""
        ...

    def head(self, path: str, count: int) -> tuple[int, bytes]:
        """The size of an existing file that could be opened for writing, and its first `count` bytes. The
        file stays closed, so that this costs less than `open`. Raises StoreError."""
        ...

    def load(self, path: str) -> bytes | None:
        """The content of a small file; None for a missing file."""
        ...

    def replace(self, path: str, data: Bytes) -> None:
        """Replace a small file so that a crash leaves the old or the new content: temporary file, sync,
        rename, sync of the folder."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content. A missing file is fine. A folder that is a link or a
        mount point stays, and only its content is removed."""
        ...

    def move(self, path: str, to: str, *, sync: bool = True) -> None:
        """Rename a file or folder, on the same file system; a crash leaves either the old or the new name.
        Without `sync` a crash may also bring back the old name later. Raises StoreError, also for a missing
        file and for a link."""
        ...

    def sync(self, path: str) -> None:
        """Return when all that was written to the file is on the medium; not being there is fine. Thread-
        safe.
        """
        ...

    def usage(self, path: str) -> DiskUsage:
        """Usage of the file system of `path` (or of its nearest existing parent)."""
        ...

    def lock(self, path: str) -> Lock:
        """Lock the file at `path` for this process, as Java does (a POSIX lock on byte 0). Raises
        StoreLocked.
        """
        ...

    def sync_all(self, path: str) -> None:
        """Return when all that was written to the file system of `path` before the call is on the medium.
        Thread-safe.
        """
        ...

    def guard(self) -> AbstractContextManager[object]:
        """A lock between threads, which may be held while the disk is waited for."""
        ...


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Map the operating system's errors to ours, once, at the border."""
    try:
        yield
    except OSError as error:
        raise store_error(error, path) from error


def store_error(error: OSError, path: str) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"{path}: {error.strerror}: free some space, or lower fileReservedTime of a broker there"
        )
    remedy = ""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "; the files of a store must belong to its server's user, and be writable"
    return StoreError(f"{path}: {error.strerror or error}{remedy}")


class FileMap(mmap.mmap):
    """A mapping whose bytes go from the page cache to a socket without a copy, by `send_to`: streams look for
    this method at the object of a large view."""

    def __new__(cls, descriptor: int, size: int, access: int, segment: RealSegment) -> Self:
        return super().__new__(cls, descriptor, size, access=access)

    def __init__(self, descriptor: int, size: int, access: int, segment: RealSegment) -> None:
        self._segment = segment

    def send_to(self, descriptor: int, view: memoryview) -> int:
        """Give a non-blocking socket the bytes of a view of this mapping, as many as it takes at once; return
        their number, or -1 when the bytes themselves must be sent. Raises OSError of the socket."""
        at = -1 if engine.compiled is None else engine.compiled.place_in(self, view)
        return -1 if at < 0 else self._segment.send_to(descriptor, at, len(view))


_NOT_SENDABLE: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
SENDS_FILES: Final = sys.platform == "linux" and engine.compiled is not None
"""True if mappings are `FileMap`s: the search for a view's place is compiled."""


class RealSegment:
    """A file: a descriptor, and a shared mapping that is made at the first read."""

    __slots__ = (
        "_busy",
        "_fd",
        "_folder_synced",
        "_guard",
        "_map",
        "_mapped",
        "_reserved",
        "_view",
        "path",
        "size",
    )

    def __init__(self, path: str, size: int, fd: int, *, mapped: bool, created: bool) -> None:
        self.path = path
        self.size = size
        self._fd = fd
        self._mapped = mapped
        self._folder_synced = not created
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._reserved = 0
        self._guard = threading.Lock()
        self._busy = 0

    def write(self, at: int, data: Bytes) -> None:
        if at + len(data) > self.size:
            raise ValueError(f"{self.path}: {len(data)} bytes at {at} go past the end of the file")
        try:
            written = os.pwrite(self._fd, data, at)
            while written < len(data):
                written += os.pwrite(self._fd, memoryview(data)[written:], at + written)
        except OSError as error:
            raise store_error(error, self.path) from error

    def read(self, at: int, size: int) -> memoryview:
        if self._mapped:
            view = self._view
            if view is None:
                view = self._make_map(writable=False)
            return view[at : at + size]
        return memoryview(self.copy(at, size))

    def copy(self, at: int, size: int) -> bytes:
        try:
            return os.pread(self._fd, size, at)
        except OSError as error:
            raise store_error(error, self.path) from error

    def _make_map(self, *, writable: bool) -> memoryview:
        with _explained(self.path):
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            # Nobody closes the mapping by hand: it goes when the last view of it goes, so no view can dangle.
            self._map = (
                FileMap(self._fd, self.size, access, self)
                if SENDS_FILES
                else mmap.mmap(self._fd, self.size, access=access)
            )
        self._view = memoryview(self._map)
        return self._view

    def send_to(self, descriptor: int, at: int, size: int) -> int:
        """Same as `FileMap.send_to`, for the bytes at a place of the file."""
        with self._guard:  # another thread may close the file, and its descriptor become another file's
            if self._fd < 0:
                return -1
            try:
                return os.sendfile(descriptor, self._fd, at, size) or -1
            except OSError as error:
                if error.errno in _NOT_SENDABLE:
                    return -1
                raise

    def writable(self, size: int) -> memoryview:
        if size > self._reserved:
            with _explained(self.path):
                # A store into an unallocated page of a full disk is a SIGBUS: have the blocks first.
                _reserve(self._fd, self._reserved, min(size, self.size))
            self._reserved = size
        view = self._view
        if view is None or view.readonly:
            view = self._make_map(writable=True)
        return view

    def clear(self, at: int) -> None:
        with _explained(self.path):
            # Cutting and growing again needs no space, which overwriting with zeros might.
            os.ftruncate(self._fd, at)
            os.ftruncate(self._fd, self.size)

    def relax(self, at: int) -> None:
        if self._map is not None and at < self.size:
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_DONTNEED, at - at % mmap.PAGESIZE)

    def data_after(self, at: int) -> tuple[int, int]:
        try:
            start = os.lseek(self._fd, at, os.SEEK_DATA)
            return start, os.lseek(self._fd, start, os.SEEK_HOLE)
        except OSError as error:
            return (self.size if error.errno == errno.ENXIO else at), self.size

    def is_there(self) -> bool:
        with _explained(self.path), self._guard:
            try:
                return self._fd < 0 or os.path.samestat(os.fstat(self._fd), os.stat(self.path))
            except FileNotFoundError:
                return False

    def sync(self) -> None:
        with self._guard:
            closed = self._fd < 0
            if not closed:
                self._busy += 1
        if closed:
            # To have few files open it was closed, maybe by another thread just now; that wrote nothing down.
            _sync_path(self.path)
            return
        try:
            with _explained(self.path):
                _sync_data(self._fd)
                if not self._folder_synced:
                    sync_folder(os.path.dirname(self.path))
                    self._folder_synced = True
        finally:
            self._finish_sync()

    def _finish_sync(self) -> None:
        with self._guard:
            self._busy -= 1
            if self._busy == 0 and self._fd < -1:
                os.close(-self._fd - 2)
                self._fd = -1

    def close(self) -> None:
        with self._guard:
            self._view = self._map = None
            if self._fd < 0:
                return
            if self._busy:
                self._fd = -self._fd - 2  # the sync in the other thread closes it
            else:
                os.close(self._fd)
                self._fd = -1


def _sync_data(fd: int) -> None:
    if sys.platform == "darwin":  # there fsync leaves the bytes in the cache of the drive
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        return
    (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(fd)


def _reserve(fd: int, start: int, stop: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, start, stop - start)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot
                raise


def _sync_path(path: str) -> None:
    """Sync a file that may be gone. Raises StoreError."""
    with _explained(path):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            _sync_data(fd)
            sync_folder(os.path.dirname(path))
        finally:
            os.close(fd)


# POSIX locks do not keep a process out of its own files, so one process needs its own list of the folders
# it holds.
_held: set[str] = set()


class _FileLock:
    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _held.discard(self._path)


class RealDisk:
    """The files of this machine."""

    def open(self, path: str, size: int, *, mapped: bool = True) -> RealSegment:
        # Without a context manager, which costs as much as the system call.
        try:
            fd, created = _open_file(path)
            try:
                found = os.fstat(fd).st_size
                if created or found == 0:
                    os.ftruncate(fd, size)
                elif found != size:
                    raise wrong_size(path, found, size)
            except BaseException:
                os.close(fd)
                if created:
                    os.unlink(path)
                raise
        except OSError as error:
            raise store_error(error, path) from error
        return RealSegment(path, size, fd, mapped=mapped, created=created)

    def list(self, folder: str) -> builtins.list[str]:
        try:
            return sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise store_error(error, folder) from error

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        with _explained(path):
            return os.stat(path).st_size

    def head(self, path: str, count: int) -> tuple[int, bytes]:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                return os.fstat(fd).st_size, os.pread(fd, count, 0)
            finally:
                os.close(fd)
        except OSError as error:
            raise store_error(error, path) from error

    def load(self, path: str) -> bytes | None:
        with _explained(path):
            try:
                with open(path, "rb") as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def replace(self, path: str, data: Bytes) -> None:
        with _explained(path):
            replace_file(path, data, suffix=".tmp")

    def remove(self, path: str) -> None:
        with _explained(path), contextlib.suppress(FileNotFoundError):
            if os.path.isdir(path) and not os.path.islink(path):
                _remove_folder(path)
            elif os.path.isdir(path):
                _remove_content(path)
            else:
                os.unlink(path)

    def move(self, path: str, to: str, *, sync: bool = True) -> None:
        if os.path.islink(path):
            raise StoreError(f"{path} is a link to another folder, and stays one")
        with _explained(path):
            os.makedirs(os.path.dirname(to), exist_ok=True)
            os.rename(path, to)
            if sync:
                sync_folder(os.path.dirname(to))
                sync_folder(os.path.dirname(path))

    def sync(self, path: str) -> None:
        _sync_path(path)

    def usage(self, path: str) -> DiskUsage:
        with _explained(path):
            state = os.statvfs(_nearest(path))
        used = (state.f_blocks - state.f_bfree) * state.f_frsize
        free = state.f_bavail * state.f_frsize
        return DiskUsage(-(-used * 100 // max(used + free, 1)) / 100, free, used + free)

    def lock(self, path: str) -> Lock:
        if sys.platform == "win32":
            raise StoreError(
                f"{path}: a broker does not run on Windows, which lacks the locks and writes of its store:"
                " use WSL or a container"
            )
        path = os.path.realpath(path)
        if path in _held:
            raise StoreLocked(os.path.dirname(path))
        with _explained(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                # The POSIX lock is Java's, but it goes when this process closes any descriptor of the
                # file; the other one stays.
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
                os.pwrite(fd, b"lock", 0)
            except OSError as error:
                os.close(fd)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise StoreLocked(os.path.dirname(path)) from error
                raise
        _held.add(path)
        return _FileLock(path, fd)

    def sync_all(self, path: str) -> None:
        with _explained(path):
            fd = os.open(_nearest(path), os.O_RDONLY)
            try:
                _sync_file_system(fd)
            finally:
                os.close(fd)

    def guard(self) -> AbstractContextManager[object]:
        return threading.Lock()


class ReadOnlyDisk(RealDisk):
    """The files of this machine, of which none is made or changed: for looking into a store."""

    def open(self, path: str, size: int, *, mapped: bool = True) -> RealSegment:
        """An existing file of that size. Raises StoreError; so does every write to it."""
        with _explained(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            found = os.fstat(fd).st_size
        if found != size:
            os.close(fd)
            raise wrong_size(path, found, size)
        return RealSegment(path, size, fd, mapped=mapped, created=False)


_OF_VOLUME: Final = "lost+found"
"""In the top folder of a volume: the system's, and only root may read or remove it."""


def _remove_content(path: str) -> None:
    for entry in os.scandir(path):
        if entry.name == _OF_VOLUME:
            continue
        if entry.is_dir(follow_symlinks=False):
            _remove_folder(entry.path)
        else:
            os.unlink(entry.path)


def _remove_folder(path: str) -> None:
    if os.path.ismount(path):  # the folder stays while the volume is mounted there
        _remove_content(path)
        return
    try:
        shutil.rmtree(path)
    except OSError as error:
        # All that was in it went before. A volume's folder stays while the volume is mounted there.
        if error.errno != errno.EBUSY or error.filename != path or os.listdir(path):
            raise


def _open_file(path: str) -> tuple[int, bool]:
    """Open or make the file; second value: whether it was made."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC), False
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), True


def wrong_size(path: str, found: int, expected: int) -> StoreError:
    """The error for a file whose length differs from the configured length."""
    return StoreError(
        f"{path} has {found} bytes, expected {expected}: either the file is damaged (restore it from a "
        "backup or a replica) or the configured file size is not the one that the store was made with (set "
        "it back)"
    )


def _nearest(path: str) -> str:
    while path and not os.path.exists(path):
        parent = os.path.dirname(path)
        if parent == path:
            break
        path = parent
    return path or "."


def _sync_file_system(fd: int) -> None:
    try:
        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError):  # not Linux: sync everything
        os.sync()
        return
    if syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
