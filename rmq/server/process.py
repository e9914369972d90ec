"""Process of a server: checks before its start, signals without a meaning, memory that it returns to the
system, and its state for systemd."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from rmq.errors import ConfigError
from rmq.server.health import Health

_M_TRIM_THRESHOLD: Final = -1  # of mallopt(3), glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3
LARGE_BLOCK: Final = 1 << 20
"""Bytes of the smallest block of memory that is returned to the system as soon as it is freed."""
SPARE: Final = 4 << 20
"""Free bytes at the heap's end that are kept for the next allocations."""

log = logging.getLogger("rmq")


def _installed(distribution: str, folders: Sequence[str]) -> str:
    """The version of an installed distribution, "" if it is not installed.

    Reads the name of the metadata folder, such as rmq-0.1.0.dist-info: importlib.metadata would give the same
    result, but takes 15 ms to load.
    """
    for folder in folders:
        with suppress(OSError):  # none, or an archive
            for name in os.listdir(folder or "."):
                if name.startswith(f"{distribution}-") and name.endswith(".dist-info"):
                    return name.removeprefix(f"{distribution}-").removesuffix(".dist-info")
    return ""


VERSION: Final = _installed("rmq", sys.path) or "unknown"  # unknown: run from a checkout
"""The version of this package."""


UNUSED: Final = tuple(getattr(signal, name) for name in ("SIGUSR2",) if hasattr(signal, name))
"""Signals without a meaning for services, which would end the process."""


def ignore_unused() -> None:
    """Let signals without a meaning do nothing, unless the program has a use for them."""
    for number in UNUSED:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)


def check_installation(folders: Sequence[str] | None = None) -> None:
    """Refuse to run on mixed files: `rmq-client` of another version is installed in the same environment.

    Both distributions hold the client's modules under the same names, so pip has replaced some of the files.
    `folders` replaces sys.path. Raises ConfigError.
    """
    folders = sys.path if folders is None else folders
    whole, client = _installed("rmq", folders), _installed("rmq_client", folders)
    if whole and client and whole != client:
        raise ConfigError(
            "installed distributions",
            f"rmq {whole} and rmq-client {client}",
            "only one of the two, because both install the same files: pip uninstall rmq-client rmq, "
            "then pip install rmq",
        )


_ADVICE: Final = {
    errno.EACCES: "make {path} and give it to the user {user} (chown -R), or name another path",
    errno.EPERM: "make {path} and give it to the user {user} (chown -R), or name another path",
    errno.EROFS: "mount it for writing (under systemd: name it in ReadWritePaths), or name another path",
    errno.EEXIST: "a file has this name: move the file away, or name another path",
    errno.ENOTDIR: "a part of the path is a file: correct the path",
    errno.EISDIR: "name a file in this folder",
    errno.ENOENT: "a part of the path does not exist and cannot be made: correct the path, or create it",
    errno.ELOOP: "correct the path",
    errno.ENAMETOOLONG: "correct the path",
}
"""Errors of a wrong path, and remedies. No other error refuses a start: a full disk does not."""


def check_paths(*settings: Any, data: str = "") -> None:
    """Refuse a start with a path that the server cannot write, before it opens a port or a store.

    Looks at the settings with `writes`, and makes their folders. A default path is not checked, because not
    every server needs it, unless it is `data`, the server's own folder. Raises ConfigError that names the
    setting, the path and the remedy.
    """
    import attrs  # `rmq --help` imports this module without these two

    from rmq.config import java_key

    for config in settings:
        for field in attrs.fields(type(config)):
            value = getattr(config, field.name)
            is_needed = value != field.default or (data and value == data)
            if is_needed and value is not None and (kind := field.metadata.get("writes")):
                _check_path(java_key(field), value, kind)


def _check_path(key: str, value: str, kind: str) -> None:
    if not value:
        raise ConfigError(key, value, f"a {kind} to write to; name one")
    from rmq.config import FOLDER

    path = os.path.abspath(os.path.expanduser(value))
    try:
        _try_folder(path) if kind == FOLDER else _try_file(path)
    except OSError as error:
        if (advice := _ADVICE.get(error.errno or 0)) is not None:
            reason = f"{error.filename or path}: {error.strerror}; {advice.format(path=path, user=_user())}"
            raise ConfigError(key, value, f"a {kind} to write to ({reason})") from None


def _try_folder(path: str) -> None:
    """Make a folder, and check that this process may write to it, and lock it. Raises OSError."""
    os.makedirs(path, exist_ok=True)
    _try_to_write(path)
    with suppress(FileNotFoundError):
        os.close(os.open(os.path.join(path, "lock"), os.O_RDWR))


def _try_file(path: str) -> None:
    """Check that a file can be replaced. A missing folder is made with the file. Raises OSError."""
    if os.path.isdir(path):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    folder = os.path.dirname(path)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    _try_to_write(folder)


def _try_to_write(folder: str) -> None:
    """Make a file and remove it: access(2) does not know every reason of a refusal, nor its name. Raises
    OSError."""
    probe = os.path.join(folder, f".writable-{os.getpid()}")
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))
    except OSError as error:
        raise OSError(error.errno, error.strerror, folder) from None
    with suppress(FileNotFoundError):
        os.unlink(probe)


def _user() -> str:
    """The name of this process's user, or its number."""
    number = os.geteuid() if hasattr(os, "geteuid") else 0
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return str(number)


class Supervisor:
    """State of the server for systemd by sd_notify(3), if NOTIFY_SOCKET is set: ready, the missing parts
    until ready, alive (WATCHDOG_USEC), stopping."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._watched = bool(environment.get("WATCHDOG_USEC"))
        self._status = ""
        usec = environment.get("WATCHDOG_USEC", "")
        self.period = min(1.0, int(usec) / 3e6) if usec.isdecimal() else 1.0
        """Seconds between two calls of `report`."""

    @property
    def is_asking(self) -> bool:
        """True if systemd asked for reports."""
        return bool(self._address)

    def report(self, health: Health) -> None:
        """Report the server's state. Does not block; a failed report is repeated with the next."""
        lines = ["WATCHDOG=1"] if self._watched else []
        status = "; ".join(f"{part}: {why}" for part, why in health.lacking.items()) or "ready"
        if status != self._status:
            lines.append(f"STATUS={status}")
        if health.is_ready and self._status != "ready":
            lines.append("READY=1")
        if not health.is_ready:
            # A store may take minutes to open: during these reports systemd does not kill the process.
            lines.append("EXTEND_TIMEOUT_USEC=30000000")
        if self._send("\n".join(lines)):
            self._status = status

    def stopping(self) -> None:
        """Report that the server stops."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> bool:
        if not (self._address and text):
            return bool(text)
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto(text.encode(), address)
        except OSError as error:
            log.debug("cannot report to the supervisor: %s", error)
            return False
        return True


def return_large_blocks() -> None:
    """Return the memory of large responses and batches to the system once they are sent.

    glibc itself raises its threshold to the largest block that was freed, up to 32 MiB: after a response of 7
    MiB all smaller blocks come from its heap, and the gaps between them stay with the process for good. For
    rmq's own programs only; no effect with another C library.
    """
    if sys.platform != "linux":
        return
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    if not (mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK) and mallopt(_M_TRIM_THRESHOLD, SPARE)):
        log.debug("the C library does not accept limits for the memory that it keeps")
