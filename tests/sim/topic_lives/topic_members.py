"""Members of two groups in the simulation `topics`: consumers of `rmq.client`, one group of them ordered.

Each member is on a machine of its own; it leaves in order, is killed or loses power, and another comes in its
place. A member that was not told of a deletion comes back with positions of the earlier topic.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import trio

from rmq.client.client import Client, connect
from rmq.client.config import ClientConfig
from rmq.client.consume.consumer import Consumer
from rmq.client.consume.retry import Backoff, Retry
from rmq.message import StoredMessage

if TYPE_CHECKING:
    from tests.sim.real_brokers.brokers import Set

GROUP: Final = "members"
ORDERED: Final = "in-order"
GROUPS: Final = (GROUP, ORDERED)
HOSTS: Final = ("10.0.9.2", "10.0.9.3")
ENDS: Final = ("leave", "drain", "kill", "power")
CONCURRENCY: Final = 4


class Member:
    """One life of a machine: its consumers, and what ends it."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.consumers: list[Consumer] = []
        self.is_to_end = trio.Event()
        self.ended = trio.Event()


class Members:
    """The messages of each group, and its present members."""

    def __init__(self, seed: int, topics: Collection[str]) -> None:
        self._chance = random.Random(f"{seed} members")
        self._topics = topics
        self._lives = 0
        self._present: dict[str, Member] = {}
        self._is_settling = False
        self._settles = trio.Event()
        self.had: dict[str, set[str]] = {group: set() for group in GROUPS}

    async def run(self, found: Set) -> None:
        """Consume until cancelled."""
        async with trio.open_nursery() as nursery:
            for host in HOSTS:
                nursery.start_soon(self._live_on, found, host)

    def settle(self) -> None:
        """No member ends and no handler fails from now on."""
        self._is_settling = True
        self._settles.set()

    async def _live_on(self, found: Set, host: str) -> None:
        """One member after the other on a machine."""
        while True:
            self._lives += 1
            chance = random.Random(f"{self._chance.random()} {self._lives}")
            member = self._present[host] = Member(host)
            async with self._client(found, host) as client:
                await self._live(found, client, member, chance)
            del self._present[host]
            member.ended.set()
            with trio.move_on_after(chance.uniform(0.0, 5.0)):
                await self._settles.wait()

    def _client(self, found: Set, host: str) -> Client:
        network, address = found.network.host(host), found.cluster.namesrv_address
        name = f"{host}@{self._lives}"
        client = connect(address, client_id=name, network=network, config=ClientConfig())
        client._now_ms = found.cluster.now_ms
        return client

    async def _live(self, found: Set, client: Client, member: Member, chance: random.Random) -> None:
        topics, retry = dict.fromkeys(self._topics, "*"), Backoff(0.5, 4.0)
        async with (
            client.consumer(GROUP, topics, consume_from="first", retry=retry) as consumer,
            client.consumer(ORDERED, topics, consume_from="first", ordered=True) as ordered,
            trio.open_nursery() as nursery,
        ):
            member.consumers = [consumer, ordered]

            async def take(message: StoredMessage) -> None:
                await self._take(GROUP, message, chance)

            async def take_in_order(message: StoredMessage) -> None:
                await self._take(ORDERED, message, chance)

            nursery.start_soon(lambda: consumer.run(take, concurrency=CONCURRENCY))
            nursery.start_soon(lambda: ordered.run(take_in_order, concurrency=CONCURRENCY))
            how = await self._lives_until(member, chance)
            if how in ("kill", "power"):
                if how == "kill":
                    found.network.cut(member.host)
                found.network.vanish(member.host)
            elif how == "drain":
                await consumer.drain(5.0)
                await ordered.drain(5.0)
            nursery.cancel_scope.cancel()

    async def _lives_until(self, member: Member, chance: random.Random) -> str:
        """Let a member live; return the kind of its end."""
        with trio.move_on_after(chance.uniform(5.0, 60.0)) as life:
            async with trio.open_nursery() as nursery:

                async def end_when(event: trio.Event) -> None:
                    await event.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(end_when, member.is_to_end)
                nursery.start_soon(end_when, self._settles)
        if self._is_settling and not member.is_to_end.is_set():
            await member.is_to_end.wait()
        return chance.choice(ENDS) if life.cancelled_caught else "kill"

    async def _take(self, group: str, message: StoredMessage, chance: random.Random) -> None:
        await trio.sleep(chance.choice((0.0, 0.0, 0.01, 0.2, chance.uniform(0.0, 2.0))))
        if not self._is_settling and (odds := chance.random()) < 0.1:
            if odds < 0.05:
                raise Retry("not now", after=chance.uniform(0.1, 3.0))
            raise ValueError("this handler fails")
        self.had[group].add(message.body.decode())
