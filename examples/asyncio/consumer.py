"""Consume messages of some tags with a function; what fails comes again; stop in good order.

python examples/asyncio/consumer.py [name server]
"""

from __future__ import annotations

import asyncio
import signal
import sys

import rmq

TOPIC = "ExamplePayments"


async def main(namesrv: str) -> None:
    async with rmq.connect(namesrv) as client:
        async with client.producer("example-producer") as producer:
            for number in range(10):
                tags = "paid" if number % 2 else "created"
                await producer.send(rmq.Message(TOPIC, b"order %d" % number, tags=tags))

        async def bill(message: rmq.StoredMessage) -> None:
            """Returning means consumed; an exception sends the message back for a retry."""
            nonlocal left
            print(message.tags, message.body.decode())
            left -= 1
            if not left:
                done.set()

        left, done = 5, asyncio.Event()
        retry = rmq.Backoff(1, 60, tries=5)
        async with (
            client.consumer("example-billing", {TOPIC: "paid"}, consume_from="first", retry=retry) as billing,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(billing.run(bill))
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, done.set)
            await done.wait()  # a signal, or here: the five are billed
            await billing.drain(30)  # handlers that run may end, offsets are committed; then `run` returns


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
