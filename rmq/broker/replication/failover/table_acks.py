"""Table acknowledgements: the response to an offset commit or a queue lock waits until every in-sync replica
has the change.

So the next master knows every change that a client was told of. Slaves get changed rows on their links and
report the changes that they have (`replication.table_replication`). A note carries many changes: changes that
come while a note is under way wait for the next note.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmq.errors import for_code
from rmq.protocol.codes import ResponseCode
from rmq.server.deferred import Deferred
from rmq.shares import HoldersOf, by_account_and_address

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.broker.replication.links import Replicas
    from rmq.broker.replication.sessions import MasterSession
    from rmq.broker.tables.versioned import Changes, OnReplicated
    from rmq.shares import Holding
else:
    from rmq.lazy_attrs import frozen

WAITING_MAX: Final = 20_000
"""Answers of one account or address that may wait, of all tables together; others may have some beside it."""
LACKING_SECONDS: Final = 1.0
"""A slave that lacks for so long what somebody waits for has not all that it needs to be in sync."""


@frozen
class _Change:
    """The change `serial` of a table: `on_done` is called once the replicas have it."""

    serial: int
    on_done: OnReplicated


class TableAcks:
    """Responses that wait, by tables. `clock` is in seconds; `on_deadline(at)` is called with each new
    deadline, so that `step` is called by then; `seconds()` is the longest wait."""

    def __init__(
        self,
        replicas: Replicas,
        clock: Callable[[], float],
        on_deadline: Callable[[float], None],
        seconds: Callable[[], float],
        holders_of: HoldersOf | None = None,
    ) -> None:
        self._holders_of = holders_of or by_account_and_address()
        self._waiting: Deferred[str, _Change] = Deferred(
            2 * WAITING_MAX, "the changes that wait for the replicas of this set", on_deadline=on_deadline
        )
        self._replicas = replicas
        self._clock = clock
        self._seconds = seconds
        self._answered: dict[str, int] = {}  # table -> the last change that a client was told
        # table -> the first change that a client waited for and not all replicas have, and since when
        self._lacking: dict[str, tuple[int, float]] = {}

    def __len__(self) -> int:
        """The number of answers that wait."""
        return len(self._waiting)

    def wait(self, table: str, changes: Changes, connection: Holding, on_done: OnReplicated) -> bool:
        """Have `on_done` called when the replicas have the changes of a table; False when they have them, and
        it is not called. Raises ResponseError when too many wait: the change holds all the same."""
        serial = changes.serial
        if self._replicas.have_rows(table) >= serial:
            self._answered[table] = serial
            return False
        holders = self._holders_of(connection)
        self._waiting.check(holders)
        now = self._clock()
        self._lacking.setdefault(table, (serial, now))
        change = _Change(serial, on_done)
        self._waiting.add(table, change, holders=holders, deadline=now + self._seconds())
        self._replicas.grown()
        return True

    def is_awaited(self, table: str, serial: int) -> bool:
        """True if a client waits for a change after that one."""
        last = self._waiting.last(table)
        return last is not None and last.value.serial > serial

    def advance(self) -> None:
        """Followers have reported more: send the answers that waited for that."""
        for table, (serial, _) in list(self._lacking.items()):
            had = self._replicas.have_rows(table)
            if had < serial:
                continue
            while (row := self._waiting.first(table)) is not None and row.value.serial <= had:
                self._waiting.take(row)
                self._answered[table] = row.value.serial
                self._end(row.value, is_known=self._replicas.has_lease())
            del self._lacking[table]
            if row is not None:
                self._lacking[table] = row.value.serial, row.deadline - self._seconds()

    def step(self, now: float) -> float:
        """Answer the requests whose deadline has passed; return the next deadline, infinite without any."""
        for row in self._waiting.due(now):
            self._end(row.value, is_known=False)
        return self._waiting.deadline

    def is_in_time(self, session: MasterSession) -> bool:
        """True if a slave has every answered change, and every change that a client has waited for long."""
        since = self._clock() - LACKING_SECONDS
        return all(session.rows_had(table) >= serial for table, serial in self._answered.items()) and all(
            at > since or session.rows_had(table) >= serial for table, (serial, at) in self._lacking.items()
        )

    def _end(self, change: _Change, *, is_known: bool) -> None:
        error = None
        if not is_known:
            remark = "it is kept at this broker, but may not be at the replicas: try again"
            error = for_code(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
        change.on_done(error)
