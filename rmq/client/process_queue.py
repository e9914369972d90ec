"""ProcessQueue: the messages of one queue that a consumer has pulled and not finished. Pure.

Messages of a queue are pulled in the order of their offsets and may be finished in any order. What may be
committed is the lowest offset that is not finished, so that nothing before it can be lost; a crash repeats
at most the messages after it. The queue is not pulled while it holds too many messages, too many bytes, or
while one unfinished message lies too far behind the newest."""

from __future__ import annotations

from collections.abc import Iterable

from rmq.message import MessageQueue


class ProcessQueue:
    """The window of `queue`, beginning at `next_offset`. Offsets are queue offsets, sizes are bytes."""

    __slots__ = ("_pending", "bytes", "committed", "dropped", "next_offset", "pulled_at_ms", "queue")

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        """Where the next pull begins."""
        self.bytes = 0
        self.dropped = False
        """No longer ours, or read anew from elsewhere: nothing of it is delivered or committed any more."""
        self.committed = -1
        """What the broker was told last; -1 nothing yet."""
        self.pulled_at_ms = 0
        # In the order of offsets, because pulls are; so the first key is the lowest.
        self._pending: dict[int, int] = {}

    def __len__(self) -> int:
        """The number of unfinished messages."""
        return len(self._pending)

    def add(self, offsets_and_sizes: Iterable[tuple[int, int]], next_offset: int) -> None:
        """Take what a pull found, (queue offset, size) in rising order, and where the next one begins."""
        pending = self._pending
        before = len(pending)
        added = 0
        count = 0
        for queue_offset, size in offsets_and_sizes:
            pending[queue_offset] = size
            added += size
            count += 1
        assert len(pending) == before + count, f"{self.queue}: a message was pulled twice"
        self.bytes += added
        self.next_offset = next_offset

    def finish(self, queue_offset: int) -> bool:
        """Mark a message as done with. False when it is not here: finished before, or the queue was
        moved."""
        size = self._pending.pop(queue_offset, None)
        if size is None:
            return False
        self.bytes -= size
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

    def is_full(self, max_messages: int, max_bytes: int, max_span: int) -> bool:
        """Whether to wait before the next pull."""
        return bool(self._pending) and (
            len(self._pending) >= max_messages or self.bytes >= max_bytes or self.span >= max_span
        )
