"""Give every member of a group every message. Each member keeps its own offsets in a file.

python examples/broadcast.py [name server] [--loop asyncio]
"""

from __future__ import annotations

import tempfile

import anyio
from command_line import run

import rmq

TOPIC = "ExampleNews"


async def read(namesrv: str, name: str, folder: str) -> None:
    # The client id names the file of offsets, so it stays the same from run to run.
    config = rmq.ClientConfig(offsets_dir=folder)
    seen = 0
    async with rmq.connect(namesrv, client_id=f"example-{name}", config=config) as client:
        options = {"consume_from": "first", "broadcasting": True}
        async with client.consumer("example-readers", {TOPIC: "*"}, **options) as consumer:
            async for delivery in consumer:
                async with delivery as message:
                    print(f"{name}: {message.body.decode()}")
                    seen += 1
                if seen == 3:
                    break


async def main(namesrv: str) -> None:
    async with rmq.connect(namesrv) as client, client.producer("example-producer") as producer:
        for number in range(3):
            await producer.send(rmq.Message(TOPIC, b"news %d" % number))
    with tempfile.TemporaryDirectory() as folder:
        async with anyio.create_task_group() as tasks:
            for name in ("ann", "bob"):
                tasks.start_soon(read, namesrv, name, folder)


if __name__ == "__main__":
    run(main)
