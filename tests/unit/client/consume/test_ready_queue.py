"""ReadyQueue: whoever waits for messages is woken, whatever becomes of the others who wait; and takers in
threads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from rmq.client.consume.dispatch import MessageDispatch, ReadyQueue


def test_a_taker_that_is_cancelled_as_it_wakes_passes_it_on() -> None:
    """On asyncio a task can be cancelled between its waking and its first step; the message must not wait
    for the next one.
    """

    async def scenario() -> None:
        ready: ReadyQueue[str] = ReadyQueue()
        first, second = (asyncio.ensure_future(ready.arrival()) for _ in range(2))
        await asyncio.sleep(0)
        ready.put(["a"])
        first.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert (first.cancelled(), second.done()) == (True, True)

    asyncio.run(scenario())


def test_each_batch_wakes_a_taker() -> None:
    async def scenario() -> None:
        ready: ReadyQueue[str] = ReadyQueue()
        for _ in range(3):
            taker = asyncio.ensure_future(ready.arrival())
            await asyncio.sleep(0)
            ready.put(["a"])
            for _ in range(3):
                await asyncio.sleep(0)
            assert taker.done()
            ready.entries.clear()

    asyncio.run(scenario())


class Contended(deque[Any]):
    """Entries that a thread takes between another taker's look and its step."""

    def popleft(self) -> Any:
        self.clear()
        return super().popleft()


@pytest.mark.parametrize(
    "take", [lambda one: one.next(), lambda one: list(one.burst(2)) or None, lambda one: one.take(2) or None]
)
def test_a_message_that_a_thread_took_first_is_just_not_there(take: Callable[[Any], object]) -> None:
    """A blocking consumer takes in the threads that iterate over it, beside the loop's own."""

    async def scenario() -> None:
        dispatch = MessageDispatch(1_000)
        dispatch.ready.entries = Contended(["a"])
        assert take(dispatch) is None

    asyncio.run(scenario())
