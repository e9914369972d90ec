"""FIFO by message group: messages of a queue that wait while an earlier message of their group is out.

The group of a message is its property `__SHARDINGKEY`; messages without this property form a group of their
queue. Reading goes on past messages that must wait: their offsets are kept, `HELD_MAX` at most.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import Final

from rmq.protocol.properties import property_value
from rmq.protocol.record import property_bytes

HELD_MAX: Final = 10_000
"""Most messages of a queue that wait for another message of their group; at this bound reading stops."""
_MARKER: Final = b"__SHARDINGKEY\x01"
_LONG: Final = 32


def group_of(record: bytes | memoryview) -> bytes:
    """The message group of a record, in a short form if its name is long. Raises CorruptRecord."""
    key = property_value(property_bytes(record), _MARKER) or b""
    return key if len(key) < _LONG else blake2b(key, digest_size=_LONG).digest()


class MessageGroups:
    """The message groups of a queue of which a message is out, and the messages that wait for these.

    `free` has the messages that waited and may be taken now, in the order in which they became free.
    """

    def __init__(self) -> None:
        self.held = 0
        self.free: deque[tuple[bytes, int]] = deque()
        self._waiting: dict[bytes, deque[int] | None] = {}

    def __len__(self) -> int:
        """The number of groups that have a message out."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """True if no more messages may wait."""
        return self.held >= HELD_MAX

    def claim(self, key: bytes, offset: int) -> bool:
        """True if a message may be taken now, as the first message of its group; otherwise the message
        waits."""
        if key not in self._waiting:
            self._waiting[key] = None
            return True
        line = self._waiting[key]
        if line is None:
            line = self._waiting[key] = deque()
        line.append(offset)
        self.held += 1
        return False

    def finished(self, key: bytes) -> bool:
        """The message of a group that was out is finished. Return whether another message becomes free."""
        line = self._waiting[key]
        if not line:
            del self._waiting[key]
            return False
        self.held -= 1
        self.free.append((key, line.popleft()))
        return True
