"""ProcessQueue: the messages of one queue that a consumer has pulled and not finished. Pure.

Messages of a queue are pulled in the order of their offsets and may be finished in any order. What may be
committed is the lowest offset that is not finished, so that nothing before it can be lost; a crash repeats
at most the messages after it. The queue is not pulled while it holds too many messages, too many bytes, or
while one unfinished message lies too far behind the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq.message import MessageQueue

UNLIMITED = 1 << 62


class ProcessQueue:
    """The window of `queue`, beginning at `next_offset`. Offsets are queue offsets, sizes are bytes."""

    __slots__ = (
        "_pending",
        "bytes",
        "committed",
        "dropped",
        "max_bytes",
        "max_messages",
        "max_span",
        "next_offset",
        "on_room",
        "pulled_at_ms",
        "queue",
    )

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        """Where the next pull begins."""
        self.bytes = 0
        self.max_messages = self.max_bytes = self.max_span = UNLIMITED
        """What it may hold; see `is_full`."""
        self.on_room: Callable[[], None] | None = None
        """Called, once, as soon as it is not full any more."""
        self.dropped = False
        """No longer ours, or read anew from elsewhere: nothing of it is delivered or committed any more."""
        self.committed = -1
        """What the broker was told last; -1 nothing yet."""
        self.pulled_at_ms = 0
        # In the order of offsets, because pulls are; so the first key is the lowest.
        self._pending: dict[int, int] = {}

    def __contains__(self, queue_offset: int) -> bool:
        """Whether that message is unfinished."""
        return queue_offset in self._pending

    def __len__(self) -> int:
        """The number of unfinished messages."""
        return len(self._pending)

    def add(self, offsets: Sequence[int], sizes: Sequence[int], next_offset: int) -> None:
        """Take what a pull found, offsets in rising order, and where the next one begins."""
        pending = self._pending
        before = len(pending)
        pending.update(zip(offsets, sizes, strict=True))
        assert len(pending) == before + len(offsets), f"{self.queue}: a message was pulled twice"
        self.bytes += sum(sizes)
        self.next_offset = next_offset

    def finish(self, queue_offset: int) -> bool:
        """Mark a message as done with. False when it is not here: it was finished before."""
        size = self._pending.pop(queue_offset, None)
        if size is None:
            return False
        self.bytes -= size
        if self.on_room is not None and not self.is_full:
            on_room, self.on_room = self.on_room, None
            on_room()
        return True

    @property
    def commit_offset(self) -> int:
        """The lowest offset that is not finished: what a member that takes over would begin with."""
        return next(iter(self._pending), self.next_offset)

    @property
    def last_offset(self) -> int:
        """The highest unfinished offset; 0 when there is none."""
        return next(reversed(self._pending), 0)

    @property
    def span(self) -> int:
        """How far the end of what was pulled lies from the lowest unfinished message."""
        return self.next_offset - self.commit_offset

    @property
    def is_full(self) -> bool:
        """Whether to wait before the next pull: too many messages or bytes, or one that holds up all."""
        return bool(self._pending) and (
            len(self._pending) >= self.max_messages
            or self.bytes >= self.max_bytes
            or self.span >= self.max_span
        )
