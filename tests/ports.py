"""Ports of loopback for servers that must know theirs before they start, or have it again after a restart.

They lie below those that the system gives to outgoing connections: between a server's stop and its next start
no connection of another test can take its port. A port is given once in a process.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
from typing import Final

FIRST: Final = 15_000
LAST: Final = 32_000
"""Linux gives outgoing connections ports from 32,768 on."""

_starts = itertools.cycle(random.Random(os.getpid()).sample(range(FIRST, LAST, 10), (LAST - FIRST) // 10))


def free_ports(count: int) -> list[int]:
    """So many free ports in a row, at most ten."""
    while True:
        ports = range(start := next(_starts), start + count)
        if all(map(_is_free, ports)):
            return list(ports)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
