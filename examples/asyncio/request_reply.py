"""Ask by a message and wait for the answer of whoever consumes it.

python examples/asyncio/request_reply.py [name server]
"""

from __future__ import annotations

import asyncio
import sys

import rmq

TOPIC = "ExampleQuotes"
PRICES = {b"hz": b"17", b"sh": b"23"}


async def main(namesrv: str) -> None:
    async with rmq.connect(namesrv) as client, client.producer("example-quotes") as producer:

        async def quote(message: rmq.StoredMessage) -> None:
            await producer.reply(message, PRICES[message.body])

        async with (
            client.consumer("example-quoting", {TOPIC: "*"}, consume_from="first") as consumer,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(consumer.run(quote))
            for city in PRICES:
                answer = await producer.request(rmq.Message(TOPIC, city), timeout=30)
                print(city.decode(), answer.body.decode())
            await consumer.drain()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
