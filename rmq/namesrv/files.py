"""The two small files of a name server: read whole, replaced whole."""

from __future__ import annotations

import os
from pathlib import Path


def read_file(path: Path) -> bytes | None:
    """The content, or None when there is no such file. Raises OSError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that after a crash it holds either the old content or the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
