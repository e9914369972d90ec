"""File descriptors: how many this process may have, and how many of them connections may take.

Files come first: a broker that cannot open the next file of its log stops taking messages, a client that is
refused tries again.
"""

from __future__ import annotations

import logging
import math
import sys
from typing import Final

if sys.platform != "win32":
    import resource

KEPT_BACK: Final = 448
"""For files: a store keeps up to 384 open; the others are for saved tables, the loop, logs and dials."""
_TRIED: Final = (1 << 20, 65_536, 10_240)
"""Where the hard limit is no number that may be set, as on macOS."""

log = logging.getLogger(__name__)


def raise_limit() -> None:
    """Let this process have as many descriptors as it may: most systems give 1,024 to begin with.

    For programs of our own only: select() in other people's code knows descriptors below 1,024.
    """
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, *_TRIED):
        if wanted == soft or (soft < wanted and _set(wanted, hard)):
            break
    log.info("this process may open %d files and connections (RLIMIT_NOFILE)", _soft_limit())


def _set(wanted: int, hard: int) -> bool:
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):
        return False
    return True


def _soft_limit() -> float:
    if sys.platform == "win32":
        return math.inf
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if soft == resource.RLIM_INFINITY else soft


def for_connections() -> float:
    """How many descriptors connections may take; the others, at most half, are kept back for files.

    A new descriptor has the lowest number that is free, so a connection whose number is not below this says
    that as many are in use.
    """
    soft = _soft_limit()
    return soft - min(KEPT_BACK, soft // 2) if soft < math.inf else soft
