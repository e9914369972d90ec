"""Bugs planted in consumers, and in what brokers do for them, each of which the consumers in the simulation
of real brokers must show.
"""

from __future__ import annotations

from typing import Any

from rmq.broker.produce.send import Send
from rmq.client.consume.deliveries.outcomes import Deliveries
from rmq.client.consume.message_view import PulledMessage
from rmq.client.consume.process_queue import ProcessQueue
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection
from tests.sim.planted_bugs.bugs import Bug, planted

CONSUMERS_CAUGHT_BY = {
    "a consumer commits unfinished messages": 0,
    "a message that cannot be sent back counts as consumed": 10,
    "a message sent back is answered and not stored": 0,
    "a message sent back is answered when only the master has it": 171,
    "an ordered consumer goes on behind a failed message": 0,
}
"""A seed that shows a bug, of the first 45."""

CONSUMER_BUGS: dict[str, Bug] = {}


def _all_pulled(self: ProcessQueue) -> int:
    return self.next_offset


CONSUMER_BUGS["a consumer commits unfinished messages"] = planted(
    (ProcessQueue, "commit_offset", property(_all_pulled))
)

_send_back = Deliveries._send_back


async def _finished(self: Deliveries, message: PulledMessage, window: ProcessQueue, *rest: Any) -> None:
    await _send_back(self, message, window, *rest)
    window.finish(message.queue_offset)


CONSUMER_BUGS["a message that cannot be sent back counts as consumed"] = planted(
    (Deliveries, "_send_back", _finished)
)


def _answered(self: Send, request: Command, connection: Connection, now_ms: int) -> Command:
    return request.reply()


CONSUMER_BUGS["a message sent back is answered and not stored"] = planted((Send, "send_back", _answered))

_stored_back = Send.send_back


def _answered_early(self: Send, request: Command, connection: Connection, now_ms: int) -> Command | None:
    response = _stored_back(self, request, connection, now_ms)
    returned = self._acknowledgement.pending.send_backs
    if not returned or returned[-1] is not request:
        return response
    returned.pop()
    return request.reply()


CONSUMER_BUGS["a message sent back is answered when only the master has it"] = planted(
    (Send, "send_back", _answered_early)
)


async def _goes_on(self: Deliveries, message: PulledMessage, window: ProcessQueue, *rest: Any) -> None:
    window.finish(message.queue_offset)


CONSUMER_BUGS["an ordered consumer goes on behind a failed message"] = planted(
    (Deliveries, "_retry_in_place", _goes_on)
)
