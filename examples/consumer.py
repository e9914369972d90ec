"""Consume messages of some tags with a function; retry failed messages; shut down gracefully.

python examples/consumer.py [name server] [--loop asyncio]
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator

import anyio
from command_line import run

import rmq

TOPIC = "ExamplePayments"


async def main(namesrv: str) -> None:
    async with rmq.connect(namesrv) as client:
        async with client.producer("example-producer") as producer:
            for number in range(10):
                tags = "paid" if number % 2 else "created"
                await producer.send(rmq.Message(TOPIC, b"order %d" % number, tags=tags))

        async def bill(message: rmq.StoredMessage) -> None:
            """A return acknowledges the message; an exception sends it back for a retry."""
            nonlocal left
            print(message.tags, message.body.decode())
            left -= 1
            if not left:
                done.set()

        left, done = 5, anyio.Event()
        retry = rmq.Backoff(1, 60, tries=5)
        async with (
            client.consumer("example-billing", {TOPIC: "paid"}, consume_from="first", retry=retry) as billing,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(billing.run, bill)
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                tasks.start_soon(wait_for_a_signal, signals, done)
                await done.wait()  # a signal, or here: the five are billed
            await billing.drain(30)  # running handlers may end, offsets are committed; then `run` returns
            tasks.cancel_scope.cancel()


async def wait_for_a_signal(signals: AsyncIterator[int], done: anyio.Event) -> None:
    async for _ in signals:
        done.set()


if __name__ == "__main__":
    run(main)
