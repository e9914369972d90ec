"""Backup: a hot copy of a store's folder, and a new slave's folder made from a copy.

A backup has the log and the tables. The first start makes queues and index from the log again. Bytes of the
log never change once they are written, so a file that was full is not copied twice. The last files are cut
behind the last record that was whole at the time of the copy: the broker continues to write. Offsets are read
before the log and written after it, so that no group is ever ahead of the log in a backup.

A copy is as private as its source, and never open to all users: files and folders keep their modes, and get
0600 and 0700 where the source is open to all. Holes of sparse files are neither read nor written.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import pathlib
import re
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

from attrs import asdict, define, field, frozen

from rmq.errors import StoreError
from rmq.store.files.scan import is_blank, parse

MANIFEST: Final = "backup.json"
PIECE: Final = 1 << 20
ZEROS: Final = bytes(PIECE)
LATE: Final = ("topics.json", "subscriptionGroup.json")
"""Files read after the log: they have the topic of every message in it."""
UNFINISHED: Final = 3
"""Number of last files that may still be written to: the newest, and one that is made ahead of time."""
REPLICA: Final = ("controller.json",)
"""The file with the identity of a replica of a set with controllers: its owner counts as having every
acknowledged message, and a backup has not. No backup has the file; those of earlier versions may have it."""
OWN: Final = ("broker.properties", "broker.properties.bak", *REPLICA)
"""The settings of one broker, which are not another broker's."""

_NAME: Final = re.compile(r"commitlog/[0-9]{20}|config/[^/\\:\0]+")
"""Paths of the files of a backup: one with another path could be anywhere."""
TAIL: Final = 1 << 16
"""Last bytes by which a full file of the log is compared with its copy."""

Pace = Callable[[int], None]


@frozen
class Copied:
    """A file of a backup. `is_full`: a file of the log that is never written to again. `sha256` is of the
    first `reach` bytes, or without `reach` of all bytes: only zeros follow."""

    size: int
    sha256: str
    is_full: bool = False
    reach: int | None = None

    def is_at(self, path: pathlib.Path) -> bool:
        """True if this is the content of a file. Raises FileNotFoundError."""
        if path.stat().st_size != self.size:
            return False
        reach = self.size if self.reach is None else self.reach
        return _sha256(path, reach) == self.sha256 and not _has_data(path, reach)


@define
class Manifest:
    """Content of a backup: its files by their paths."""

    files: dict[str, Copied] = field(factory=dict)

    @classmethod
    def load(cls, folder: pathlib.Path) -> Manifest | None:
        """The manifest of a backup; None without a backup. Raises StoreError for an unreadable manifest."""
        try:
            rows = json.loads((folder / MANIFEST).read_bytes())["files"]
            files = {str(name): Copied(**row) for name, row in rows.items()}
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"{folder / MANIFEST} cannot be read: {error!r}") from None
        for name in files:
            if not _NAME.fullmatch(name) or name.endswith(("/.", "/..")):
                raise StoreError(
                    f"{folder / MANIFEST} names the file {name!r:.200}, which is none of a backup: "
                    "take a backup that nobody has changed"
                )
        return cls(files)

    def save(self, folder: pathlib.Path) -> None:
        """Write the file, so that a crash leaves the old or the new one."""
        rows = {name: asdict(one) for name, one in sorted(self.files.items())}
        _replace(folder / MANIFEST, json.dumps({"files": rows}, indent=1).encode())


@frozen
class Result:
    """Result of a backup. `end`: the end of its log."""

    copied: int
    copied_bytes: int
    kept: int
    end: int


def back_up(store: pathlib.Path, log: pathlib.Path, target: pathlib.Path, pace: Pace) -> Result:
    """Make `target` a copy of the store, whose broker may run. Files already in the copy are not copied
    again, and an interrupted copy is continued. Raises StoreError, OSError."""
    if not log.is_dir():
        raise StoreError(
            f"{log} is not the folder of a log: is {store} a store, and is it one that has messages?"
        )
    for source in (store, log):
        if target.resolve().is_relative_to(source.resolve()):
            raise StoreError(
                f"{target} is in {source}, and would be lost with it: take a folder on another disk"
            )
    manifest = Manifest.load(target)
    if manifest is None:
        if target.exists() and any(target.iterdir()):
            raise StoreError(f"{target} is not empty, and no backup: take another folder")
        manifest = Manifest()
    for folder in (target, target / "commitlog", target / "config"):
        if (target / MANIFEST).exists():
            _close_to_others(folder, 0o700)
        _make_folder(folder, store)
    for path in (MANIFEST, *manifest.files):  # earlier versions made them readable to all users
        _close_to_others(target / path, 0o600)
    manifest.save(target)
    early = _tables(store, late=False)
    names = [path.name for path in _log_files(log)]
    _same_log(log, target, manifest, names)
    copied = copied_bytes = kept = end = 0
    for place, name in enumerate(names):
        path = f"commitlog/{name}"
        known = manifest.files.get(path)
        if known is not None and known.is_full and _is_kept(log / name, target / path, known.size):
            kept, end = kept + 1, int(name) + known.size
            continue
        try:
            one, reach = _copy_log_file(
                log / name, target / path, pace, is_last=place + UNFINISHED >= len(names)
            )
        except FileNotFoundError:
            if end:
                raise StoreError(f"{log / name} disappeared in the middle of the log") from None
            continue  # retention has removed it since the folder was listed
        manifest.files[path] = one
        manifest.save(target)
        copied, copied_bytes, end = copied + 1, copied_bytes + reach, int(name) + reach
        if not one.is_full:
            break
    _drop_others(target, manifest, names, end)
    for path, data in {**early, **_tables(store, late=True)}.items():
        _replace(target / path, data, _mode_of(store / path))
        manifest.files[path] = Copied(len(data), hashlib.sha256(data).hexdigest())
    _replace(target / "abort", b"")  # the first start on it checks the log as after a crash
    manifest.save(target)
    return Result(copied, copied_bytes, kept, end)


def verify(target: pathlib.Path) -> Iterator[str]:
    """Read a backup again; yield the differences from the copied files. Raises StoreError."""
    manifest = Manifest.load(target)
    if manifest is None:
        raise StoreError(f"{target} is no backup: it has no {MANIFEST}")
    for name, one in sorted(manifest.files.items()):
        try:
            if not one.is_at(target / name):
                yield f"{name} differs from the copied file"
        except FileNotFoundError:
            yield f"{name} is missing"


def seed(backup: pathlib.Path, folder: pathlib.Path, log: pathlib.Path, pace: Pace) -> int:
    """Make an empty folder the store of a new slave of the backup's broker; a second call continues an
    interrupted one. Returns the bytes. Raises StoreError, also when the backup is damaged."""
    manifest = Manifest.load(backup)
    if manifest is None:
        raise StoreError(f"{backup} is no backup: it has no {MANIFEST}")
    begun = folder / "seeding"
    if folder.exists() and any(folder.iterdir()) and not begun.exists():
        raise StoreError(f"{folder} is not empty: a slave is seeded into an empty folder")
    for place in (folder, folder / "config", log):
        _make_folder(place, backup)
    begun.write_bytes(b"")
    total = 0
    for name, one in sorted(manifest.files.items()):
        kind, _, last = name.partition("/")
        if kind == "config" and last in OWN:
            continue
        to = log / last if kind == "commitlog" else folder / name
        if not (to.exists() and one.is_at(to)):
            _copy(backup / name, to, pace)
            if not one.is_at(to):
                raise StoreError(f"{backup / name} is damaged: it differs from the copied file")
        total += one.size
    state = folder / "config" / "replication.json"
    if state.exists():  # the log keeps its name, but this broker has not written it
        text = json.dumps(json.loads(state.read_bytes()) | {"leads": False})
        _replace(state, text.encode(), _mode_of(state))
    _replace(folder / "abort", b"")
    begun.unlink()
    return total


def _tables(store: pathlib.Path, *, late: bool) -> dict[str, bytes]:
    found = {}
    for path in sorted((store / "config").glob("*")):
        if path.name in REPLICA or path.name.endswith(".tmp") or (path.name in LATE) != late:
            continue
        if path.is_file():
            try:
                found[f"config/{path.name}"] = path.read_bytes()
            except FileNotFoundError:
                continue
    return found


def _log_files(log: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in log.iterdir() if path.name.isdigit() and len(path.name) == 20)


def _same_log(log: pathlib.Path, target: pathlib.Path, manifest: Manifest, names: list[str]) -> None:
    """Raises StoreError when the backup is one of another log."""
    for name in names:
        path = f"commitlog/{name}"
        if path in manifest.files and (target / path).exists():
            try:
                now = _first_bytes(log / name)
            except FileNotFoundError:
                continue  # retention has removed it since the folder was listed
            before = _first_bytes(target / path)
            if before.strip(b"\0") and not _begins_alike(before, now):
                raise StoreError(f"{target} is a backup of another log: take another folder")
            return


def _first_bytes(path: pathlib.Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(4096)


def _is_kept(source: pathlib.Path, copy: pathlib.Path, size: int) -> bool:
    """True if the copy of a full file is still the file: a replica that follows a new master cuts off the
    end of its log, and writes another end. A source that retention has removed meanwhile is unchanged."""
    if _size(copy) != size:
        return False
    try:
        with open(source, "rb") as ours, open(copy, "rb") as theirs:
            ours.seek(max(size - TAIL, 0))
            theirs.seek(max(size - TAIL, 0))
            return ours.read(TAIL) == theirs.read(TAIL)
    except FileNotFoundError:
        return True


def _begins_alike(before: bytes, now: bytes) -> bool:
    """True if the bytes that were written before are unchanged."""
    written = before.rstrip(b"\0")
    return now.startswith(written)


def _copy_log_file(
    source: pathlib.Path, to: pathlib.Path, pace: Pace, *, is_last: bool
) -> tuple[Copied, int]:
    """Copy a file beside its place, find its end if it may be a last file, and move it to its place."""
    beside = to.with_name(f"{to.name}.tmp")
    size = _copy(source, beside, pace)
    reach = size
    if is_last:
        reach = _reach(beside, int(source.name), size)
        if reach < size:  # later bytes were being written
            os.truncate(beside, reach)
            os.truncate(beside, size)
    with open(beside, "rb+") as file:
        os.fsync(file.fileno())
    one = Copied(size, _sha256(beside, reach), reach == size, reach)
    os.replace(beside, to)
    return one, reach


def _reach(path: pathlib.Path, base: int, size: int) -> int:
    """The bytes of whole records in a log file; the whole file when a blank record closes it."""
    if not size:
        return 0
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        at = 0
        while (record := parse(data, at, base + at, check_crc=True)) is not None:
            at += record.size
        return size if at == size or is_blank(bytes(data[at : at + 8]), size - at) else at


def _drop_others(target: pathlib.Path, manifest: Manifest, names: list[str], end: int) -> None:
    """Remove files that the store has no longer, by its retention, and bytes behind its end."""
    present_files = {f"commitlog/{name}" for name in names if int(name) < end}
    for path in [
        path for path in manifest.files if path.startswith("commitlog/") and path not in present_files
    ]:
        (target / path).unlink(missing_ok=True)
        del manifest.files[path]


def _copy(source: pathlib.Path, to: pathlib.Path, pace: Pace) -> int:
    """Copy a file, holes as holes; returns its size."""
    with open(source, "rb") as given, _private(to, _mode_of(source)) as file:
        size = os.fstat(given.fileno()).st_size
        for at, piece in data_pieces(given, size):
            if piece.count(0) != len(piece):  # zeros need no room on the disk
                file.seek(at)
                file.write(piece)
                pace(len(piece))
        file.truncate(size)
        file.flush()
        os.fsync(file.fileno())
    return size


def data_pieces(file: BinaryIO, end: int, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """The places and the bytes of a file from `at` to `end`, without holes where the system knows holes."""
    while at < end:
        start, stop = _next_data(file.fileno(), at, end)
        at = start
        while at < stop:
            file.seek(at)
            if not (piece := file.read(min(PIECE, stop - at))):
                return
            yield at, piece
            at += len(piece)


def _next_data(number: int, at: int, end: int) -> tuple[int, int]:
    if not hasattr(os, "SEEK_DATA"):
        return at, end
    try:
        start = os.lseek(number, at, os.SEEK_DATA)
        return min(start, end), min(os.lseek(number, start, os.SEEK_HOLE), end)
    except OSError as error:  # ENXIO: nothing but a hole is left; else the file system knows no holes
        return (end if error.errno == errno.ENXIO else at), end


def _has_data(path: pathlib.Path, at: int) -> bool:
    """True if a file holds anything but zeros from `at` on."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return any(piece.count(0) != len(piece) for _, piece in data_pieces(file, size, at))


def _sha256(path: pathlib.Path, reach: int) -> str:
    """The digest of the first `reach` bytes of a file."""
    digest, done = hashlib.sha256(), 0
    with open(path, "rb") as file:
        for at, piece in data_pieces(file, reach):
            _add_zeros(digest, at - done)
            digest.update(piece)
            done = at + len(piece)
    _add_zeros(digest, reach - done)
    return digest.hexdigest()


def _add_zeros(digest: Any, count: int) -> None:
    for _ in range(count // PIECE):
        digest.update(ZEROS)
    digest.update(ZEROS[: count % PIECE])


# --- modes ---


def _mode_of(source: pathlib.Path, otherwise: int = 0o600) -> int:
    """The mode for a copy of a file or folder: of the source, or `otherwise` where that is open to all users
    or gone."""
    try:
        mode = stat.S_IMODE(source.stat().st_mode)
    except FileNotFoundError:
        return otherwise
    return otherwise if mode & stat.S_IRWXO else mode


def _make_folder(folder: pathlib.Path, like: pathlib.Path) -> None:
    if not folder.exists():
        folder.mkdir(parents=True, mode=0o700)
        folder.chmod(_mode_of(like, 0o700))


def _close_to_others(path: pathlib.Path, mode: int) -> None:
    if path.exists() and stat.S_IMODE(path.stat().st_mode) & stat.S_IRWXO:
        path.chmod(mode)


def _private(path: pathlib.Path, mode: int) -> BinaryIO:
    """A new file to write to, which nobody else can open meanwhile."""
    path.unlink(missing_ok=True)
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    if hasattr(os, "fchmod"):
        os.fchmod(number, mode)
    return os.fdopen(number, "wb")


def _replace(path: pathlib.Path, data: bytes, mode: int = 0o600) -> None:
    beside = path.with_name(f"{path.name}.tmp")
    with _private(beside, mode) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _size(path: pathlib.Path) -> int:
    return path.stat().st_size if path.exists() else -1


def paced(
    rate: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Any] = time.sleep
) -> Pace:
    """A brake that waits so that no more than `rate` bytes a second are copied; 0 is no bound."""
    began, done = clock(), 0

    def pace(count: int) -> None:
        nonlocal done
        done += count
        if rate and (wait := began + done / rate - clock()) > 0:
            sleep(wait)

    return pace
