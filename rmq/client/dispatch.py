"""Inbox: messages that were pulled and wait for someone to take them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rmq.remoting.loop import Waiter, current_loop

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue for many takers without a lock or a channel: a deque, and tasks parked beside it.

    Its size is bounded by the windows of the queues. `ready` is open to its owner, who takes many entries
    between two waits; of a batch only one taker is woken, and each taker that leaves something behind wakes
    the next.
    """

    def __init__(self) -> None:
        self.ready: deque[T] = deque()
        self.closed = False
        self.idle: deque[Waiter] = deque()
        self._waking = False
        self._new_waiter: Callable[[], Waiter] = current_loop().waiter

    def put(self, messages: Sequence[T]) -> None:
        """Add what a pull brought."""
        if not self.closed:
            self.ready.extend(messages)
            self.wake()

    def wake(self) -> None:
        """Let one parked taker look, unless one is on its way already."""
        if self.idle and not self._waking:
            self._waking = True
            self.idle.popleft().resolve(None)

    async def arrival(self) -> None:
        """Park until there is something to take, or until the inbox is closed. May wake for nothing."""
        if self.closed or self.ready:
            return
        waiter = self._new_waiter()
        self.idle.append(waiter)
        try:
            await waiter.wait()
        except BaseException:
            if waiter in self.idle:
                self.idle.remove(waiter)
            else:  # woken and cancelled at once: somebody else must look instead
                self._waking = False
                if self.ready:
                    self.wake()
            raise
        self._waking = False

    def close(self) -> None:
        """Drop what is here and let all takers go."""
        self.closed = True
        self.ready.clear()
        while self.idle:
            self.idle.popleft().resolve(None)
