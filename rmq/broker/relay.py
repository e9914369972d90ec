"""Requests that the broker sends to clients, and who waits for their answers.

A request on its way is a row: connection and opaque -> what to do with the answer, and until when. No task
waits for it. A connection hands over the responses that none of its own calls waits for, `step` ends what is
due.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from attrs import frozen

from rmq.errors import ConnectionLost, RequestTimeout, RmqError, for_code
from rmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection

Answered = Callable[["Command | RmqError"], None]
"""Told of the client's response whatever its code, of a RequestTimeout, or of a ConnectionLost; once."""

ROWS_MAX: Final = 10_000


@frozen
class Row:
    """A request on its way to a client."""

    command: Command
    answered: Answered
    seconds: float
    deadline: float


class Relay:
    """The requests on their way.

    `clock` is in seconds; `rescheduled()` is called when `step` must come earlier than it said.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.rescheduled: Callable[[], None] = lambda: None
        self._rows: dict[Connection, dict[int, Row]] = {}
        self._count = 0
        self._announced = math.inf

    def __len__(self) -> int:
        return self._count

    def call(self, to: Connection, command: Command, seconds: float, answered: Answered) -> None:
        """Send a request to a client; `answered` is told of what comes of it, never before this returns.

        Raises ResponseError when the client has just gone, or when too many requests are on their way, and
        LocalProtocolError for a command that has no frame.
        """
        if to.closed:
            raise for_code(ResponseCode.SYSTEM_ERROR, f"the connection to {to.peer_address} has just ended")
        if self._count >= ROWS_MAX:
            raise for_code(ResponseCode.SYSTEM_BUSY, f"{ROWS_MAX} requests to clients wait for their answers")
        to.notify(command)  # first: a request that has no frame is nobody's to wait for
        row = Row(command, answered, seconds, self.clock() + seconds)
        self._rows.setdefault(to, {})[command.opaque] = row
        self._count += 1
        if row.deadline < self._announced:
            self._announced = row.deadline
            self.rescheduled()

    def answered(self, response: Command, connection: Connection) -> None:
        """A client has answered something; what nobody waits for is dropped."""
        if response.opaque in self._rows.get(connection, ()):
            self._take(connection, response.opaque).answered(response)

    def closed(self, connection: Connection) -> None:
        """A connection has ended: what was asked of it is not answered any more."""
        for opaque in list(self._rows.get(connection, ())):
            self._take(connection, opaque).answered(ConnectionLost(connection.peer_address))

    def step(self, now: float) -> float:
        """End what has waited too long; returns the next deadline, infinite when nothing waits."""
        rows = [(row, to) for to, rows in self._rows.items() for row in rows.values()]
        for row, to in rows:
            if row.deadline <= now and row.command.opaque in self._rows.get(to, ()):
                self._take(to, row.command.opaque)
                row.answered(RequestTimeout(to.peer_address, row.command.code, row.seconds))
        deadlines = (row.deadline for rows in self._rows.values() for row in rows.values())
        self._announced = min(deadlines, default=math.inf)
        return self._announced

    def _take(self, connection: Connection, opaque: int) -> Row:
        rows = self._rows[connection]
        row = rows.pop(opaque)
        self._count -= 1
        if not rows:
            del self._rows[connection]
        return row
