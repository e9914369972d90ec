"""Idempotent writes: the numbers of a task's rows, and their brokers in each run of the task.

A broker stores a row once if it comes again with its number, from the same producer, to the same broker. The
producer is the task, in any attempt; rows are numbered in order. The broker of a row is computed from its
number and from the names of the brokers, so the names must stay the same, also while a broker is away.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import define

from rmq.message import MessageQueue

BLOCK_ROWS: Final = 8192
"""Consecutive rows that go to one broker, where they do not choose theirs."""
PREFIX_MAX: Final = 100


@define
class Line:
    """Rows of a task with common numbers: all, or the rows of a topic or queue."""

    producer: str
    next: int = 0

    def blocks(self, count: int) -> Iterator[tuple[int, int, int]]:
        """Number the next `count` rows: (number of the first, first row, end row) of each part that goes to
        one broker."""
        at = 0
        while at < count:
            end = min(count, at + BLOCK_ROWS - self.next % BLOCK_ROWS)
            yield self.next, at, end
            self.next += end - at
            at = end


def producer_id(prefix: str, queue: MessageQueue | None) -> str:
    """The producer name of rows that chose a queue and whose keys begin with `prefix`."""
    if len(prefix) > PREFIX_MAX or not (prefix.isascii() and prefix.isprintable()) or " " in prefix:
        prefix = hashlib.md5(prefix.encode(), usedforsecurity=False).hexdigest()
    return prefix if queue is None else f"{prefix}@{queue.queue_id}"


class BrokerPartitioner:
    """Destinations of rows that choose no queue: `queues` are those of their topic, on possible brokers."""

    def __init__(self, queues: Sequence[MessageQueue]) -> None:
        self._of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            self._of.setdefault(queue.broker_name, []).append(queue)
        self._names = sorted(self._of)
        self._turns = dict.fromkeys(self._names, 0)

    @property
    def are_of_one_broker(self) -> bool:
        """Whether there is no other broker."""
        return len(self._names) == 1

    def queue(self, producer: str, number: int) -> MessageQueue:
        """A queue of the row's broker; any queue will do, so they take turns."""
        block = f"{producer}/{number // BLOCK_ROWS}"
        broker = self._names[zlib.crc32(block.encode()) % len(self._names)]
        self._turns[broker] += 1
        queues = self._of[broker]
        return queues[self._turns[broker] % len(queues)]
