"""Load on real brokers over the network, and what its ledger says of what is read back."""

from __future__ import annotations

import random
import time
from collections import Counter

import trio

import rmq

from .ledger import LATE_MS, Found, Ledger, Promise

SENDERS = 8
TOPIC = "KillTopic"
PATIENCE_SECONDS = 40
CLUSTER = "cluster"
"""The machine of these promises: whichever broker serves the topic in the end."""
KEPT = {CLUSTER: Promise.SYNCED}
CHECKS = {"transactionTimeOut": "1500", "transactionCheckInterval": "1000", "transactionCheckMax": "10000"}
"""Settings of a broker that asks soon for the ends of transactions that a killed one did not hear."""


class Load:
    """Sends until cancelled, and writes down what producers were told, and why sends were refused."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.acknowledged = 0
        self.sent = 0
        self.refusals: list[str] = []
        self._decisions: dict[bytes, rmq.Decision] = {}

    async def send(self, producer: rmq.Producer, sender: int) -> None:
        """Send until cancelled; what fails or is not known to be safe is not acknowledged."""
        while True:
            body = self._begin(sender)
            try:
                result = await producer.send(rmq.Message(TOPIC, body))
            except (rmq.RmqError, TimeoutError) as error:
                self.refusals.append(str(error))
                await trio.sleep(0.02)
                continue
            if str(result.status) == "SEND_OK":
                place = result.message_queue.queue_id, result.queue_offset
                self.ledger.acknowledged(body, KEPT, place[1], (TOPIC, place[0]))
                self.acknowledged += 1
            else:
                self.refusals.append(str(result.status))

    def _begin(self, sender: int, *, due_ms: int = 0, is_half: bool = False) -> bytes:
        """The body of the next message, which is sent from now on."""
        self.sent += 1
        body = b"%d-%d-" % (sender, self.sent) + b"x" * (self.sent % 900)
        sent = self.ledger.sending(body, (TOPIC, -1), due_ms=due_ms, is_half=is_half)
        sent.may_repeat = True  # producers try again by themselves
        return body

    async def delay(self, producer: rmq.Producer, sender: int, chance: random.Random) -> None:
        """Send messages that are due seconds later, until cancelled."""
        while True:
            level, now = chance.choice([0, 1, 2]), now_ms()
            due_ms = now + (chance.randrange(10, 8_000) if level == 0 else (1_000, 5_000)[level - 1])
            body = self._begin(sender, due_ms=due_ms)
            message = rmq.Message(TOPIC, body, delay_level=level, deliver_at_ms=None if level else due_ms)
            try:
                result = await producer.send(message)
            except (rmq.RmqError, TimeoutError):
                await trio.sleep(0.02)
                continue
            if str(result.status) == "SEND_OK":
                self.ledger.acknowledged(body, KEPT)
                self.acknowledged += 1

    async def transact(self, producer: rmq.TransactionalProducer, sender: int, chance: random.Random) -> None:
        """Send transactions until cancelled: committed, rolled back, or left to the check-back.

        What is decided holds from when the half message is acknowledged: if its end does not come through,
        the broker asks.
        """
        while True:
            body = self._begin(sender, is_half=True)
            decision = self._decisions[body] = chance.choice([rmq.COMMIT, rmq.COMMIT, rmq.ROLLBACK])
            begin = self.ledger.committing if decision is rmq.COMMIT else self.ledger.rolling_back
            begin(body)
            if decision is rmq.ROLLBACK:
                self.ledger.rolled_back(body)
            try:
                async with producer.transaction(rmq.Message(TOPIC, body)) as transaction:
                    self.ledger.acknowledged(body, KEPT)
                    if decision is rmq.COMMIT:
                        self.ledger.committed(body, KEPT, now_ms())
                    self.acknowledged += 1
                    transaction.decision = chance.choice([decision, decision, rmq.UNKNOWN])
            except (rmq.RmqError, TimeoutError):
                await trio.sleep(0.02)

    async def decided(self, message: rmq.StoredMessage) -> rmq.Decision:
        """The decision that a broker gets when it asks."""
        return self._decisions[message.body]

    async def grow(self, count: int) -> None:
        """Wait until so many more are acknowledged. Raises TimeoutError with what was refused last."""
        before = self.acknowledged
        with trio.move_on_after(PATIENCE_SECONDS):
            while self.acknowledged < before + count:
                await trio.sleep(0.01)
            return
        raise TimeoutError(f"sends do not succeed again: {self.refusals[-3:]}")

    def check(self, found: Found) -> None:
        """Raise Lost if a reader does not find an acknowledged message."""
        self.ledger.check(CLUSTER, found, now_ms())

    async def settle(self, namesrv: str) -> Found:
        """The messages in the store when all delayed messages are due and all transactions have their end, or
        when the time for this is over."""
        async with (
            rmq.connect(namesrv) as client,
            client.transactional_producer("killers", self.decided) as producer,
        ):
            await producer.send(rmq.Message("Presence", b"so that brokers know of this producer"))
            with trio.move_on_after(PATIENCE_SECONDS):
                while max(sent.due_ms for sent in self.ledger.sent.values()) + LATE_MS > now_ms():
                    await trio.sleep(0.1)
                while self.ledger.complaints(CLUSTER, await read_all(namesrv), now_ms()):
                    await trio.sleep(0.5)
            return await read_all(namesrv)

    def kinds(self) -> str:
        """The numbers of acknowledged messages by kind, as text."""
        kinds = Counter(sent.kind for sent in self.ledger.sent.values() if sent.promises)
        return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


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
    """The messages of one topic: (queue id, queue offset) -> body."""
    return {(queue[1], offset): body for queue, messages in found.items() for offset, body in messages}
