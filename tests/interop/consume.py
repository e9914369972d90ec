"""Consume NAMESRV TOPIC GROUP with our client, as java/Consume.java does with the Java one: a JSON line for
each message, until the standard input ends."""

from __future__ import annotations

import json
import sys

import trio

import rmq


def show(message: rmq.StoredMessage) -> None:
    row = {"body": message.body.decode().strip(), "broker": message.broker_name, "id": message.message_id}
    print(json.dumps(row | {"queue": message.queue_id, "offset": message.queue_offset}), flush=True)


async def main(namesrv: str, topic: str, group: str) -> None:
    async def take(message: rmq.StoredMessage) -> None:
        show(message)

    async with (
        rmq.connect(namesrv) as client,
        client.consumer(group, {topic: "*"}, consume_from="first") as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(consumer.run, take)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
