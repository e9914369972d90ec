"""ReadyQueue: whoever waits for messages is woken, whatever becomes of the others who wait."""

from __future__ import annotations

import asyncio

from rmq.client.consume.dispatch import ReadyQueue


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
