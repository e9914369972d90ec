"""Send messages: one at a time, and many at once.

python examples/producer.py [name server]
"""

from __future__ import annotations

import sys

import trio

import rmq


async def main(namesrv: str) -> None:
    async with rmq.connect(namesrv) as client, client.producer("example-producer") as producer:
        message = rmq.Message("ExampleOrders", b"paid 42", tags="paid", keys=["42"])
        result = await producer.send(message)
        print(result.status, result.message_queue, result.queue_offset)

        # Any number of tasks may send over one producer; that is how to have many messages in flight.
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(producer.send, rmq.Message("ExampleOrders", b"paid %d" % number))
        print("sent 100 more")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
