"""A group that takes messages one by one while its brokers are killed: an acknowledged message never comes
again, and in the end everything that was sent is acknowledged.

Some messages are given back, and some are forgotten, so that their leases end. An acknowledgement whose
answer did not come may or may not hold.
"""

from __future__ import annotations

import random
from collections.abc import Collection

import trio

import rmq
from rmq.errors import NETWORK_ERRORS, NoRoute, ResponseError

GROUP = "takers"
LEASE_SECONDS = 5.0
Place = tuple[int, int, bytes]
"""Queue, offset and body: a producer that tries again may store a body twice."""
FAILURES = (*NETWORK_ERRORS, NoRoute, ResponseError)


class Takers:
    """`answered` are the messages whose acknowledgement was answered, `again` those that came after that."""

    def __init__(self, topic: str, seed: int) -> None:
        self._topic = topic
        self._chance = random.Random(f"{seed} takers")
        self.answered: set[Place] = set()
        self.again: list[Place] = []
        self._unsure: set[bytes] = set()
        """Bodies whose acknowledgement was sent: if its answer did not come, it may hold."""
        self.attempts = 0
        """The highest attempt that was seen."""
        self.is_thorough = False
        """Whether all messages are acknowledged from now on."""

    async def take(self, namesrv: str) -> None:
        """Take and acknowledge until cancelled, by a client of its own."""
        async with (
            rmq.connect(namesrv, config=rmq.ClientConfig(request_timeout_ms=2000)) as client,
            client.simple_consumer(GROUP, {self._topic: "*"}, consume_from="first") as consumer,
        ):
            while True:
                try:
                    messages = await consumer.receive(
                        self._chance.randint(1, 32), wait=0.5, invisible=LEASE_SECONDS
                    )
                    await self._work(consumer, messages)
                except FAILURES:
                    await trio.sleep(0.1)

    async def _work(self, consumer: rmq.SimpleConsumer, messages: list[rmq.ReceivedMessage]) -> None:
        self.again += [place for message in messages if (place := _place(message)) in self.answered]
        acknowledged = []
        for message in messages:
            self.attempts = max(self.attempts, message.attempt)
            fate = 1.0 if self.is_thorough else self._chance.random()
            if fate < 0.05:
                await message.nack(after=0)
            elif fate > 0.1:
                acknowledged.append(message)
        cut = self._chance.choice((0, 1, len(acknowledged)))
        for some in (acknowledged[:cut], acknowledged[cut:]):
            if some:
                self._unsure.update(message.body for message in some)
                await consumer.ack(*some)
                self.answered.update(map(_place, some))

    async def until_done(self, sent: Collection[bytes], seconds: float) -> None:
        """Return when everything was acknowledged."""
        self.is_thorough = True
        with trio.move_on_after(seconds):
            while not self._unsure.issuperset(sent):
                await trio.sleep(0.1)
        await trio.sleep(2 * LEASE_SECONDS)  # whatever is still leased comes again, and is acknowledged
        missing = set(sent) - self._unsure
        assert not missing, f"{len(missing)} of {len(sent)} never came: {sorted(missing)[:5]}"
        assert self.again == [], f"came after their acknowledgement: {self.again[:5]}"


def _place(message: rmq.ReceivedMessage) -> Place:
    return message.queue_id, message.queue_offset, message.body
