"""Load on real brokers over the network, and what its ledger says of what is read back."""

from __future__ import annotations

import trio

import rmq

from .ledger import Found, Ledger, Promise

SENDERS = 8
TOPIC = "KillTopic"
PATIENCE_SECONDS = 40
CLUSTER = "cluster"
"""The machine of these promises: whichever broker serves the topic in the end."""


class Load:
    """Sends until cancelled, and writes down what producers were told, and why sends were refused."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.acknowledged = 0
        self.sent = 0
        self.refusals: list[str] = []

    async def send(self, producer: rmq.Producer, sender: int) -> None:
        """Send until cancelled; what fails or is not known to be safe is not acknowledged."""
        while True:
            self.sent += 1
            body = b"%d-%d-" % (sender, self.sent) + b"x" * (self.sent % 900)
            self.ledger.sending(body, (TOPIC, -1)).may_repeat = True  # producers try again by themselves
            try:
                result = await producer.send(rmq.Message(TOPIC, body))
            except (rmq.RmqError, TimeoutError) as error:
                self.refusals.append(str(error))
                await trio.sleep(0.02)
                continue
            if str(result.status) == "SEND_OK":
                place = result.message_queue.queue_id, result.queue_offset
                self.ledger.acknowledged(body, {CLUSTER: Promise.SYNCED}, place[1], (TOPIC, place[0]))
                self.acknowledged += 1
            else:
                self.refusals.append(str(result.status))

    async def grow(self, count: int) -> None:
        """Wait until so many more are acknowledged. Raises TimeoutError with what was refused last."""
        before = self.acknowledged
        with trio.move_on_after(PATIENCE_SECONDS):
            while self.acknowledged < before + count:
                await trio.sleep(0.01)
            return
        raise TimeoutError(f"sends do not succeed again: {self.refusals[-3:]}")

    def check(self, found: Found) -> None:
        """Raises Lost when a reader does not find what was acknowledged."""
        self.ledger.check(CLUSTER, found, 0)


async def read_all(namesrv: str, topic: str = TOPIC) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    """A topic as a consumer reads it."""
    found: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    async with rmq.connect(namesrv) as client, client.pull_consumer("auditors") as puller:
        for queue in await puller.message_queues(topic):
            messages = found.setdefault((topic, queue.queue_id), [])
            offset, end = await puller.min_offset(queue), await puller.max_offset(queue)
            while offset < end:
                batch = await puller.pull(queue, offset, max_messages=32)
                messages += [(message.queue_offset, message.body) for message in batch.messages]
                offset = batch.next_offset
    return found


def places(found: Found) -> dict[tuple[int, int], bytes]:
    """What was read of one topic: (queue id, queue offset) -> body."""
    return {(queue[1], offset): body for queue, messages in found.items() for offset, body in messages}
