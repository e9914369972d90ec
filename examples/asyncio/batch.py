"""Send many messages of one topic in few requests, and consume them many at a time.

python examples/asyncio/batch.py [name server]
"""

from __future__ import annotations

import asyncio
import sys

import rmq

TOPIC = "ExampleRows"


async def main(namesrv: str) -> None:
    total = 0

    async def write_rows(messages: list[rmq.StoredMessage]) -> None:
        nonlocal total
        total += len(messages)
        print(f"{len(messages)} rows in one go, {total} in all")
        if total == 1000:
            done.set()

    done = asyncio.Event()
    async with rmq.connect(namesrv) as client:
        async with client.producer("example-producer") as producer:
            rows = [rmq.Message(TOPIC, b"row %d" % number) for number in range(1000)]
            result = await producer.send_batch(rows)  # over 4 MiB it would be several requests
            print(len(result.message_ids), "messages stored from offset", result.queue_offset, "on")

        async with (
            client.consumer("example-loader", {TOPIC: "*"}, consume_from="first") as consumer,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(consumer.run_batches(write_rows))
            await done.wait()
            await consumer.drain()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
