"""Answers that wait, in a set with controllers, until all in sync have a changed row of a table: a commit of
an offset, a lock of a queue. What a client was told is known to whoever becomes master then.

Rows are told to followers by the link, and these say what they have (`replication.table_replication`). Many
changes travel in one note: while one is under way, those that come meanwhile wait for the next.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from attrs import frozen

from rmq.errors import for_code
from rmq.protocol.codes import ResponseCode
from rmq.shares import Holders, HoldersOf, Shares, by_account_and_address

if TYPE_CHECKING:
    from rmq.broker.replication.links import Replicas
    from rmq.broker.replication.sessions import MasterSession
    from rmq.broker.tables.versioned import Changes
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection

WAITING_MAX: Final = 20_000
"""Answers of one account or address that may wait, of all tables together; others may have some beside it."""
LACKING_SECONDS: Final = 1.0
"""A slave that lacks for so long what somebody waits for has not all that it needs to be in sync."""


@frozen
class _Waiting:
    """An answer that is sent once the change `serial` of its table is at the replicas."""

    request: Command
    connection: Connection
    response: Command
    serial: int
    deadline: float
    holders: Holders


class RowWaits:
    """The answers that wait. `clock` is in seconds; `on_deadline(at)` is called with each new deadline, so
    that `step` is called by then; `seconds()` is how long one waits at most."""

    def __init__(
        self,
        replicas: Replicas,
        clock: Callable[[], float],
        on_deadline: Callable[[float], None],
        seconds: Callable[[], float],
        holders_of: HoldersOf | None = None,
    ) -> None:
        self._holders_of = holders_of or by_account_and_address()
        self._shares = Shares(2 * WAITING_MAX)
        self._replicas = replicas
        self._clock = clock
        self._on_deadline = on_deadline
        self._seconds = seconds
        self._lines: dict[str, deque[_Waiting]] = {}
        self._answered: dict[str, int] = {}  # table -> the last change of which somebody was told
        # table -> the first change that somebody waited for and not all have, and since when
        self._lacking: dict[str, tuple[int, float]] = {}

    def __len__(self) -> int:
        """How many wait."""
        return self._shares.used

    def answer(
        self, table: str, changes: Changes, request: Command, connection: Connection, response: Command
    ) -> Command | None:
        """The answer to a request whose rows are changed, None when it comes later. Raises ResponseError when
        too many wait: the change holds all the same."""
        serial = changes.serial
        if request.is_oneway:
            return response
        if self._replicas.have_rows(table) >= serial:
            self._answered[table] = serial
            return response
        holders = self._holders_of(connection)
        if full := self._shares.full(holders):
            raise for_code(
                ResponseCode.SYSTEM_BUSY, f"of the changes that wait for the replicas of this set {full}"
            )
        self._shares.add(holders)
        now = self._clock()
        deadline = now + self._seconds()
        self._lacking.setdefault(table, (serial, now))
        line = self._lines.setdefault(table, deque())
        line.append(_Waiting(request, connection, response, serial, deadline, holders))
        self._on_deadline(deadline)
        self._replicas.grown()
        return None

    def is_awaited(self, table: str, serial: int) -> bool:
        """Whether somebody waits for a change after that one."""
        line = self._lines.get(table)
        return bool(line) and line[-1].serial > serial  # type: ignore[index]

    def advance(self) -> None:
        """Followers have said more: answer who waited for that."""
        for table, (serial, _) in list(self._lacking.items()):
            line, had = self._lines[table], self._replicas.have_rows(table)
            if had < serial:
                continue
            while line and line[0].serial <= had:
                waiting = line.popleft()
                self._answered[table] = waiting.serial
                self._send(waiting, is_known=self._replicas.may_act())
            del self._lacking[table]
            if line:
                self._lacking[table] = line[0].serial, line[0].deadline - self._seconds()

    def step(self, now: float) -> float:
        """Answer those whose deadline has passed; returns the next deadline, infinite when nobody waits."""
        for line in self._lines.values():
            while line and line[0].deadline <= now:
                self._send(line.popleft(), is_known=False)
        return min((line[0].deadline for line in self._lines.values() if line), default=math.inf)

    def is_in_time(self, session: MasterSession) -> bool:
        """Whether a slave has the rows of which clients were told, and those waited for since long."""
        since = self._clock() - LACKING_SECONDS
        return all(session.rows_had(table) >= serial for table, serial in self._answered.items()) and all(
            at > since or session.rows_had(table) >= serial for table, (serial, at) in self._lacking.items()
        )

    def _send(self, waiting: _Waiting, *, is_known: bool) -> None:
        self._shares.give(waiting.holders)
        if is_known:
            waiting.connection.reply(waiting.response)
            return
        remark = "it is kept here, but not known to be at the replicas: ask again"
        waiting.connection.reply(waiting.request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark))
