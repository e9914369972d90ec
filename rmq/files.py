"""Small files that are read whole and replaced whole, and settings that are kept in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from rmq.config import parse_properties, properties_text, spellings

SaveSettings = Callable[[Mapping[str, str]], None]
"""Keeps settings (Java key -> text) that were changed at run time. Raises OSError."""


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


def settings_saver(path: str) -> SaveSettings | None:
    """What keeps changed settings in a properties file; None without one, and for TOML files."""
    if not path or path.endswith(".toml"):
        return None
    return partial(_save_settings, Path(path).expanduser())


def _save_settings(path: Path, changes: Mapping[str, str]) -> None:
    before = (read_file(path) or b"").decode("utf-8", "surrogateescape")
    replace_file(path, with_changes(before, changes).encode("utf-8", "surrogateescape"))


def with_changes(text: str, changes: Mapping[str, str]) -> str:
    """Properties text in which `changes`, by RocketMQ's keys, hold; other lines, comments and order stay as
    they are. A setting that stands there by our name, or more than once, stands there once then."""
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


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
