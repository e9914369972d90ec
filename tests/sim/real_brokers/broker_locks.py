"""Two members of a group that consumes in order in the simulation of real brokers: they lock queues, renew
and unlock, at the master mostly, or at another, as routes are old at times.

A member holds a queue from the answer to its request on, until a renewal is refused, or for 30 s without one.
A lock that is answered is known to all in sync: from there no master may give the queue to the other member.
Locks are not saved: who has started since knows none of them, and who follows such a master forgets them.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import trio

from rmq.errors import RmqError
from rmq.message import MessageQueue
from rmq.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from tests.sim.real_brokers.broker_traffic import Violation

if TYPE_CHECKING:
    from tests.sim.real_brokers.brokers import Node, Set

GROUP: Final = "ordered"
QUEUES: Final = [MessageQueue("T", "s", 0), MessageQueue("T", "s", 1)]
MEMBERS: Final = ("one", "other")
FROM_MASTER: Final = 0.8
LIVE_SECONDS: Final = 30.0
"""A member that could not renew for so long stops."""


class Locks:
    """The locks that members believe to hold, and the brokers that must know them."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._held: dict[tuple[MessageQueue, str], float] = {}  # queue and member -> when renewed
        self._known: dict[str, dict[tuple[MessageQueue, str], float]] = {}  # host -> the same, since when
        self._epoch = 0
        self.given = 0

    async def run(self, found: Set, *, member: str) -> None:
        """Lock, renew and unlock until cancelled."""
        while True:
            await trio.sleep(self._chance.uniform(0.2, 4.0))
            alive = [node for node in found.nodes if node.stop is not None]
            acting = found.acting()
            nodes = acting if acting and self._chance.random() < FROM_MASTER else alive
            if not nodes:
                continue
            node, queue = self._chance.choice(nodes), self._chance.choice(QUEUES)
            if self._holds(queue, member) and self._chance.random() < 0.3:
                await self._unlock(found, node, queue, member)
            else:
                await self._lock(found, node, queue, member)

    def _holds(self, queue: MessageQueue, member: str) -> bool:
        return trio.current_time() - self._held.get((queue, member), -LIVE_SECONDS) < LIVE_SECONDS

    async def _unlock(self, found: Set, node: Node, queue: MessageQueue, member: str) -> None:
        self._lost(queue, member)
        body = UnlockBatchRequestBody(GROUP, member, frozenset((queue,)))
        try:
            request = Command.request(RequestCode.UNLOCK_BATCH_MQ, body=body.to_json())
            await found.pool.call(f"{node.host}:10911", request, 1.0)
        except RmqError:
            pass

    async def _lock(self, found: Set, node: Node, queue: MessageQueue, member: str) -> None:
        body, asked_at = LockBatchRequestBody(GROUP, member, frozenset((queue,))), trio.current_time()
        request, epoch = Command.request(RequestCode.LOCK_BATCH_MQ, body=body.to_json()), node.epoch_led()
        try:
            answer = await found.pool.call(f"{node.host}:10911", request, 1.0)
        except RmqError:
            return
        if answer.code != ResponseCode.SUCCESS:
            return
        if queue not in LockBatchResponseBody.from_json(answer.body).lock_ok_mq_set:
            self._lost(queue, member)
            return
        (other,) = set(MEMBERS) - {member}
        since = self._known.get(node.host, {}).get((queue, other), -1.0)
        if self._holds(queue, other) and node.started_at <= since < asked_at:
            raise Violation(f"{node.host} gives {queue} to {member}, and knew that {other} holds it")
        self.given += 1
        self._held[queue, member] = trio.current_time()
        known = self._known.setdefault(node.host, {})
        known.pop((queue, other), None)
        if known.get((queue, member), -1.0) < node.started_at:
            known[queue, member] = trio.current_time()
        if node.epoch_led() == epoch:
            self._all_know(found, node, (queue, member), asked_at)

    def _lost(self, queue: MessageQueue, member: str) -> None:
        self._held.pop((queue, member), None)
        for known in self._known.values():
            known.pop((queue, member), None)

    def look(self, acting: list[Node]) -> None:
        """A new master tells its followers all that it knows, and they forget what else they knew."""
        for node in acting:
            if node.epoch_led() == self._epoch:
                continue
            self._epoch = node.epoch_led()
            mine = self._known.setdefault(node.host, {})
            valid = {key: since for key, since in mine.items() if since >= node.started_at}
            for host, known in self._known.items():
                self._known[host] = {key: since for key, since in known.items() if key in valid}

    def _all_know(self, found: Set, node: Node, key: tuple[MessageQueue, str], asked_at: float) -> None:
        """All in sync know the lock that ran when it was asked for."""
        assert node.broker is not None
        manager = node.broker.role.manager
        assert manager is not None
        for one in found.nodes:
            if one.stop is not None and one.started_at < asked_at and one.number() in manager.in_sync:
                known = self._known.setdefault(one.host, {})
                if known.get(key, -1.0) < one.started_at:
                    known[key] = trio.current_time()
