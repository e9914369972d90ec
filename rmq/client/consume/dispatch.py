"""Dispatch: the way of messages from the pull loops to handlers.

`MessageDispatch` hands out message by message: messages of a queue begin in order and do not wait for each
other. `QueueDispatch` hands out from a queue only when no message of it is being delivered, so that its
messages are consumed one after another; ordered consumers and `PullConsumer.poll` use it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import chain, count
from typing import Generic, TypeVar

from rmq.client.consume.message_view import PulledMessage
from rmq.client.consume.process_queue import OrderedProcessQueue, ProcessQueue
from rmq.message import MessageQueue
from rmq.remoting.loop import Waiter, Wakeup, current_loop

T = TypeVar("T")


class ReadyQueue(Generic[T]):
    """A queue for many takers without a lock or a channel: a deque, and tasks parked beside it.

    Its size is bounded by the process queues. `entries` is open to its owner, which takes many between two
    waits; a batch wakes only a single taker, and each taker that leaves messages behind wakes the next.
    """

    def __init__(self) -> None:
        self.entries: deque[T] = deque()
        self.is_closed = False
        self.parked: deque[Waiter] = deque()
        self._is_waking = False
        self._new_waiter: Callable[[], Waiter] = current_loop().waiter

    def put(self, entries: Iterable[T]) -> None:
        """Add an entry."""
        if not self.is_closed:
            self.entries.extend(entries)
            self.wake()

    def wake(self) -> None:
        """Wake a parked taker, unless a taker is on its way already."""
        # One, not all: a pull brings hundreds of entries, and twenty tasks that all wake for the first of
        # them would mostly find nothing. Each taker that leaves entries behind wakes the next.
        if self.parked and not self._is_waking:
            self._is_waking = True
            self.parked.popleft().resolve(None)

    async def arrival(self) -> None:
        """Wait until there is an entry to take, or until the queue is closed. May wake without an entry."""
        if self.is_closed or self.entries:
            return
        waiter = self._new_waiter()
        self.parked.append(waiter)
        try:
            await waiter.wait()
        except BaseException:
            if waiter in self.parked:
                self.parked.remove(waiter)
            else:  # woken and cancelled at once: another taker must look instead
                self._is_waking = False
                if self.entries:
                    self.wake()
            raise
        self._is_waking = False

    def close(self) -> None:
        """Drop all entries and wake all tasks that wait."""
        self.is_closed = True
        self.entries.clear()
        while self.parked:
            self.parked.popleft().resolve(None)


class Dispatch(ABC, Generic[T]):
    """Common part of both kinds: the ready queue, and the timer of local redelivery."""

    is_ordered = False
    """True if a queue is given up only when the last of its messages has ended."""

    def __init__(self, redelivery_ms: int) -> None:
        """Postponed messages are redelivered after `redelivery_ms`."""
        self.ready: ReadyQueue[T] = ReadyQueue()
        self._redelivery_seconds = redelivery_ms / 1000
        self._now: Callable[[], float] = current_loop().now
        self._later: list[tuple[float, int, PulledMessage]] = []  # a heap: time, order of arrival
        self._count = count()
        self._later_came = Wakeup()
        self._paused: set[MessageQueue] = set()
        self._beginning: set[MessageQueue] = set()
        self._is_all_paused = False

    @abstractmethod
    def new_window(self, queue: MessageQueue, queue_offset: int) -> ProcessQueue:
        """The process queue of a queue that is pulled from `queue_offset`."""

    def forget(self, window: ProcessQueue) -> None:
        """Note that the window was dropped: no more of it is handed out."""

    def is_busy(self, window: ProcessQueue) -> bool:
        """True if a message of the window's queue, or of an earlier window of that queue, is in flight and
        must end before another member consumes the queue."""
        return window.is_busy

    def offer(self, queue: MessageQueue) -> None:
        """Check a queue again whose obstacle may be over."""

    def is_paused(self, queue: MessageQueue) -> bool:
        """True if no message of the queue is handed out now."""
        return self._is_all_paused or queue in self._paused or queue in self._beginning

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Hand out no messages of these queues; None: of no queue, until `resume` without queues."""
        if queues is None:
            self._is_all_paused = True
        else:
            self._paused.update(queues)
        self._on_paused()

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Hand out messages of these queues again; None: of all."""
        if queues is None:
            self._is_all_paused = False
            self._paused.clear()
        else:
            self._paused.difference_update(queues)
        self._on_resumed()

    @contextmanager
    def beginning(self, queues: Collection[MessageQueue]) -> Iterator[None]:
        """Hand out no messages of these queues in the block, whatever other callers pause and resume."""
        self._beginning.update(queues)
        try:
            yield
        finally:
            self._beginning.difference_update(queues)
            self._on_resumed()

    def postpone(self, offsets: Mapping[ProcessQueue, int]) -> set[ProcessQueue]:
        """The windows, among those of these messages (window and offset), whose messages wait for a local
        redelivery."""
        return set(_found((message for _, _, message in self._later), offsets))

    @abstractmethod
    def waiting(self, offsets: Mapping[ProcessQueue, int]) -> dict[ProcessQueue, PulledMessage]:
        """The messages, of these, that wait for a taker. Searches all waiting messages."""

    @abstractmethod
    def _on_paused(self) -> None:
        """Handle that more queues are paused."""

    @abstractmethod
    def _on_resumed(self) -> None:
        """Handle that fewer queues are paused."""

    @abstractmethod
    def put(self, messages: Sequence[PulledMessage]) -> None:
        """Take the messages of a pull of a queue."""

    @abstractmethod
    def next(self) -> PulledMessage | None:
        """The next message that may be consumed now; its window is not dropped."""

    @abstractmethod
    def burst(self, most: int) -> Iterator[PulledMessage]:
        """`next` until no message is left, at most `most` times. Each message is taken when it is requested,
        so that other takers get the messages for which this taker has no time.

        An iterator, because handlers that never wait take hundreds of thousands a second: continuing an
        iterator costs half of a call.
        """

    @abstractmethod
    def take(self, most: int) -> list[PulledMessage]:
        """The next messages, at most `most`; an empty list without any."""

    @abstractmethod
    def schedule_redelivery(self, message: PulledMessage, seconds: float | None = None) -> None:
        """Hand out a message again after `seconds`, or after the usual delay."""

    @abstractmethod
    def _redeliver(self, message: PulledMessage) -> None:
        """Redeliver a message that was put off, because its time has come."""

    async def until_idle(self, window: ProcessQueue) -> None:
        """Wait until the window's queue may move to another member."""

    def _schedule(self, message: PulledMessage, seconds: float | None) -> None:
        due = self._now() + (self._redelivery_seconds if seconds is None else seconds)
        heappush(self._later, (due, next(self._count), message))
        if self._later[0][2] is message:
            self._later_came.set()

    async def redeliver(self) -> None:
        """Hand out postponed messages when they are due, until cancelled."""
        later = self._later
        while True:
            await self._later_came.wait(later[0][0] if later else math.inf)
            while later and later[0][0] <= self._now():
                self._redeliver(heappop(later)[2])


def _found(
    messages: Iterable[PulledMessage], offsets: Mapping[ProcessQueue, int]
) -> dict[ProcessQueue, PulledMessage]:
    return {
        message.window: message
        for message in messages
        if message.window is not None and offsets.get(message.window) == message.queue_offset
    }


def _popped(entries: deque[PulledMessage]) -> PulledMessage | None:
    """The first message, or None: threads may take from the queue at the same time."""
    try:
        return entries.popleft()
    except IndexError:
        return None


class MessageDispatch(Dispatch[PulledMessage]):
    """Hands out message by message."""

    def __init__(self, redelivery_ms: int) -> None:
        super().__init__(redelivery_ms)
        self._held: list[PulledMessage] = []  # of paused queues

    def new_window(self, queue: MessageQueue, queue_offset: int) -> ProcessQueue:
        return ProcessQueue(queue, queue_offset)

    def forget(self, window: ProcessQueue) -> None:
        self._held = [message for message in self._held if message.window is not window]

    def waiting(self, offsets: Mapping[ProcessQueue, int]) -> dict[ProcessQueue, PulledMessage]:
        return _found(chain(self.ready.entries, self._held), offsets)

    def _on_paused(self) -> None:
        entries = self.ready.entries
        waiting = [message for _ in range(len(entries)) if (message := _popped(entries)) is not None]
        for message in waiting:
            assert message.window is not None
            (self._held if self.is_paused(message.window.queue) else entries).append(message)

    def _on_resumed(self) -> None:
        held, self._held = self._held, []
        for message in held:
            self.put([message])

    def put(self, messages: Sequence[PulledMessage]) -> None:
        window = messages[0].window
        assert window is not None
        if self.is_paused(window.queue):
            self._held.extend(messages)
        else:
            self.ready.put(messages)

    def next(self) -> PulledMessage | None:
        ready = self.ready
        entries = ready.entries
        while (message := _popped(entries)) is not None:
            window = message.window
            assert window is not None
            if not window.is_dropped:
                if entries and ready.parked:
                    ready.wake()  # each taker wakes the next, so as many come as are needed
                return message
        return None

    def burst(self, most: int) -> Iterator[PulledMessage]:
        ready = self.ready
        entries = ready.entries
        if len(entries) > 1 and ready.parked:
            ready.wake()
        for _ in range(most):
            try:
                message = entries.popleft()
            except IndexError:  # not a look before: threads may take from the queue at the same time
                return
            window = message.window
            assert window is not None
            if not window.is_dropped:
                yield message

    def take(self, most: int) -> list[PulledMessage]:
        ready, taken = self.ready, list[PulledMessage]()
        entries = ready.entries
        while len(taken) < most and (message := _popped(entries)) is not None:
            if message.window is not None and not message.window.is_dropped:
                taken.append(message)
        if entries and ready.parked:
            ready.wake()
        return taken

    def taken_now(self) -> PulledMessage | None:
        """The next message; wakes no task. May be called from any thread."""
        while (message := _popped(self.ready.entries)) is not None:
            if message.window is not None and not message.window.is_dropped:
                return message
        return None

    def schedule_redelivery(self, message: PulledMessage, seconds: float | None = None) -> None:
        window = message.window
        assert window is not None
        # It may be finished by now: sent back for taking too long.
        if not self.ready.is_closed and not window.is_dropped and message.queue_offset in window:
            self._schedule(message, seconds)

    def _redeliver(self, message: PulledMessage) -> None:
        self.put([message])


class QueueDispatch(Dispatch[OrderedProcessQueue]):
    """Hands out queue by queue: queues stand in line, and the next messages are taken from the first
    queue."""

    is_ordered = True

    def __init__(self, redelivery_ms: int, may_deliver: Callable[[MessageQueue], bool] | None = None) -> None:
        """`may_deliver` tells whether a queue may be consumed now: `QueueLocks.holds`, or always."""
        super().__init__(redelivery_ms)
        self._may_deliver = may_deliver
        self._windows: dict[MessageQueue, OrderedProcessQueue] = {}
        # Windows dropped with a message in flight: the queue's new window waits for its end.
        self._ending: dict[MessageQueue, OrderedProcessQueue] = {}
        self._idle_alarms: set[Wakeup] = set()

    def new_window(self, queue: MessageQueue, queue_offset: int) -> OrderedProcessQueue:
        old = self._windows.get(queue)
        if old is not None and old.is_busy:
            self._ending.setdefault(queue, old)
        window = self._windows[queue] = OrderedProcessQueue(queue, queue_offset, self._on_idle)
        return window

    def forget(self, window: ProcessQueue) -> None:
        assert isinstance(window, OrderedProcessQueue)
        window.waiting.clear()
        if not window.is_busy and self._windows.get(window.queue) is window:
            del self._windows[window.queue]

    def put(self, messages: Sequence[PulledMessage]) -> None:
        window = messages[0].window
        assert isinstance(window, OrderedProcessQueue)
        window.waiting.extend(messages)
        self._offer(window)

    def offer(self, queue: MessageQueue) -> None:
        window = self._windows.get(queue)
        if window is not None:
            self._offer(window)

    def _offer(self, window: OrderedProcessQueue) -> None:
        if window.waiting and not (
            window.is_queued or window.is_busy or window.is_suspended or window.is_dropped
        ):
            window.is_queued = True
            self.ready.put([window])

    def next(self) -> PulledMessage | None:
        taken = self.take(1)
        return taken[0] if taken else None

    def burst(self, most: int) -> Iterator[PulledMessage]:
        for _ in range(most):
            message = self.next()
            if message is None:
                return
            yield message

    def take(self, most: int) -> list[PulledMessage]:
        """Messages of the first queue in line that may be delivered."""
        ready = self.ready
        while ready.entries:
            window = ready.entries.popleft()
            window.is_queued = False
            queue = window.queue
            if window.is_dropped or queue in self._ending or self.is_paused(queue) or not self._may(queue):
                continue  # offered again at the end of that: see `offer` and `_on_idle`
            if ready.entries and ready.parked:
                ready.wake()
            return window.take(most)
        return []

    def _may(self, queue: MessageQueue) -> bool:
        return self._may_deliver is None or self._may_deliver(queue)

    def schedule_redelivery(self, message: PulledMessage, seconds: float | None = None) -> None:
        """Redeliver a message before all others of its queue, which is suspended until that time."""
        assert isinstance(message.window, OrderedProcessQueue)
        message.window.requeue(message, self._redelivery_seconds if seconds is None else seconds)

    def _on_idle(self, window: OrderedProcessQueue) -> None:
        """Continue with a queue: no message of the window is in flight any more."""
        queue = window.queue
        if self._ending.get(queue) is window:
            del self._ending[queue]
        for alarm in self._idle_alarms:
            alarm.set()
        if window.is_dropped:
            self.forget(window)
        elif window.is_suspended:
            self._schedule(window.waiting[0], window.suspend_seconds)
        self.offer(queue)

    def _redeliver(self, message: PulledMessage) -> None:
        window = message.window
        assert isinstance(window, OrderedProcessQueue)
        window.is_suspended = False
        self._offer(window)

    def is_busy(self, window: ProcessQueue) -> bool:
        return window.is_busy or window.queue in self._ending

    async def until_idle(self, window: ProcessQueue) -> None:
        alarm = Wakeup()
        self._idle_alarms.add(alarm)
        try:
            while self.is_busy(window):
                await alarm.wait()
        finally:
            self._idle_alarms.discard(alarm)

    def waiting(self, offsets: Mapping[ProcessQueue, int]) -> dict[ProcessQueue, PulledMessage]:
        queues = [window.waiting for window in offsets if isinstance(window, OrderedProcessQueue)]
        return _found((queue[0] for queue in queues if queue), offsets)

    def _on_paused(self) -> None:
        """Do nothing: `take` looks."""

    def _on_resumed(self) -> None:
        for window in [*self._windows.values()]:
            self._offer(window)
