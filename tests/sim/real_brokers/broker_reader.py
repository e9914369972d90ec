"""A consumer in the simulation of real brokers: it reads each queue from its first message on.

It asks the master mostly, or a slave, goes on where it is told to, and never looks back. So it must not get
what may be gone with a master: another message has that offset then, and is skipped.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import trio

from rmq.errors import RmqError
from rmq.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmq.protocol.record import decode_records

if TYPE_CHECKING:
    from tests.sim.real_brokers.brokers import Set

QUEUES = 2
MOVED = ResponseCode.PULL_OFFSET_MOVED
FROM_MASTER = 0.8


class Reader:
    """The position of a reader, and the messages that it has read."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._offsets = [0] * QUEUES
        self.seen: set[str] = set()

    async def run(self, found: Set) -> None:
        """Read until cancelled."""
        while True:
            for queue_id in range(QUEUES):
                await self._read(found, queue_id)
            await trio.sleep(self._chance.uniform(0.0, 0.2))

    async def _read(self, found: Set, queue_id: int) -> None:
        alive = [node for node in found.nodes if node.stop is not None]
        acting = found.acting()
        nodes = acting if acting and self._chance.random() < FROM_MASTER else alive
        if not nodes:
            return
        header = PullMessageRequestHeader(
            consumer_group="readers",
            topic="T",
            queue_id=queue_id,
            queue_offset=self._offsets[queue_id],
            max_msg_nums=32,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if self._chance.random() < 0.5 else 0),
            commit_offset=0,
            suspend_timeout_millis=300,
            subscription="*",
            sub_version=0,
        )
        request = Command.request(RequestCode.PULL_MESSAGE, header)
        try:
            answer = await found.pool.call(f"{self._chance.choice(nodes).host}:10911", request, 1.0)
        except RmqError:
            return
        if answer.code not in (ResponseCode.SUCCESS, MOVED):
            return
        self.seen |= {message.body.decode() for message in decode_records(answer.body)}
        self._offsets[queue_id] = answer.read(PullMessageResponseHeader).next_begin_offset
