"""The accounts' files on disk: found, read, watched, changed.

As in RocketMQ the main file is plain_acl.yml, beside a folder `acl` with any number of further files. All
files are accepted together, or none: an error keeps the accounts of the last read.
"""

from __future__ import annotations

import base64
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from attrs import evolve, frozen

from rmq.errors import ConfigError, RemoteProtocolError
from rmq.files import OWNER_ONLY, replace_file
from rmq.protocol import json
from rmq.protocol.bodies import DataVersion
from rmq_acl import plainfile
from rmq_acl.accounts import Accounts
from rmq_acl.plainfile import AclFile, AclFileError

FILE_NAME: Final = "plain_acl.yml"
FOLDER_NAME: Final = "acl"
SUFFIXES: Final = (".yml", ".yaml")
KEPT: Final = ".bak"
"""Suffix of a file whose place the master's file has taken."""
HOW_TO_MAKE_ONE: Final = "`rmq acl add NAME --admin --file FILE` makes one"

_READ_BY_OTHERS: Final = 0o077

log = logging.getLogger("rmq.acl")


def find(named: str, settings_file: str, environment: Mapping[str, str]) -> Path:
    """The main file: the configured file, else the file beside the settings file, else RocketMQ's. Raises
    ConfigError without any."""
    if named:
        return Path(named).expanduser().absolute()
    home = environment.get("ROCKETMQ_HOME", "")
    places = [Path(settings_file).expanduser().absolute().parent] if settings_file else []
    places += [Path(home) / "conf"] if home else []
    for place in places:
        if (place / FILE_NAME).exists() or (place / FOLDER_NAME).is_dir():
            return place / FILE_NAME
    expected = " or ".join(["a file of accounts", *(str(place / FILE_NAME) for place in places)])
    raise ConfigError("aclFile", named, f"{expected}; {HOW_TO_MAKE_ONE}")


@frozen
class State:
    """The accounts' files at the time of a read; `stamps` reveals later changes."""

    files: tuple[AclFile, ...]
    accounts: Accounts
    stamps: dict[str, object]


class AclFiles:
    """The last read state: `accounts`, and their files, the main file first."""

    def __init__(self, main: Path) -> None:
        self.main = main
        self._state = State((), Accounts(), {})
        self._warned: set[str] = set()

    @property
    def files(self) -> tuple[AclFile, ...]:
        """The files of the last read."""
        return self._state.files

    @property
    def accounts(self) -> Accounts:
        """The accounts of all files together."""
        return self._state.accounts

    def load(self) -> None:
        """Read all files. Raises AclFileError, with the accounts unchanged."""
        self.take(self._read())

    def _read(self) -> State:
        stamps = self._stamp()
        paths = list(self._paths())
        was_there = any(file.path == str(self.main) for file in self.files)
        if not paths or (was_there and self.main not in paths):
            raise AclFileError(str(self.main), 0, f"is not there (setting aclFile); {HOW_TO_MAKE_ONE}")
        files = tuple(plainfile.read(str(path), self._bytes(path)) for path in paths)
        return State(files, plainfile.merge(files), stamps)

    def poll(self) -> bool:
        """Read the files again after a change; return whether accounts are new. Errors are logged once."""
        stamps = self._stamp()
        if stamps == self._state.stamps:
            return False
        self._state = evolve(self._state, stamps=stamps)
        try:
            self.load()
        except AclFileError as error:
            log.error("accounts stay as they were: %s", error)
            return False
        log.info(
            "%d accounts read from %s", len(self.accounts.table), ", ".join(file.path for file in self.files)
        )
        return True

    def path_of(self, access_key: str) -> str:
        """The file of an account, or the file for a new one."""
        for file in self.files:
            if any(account.access_key == access_key for account in file.accounts):
                return file.path
        return str(self.main)

    def change(self, path: str, edit: Callable[[dict[str, Any]], None], now_ms: int) -> None:
        """`take` the result of `changed` on the present files. Raises the same errors."""
        self.take(self.changed(self.fresh(), path, edit, now_ms))

    def fresh(self) -> State:
        """The accounts in the present files, which a person may have edited a moment ago. May run in any
        thread. Raises AclFileError."""
        return self._read() if any(True for _ in self._paths()) else self._state

    def changed(self, state: State, path: str, edit: Callable[[dict[str, Any]], None], now_ms: int) -> State:
        """Rewrite a file with the result of `edit` on its content, and a new version; return the new
        accounts, for `take`. May run in any thread, but not concurrently.

        The new file is checked before it replaces the old file in a single step. Raises AclFileError, and the
        errors of `edit`, with nothing changed.
        """
        old = next((file for file in state.files if file.path == path), AclFile(path))
        tree = deepcopy(dict(old.tree))
        edit(tree)
        version = old.version.following(now_ms)
        tree[plainfile.DATA_VERSION] = [{"counter": version.counter, "timestamp": version.timestamp}]
        data = plainfile.write(tree)
        new = plainfile.read(path, data)
        files = tuple(new if file.path == path else file for file in state.files)
        files = files if new in files else (new, *files)
        accounts = plainfile.merge(files)
        _replace(path, data)
        return State(files, accounts, {**state.stamps, path: _stamp_of(Path(path))})

    def take(self, state: State) -> None:
        """Use these accounts from now on. `poll` notices changes on the disk since their read."""
        if not any(account.admin for account in state.accounts.table.values()):
            log.warning("no account in %s is an administrator", self.main)
        self._state = state

    def shared(self) -> bytes:
        """All files, as `following` takes them at another server."""
        texts = {self._name(file.path): base64.b64encode(file.data).decode() for file in self.files}
        return json.dumps({"at": self._place(), "files": texts})

    def following(self, text: bytes) -> State | None:
        """Replace these files by the files of another server, and keep the old files as .bak; return the
        accounts, for `take`, or None when nothing has to be done, as when the files are equal. May run in any
        thread, but not concurrently.

        All files are checked before the first is written. Raises AclFileError, and RemoteProtocolError for a
        text that `shared` has not made.
        """
        expected = self._named(text)
        if expected is None:
            return None
        now = {str(path): self._bytes(path) for path in self._paths()}
        if now == expected:
            return None
        files = tuple(plainfile.read(path, data) for path, data in expected.items())
        accounts = plainfile.merge(files)
        for path in now:
            if now[path] != expected.get(path):
                _keep(path, now[path])
        for path, data in expected.items():
            if now.get(path) != data:
                _replace(path, data)
        for path in now.keys() - expected.keys():
            _remove(path)
        return State(files, accounts, self._stamp())

    def _name(self, path: str) -> str:
        """Name of a file for other servers, whose main file may have another path."""
        return "" if path == str(self.main) else os.path.relpath(path, self.main.parent)

    def _place(self) -> str:
        """The identity of the main file, by machine and path: two brokers of a machine may have the same
        file."""
        return f"{socket.gethostname()}:{os.path.realpath(self.main)}"

    def _named(self, text: bytes) -> dict[str, bytes] | None:
        """The bytes of the files in a text, by their local paths, the main file first; None when they equal
        ours."""
        given = json.loads(text)
        rows = given.get("files") if isinstance(given, dict) else None
        if not isinstance(rows, dict) or not rows:
            raise RemoteProtocolError("the list of the master's accounts cannot be read")
        if given.get("at") == self._place():
            return None
        found = {}
        for name, row in sorted(rows.items()):
            parts = name.split("/")
            is_known = not name or (
                len(parts) > 1
                and parts[0] == FOLDER_NAME
                and name.endswith(SUFFIXES)
                and not any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts)
            )
            if not is_known or not isinstance(row, str):
                raise RemoteProtocolError(
                    f"{name[:100]!r} among the master's files is not a file of accounts"
                )
            path = Path(self.main.parent, *parts) if name else self.main
            try:
                found[str(path)] = base64.b64decode(row, validate=True)
            except ValueError:
                raise RemoteProtocolError(f"the master's file {name[:100]!r} cannot be read") from None
        return found

    def versions(self) -> dict[str, DataVersion]:
        """The version of each file by its path."""
        return {file.path: file.version for file in self.files}

    def _paths(self) -> Iterator[Path]:
        if self.main.exists():
            yield self.main
        for folder, names, files in os.walk(self.main.parent / FOLDER_NAME):
            names.sort()
            yield from (Path(folder, name) for name in sorted(files) if name.endswith(SUFFIXES))

    def _stamp(self) -> dict[str, object]:
        return {str(path): _stamp_of(path) for path in self._paths()}

    def _bytes(self, path: Path) -> bytes:
        try:
            data, mode = path.read_bytes(), path.stat().st_mode
        except OSError as error:
            raise AclFileError(str(path), 0, f"cannot be read: {error.strerror} (setting aclFile)") from None
        if mode & _READ_BY_OTHERS and str(path) not in self._warned:
            self._warned.add(str(path))
            log.warning("other users of this machine can read the secrets in %s; run chmod 600 on it", path)
        return data


def _stamp_of(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _keep(path: str, data: bytes) -> None:
    """Keep the old content of a file beside the file, for its owner alone."""
    try:
        replace_file(path + KEPT, data, mode=OWNER_ONLY)
    except OSError as error:
        raise AclFileError(path + KEPT, 0, f"cannot be written: {error.strerror}") from None


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except OSError as error:
        raise AclFileError(path, 0, f"cannot be removed: {error.strerror}") from None


def _replace(path: str, data: bytes) -> None:
    """Replace a file by `data`, in one step; its mode stays, a new file is the owner's alone."""
    try:
        replace_file(path, data, mode=None if os.path.exists(path) else OWNER_ONLY)
    except OSError as error:
        raise AclFileError(path, 0, f"cannot be written: {error.strerror}") from None
