"""What a process does with memory that it has let go."""

from __future__ import annotations

from typing import Final

import numpy as np

_LARGE: Final = 30 << 20  # bytes; glibc learns from blocks of up to 32 MiB


def keep_heap() -> None:
    """Let the C library keep up to some 60 MiB that this process has let go, for its next need.

    Decoding takes the same tens of arrays again and again. glibc gives a heap's end back to the system when
    more lies free there than twice the largest block that was ever freed, and each batch would touch fresh
    pages, which costs a quarter of its time. So a large block is freed once; as it is never written, it takes
    no memory.
    """
    np.empty(_LARGE, np.uint8)
