"""Send many messages of one topic in few requests, and consume them many at a time.

python examples/batch.py [name server] [--loop asyncio]
"""

from __future__ import annotations

import anyio
from command_line import run

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

    done = anyio.Event()
    async with rmq.connect(namesrv) as client:
        async with client.producer("example-producer") as producer:
            rows = [rmq.Message(TOPIC, b"row %d" % number) for number in range(1000)]
            result = await producer.send_batch(rows)  # more than 4 MiB would take several requests
            print(len(result.message_ids), "messages stored from offset", result.queue_offset, "on")

        async with (
            client.consumer("example-loader", {TOPIC: "*"}, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run_batches, write_rows)
            await done.wait()
            await consumer.drain()


if __name__ == "__main__":
    run(main)
