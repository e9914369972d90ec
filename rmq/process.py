"""What a server asks of the process that it is: memory that it frees shall be free for others."""

from __future__ import annotations

import ctypes
import logging
import sys
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # of mallopt(3), glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3
LARGE_BLOCK: Final = 1 << 20
"""Bytes from which on a block of memory is the system's again as soon as it is freed."""
SPARE: Final = 4 << 20
"""Free bytes at the heap's end that are kept for what comes next."""

log = logging.getLogger("rmq")


def return_large_blocks() -> None:
    """Give the memory of large answers and batches back to the system once they are sent.

    glibc itself raises the size from which on it does so to the largest block that was freed, up to 32 MiB:
    after one answer of 7 MiB all smaller ones are cut from its heap, and what is left between them stays the
    process's for good. For programs of our own only, and without effect where the C library is another.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    if not (mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK) and mallopt(_M_TRIM_THRESHOLD, SPARE)):
        log.debug("the C library keeps its own bounds on the memory that it holds back")
