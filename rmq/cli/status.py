"""The exit status of the `rmq` command."""

from __future__ import annotations

from rmq.errors import ConfigError, InvalidName, PortInUse, StoreLocked

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_SETTINGS = 2
EXIT_TAKEN = 3
EXIT_INTERRUPTED = 130


def status_of(error: BaseException) -> int:
    """The status that `rmq --help` promises for an error."""
    if isinstance(error, (ConfigError, InvalidName)):
        return EXIT_SETTINGS
    return EXIT_TAKEN if isinstance(error, (PortInUse, StoreLocked)) else EXIT_FAILED
