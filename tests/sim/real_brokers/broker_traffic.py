"""Traffic of clients in the simulation of real brokers beside plain sends, and its checks: transactions and
delayed messages.

Each kind sends all the time, notes what was acknowledged, and says at the end what is still to come and what
is wrong. Messages go to a named queue, so that no client sends one twice: what is there twice then was
written twice by brokers, which is right only across the start of a master.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

import trio

from rmq.client.client import Client
from rmq.client.produce.transactional import COMMIT, ROLLBACK, UNKNOWN, Decision
from rmq.errors import RmqError
from rmq.message import Message, MessageQueue, StoredMessage
from rmq.protocol.record import decode_record

if TYPE_CHECKING:
    from tests.sim.real_brokers.brokers import Node


SCAN_SECONDS: Final = 0.05
"""Between two looks at masters."""


class Violation(Exception):
    """A broken rule."""


class Traffic(Protocol):
    """One kind of messages; `topic` is where they are delivered."""

    topic: str
    sent: int

    async def run(self, client: Client, *, task_status: trio.TaskStatus[None]) -> None:
        """Send until cancelled; `stops` ends new messages, not what goes on with the old ones."""

    def stop(self) -> None:
        """Begin nothing new."""

    def missing(self, bodies: set[str]) -> list[str]:
        """The acknowledged messages that must be delivered, and are not among these."""

    def check(self, messages: Iterable[StoredMessage]) -> None:
        """Check that these messages, all of the topic, may be in the store. Raises Violation."""


def check_copies(
    messages: Iterable[StoredMessage], opened_ms: Iterable[int], ahead_ms: tuple[int, int]
) -> None:
    """No message of a topic is there twice but across the start of a master. Clocks of masters were ahead by
    something between `ahead_ms`."""
    low, high = ahead_ms
    before: dict[bytes, int] = {}
    for message in messages:
        stored_ms = message.store_timestamp
        copied_ms = before.get(message.body)
        if copied_ms is not None and not any(copied_ms - high <= at <= stored_ms - low for at in opened_ms):
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
    """Messages that are delayed by a level, or to any time. `clocks` gives the settings of the wall clocks
    between two times: from when on, and by how much they were ahead, of all machines at least and at most.

    The broker that takes a message counts from its own clock, a broker that finds its clock set back counts
    the whole delay again from then, by its own, and the broker that delivers it goes by a third. So a message
    may come as much too soon as the third clock is ahead of the one that counted last, less the time that had
    passed when it did.
    """

    topic = "D"

    def __init__(
        self,
        chance: random.Random,
        clocks: Callable[[float, float], list[tuple[float, int, int]]],
    ) -> None:
        self._chance = chance
        self._clocks = clocks
        self._began: dict[str, float] = {}  # when its send began
        self._seen: dict[str, tuple[float, float]] = {}  # between which looks it was delivered
        self._looked_at = 0.0
        self._looked: dict[tuple[str, int], int] = {}  # of each master in its epoch, how far
        self._delays: dict[str, int] = {}  # ms
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
                self._delays[text] = delay_ms
                self._began[text] = trio.current_time()
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
        for text, (since, at) in self._seen.items():
            began = self._began[text]
            ahead_ms = max(high for _, _, high in self._clocks(since, at))
            allowed_ms = max(
                ahead_ms - low - max(0.0, held_from - began) * 1000
                for held_from, low, _ in self._clocks(began, at)
            )
            early = self._delays[text] - max(0.0, allowed_ms) - (at - began) * 1000
            if early > 1:
                raise Violation(f"{text} was delivered {early:.0f} ms too early")

    def look(self, acting: Iterable[Node]) -> None:
        """See what has been delivered since the last look at one that acts: who has no lease delivers into
        its own log, which is seen when it has one again.
        """
        now, since = trio.current_time(), self._looked_at
        for node in acting:
            self._looked_at = now
            assert node.broker is not None
            store, place = node.broker.store, (node.host, node.epoch_led())
            end = store.max_offset(self.topic, 0)
            for offset in range(self._looked.get(place, store.min_offset(self.topic, 0)), end):
                unit = store.unit(self.topic, 0, offset)
                record = None if unit is None else store.read(unit[0])
                if record is not None:
                    self._seen.setdefault(decode_record(bytes(record)).body.decode(), (since, now))
            self._looked[place] = end
