"""Read a topic again from a point in time; the application owns the offsets.

python examples/replay.py [name server] [--loop asyncio]
"""

from __future__ import annotations

import time

import anyio
from command_line import run

import rmq

TOPIC = "ExampleEvents"


async def main(namesrv: str) -> None:
    async with rmq.connect(namesrv) as client:
        async with client.producer("example-producer") as producer:
            await producer.send(rmq.Message(TOPIC, b"too old"))
            await anyio.sleep(0.1)
            since = int(time.time() * 1000)
            await anyio.sleep(0.1)
            for number in range(10):
                await producer.send(rmq.Message(TOPIC, b"event %d" % number))

        found = 0
        async with client.pull_consumer("example-replay") as puller:
            for queue in await puller.message_queues(TOPIC):
                offset = await puller.search_offset(queue, since)
                while (batch := await puller.pull(queue, offset, max_messages=32)).messages:
                    for message in batch.messages:
                        print(queue.queue_id, message.queue_offset, message.body.decode())
                        found += 1
                    offset = batch.next_offset
                await puller.commit(queue, offset)
        print("replayed", found)


if __name__ == "__main__":
    run(main)
