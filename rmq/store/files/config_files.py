"""The small files of a store: config/<name>.json with its .bak, and the marker `abort`."""

from __future__ import annotations

import logging
import os

from rmq.errors import RmqError, StoreError
from rmq.protocol import json
from rmq.store.files.disk import Disk

log = logging.getLogger("rmq.store")


class ConfigFiles:
    """config/<name>.json, each with the version before in <name>.json.bak. Thread-safe."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._good: dict[str, bytes] = {}
        self._lock = disk.guard()

    def path(self, name: str) -> str:
        """The path of a file."""
        if not name.isidentifier():
            raise StoreError(f"{name!r} is not the name of a config file")
        return os.path.join(self._folder, f"{name}.json")

    def wait(self) -> None:
        """Return when no file is being written."""
        with self._lock:
            pass

    def load(self, name: str) -> bytes | None:
        """The text; None without a file. A broken file is logged and replaced by its .bak. Raises StoreError
        when the file is broken and no good .bak exists."""
        path = self.path(name)
        with self._lock:
            data = self._disk.load(path)
            if _is_json(data):
                self._good[name] = data or b""
                return data
            spare = self._disk.load(path + ".bak")
            if _is_json(spare):
                log.warning(
                    "%s is %s: the version before is used", path, "missing" if data is None else "broken"
                )
                return spare
            if data is None and spare is None:
                return None
        raise StoreError(f"{path} and its .bak are broken: restore one from a backup, or remove both")

    def keep_damaged(self, name: str) -> str:
        """Copy a broken file and its .bak, for a person to look at, and leave them. Returns the path of the
        copy. Raises StoreError."""
        path = self.path(name)
        with self._lock:
            for end in ("", ".bak"):
                if (data := self._disk.load(path + end)) is not None:
                    self._disk.replace(f"{path}{end}.damaged", data)
            self._good.pop(name, None)
        return f"{path}.damaged"

    def save(self, name: str, data: bytes) -> None:
        """Write the text so that a crash at any time leaves it or the version before. Raises StoreError,
        DiskFull.
        """
        path = self.path(name)
        with self._lock:
            before = self._good.get(name)
            if before is None:
                found = self._disk.load(path)
                before = found if _is_json(found) else None
            if before == data:
                return
            self._good.pop(name, None)  # a write that fails may have replaced the file
            if before is not None:
                self._disk.replace(path + ".bak", before)
            self._disk.replace(path, data)
            self._good[name] = data


def _is_json(data: bytes | None) -> bool:
    if not data:
        return False
    try:
        json.loads(data)
    except (RmqError, ValueError):
        return False
    return True
