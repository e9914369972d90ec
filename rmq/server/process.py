"""Process of a server: freed memory goes back to the system, and systemd knows the server's state."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from rmq.errors import ConfigError
from rmq.server.health import Health

_M_TRIM_THRESHOLD: Final = -1  # of mallopt(3), glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3
LARGE_BLOCK: Final = 1 << 20
"""Bytes from which on a block of memory is the system's again as soon as it is freed."""
SPARE: Final = 4 << 20
"""Free bytes at the heap's end that are kept for what comes next."""

log = logging.getLogger("rmq")


def _installed(distribution: str, folders: Sequence[str]) -> str:
    """The version of an installed distribution, "" if it is not installed.

    Reads the name of its folder of metadata, such as rmq-0.1.0.dist-info: importlib.metadata would say the
    same, but takes 15 ms to load.
    """
    for folder in folders:
        with suppress(OSError):  # none, or an archive
            for name in os.listdir(folder or "."):
                if name.startswith(f"{distribution}-") and name.endswith(".dist-info"):
                    return name.removeprefix(f"{distribution}-").removesuffix(".dist-info")
    return ""


VERSION: Final = _installed("rmq", sys.path) or "unknown"  # unknown: run from a checkout
"""Of this package."""


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


class Supervisor:
    """State of the server for systemd by sd_notify(3), if NOTIFY_SOCKET is set: ready, the parts it lacks
    until ready, alive (WATCHDOG_USEC), stopping."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._watched = bool(environment.get("WATCHDOG_USEC"))
        self._told = ""
        usec = environment.get("WATCHDOG_USEC", "")
        self.period = min(1.0, int(usec) / 3e6) if usec.isdecimal() else 1.0
        """Seconds between two calls of `tell`."""

    @property
    def is_asking(self) -> bool:
        """Whether systemd asked for reports."""
        return bool(self._address)

    def tell(self, health: Health) -> None:
        """Report the server's state. Does not block; a failed report is repeated with the next."""
        lines = ["WATCHDOG=1"] if self._watched else []
        status = "; ".join(f"{part}: {why}" for part, why in health.lacking.items()) or "ready"
        if status != self._told:
            lines.append(f"STATUS={status}")
        if health.is_ready and self._told != "ready":
            lines.append("READY=1")
        if not health.is_ready:
            # A store may take minutes to open: as long as this comes, that is no reason to be killed.
            lines.append("EXTEND_TIMEOUT_USEC=30000000")
        if self._send("\n".join(lines)):
            self._told = status

    def stopping(self) -> None:
        """Tell it that the server stops."""
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

    glibc itself raises its threshold for this to the largest block that was freed, up to 32 MiB: after a
    response of 7 MiB all smaller blocks come from its heap, and the gaps between them stay with the process
    for good. For programs of our own only, and without effect with another C library.
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
