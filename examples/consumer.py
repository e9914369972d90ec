"""Consume messages of some tags; what fails comes again.

python examples/consumer.py [name server]
"""

from __future__ import annotations

import sys

import trio

import rmq

TOPIC = "ExamplePayments"


async def main(namesrv: str) -> None:
    async with rmq.connect(namesrv) as client:
        async with client.producer("example-producer") as producer:
            for number in range(10):
                tags = "paid" if number % 2 else "created"
                await producer.send(rmq.Message(TOPIC, b"order %d" % number, tags=tags))

        seen = 0
        async with client.consumer("example-billing", {TOPIC: "paid"}, consume_from="first") as consumer:
            async for delivery in consumer:
                async with (
                    delivery as message
                ):  # a normal exit: consumed; an exception: sent back for a retry
                    print(message.tags, message.body.decode())
                    seen += 1
                if seen == 5:
                    break


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
