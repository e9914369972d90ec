"""What clients do in the simulation of real brokers beside plain sends, and what must hold of it:
transactions and delayed messages.

Each kind sends all the time, notes what was acknowledged, and says at the end what is still to come and what
is wrong. Messages go to a named queue, so that no client sends one twice: what is there twice then was
written twice by brokers, which is right only across the start of a master.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Protocol

import trio

from rmq.client.client import Client
from rmq.client.transactional import COMMIT, ROLLBACK, UNKNOWN, Decision
from rmq.errors import RmqError
from rmq.message import Message, MessageQueue, StoredMessage


class Violation(Exception):
    """What must hold does not."""


class Traffic(Protocol):
    """One kind of messages; `topic` is where they are delivered."""

    topic: str
    sent: int

    async def run(self, client: Client, *, task_status: trio.TaskStatus[None]) -> None:
        """Send until cancelled; `stops` ends new messages, not what goes on with the old ones."""

    def stop(self) -> None:
        """Begin nothing new."""

    def missing(self, bodies: set[str]) -> list[str]:
        """What was acknowledged and has to be delivered, and is not among these."""

    def check(self, messages: Iterable[StoredMessage]) -> None:
        """Whether these, all of the topic, may be there. Raises Violation."""


def check_copies(messages: Iterable[StoredMessage], opened_ms: Iterable[int]) -> None:
    """No message of a topic is there twice but across the start of a master."""
    before: dict[bytes, int] = {}
    for message in messages:
        stored_ms = message.store_timestamp
        copied_ms = before.get(message.body)
        if copied_ms is not None and not any(copied_ms <= at <= stored_ms for at in opened_ms):
            raise Violation(f"{message.topic}: {message.body!r} was delivered twice by one master")
        before[message.body] = stored_ms


class Transactions:
    """Half messages, each of which ends as was decided before it was sent: told at once, or when asked."""

    topic = "X"

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._decided: dict[str, Decision] = {}
        self._begun: list[str] = []
        self._is_stopped = False
        self.sent = 0

    async def run(self, client: Client, *, task_status: trio.TaskStatus[None]) -> None:
        async with client.transactional_producer("PX", self._check_back) as producer:
            task_status.started()
            while True:
                await trio.sleep(self._chance.uniform(0.1, 1.0))
                if self._is_stopped:
                    continue  # the group's producer answers what is asked
                self.sent += 1
                text = f"x{self.sent}"
                self._decided[text] = self._chance.choice((COMMIT, COMMIT, ROLLBACK))
                told = self._chance.random() < 0.6
                queue = MessageQueue(self.topic, "s", 0)
                try:
                    async with producer.transaction(Message(self.topic, text.encode()), queue=queue) as it:
                        self._begun.append(text)
                        it.decision = self._decided[text] if told else UNKNOWN
                except RmqError:
                    pass  # it may be stored all the same: the check-back decides

    async def _check_back(self, message: StoredMessage) -> Decision:
        return self._decided[message.body.decode()]

    def stop(self) -> None:
        self._is_stopped = True

    def missing(self, bodies: set[str]) -> list[str]:
        return [text for text in self._begun if self._decided[text] is COMMIT and text not in bodies]

    def check(self, messages: Iterable[StoredMessage]) -> None:
        wrong = {message.body.decode() for message in messages} - {
            text for text, decision in self._decided.items() if decision is COMMIT
        }
        if wrong:
            raise Violation(f"delivered although they were rolled back: {sorted(wrong)[:10]}")


class Delays:
    """Messages that are delayed by a level, or to any time."""

    topic = "D"

    def __init__(self, chance: random.Random, now_ms: Callable[[], int]) -> None:
        self._chance = chance
        self._now_ms = now_ms
        self._due: dict[str, int] = {}
        self._acknowledged: list[str] = []
        self._is_stopped = False
        self.sent = 0

    async def run(self, client: Client, *, task_status: trio.TaskStatus[None]) -> None:
        async with client.producer("PD") as producer:
            task_status.started()
            while not self._is_stopped:
                await trio.sleep(self._chance.uniform(0.1, 1.0))
                self.sent += 1
                text = f"d{self.sent}"
                if self._chance.random() < 0.5:
                    level = self._chance.choice((1, 2, 3))
                    message = Message(self.topic, text.encode(), delay_level=level)
                    delay_ms = (1_000, 5_000, 10_000)[level - 1]
                else:
                    delay_ms = self._chance.randrange(1_000, 15_000)
                    message = Message(self.topic, text.encode(), delay_ms=delay_ms)
                self._due[text] = self._now_ms() + delay_ms
                try:
                    result = await producer.send(message, queue=MessageQueue(self.topic, "s", 0))
                except RmqError:
                    continue
                if result.status == "SEND_OK":
                    self._acknowledged.append(text)

    def stop(self) -> None:
        self._is_stopped = True

    def missing(self, bodies: set[str]) -> list[str]:
        return [text for text in self._acknowledged if text not in bodies]

    def check(self, messages: Iterable[StoredMessage]) -> None:
        for message in messages:
            early = self._due[message.body.decode()] - message.store_timestamp
            if early > 0:
                raise Violation(f"{message.body!r} was delivered {early} ms too early")
