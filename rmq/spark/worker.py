"""What is set up once in each of Spark's Python processes that read for us."""

from __future__ import annotations

import gc
from functools import cache
from typing import Final

import numpy as np
from pyspark import TaskContext

_LARGE: Final = 30 << 20  # bytes; glibc learns from blocks of up to 32 MiB


def settle() -> None:
    """Spare this process needless work on memory, if it is one of Spark's workers; before the first batch."""
    if TaskContext.get() is not None:
        _settle()


@cache
def _settle() -> None:
    # Decoding takes the same tens of arrays again and again. glibc gives a heap's end back to the system when
    # more lies free there than twice the largest block that was ever freed; each batch would touch fresh
    # pages, a quarter of its time. So a large block is freed. It is never written, and takes no memory.
    np.empty(_LARGE, np.uint8)
    # Spark collects garbage after each task, and looks at all that the imported modules hold: a tenth of a
    # task's time, unless they are set aside.
    gc.freeze()
