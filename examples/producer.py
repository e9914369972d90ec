"""Send messages: one at a time, and many at once.

python examples/producer.py [name server] [--loop asyncio]
"""

from __future__ import annotations

import anyio
from command_line import run

import rmq


async def main(namesrv: str) -> None:
    async with rmq.connect(namesrv) as client, client.producer("example-producer") as producer:
        message = rmq.Message("ExampleOrders", b"paid 42", tags="paid", keys=["42"])
        result = await producer.send(message)
        print(result.status, result.message_queue, result.queue_offset)

        # Any number of tasks may send over one producer, to have many messages in flight.
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(producer.send, rmq.Message("ExampleOrders", b"paid %d" % number))
        print("sent 100 more")


if __name__ == "__main__":
    run(main)
