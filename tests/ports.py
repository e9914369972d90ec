"""Ports of loopback for servers that must know theirs before they start, or have it again after a restart.

They lie below those that the system gives to outgoing connections, and no other process of tests gives them
out: between a server's stop and its next start neither a connection nor another test can take its port. A
port is given once in a process, as long as there are others.
"""

from __future__ import annotations

import os
import random
import socket
from typing import Final

FIRST: Final = 15_000
LAST: Final = 32_000
"""Linux gives outgoing connections ports from 32,768 on."""
BLOCK: Final = 50
"""Ports that a process claims at a time."""
BEFORE: Final = 2
"""Ports before those that are given out, for nobody else: a broker's VIP channel is at its port - 2."""


class Ports:
    """The ports that one process of tests gives out. It claims blocks of them, each by a UDP socket on the
    first port of the block, which the system closes when the process ends."""

    def __init__(self, seed: int) -> None:
        self._unclaimed = random.Random(seed).sample(range(FIRST, LAST, BLOCK), (LAST - FIRST) // BLOCK)
        self._claims: list[tuple[int, socket.socket]] = []
        self._again = 0  # of the claimed blocks the next to be used again, once there are no others
        self._next = self._stop = 0

    def take(self, count: int) -> list[int]:
        """Take this number of consecutive free ports."""
        while True:
            if self._next + BEFORE + count > self._stop:
                self._next = self._block()
                self._stop = self._next + BLOCK
            ports = range(self._next, self._next + BEFORE + count)
            self._next = ports.stop
            if all(map(_is_free, ports)):
                return list(ports[BEFORE:])

    def _block(self) -> int:
        while self._unclaimed:
            start = self._unclaimed.pop()
            claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                claim.bind(("127.0.0.1", start))
            except OSError:  # another process has it
                claim.close()
                continue
            self._claims.append((start, claim))
            return start
        self._again += 1
        return self._claims[self._again % len(self._claims)][0]


_by_process: dict[int, Ports] = {}  # a fork has its own


def free_ports(count: int) -> list[int]:
    """Consecutive free ports, at most 48. The two ports before them are free, too."""
    pid = os.getpid()
    if pid not in _by_process:
        _by_process[pid] = Ports(pid)
    return _by_process[pid].take(count)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
