"""Keep messages that belong together in order: one key, one queue, one message of a queue at a time.

python examples/ordered.py [name server] [--loop asyncio]
"""

from __future__ import annotations

from collections import defaultdict

import anyio
from command_line import run

import rmq

TOPIC = "ExampleSteps"
STEPS = ["created", "paid", "packed", "shipped"]


async def main(namesrv: str) -> None:
    seen: dict[str, list[str]] = defaultdict(list)

    async def apply_step(message: rmq.StoredMessage) -> None:
        order, _, step = message.body.decode().partition(" ")
        if step == "packed" and len(seen[order]) == 2 and order not in tried:
            tried.add(order)
            raise RuntimeError(f"order {order} is not in stock yet")  # retried after 1 s, in its place
        seen[order].append(step)
        if sum(map(len, seen.values())) == 20:
            done.set()

    tried: set[str] = {"0", "1", "2", "3"}  # only order 4 must wait
    done = anyio.Event()
    async with rmq.connect(namesrv) as client:
        async with client.producer("example-producer") as producer:
            for step in STEPS:
                for order in range(5):
                    message = rmq.Message(TOPIC, f"{order} {step}".encode())
                    await producer.send(message, sharding_key=str(order))

        topics = {TOPIC: "*"}
        async with (
            client.consumer("example-tracker", topics, consume_from="first", ordered=True) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, apply_step)
            await done.wait()
            await consumer.drain()  # running handlers may end; then `run` returns
    for order, steps in sorted(seen.items()):
        print(order, *steps)
        assert steps == STEPS


if __name__ == "__main__":
    run(main)
