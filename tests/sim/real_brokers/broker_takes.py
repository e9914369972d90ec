"""A group that takes messages one by one in the simulation of real brokers, by requests of RocketMQ 5.x.

It acknowledges some messages, gives some back, and forgets others. An acknowledgement that was answered
holds: no master hands the message out after that, whatever dies. And after healing the group has had each
message that was acknowledged to its sender. Half of the seeds have it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import trio

from rmq.errors import RmqError
from rmq.message import StoredMessage
from rmq.protocol import codes
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    parse_start_offsets,
)
from rmq.protocol.record import decode_records
from tests.sim.real_brokers.broker_traffic import Violation

if TYPE_CHECKING:
    from tests.sim.real_brokers.brokers import Node, Set

GROUP: Final = "takers"
TOPIC: Final = "T"
INVISIBLE_MS: Final = 4_000
HAD_SECONDS: Final = 90.0

Place = tuple[int, int, bytes]
"""Queue, offset and body of a message."""


class Takes:
    """The messages that were taken, and those whose acknowledgement was answered."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"{seed} takes")
        self.are_there = self._chance.random() < 0.5
        self.had: set[bytes] = set()
        self.answered: set[Place] = set()
        self._is_settling = False
        self._wrong = ""

    def look(self) -> None:
        """Raise Violation for the faults that were found."""
        if self._wrong:
            raise Violation(self._wrong)

    async def run(self, found: Set) -> None:
        """Take and acknowledge at the master, one request after the other."""
        while self.are_there:
            await trio.sleep(self._chance.uniform(0.05, 0.5))
            acting = found.acting()
            if acting:
                try:
                    await self._turn(found, self._chance.choice(acting))
                except RmqError:
                    continue

    async def _turn(self, found: Set, node: Node) -> None:
        header = PopMessageRequestHeader(GROUP, TOPIC, -1, 8, INVISIBLE_MS, 0, 0, 0, "TAG", "*")
        answer = await self._ask(found, node, Command.request(codes.POP_MESSAGE, header))
        if answer.code != ResponseCode.SUCCESS:
            return
        told = answer.read(PopMessageResponseHeader)
        starts = parse_start_offsets(told.start_offset_info)
        taken = []
        for message in decode_records(answer.body):
            place = message.queue_id, message.queue_offset, message.body
            if place in self.answered:
                self._wrong = f"{node.host} hands out {place}, whose acknowledgement was answered"
            self.had.add(message.body)
            start = starts[message.queue_id]
            times = f"{start} {told.pop_time} {told.invisible_time} 0 0"
            taken.append((message, place, f"{times} s {message.queue_id} {message.queue_offset}"))
        for message, place, handle in taken:
            await self._end(found, node, message, place, handle)

    async def _end(self, found: Set, node: Node, message: StoredMessage, place: Place, handle: str) -> None:
        """Acknowledge a message, give it back, or forget it."""
        chance = 0.0 if self._is_settling else self._chance.random()
        queue_id, offset = message.queue_id, message.queue_offset
        if chance < 0.6:
            ack = AckMessageRequestHeader(GROUP, TOPIC, queue_id, handle, offset)
            answer = await self._ask(found, node, Command.request(codes.ACK_MESSAGE, ack))
            if answer.code == ResponseCode.SUCCESS:
                self.answered.add(place)
        elif chance < 0.8:
            ms = self._chance.choice((0, 500))
            change = ChangeInvisibleTimeRequestHeader(GROUP, TOPIC, queue_id, handle, offset, ms)
            await self._ask(found, node, Command.request(codes.CHANGE_MESSAGE_INVISIBLETIME, change))

    async def _ask(self, found: Set, node: Node, request: Command) -> Command:
        return await found.pool.call(f"{node.host}:10911", request, 1.0)

    async def settle(self, found: Set) -> None:
        """After healing: the group gets all that was acknowledged to its senders."""
        self._is_settling = True
        wanted = {text.encode() for text in found.acknowledged}
        with trio.move_on_after(HAD_SECONDS):
            while self.are_there and not self.had.issuperset(wanted):
                await trio.sleep(0.5)
                self.look()
        if self.are_there and (missing := wanted - self.had):
            raise Violation(f"group {GROUP} has not had {sorted(missing)[:10]}")
