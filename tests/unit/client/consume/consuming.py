"""Groups of messages and offsets of a group, for the tests of consumers."""

from __future__ import annotations

import asyncio

import anyio
import sniffio
import trio

from rmq.client.consume.consumer import Consumer
from rmq.message import MessageQueue
from rmq.protocol.codes import RequestCode
from rmq.protocol.headers import ConsumerSendMsgBackRequestHeader
from rmq.testing.cluster import Cluster

COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


BACK = RequestCode.CONSUMER_SEND_MSG_BACK


def fill(cluster: Cluster, count: int, *, queues: int = 2, broker: str = "a") -> None:
    for number in range(count):
        cluster[broker].put("T", number % queues, b"%d" % number, f"UNIQ_KEY\x01ID{number}")


async def take(consumer: Consumer, count: int) -> list[bytes]:
    """The bodies of the next `count` messages."""
    bodies: list[bytes] = []
    async for delivery in consumer:
        async with delivery as message:
            bodies.append(message.body)
        if len(bodies) == count:
            break
    return bodies


def offsets(cluster: Cluster, group: str = "g", topic: str = "T", broker: str = "a") -> dict[int, int]:
    return cluster[broker].offsets(group, topic)


def sent_back(cluster: Cluster, broker: str = "a") -> list[ConsumerSendMsgBackRequestHeader]:
    """The messages that consumers gave back, as they said it."""
    return [request.read(ConsumerSendMsgBackRequestHeader) for request in cluster[broker].requests(BACK)]


def of_topic(consumer: Consumer, topic: str = "T") -> list[MessageQueue]:
    return [queue for queue in consumer.queues if queue.topic == topic]


async def until(holds: object) -> None:
    with anyio.fail_after(60):
        while not holds():
            await anyio.sleep(0.01)


async def await_what_was_cancelled() -> None:
    """Raise the cancellation of another task, as code does that shares the result of one task."""
    if sniffio.current_async_library() == "trio":
        kept: BaseException | None = None
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.sleep_forever()
            except trio.Cancelled as error:
                kept = error
                raise
        assert kept is not None
        raise kept
    task = asyncio.ensure_future(asyncio.sleep(3600))
    task.cancel()
    await task
