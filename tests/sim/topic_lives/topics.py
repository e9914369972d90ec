"""Topics and groups that come and go in a set of real brokers, under the faults of `brokers`.

An operator of each topic deletes it, makes it again, with more queues or fewer, and changes its queues while
it is there; another changes, deletes and makes groups again. Meanwhile brokers and controllers lose power,
stop, stand still, are cut off and hand over, and members of two groups come and go (`topic_members.py`). A
client sends to the topics at once, after a delay and in transactions.

In the end, when all is healed, each topic has what was acknowledged in its present life, where its sender was
told, on all replicas, and nothing of a life that was ended (`topic_ledger.py`); each group has had all of it.
Replicas have the same log byte by byte, the same queues, topics, groups and offsets, and each gets the same
queues when it makes them anew from its log.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import evolve

from rmq.client.client import Client
from rmq.client.produce.producer import Producer
from rmq.client.produce.transactional import COMMIT, UNKNOWN, Decision
from rmq.errors import RmqError
from rmq.message import AUTO_CREATE_TOPIC, Message, StoredMessage
from rmq.protocol.bodies import SubscriptionGroupConfig
from rmq.protocol.codes import HIDE_UNREAD, PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
)
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.pool import Pool
from rmq.store.audit.audit import check as audit
from rmq.store.config import BrokerRole
from rmq.store.store import Store
from rmq.testing.cluster import STORE
from tests.sim.real_brokers.broker_faults import Faults
from tests.sim.real_brokers.broker_memory import check_memory, waiting
from tests.sim.real_brokers.broker_traffic import SCAN_SECONDS, Violation
from tests.sim.real_brokers.brokers import HANGS, BrokerSimulation, Set, controlled_set
from tests.sim.real_brokers.replica_bytes import check_replicas
from tests.sim.topic_lives.topic_ledger import Ledger, check_same
from tests.sim.topic_lives.topic_members import GROUPS, Members

if TYPE_CHECKING:
    from tests.sim.real_brokers.brokers import Node

TOPICS: Final = ("A", "B")
QUEUES_MAX: Final = 4
OPERATOR: Final = "10.0.9.5"
ANSWER_SECONDS: Final = 5.0
OVER_SECONDS: Final = 90.0
"""A change that is being saved ends sooner, or its process does."""
HAD_SECONDS: Final = 150.0
"""As of `broker_consumers`: brokers believe for two minutes that a member lives of whose end nobody hears."""


class Operator:
    """Changes topics and groups at the master, one request at a time, until each is answered."""

    def __init__(self, found: Set, pool: Pool, ledger: Ledger, host: str) -> None:
        self._found = found
        self._pool = pool
        self._ledger = ledger
        self._host = host
        self.is_stopped = False
        self.saw: Callable[..., None] = lambda *what: None

    async def topic(self, topic: str, chance: random.Random) -> None:
        """Change a topic until stopped; it is there then, with `QUEUES_MAX` queues."""
        await self._make(topic, chance.randint(1, QUEUES_MAX), chance.randint(1, QUEUES_MAX))
        while not self.is_stopped:
            await trio.sleep(chance.uniform(0.5, 10.0))
            if chance.random() < 0.5:
                await self.delete(topic)
                await trio.sleep(chance.choice((0.0, chance.uniform(0.0, 8.0))))
            read, write = chance.randint(1, QUEUES_MAX), chance.randint(1, QUEUES_MAX)
            await self._make(topic, read, write, hides=chance.random() < 0.3)
        await self._make(topic, QUEUES_MAX, QUEUES_MAX)

    async def group(self, group: str, chance: random.Random) -> None:
        """Change a group until stopped; it is there then."""
        while not self.is_stopped:
            config = SubscriptionGroupConfig(group, retry_queue_nums=chance.randint(1, 3))
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await self._ask(Command.request(code, body=config.to_json()))
            await trio.sleep(chance.uniform(0.5, 15.0))
            if not self.is_stopped and chance.random() < 0.5:
                header = DeleteSubscriptionGroupRequestHeader(group, chance.random() < 0.5)
                await self._ask(Command.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header))
                await trio.sleep(chance.choice((0.0, chance.uniform(0.0, 5.0))))

    async def delete(self, topic: str) -> None:
        """Delete a topic, and note from when to when."""
        deletion = self._ledger.begin(topic, trio.current_time())
        request = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic))
        while await self._ask(request) != ResponseCode.SUCCESS:
            await trio.sleep(0.5)
        deletion.until, deletion.is_answered = trio.current_time(), True

    async def _make(self, topic: str, read: int, write: int, *, hides: bool = True) -> None:
        """Make or change a topic; what a broker refuses, as it would hide unread messages, stays."""
        header = CreateTopicRequestHeader(
            topic, AUTO_CREATE_TOPIC, read, write, PERM_READ | PERM_WRITE, "SINGLE_TAG"
        )
        request = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        if hides:
            request = request.with_ext({**request.ext, HIDE_UNREAD: "true"})
        code = await self._ask(request)
        while code != ResponseCode.SUCCESS and hides:
            await trio.sleep(0.5)
            code = await self._ask(request)

    async def _ask(self, request: Command) -> int | None:
        """Ask who acts as master until one answers; returns the code. A request that is not answered has its
        effect, or never will, before this returns."""
        found = self._found
        while True:
            node = (await self._acting())[0]
            stop = node.stop
            try:
                answer = await self._pool.call(f"{node.host}:10911", request, ANSWER_SECONDS)
            except RmqError:
                self.saw("unanswered", request.code, node.host)
                found.network.cut(self._host)
                await trio.sleep(0.1)
                with trio.move_on_after(OVER_SECONDS):
                    while node.stop is stop and node.broker is not None and node.broker.changes._changes:
                        await trio.sleep(0.1)
            else:
                self.saw("changed", request.code, node.host, answer.code)
                return answer.code

    async def _acting(self) -> list[Node]:
        while not (acting := self._found.acting()):
            await trio.sleep(0.1)
        return acting


class Sender:
    """Sends to topics that may not be there, and notes what is acknowledged."""

    def __init__(self, ledger: Ledger, chance: random.Random) -> None:
        self._ledger = ledger
        self._chance = chance
        self._number = 0
        self.is_stopped = False

    async def run(self, client: Client) -> None:
        """Send until stopped; transactions are answered until cancelled."""
        async with client.producer("PT") as producer, client.transactional_producer("PX", _commit) as half:
            while not self.is_stopped:
                await trio.sleep(self._chance.uniform(0.0, 0.3))
                topic, odds = self._chance.choice(TOPICS), self._chance.random()
                self._number += 1
                body, since = f"{topic}{self._number}", trio.current_time()
                try:
                    if odds < 0.1:
                        place = None
                        async with half.transaction(Message(topic, body.encode())) as transaction:
                            transaction.decision = self._chance.choice((COMMIT, COMMIT, UNKNOWN))
                    else:
                        place = await self._send(producer, topic, body)
                except RmqError:
                    continue
                self._ledger.acknowledge(topic, body, since, trio.current_time(), place)
            await trio.sleep_forever()

    async def _send(self, producer: Producer, topic: str, body: str) -> tuple[int, int] | None:
        """Send a message, and return its place; None for a delayed message. Raises RmqError."""
        odds, message = self._chance.random(), Message(topic, body.encode())
        if odds < 0.1:
            message = evolve(message, delay_level=self._chance.choice((1, 2)))
        elif odds < 0.2:
            message = evolve(message, delay_ms=self._chance.randrange(1_000, 8_000))
        result = await producer.send(message)
        if result.status != "SEND_OK":
            raise RmqError(result.status)
        return None if odds < 0.2 else (result.message_queue.queue_id, result.queue_offset)


async def _commit(message: StoredMessage) -> Decision:
    return COMMIT


class TopicSimulation(BrokerSimulation):
    """`run()` raises Violation; see the module."""

    kind = "topics"

    def __init__(self, seed: int, *, size: int = 2, seconds: float = 60.0) -> None:
        super().__init__(seed, size=size, seconds=seconds)
        self._own = random.Random(f"{seed} topics")
        self._ledger = Ledger()
        self._members = Members(seed, TOPICS)

    @classmethod
    def of(cls, seed: int) -> TopicSimulation:
        """The simulation of a seed."""
        return cls(seed, size=2 + seed % 2)

    async def _run(self) -> None:
        settings: dict[str, Any] = {
            "auto_create_topic_enable": False,  # else a send makes a topic at once that has just been deleted
            "transaction_check_interval": 1_000,
            "transaction_time_out": 2_000,
            "transaction_check_max": 1_000,
        }
        often = evolve(STORE, flush_consume_queue_thorough_interval=7_000)
        store_config = self._own.choice((STORE, often))
        async with controlled_set(
            self.size,
            self.seed,
            heartbeat_ms=5_000,
            leases=self._leases,
            store_config=store_config,
            **settings,
        ) as (found, client):
            found.have_bad_disks = self._own.random() < 0.5
            found.hangs = random.Random(self._own.random()) if self._own.random() < 0.3 else None
            found.pauses = self.pauses
            await found.begin(client, queues=2)
            network = found.network.host(OPERATOR)
            async with Pool(network, ClientOnlyEndpoint()) as pool, client.producer("P") as producer:
                operator = Operator(found, pool, self._ledger, OPERATOR)
                operator.saw = self._saw
                await self._live(found, client, producer, operator)
            await self._check(found)
            check_memory(found)
            queues = self._check_topics(found)
            self.accepted = len(found.acknowledged) + self._ledger.count
        self._check_disks(found, queues)

    async def _live(self, found: Set, client: Client, producer: Producer, operator: Operator) -> None:
        sender = Sender(self._ledger, self._chance())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send, found, producer)
            nursery.start_soon(self._watch_roles, found)
            nursery.start_soon(sender.run, client)
            nursery.start_soon(self._members.run, found)
            async with trio.open_nursery() as operators:
                for topic in TOPICS:
                    operators.start_soon(operator.topic, topic, self._chance())
                for group in GROUPS:
                    operators.start_soon(operator.group, group, self._chance())
                await self._faults(found)
                operator.is_stopped = True
            before = len(found.acknowledged)
            with trio.move_on_after(60) as waiting:
                while len(found.acknowledged) < before + 3:
                    await trio.sleep(0.1)
            if waiting.cancelled_caught:
                raise Violation("no message is acknowledged a minute after healing")
            sender.is_stopped = True
            self._pace = 10.0
            await self._settle_topics(found)
            nursery.cancel_scope.cancel()

    async def _faults(self, found: Set) -> None:
        faults = Faults(found, self.chance, self._commits, self._saw)
        self.counts = faults.counts
        end = trio.current_time() + self.seconds
        while trio.current_time() < end:
            await faults.happen()
            if found.hangs is not None and found.hangs.random() < HANGS:
                await faults.hang(found.hangs)
            await trio.sleep(self.chance.uniform(0.1, 8.0))
        await faults.heal()

    async def _watch_roles(self, found: Set) -> None:
        while True:
            acting = found.acting()
            self._saw([node.host for node in acting])
            if len(acting) > 1:
                raise Violation(f"{len(acting)} brokers act as master")
            await trio.sleep(SCAN_SECONDS)

    async def _settle_topics(self, found: Set) -> None:
        """Wait until all is delivered and both groups have had it. Raises Violation."""
        self._members.settle()
        low, high = found.ahead_ms()
        with trio.move_on_after(HAD_SECONDS + (high - low) / 1000):
            while any(
                self._ledger.missing(topic, had) for topic in TOPICS for had in self._members.had.values()
            ):
                await trio.sleep(0.5)
        for topic in TOPICS:
            there = [one.body.decode() for one in found.messages(await found.master(), topic)]
            if missing := self._ledger.missing(topic, there):
                raise Violation(f"topic {topic}: acknowledged, and not there: {missing[:10]}")
            for group, had in self._members.had.items():
                if missing := self._ledger.missing(topic, had):
                    raise Violation(f"topic {topic}: group {group} has not had {missing[:10]}")
        with trio.move_on_after(60):
            while (broker := (await found.master()).broker) is None or waiting(broker):
                await trio.sleep(0.1)

    def _check_topics(self, found: Set) -> dict[object, object]:
        """Check that all replicas have the same topics; return their queues. Raises Violation."""
        topics, groups, offsets, queues = {}, {}, {}, {}
        for node in found.nodes:
            assert node.broker is not None
            broker, host = node.broker, node.host
            topics[host] = {name: (row, row.creation) for name, row in broker.topics.table.items()}
            groups[host] = dict(broker.groups.table)
            offsets[host] = _offsets(broker)
            queues[host] = _queues(broker.store)
            for topic in TOPICS:
                self._ledger.check(host, topic, found.messages(node, topic))
        for what, tables in (("topic", topics), ("group", groups), ("queue", queues), ("offset", offsets)):
            check_same(tables, what)
        return queues[found.nodes[0].host]

    def _check_disks(self, found: Set, queues: dict[object, object]) -> None:
        """Check that disks that no broker has open are in order, and give the same queues again. Raises
        Violation."""
        for node in found.nodes:
            report = audit(node.disk, "/store")
            if not report.is_clean:
                raise Violation(f"{node.host}: {report.findings[:5]}")
        check_replicas({node.host: node.disk for node in found.nodes})
        for node in found.nodes:
            for rebuild in (False, True):
                _, config = found.configs(node)
                config = evolve(config, broker_role=BrokerRole.SLAVE)
                store = Store(node.disk.copy(), config, store_host=bytes(8), now_ms=found.cluster.now_ms)
                store.load(rebuild=rebuild)
                how = "made anew" if rebuild else "opened"
                check_same(
                    {"the broker": queues, f"the store of {node.host}, {how},": _queues(store)}, "queue"
                )


def _queues(store: Store) -> dict[object, object]:
    """The units of each queue that has any."""
    found: dict[object, object] = {}
    for topic, queue_id in store.queues():
        start, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if end > start:
            found[topic, queue_id] = [store.unit(topic, queue_id, offset) for offset in range(start, end)]
    return found


def _offsets(broker: Any) -> dict[object, object]:
    """The offsets of all groups."""
    names = broker.offsets.names()
    rows, _ = broker.offsets.rows_of(broker.offsets.text_of(names))
    return dict(rows)
