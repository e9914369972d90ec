"""A group that commits its offset in the simulation of real brokers, by requests that are answered.

What is answered is known to all in sync: from there no clean election may lose it. What a power cut takes of
a replica's own table since it was saved last is lost with that replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from rmq.broker.tables.offsets import decode_offsets
from rmq.broker.tables.versioned import run_to_end
from rmq.errors import RmqError
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import UpdateConsumerOffsetRequestHeader
from rmq.testing.disk import MemoryDisk
from tests.sim.real_brokers.broker_traffic import Violation

if TYPE_CHECKING:
    from tests.sim.real_brokers.brokers import Node, Set

GROUP = "G"


class Commits:
    """The answered commits, and the least that each replica must know of them."""

    def __init__(self) -> None:
        self._floors: dict[str, int] = {}
        self._epoch = 0
        self.answered = 0

    async def commit(self, found: Set) -> None:
        """Commit the end of what is acknowledged in the first queue, at the master."""
        acting = found.acting()
        end = max((offset + 1 for queue_id, offset, _ in found.places[-20:] if queue_id == 0), default=0)
        if not acting or not end:
            return
        node = acting[0]
        epoch, asked_at = node.epoch_led(), trio.current_time()
        request = Command.request(
            RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequestHeader(GROUP, "T", 0, end)
        )
        try:
            response = await found.pool.call(f"{node.host}:10911", request, 1.0)
        except RmqError:
            return
        if response.code == ResponseCode.SUCCESS and node.epoch_led() == epoch:
            self.answered += 1
            self._all_have(found, node, end, asked_at)

    def _all_have(self, found: Set, node: Node, offset: int, since: float) -> None:
        """All in sync have it that ran since then."""
        assert node.broker is not None
        assert node.broker.role.manager is not None
        in_sync = node.broker.role.manager.in_sync
        for one in found.nodes:
            if one.stop is not None and one.started_at < since and one.number() in in_sync:
                self._floors[one.host] = max(offset, self._floors.get(one.host, 0))

    def lost_power(self, node: Node, left: MemoryDisk) -> None:
        """A replica has this left of its disk: it lost power, or ended while the disk failed."""
        data = left.load("/store/config/consumerOffset.json")
        saved = run_to_end(decode_offsets(data)).get(f"T@{GROUP}", {}).get(0, 0) if data else 0
        self._floors[node.host] = min(saved, self._floors.get(node.host, 0))

    def look(self, acting: list[Node]) -> None:
        """Check that the acting master knows all answered commits. Raises Violation."""
        for node in acting:
            assert node.broker is not None
            offset = max(0, node.broker.offsets.get(GROUP, "T", 0))
            floor = self._floors.get(node.host, 0)
            if offset < floor:
                raise Violation(f"{node.host} has offset {offset} of a group, {floor} was answered before")
            if node.epoch_led() != self._epoch:
                self._epoch = node.epoch_led()
                self._floors = {host: min(offset, known) for host, known in self._floors.items()}
