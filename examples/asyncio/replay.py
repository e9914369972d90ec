"""Read a topic again from a point in time; the application owns the offsets.

python examples/asyncio/replay.py [name server]
"""

from __future__ import annotations

import asyncio
import sys
import time

import rmq

TOPIC = "ExampleEvents"


async def main(namesrv: str) -> None:
    async with rmq.connect(namesrv) as client:
        async with client.producer("example-producer") as producer:
            await producer.send(rmq.Message(TOPIC, b"too old"))
            await asyncio.sleep(0.1)
            since = int(time.time() * 1000)
            await asyncio.sleep(0.1)
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
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
