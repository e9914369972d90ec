"""The folder of a dashboard for exports: private, removed at its end or, after a kill, at the next start."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Final

if sys.platform != "win32":
    import fcntl

log = logging.getLogger(__name__)

PREFIX: Final = "rmq-dashboard-"
LOCK: Final = "lock"
"""A file that the living dashboard holds a lock on: the lock of a killed process is free."""
EMPTY_SECONDS: Final = 3600.0
"""A folder without a lock file was left by a start that was killed, if it is so old."""


@contextlib.contextmanager
def exports_folder(parent: pathlib.Path | None = None) -> Iterator[pathlib.Path]:
    """A new folder that only this user reads, for the length of the block. Folders of dashboards that were
    killed are removed first. `parent` is the system's folder of temporary files, if not given."""
    parent = pathlib.Path(tempfile.gettempdir()) if parent is None else parent
    remove_leftovers(parent)
    folder, lock = _locked(parent)
    try:
        yield folder
    finally:
        if sys.platform == "win32":
            os.close(lock)
            shutil.rmtree(folder, ignore_errors=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(parent: pathlib.Path) -> tuple[pathlib.Path, int]:
    """A new folder, and its lock."""
    while True:
        folder = pathlib.Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o600)
        if sys.platform == "win32":  # an open file cannot be removed there
            return folder, lock
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / LOCK).exists():
            return folder, lock
        os.close(lock)  # another dashboard took it for a leftover before it was locked


def remove_leftovers(parent: pathlib.Path) -> None:
    """Remove folders of this user's dashboards that no longer run. Folders of other users, symbolic links and
    locked folders stay."""
    if sys.platform == "win32":
        return  # the user's folder of temporary files, which Windows empties
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            if _is_ours(folder) and _is_left(folder):
                shutil.rmtree(folder)
                log.info("removed %s, which a dashboard that was killed has left", folder)
        except OSError as error:
            log.warning("the leftover %s of a dashboard cannot be removed: %s", folder, error)


def _is_ours(folder: pathlib.Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _is_left(folder: pathlib.Path) -> bool:
    """True if no process holds the folder's lock."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return not any(folder.iterdir()) and time.time() - folder.stat().st_mtime > EMPTY_SECONDS
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
