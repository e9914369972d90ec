"""Helpers of the tests of RocketMQ 5.3.3: clients with patience, topics, messages taken from a consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

import rmq
from rmq.message import StoredMessage

T = TypeVar("T")
PATIENT = rmq.ClientConfig(request_timeout_ms=15_000, send_timeout_ms=15_000)


@asynccontextmanager
async def client_of(names: str, *, seconds: float = 90, **options: object) -> AsyncIterator[rmq.Client]:
    """A client of these name servers whose block ends within this time."""
    with trio.fail_after(seconds):
        async with rmq.connect(names, config=PATIENT, **options) as client:  # type: ignore[arg-type]
            yield client


async def topic_of(client: rmq.Client, name: str, queues: int = 4) -> str:
    """Make a topic on all brokers, and return its name."""
    await client.admin.create_topic(name, queues=queues)
    return name


async def take(consumer: rmq.Consumer, count: int) -> list[StoredMessage]:
    """Acknowledge this many messages, and return them."""
    got = []
    for _ in range(count):
        async with await anext(consumer) as message:
            got.append(message)
    return got


async def until(condition: Callable[[], Awaitable[T]], seconds: float, what: str) -> T:
    """Ask until the answer is true, and return it. Raises TimeoutError, which names `what`."""
    with trio.move_on_after(seconds):
        while True:
            if answer := await condition():
                return answer
            await trio.sleep(0.2)
    raise TimeoutError(f"{what}: not within {seconds:g} s")


async def in_thread(function: Callable[..., T], *arguments: object, **options: object) -> T:
    """Start a process, or wait for one, in a thread."""
    return await trio.to_thread.run_sync(lambda: function(*arguments, **options))
