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
BYTES_MAX: Final = 64 << 20
"""Requests on their way, and what those who asked for them keep meanwhile."""
ROWS_OF_A_PEER: Final = 2_500
BYTES_OF_A_PEER: Final = 16 << 20
"""The same for one connection, as the one that is asked and as the one that asks."""


@frozen
class Row:
    """A request on its way to a client."""

    code: int
    answered: Answered
    seconds: float
    deadline: float
    size: int
    asker: Connection


class Relay:
    """The requests on their way.

    `clock` is in seconds; `rescheduled()` is called when `step` must come earlier than it said.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.rescheduled: Callable[[], None] = lambda: None
        self._rows: dict[Connection, dict[int, Row]] = {}
        self._count = 0
        self._size = 0
        self._of_asker: dict[Connection, tuple[int, int]] = {}  # rows and bytes
        self._announced = math.inf

    def __len__(self) -> int:
        return self._count

    def call(
        self, to: Connection, command: Command, seconds: float, answered: Answered, asker: Connection
    ) -> None:
        """Send a request to a client for another; `answered` is told of what comes of it, never before this
        returns. As many bytes as the body has count as kept until then.

        Raises ResponseError when the client has just gone, or when too many requests are on their way, and
        LocalProtocolError for a command that has no frame.
        """
        if to.closed:
            raise for_code(ResponseCode.SYSTEM_ERROR, f"the connection to {to.peer_address} has just ended")
        size = len(command.body)
        self._check_room(to, asker, size)
        to.notify(command)  # first: a request that has no frame is nobody's to wait for
        row = Row(command.code, answered, seconds, self.clock() + seconds, size, asker)
        self._rows.setdefault(to, {})[command.opaque] = row
        self._add(row, 1)
        if row.deadline < self._announced:
            self._announced = row.deadline
            self.rescheduled()

    def answered(self, response: Command, connection: Connection) -> None:
        """A client has answered something; what nobody waits for is dropped."""
        if response.opaque in self._rows.get(connection, ()):
            self._take(connection, response.opaque).answered(response)

    def expects(self, response: Command, connection: Connection) -> bool:
        """Whether somebody waits for this response of a client."""
        return response.opaque in self._rows.get(connection, ())

    def closed(self, connection: Connection) -> None:
        """A connection has ended: what was asked of it is not answered any more."""
        for opaque in list(self._rows.get(connection, ())):
            self._take(connection, opaque).answered(ConnectionLost(connection.peer_address))

    def step(self, now: float) -> float:
        """End what has waited too long; returns the next deadline, infinite when nothing waits."""
        if now < self._announced:
            return self._announced
        due = [
            (opaque, row, to)
            for to, rows in self._rows.items()
            for opaque, row in rows.items()
            if row.deadline <= now
        ]
        for opaque, row, to in due:
            if opaque in self._rows.get(to, ()):
                self._take(to, opaque)
                row.answered(RequestTimeout(to.peer_address, row.code, row.seconds))
        deadlines = (row.deadline for rows in self._rows.values() for row in rows.values())
        self._announced = min(deadlines, default=math.inf)
        return self._announced

    def _take(self, connection: Connection, opaque: int) -> Row:
        rows = self._rows[connection]
        row = rows.pop(opaque)
        self._add(row, -1)
        if not rows:
            del self._rows[connection]
        return row

    def _add(self, row: Row, sign: int) -> None:
        self._count += sign
        self._size += sign * row.size
        rows, size = self._of_asker.get(row.asker, (0, 0))
        if rows + sign:
            self._of_asker[row.asker] = (rows + sign, size + sign * row.size)
        else:
            del self._of_asker[row.asker]

    def _check_room(self, to: Connection, asker: Connection, size: int) -> None:
        """Raise ResponseError when too much is on its way: in all, to that client, or for that asker."""
        asked, bytes_asked = self._of_asker.get(asker, (0, 0))
        places = (
            ("", self._count, ROWS_MAX, self._size, BYTES_MAX),
            (f" at {to.peer_address}", len(self._rows.get(to, ())), ROWS_OF_A_PEER, 0, BYTES_OF_A_PEER),
            (f" for {asker.peer_address}", asked, ROWS_OF_A_PEER, bytes_asked, BYTES_OF_A_PEER),
        )
        for where, rows, most, kept, most_kept in places:
            if rows >= most or kept + size > most_kept:
                raise for_code(
                    ResponseCode.SYSTEM_BUSY,
                    f"{rows} requests to clients ({kept} bytes) wait for their answers{where}, "
                    f"at most {most} ({most_kept} bytes) may",
                )
