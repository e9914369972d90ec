"""ProcessQueue: the window of a queue, the messages that a consumer has pulled and not finished. Pure.

Messages of a queue are pulled in the order of their offsets and may be finished in any order. The committed
offset is the lowest unfinished offset, so that no message before it can be lost; a crash repeats at most the
messages after it. The queue is not pulled while it holds too many messages, too many bytes, or while an
unfinished message lies too far behind the newest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from rmq.message import MessageQueue

if TYPE_CHECKING:
    from rmq.client.consume.message_view import PulledMessage

UNLIMITED = 1 << 62
ASKED_PART = 4
"""A window counts as full until the free part of its bytes is one in so many. It makes room message by
message, and a pull for each would cost a request for each; so a pull asks for a quarter at once."""
FIRST_SIZE = 64 * 1024
"""Assumed size of a message before the first one has come, in bytes."""


class ProcessQueue:
    """The window of `queue`, beginning at `next_offset`. Offsets are queue offsets, sizes are bytes."""

    __slots__ = (
        "_asked_bytes",
        "_max_bytes",
        "_max_messages",
        "_max_span",
        "_mean_size",
        "_on_room",
        "_pending",
        "bytes",
        "committed",
        "furthest_before",
        "is_dropped",
        "next_offset",
        "pulled_at_ms",
        "queue",
        "topic_created_ms",
    )

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        """The offset of the next pull."""
        self.bytes = 0
        self._max_messages = self._max_bytes = self._max_span = self._asked_bytes = UNLIMITED
        self._mean_size = FIRST_SIZE  # of the messages of the last pull
        self._on_room: Callable[[], None] | None = None
        self.is_dropped = False
        """True if the queue is given up, or read again from another offset: no message of the window is
        delivered or committed any more."""
        self.committed = -1
        """The last offset that was sent to the broker; -1 for none yet."""
        self.pulled_at_ms = 0
        self.furthest_before = 0
        """The progress of this member's earlier windows of the queue."""
        self.topic_created_ms: int | None = None
        """The creation of the topic that its offsets belong to; None where the broker does not report it."""
        # Queue offset -> size, of unfinished messages. A dict keeps the order of insertion, pulls come in the
        # order of offsets, and nothing is put back: so the first key is the lowest offset, and the offset to
        # commit is known without a search or a sorted structure.
        self._pending: dict[int, int] = {}

    def set_limits(self, max_messages: int, max_bytes: int, max_span: int) -> None:
        """The limits of the queue; see `is_full`."""
        assert min(max_messages, max_bytes, max_span) > 0, "a window without room is never pulled"
        self._max_messages, self._max_bytes, self._max_span = max_messages, max_bytes, max_span
        self._asked_bytes = max_bytes // (ASKED_PART - 1)

    def drop(self) -> None:
        """Stop deliveries and commits of the window, except the last commit of the member that gives the
        queue up."""
        self.is_dropped = True

    def __contains__(self, queue_offset: int) -> bool:
        """True if that message is unfinished."""
        return queue_offset in self._pending

    def __len__(self) -> int:
        """The number of unfinished messages."""
        return len(self._pending)

    def add(self, offsets: Sequence[int], sizes: Sequence[int], next_offset: int) -> None:
        """Take the messages of a pull, in rising order of offsets, and the offset of the next pull."""
        pending = self._pending
        before = len(pending)
        pending.update(zip(offsets, sizes, strict=True))
        assert len(pending) == before + len(offsets), f"{self.queue}: a message was pulled twice"
        # The commit may be `next_offset` itself: a message at or behind it would be skipped for ever.
        assert not offsets or offsets[-1] < next_offset, f"{self.queue}: the next pull would repeat a message"
        size = sum(sizes)
        self.bytes += size
        self._mean_size = size // len(sizes) + 1 if sizes else self._mean_size
        self.next_offset = next_offset

    def room(self, most: int) -> int:
        """The number of messages to request, at most `most`: as many as fit the byte limit, if they are as
        large as earlier messages."""
        return max(1, min(most, max(self._max_bytes - self.bytes, self._asked_bytes) // self._mean_size))

    def when_room(self, on_room: Callable[[], None]) -> None:
        """Call `on_room` once, as soon as the queue has room."""
        self._on_room = on_room

    def finish(self, queue_offset: int) -> bool:
        """Mark a message as finished. False when it is not in the queue: it was finished before."""
        size = self._pending.pop(queue_offset, None)
        if size is None:
            return False  # for example by its handler, after it was sent back for taking too long
        self.bytes -= size
        if self._on_room is not None and not self.is_full:
            on_room, self._on_room = self._on_room, None
            on_room()
        return True

    @property
    def commit_offset(self) -> int:
        """The lowest unfinished offset: the begin for a member that takes over.

        Later messages may be finished already; they are delivered again after a crash. Never the reverse: an
        offset above an unfinished message would lose that message.
        """
        return next(iter(self._pending), self.next_offset)

    @property
    def furthest(self) -> int:
        """The highest offset that this member may have committed."""
        return max(self.furthest_before, self.commit_offset)

    @property
    def last_offset(self) -> int:
        """The highest unfinished offset; 0 without any."""
        return next(reversed(self._pending), 0)

    @property
    def span(self) -> int:
        """The distance from the lowest unfinished message to the end of the pulled messages."""
        return self.next_offset - self.commit_offset

    @property
    def is_full(self) -> bool:
        """True if the next pull must wait: too many messages or bytes, or one message that holds up all
        others."""
        return bool(self._pending) and (
            len(self._pending) >= self._max_messages
            or self.bytes >= self._max_bytes
            or self.span >= self._max_span
        )

    @property
    def is_busy(self) -> bool:
        """True if a message is in flight that must end before the queue moves to another member."""
        return False


class OrderedProcessQueue(ProcessQueue):
    """A process queue that delivers single messages, or single batches, in order."""

    __slots__ = (
        "_delivering",
        "_failed",
        "is_queued",
        "is_suspended",
        "on_idle",
        "suspend_seconds",
        "waiting",
    )

    def __init__(
        self, queue: MessageQueue, next_offset: int, on_idle: Callable[[OrderedProcessQueue], None]
    ) -> None:
        """`on_idle` is called when no message of it is in flight any more."""
        super().__init__(queue, next_offset)
        self.waiting: deque[PulledMessage] = deque()
        """Pulled and not delivered yet, in order."""
        self.is_queued = False
        """True if it stands in line for a delivery."""
        self.is_suspended = False
        """True after a failure, for `suspend_seconds`: the longest delay among messages that failed
        together."""
        self.suspend_seconds = 0.0
        self.on_idle = on_idle
        self._delivering: dict[int, PulledMessage] = {}  # no other message is delivered until these end
        self._failed: list[PulledMessage] = []  # of the messages that are delivered together

    @property
    def is_busy(self) -> bool:
        return bool(self._delivering)

    def take(self, most: int) -> list[PulledMessage]:
        """The next messages, at most `most`; no more follow until each is finished or put back."""
        assert not self._delivering, f"{self.queue}: taken from while something is being delivered"
        messages = [self.waiting.popleft() for _ in range(min(most, len(self.waiting)))]
        self._delivering = {message.queue_offset: message for message in messages}
        return messages

    def finish(self, queue_offset: int) -> bool:
        finished = super().finish(queue_offset)
        self._end(queue_offset)
        return finished

    def requeue(self, message: PulledMessage, seconds: float = 0.0) -> None:
        """Redeliver a message, before all others, in `seconds`."""
        if message.queue_offset in self._delivering:
            self.suspend_seconds = max(seconds, self.suspend_seconds) if self._failed else seconds
            self._failed.append(message)
            self._end(message.queue_offset)

    def _end(self, queue_offset: int) -> None:
        if self._delivering.pop(queue_offset, None) is not None and not self._delivering:
            # All of the batch have ended: the failed messages go back in front, in their order.
            self.waiting.extendleft(sorted(self._failed, key=attrgetter("queue_offset"), reverse=True))
            self.is_suspended = bool(self._failed)
            self._failed.clear()
            self.on_idle(self)
