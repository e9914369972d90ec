"""Consumers of `rmq.client` in the simulation of real brokers: two groups of two members each, as users have
them. One takes its messages as they come, and sends back what fails; the other takes them in order.

Each member is on a machine of its own, and lives for a while: it leaves in order or loses power, and another
comes in its place. Some handlers take long, and some fail. A member that has had a message to its end must
not stand for another one: so each group has to have all that was acknowledged, at least once; and in the
ordered group a message comes for the first time when the one before it in its queue is done, and not before.
Half of the seeds have them: they cost as much as all the rest.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import trio

from rmq.client.client import Client, connect
from rmq.client.config import ClientConfig
from rmq.client.consume.retry import Backoff, Retry
from rmq.errors import RmqError
from rmq.message import Message, StoredMessage
from tests.sim.real_brokers.broker_traffic import Violation

if TYPE_CHECKING:
    from tests.sim.real_brokers.brokers import Set

TOPIC: Final = "C"
QUEUES: Final = 2
GROUP: Final = "members"
ORDERED: Final = "in-order"
HOSTS: Final = ("10.0.9.2", "10.0.9.3")
HAD_SECONDS: Final = 150.0
"""Brokers believe for two minutes that a member lives of whose end nobody hears, and it has queues then."""
ENDS_IN_ORDER: Final = ("leave", "drain")
ENDS: Final = ("kill", "kill", "kill", *ENDS_IN_ORDER, *ENDS_IN_ORDER, "power")
"""How members end; of a process that is killed brokers hear, of a machine without power not."""
KILLED_UNTIL: Final = 40.0
"""Seconds; what a member has locked that was killed nobody gets for a minute, and each costs the machine."""
CONCURRENCY: Final = 4


class Consumers:
    """The messages for two groups of consumers, and the messages that each group has received. `look` reports
    faults."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"{seed} consumers")
        self.are_there = self._chance.random() < 0.5
        self._lives = 0
        self._is_settling = False
        self._settles = trio.Event()
        self._wrong = ""
        self._done: dict[int, int] = defaultdict(int)  # queue -> all before it were done in order
        self.acknowledged: set[str] = set()
        self.had: dict[str, set[str]] = {GROUP: set(), ORDERED: set()}

    async def make_topic(self, client: Client) -> None:
        """Before anything goes wrong."""
        if self.are_there:
            await client.admin.create_topic(TOPIC, broker="s", queues=QUEUES)

    async def run(self, found: Set, client: Client) -> None:
        """Send and consume until cancelled."""
        if not self.are_there:
            return
        async with client.producer("PC") as producer, trio.open_nursery() as nursery:
            for host in HOSTS:
                nursery.start_soon(self._members, found, host)
            number = 0
            while not self._is_settling:
                await trio.sleep(self._chance.uniform(0.1, 1.0))
                number += 1
                try:
                    result = await producer.send(Message(TOPIC, f"c{number}".encode()))
                except RmqError:
                    continue
                if result.status == "SEND_OK":
                    self.acknowledged.add(f"c{number}")

    async def settle(self) -> None:
        """Send no new message, end no member and let no handler fail; wait until the groups have all
        messages. Raises Violation."""
        self._is_settling = True
        self._settles.set()
        with trio.move_on_after(HAD_SECONDS):
            while any(self._missing(group) for group in self.had):
                await trio.sleep(0.1)
        for group in self.had:
            if missing := sorted(self._missing(group)):
                raise Violation(f"{HAD_SECONDS} s after healing group {group} has not had {missing[:10]}")

    def look(self) -> None:
        """Raise Violation for a fault that was found."""
        if self._wrong:
            raise Violation(self._wrong)

    def _missing(self, group: str) -> set[str]:
        return self.acknowledged - self.had[group]

    # ---- members ----

    async def _members(self, found: Set, host: str) -> None:
        """One after the other on a machine."""
        while True:
            self._lives += 1
            chance = random.Random(f"{self._chance.random()} {self._lives}")
            async with self._client(found, host) as client:
                await self._live(found, client, host, chance)
            await self._sleep(chance.uniform(0.0, 5.0))

    def _client(self, found: Set, host: str) -> Client:
        name = f"{host}@{self._lives}"
        network, address = found.network.host(host), found.cluster.namesrv_address
        client = connect(address, client_id=name, network=network, config=ClientConfig())
        client._now_ms = found.cluster.now_ms
        return client

    async def _live(self, found: Set, client: Client, host: str, chance: random.Random) -> None:
        topics, retry = {TOPIC: "*"}, Backoff(0.5, 4.0)
        async with (
            client.consumer(GROUP, topics, consume_from="first", retry=retry) as consumer,
            client.consumer(ORDERED, topics, consume_from="first", ordered=True) as ordered,
            trio.open_nursery() as nursery,
        ):

            async def take(message: StoredMessage) -> None:
                await self._take(GROUP, message, chance)

            async def take_in_order(message: StoredMessage) -> None:
                await self._take_in_order(message, chance)

            nursery.start_soon(lambda: consumer.run(take, concurrency=CONCURRENCY))
            nursery.start_soon(lambda: ordered.run(take_in_order, concurrency=CONCURRENCY))
            await self._sleep(chance.uniform(5.0, 60.0))
            if self._is_settling:
                await trio.sleep_forever()
            how = chance.choice(ENDS if trio.current_time() < KILLED_UNTIL else ENDS_IN_ORDER)
            if how in ("kill", "power"):
                if how == "kill":
                    found.network.cut(host)
                found.network.vanish(host)
            elif how == "drain":
                await consumer.drain(5.0)
                await ordered.drain(5.0)
            nursery.cancel_scope.cancel()

    async def _sleep(self, seconds: float) -> None:
        """Sleep for this time, or until `settle` begins."""
        with trio.move_on_after(seconds):
            await self._settles.wait()

    # ---- handlers ----

    async def _take(self, group: str, message: StoredMessage, chance: random.Random) -> None:
        await trio.sleep(chance.choice((0.0, 0.0, 0.01, 0.2, chance.uniform(0.0, 3.0))))
        if not self._is_settling and (odds := chance.random()) < 0.2:
            if odds < 0.1:
                raise Retry("not now", after=chance.uniform(0.1, 3.0))
            raise ValueError("this handler fails")
        self.had[group].add(message.body.decode())

    async def _take_in_order(self, message: StoredMessage, chance: random.Random) -> None:
        queue_id, offset = message.queue_id, message.queue_offset
        if offset > self._done[queue_id]:
            what = f"message {offset} of queue {queue_id} comes when {self._done[queue_id]} is not done"
            self._wrong = self._wrong or f"group {ORDERED}: {what}"
        await self._take(ORDERED, message, chance)
        self._done[queue_id] = max(self._done[queue_id], offset + 1)
