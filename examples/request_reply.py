"""Send a request as a message and wait for the reply of its consumer.

python examples/request_reply.py [name server] [--loop asyncio]
"""

from __future__ import annotations

import anyio
from command_line import run

import rmq

TOPIC = "ExampleQuotes"
PRICES = {b"hz": b"17", b"sh": b"23"}


async def main(namesrv: str) -> None:
    async with rmq.connect(namesrv) as client, client.producer("example-quotes") as producer:

        async def quote(message: rmq.StoredMessage) -> None:
            await producer.reply(message, PRICES[message.body])

        async with (
            client.consumer("example-quoting", {TOPIC: "*"}, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, quote)
            for city in PRICES:
                answer = await producer.request(rmq.Message(TOPIC, city), timeout=30)
                print(city.decode(), answer.body.decode())
            await consumer.drain()


if __name__ == "__main__":
    run(main)
