"""What producers were told, compared with what is read back."""

from __future__ import annotations

import trio

import rmq

SENDERS = 8
TOPIC = "KillTopic"
PATIENCE_SECONDS = 40


class Ledger:
    """What producers were told: body -> (queue, offset); and why sends were refused."""

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.sent = 0
        self.refusals: list[str] = []

    async def send(self, producer: rmq.Producer, sender: int) -> None:
        """Send until cancelled; what fails or is not known to be safe is not acknowledged."""
        while True:
            self.sent += 1
            body = b"%d-%d-" % (sender, self.sent) + b"x" * (self.sent % 900)
            try:
                result = await producer.send(rmq.Message(TOPIC, body))
            except (rmq.RmqError, TimeoutError) as error:
                self.refusals.append(str(error))
                await trio.sleep(0.02)
                continue
            if str(result.status) == "SEND_OK":
                self.acknowledged[body] = (result.message_queue.queue_id, result.queue_offset)
            else:
                self.refusals.append(str(result.status))

    async def grow(self, count: int) -> None:
        """Wait until so many more are acknowledged. Raises TimeoutError with what was refused last."""
        before = len(self.acknowledged)
        with trio.move_on_after(PATIENCE_SECONDS):
            while len(self.acknowledged) < before + count:
                await trio.sleep(0.01)
            return
        raise TimeoutError(f"sends do not succeed again: {self.refusals[-3:]}")


async def read_all(namesrv: str, topic: str = TOPIC) -> dict[tuple[int, int], bytes]:
    """A topic as a consumer reads it: (queue, offset) -> body."""
    found = {}
    async with rmq.connect(namesrv) as client, client.pull_consumer("auditors") as puller:
        for queue in await puller.message_queues(topic):
            offset, end = await puller.min_offset(queue), await puller.max_offset(queue)
            while offset < end:
                batch = await puller.pull(queue, offset, max_messages=32)
                for message in batch.messages:
                    found[queue.queue_id, message.queue_offset] = message.body
                offset = batch.next_offset
    return found


def lost(ledger: Ledger, found: dict[tuple[int, int], bytes]) -> list[bytes]:
    """What was acknowledged and is not there."""
    return [body for body, place in ledger.acknowledged.items() if found.get(place) != body]
