"""Deliver later: by a delay level, after any time, at any time; and take a message back.

python examples/delayed.py [name server] [--loop asyncio]
"""

from __future__ import annotations

import time

from command_line import run

import rmq

TOPIC = "ExampleReminders"


async def main(namesrv: str) -> None:
    async with rmq.connect(namesrv) as client:
        async with client.producer("example-producer") as producer:
            began = time.time()
            soon = int((began + 2) * 1000)
            await producer.send(rmq.Message(TOPIC, b"by level 1 (1 s)", delay_level=1))
            await producer.send(rmq.Message(TOPIC, b"after 1.5 s", delay_ms=1500))
            await producer.send(rmq.Message(TOPIC, b"at a time, 2 s from now", deliver_at_ms=soon))
            result = await producer.send(rmq.Message(TOPIC, b"never mind", delay_ms=1800))
            if result.recall_handle is not None:  # RocketMQ 4.9's own brokers return no handle
                await producer.recall(result.recall_handle)

        seen = 0
        async with client.consumer("example-reminded", {TOPIC: "*"}, consume_from="first") as consumer:
            async for delivery in consumer:
                async with delivery as message:
                    print(f"{time.time() - began:.2f} s: {message.body.decode()}")
                    seen += 1
                if seen == 3:
                    break


if __name__ == "__main__":
    run(main)
