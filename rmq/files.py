"""Small files that are read whole and replaced whole, and settings that are kept in them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from rmq.config import parse_properties, properties_text, spellings

Buffer = bytes | bytearray | memoryview
USUAL_MODE: Final = 0o666
OWNER_ONLY: Final = 0o600

SaveSettings = Callable[[Mapping[str, str]], None]
"""Keeps settings (Java key -> text) that were changed at run time. Raises OSError."""


def read_file(path: Path) -> bytes | None:
    """The content, or None when there is no such file. Raises OSError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def replace_file(
    path: str | os.PathLike[str], data: Buffer, *, mode: int | None = None, suffix: str = ".new"
) -> None:
    """Write a file so that after a crash, and for concurrent readers, it holds either the old content or the
    new. Raises OSError, with the file unchanged, or replaced if only the sync of its folder failed.

    The folder is created if missing; a link stays a link. `mode` are the permissions, less the umask; None:
    those of the old file, or the usual permissions of a new file. `suffix` names the temporary file; two
    writers of the same file need different suffixes.
    """
    path = os.path.realpath(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    beside = path + suffix
    with suppress(FileNotFoundError):
        os.unlink(beside)  # of a crash; its permissions may be wider
    kept = _mode_of(path) if mode is None else None
    first = mode if mode is not None else USUAL_MODE if kept is None else OWNER_ONLY
    try:
        with open(beside, "xb", opener=lambda name, flags: os.open(name, flags, first)) as file:
            if kept is not None:
                os.chmod(beside, kept)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        with suppress(OSError):
            os.unlink(beside)
        raise
    sync_folder(os.path.dirname(path))


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Sync the names that a folder has; a folder that another thread removed is passed over. Raises
    OSError."""
    if sys.platform == "win32":
        return
    try:
        descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _mode_of(path: str) -> int | None:
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return None


def settings_saver(path: str) -> SaveSettings | None:
    """The writer of changed settings to a properties file; None without a file, and for TOML files."""
    if not path or path.endswith(".toml"):
        return None
    return partial(_save_settings, Path(path).expanduser())


def _save_settings(path: Path, changes: Mapping[str, str]) -> None:
    before = (read_file(path) or b"").decode("utf-8", "surrogateescape")
    replace_file(path, with_changes(before, changes).encode("utf-8", "surrogateescape"))


def with_changes(text: str, changes: Mapping[str, str]) -> str:
    """Properties text with `changes`, by RocketMQ's keys; other lines, comments and order stay. A setting
    that the text has under the field's name, or repeatedly, is in the result only once."""
    left = dict(changes)
    known = {name: key for key in changes for name in spellings(key)}
    lines = []
    for line in text.splitlines():
        found = next(iter(parse_properties(line)), None) if not line.endswith("\\") else None
        key = known.get(found or "")
        if key is not None:
            line = properties_text({key: left.pop(key)}).rstrip("\n") if key in left else ""
        lines.append(line)
    body = "\n".join(line for line in lines)
    return body + ("\n" if body else "") + properties_text(left)
