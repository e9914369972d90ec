"""How a command ends: its exit status, and the line on the error output that says why."""

from __future__ import annotations

import os
import sys
from typing import Final, NoReturn

from rmq.cli.output import echo
from rmq.errors import ConfigError, InvalidName, PortInUse, StoreLocked

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
"""Wrong usage, settings or input."""
EXIT_TAKEN: Final = 3
"""A port or a data folder belongs to another process."""
EXIT_INTERRUPTED: Final = 130


def status_of(error: BaseException) -> int:
    """The status that `rmq --help` promises for an error."""
    if isinstance(error, (ConfigError, InvalidName)):
        return EXIT_USAGE
    return EXIT_TAKEN if isinstance(error, (PortInUse, StoreLocked)) else EXIT_FAILED


def fail(error: BaseException) -> NoReturn:
    """Prints what is wrong and what to do, and ends with the status of `error`."""
    echo(explained(error).replace("\n", "\n  "), err=True)  # no line of its text poses as one of ours
    sys.exit(status_of(error))


def explained(error: BaseException) -> str:
    """``rmq: what and where; what to do``."""
    hint = getattr(error, "hint", "")
    return f"rmq: {error}" + (f"; {hint}" if hint else "")


def refuse(text: str) -> NoReturn:
    """Prints why it was not done and ends with 1."""
    echo(f"rmq: {text}", err=True)
    sys.exit(EXIT_FAILED)


def end_quietly() -> NoReturn:
    """Ends with 0 after the reader closed our output (`rmq tail | head`). What its buffer holds is dropped:
    Python's own flush at the end would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(EXIT_DONE)
