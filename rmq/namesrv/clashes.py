"""Clashes: registrations that name a broker of another connection.

The machine of the other broker may have vanished without closing its connection. The name server asks the
holder over that connection: any answer shows that it lives, and the newcomer is refused. A holder that
answers nothing for `ANSWER_MS` loses the connection, and the newcomer is registered. RocketMQ's brokers
answer any request on this connection, if only by REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from attrs import frozen

from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.server.deferred import Deferred
from rmq.shares import HoldersOf

if TYPE_CHECKING:
    from rmq.namesrv.routes import Clash
    from rmq.remoting.connection import Connection

log = logging.getLogger("rmq.namesrv")

ANSWER_MS: Final = 3_000
"""Time that a holder has to answer."""
WAITING_MAX: Final = 100
"""Registrations that may wait at a time, and questions; other registrations are refused at once."""


@frozen(eq=False)
class _Newcomer:
    """A registration that waits, and its connection."""

    request: Command
    connection: Connection
    clash: Clash


class Clashes:
    """Questions to the holders of contested names, a single question for each connection at a time.

    `again(request, newcomer)` handles a registration whose holder was silent, `refuse(request, error,
    newcomer)` answers a registration whose holder lives. `on_deadline` is called when `step` is due earlier
    than before; without it nothing waits. `holders_of` gives the names under which the registrations of a
    connection count: no address has all places.
    """

    def __init__(
        self,
        again: Callable[[Command, Connection], None],
        refuse: Callable[[Command, Clash, Connection], None],
        on_deadline: Callable[[], None] | None,
        holders_of: HoldersOf,
    ) -> None:
        self._again = again
        self._refuse = refuse
        self._can_wait = on_deadline is not None
        self._holders_of = holders_of
        self._newcomers: Deferred[Connection, _Newcomer] = Deferred(
            WAITING_MAX, "the registrations that wait"
        )
        self._questions: Deferred[Connection, tuple[int, Clash]] = Deferred(
            WAITING_MAX, "the questions to brokers", on_deadline=lambda at: on_deadline and on_deadline()
        )

    def wait(self, clash: Clash, request: Command, newcomer: Connection, now_ms: int) -> bool:
        """Ask the holder of a clash; returns whether the request is answered later."""
        if not self._can_wait:
            return False
        holder: Connection = clash.held.source
        holders = self._holders_of(newcomer)
        for row in self._newcomers.of(holder):
            if row.value.connection is newcomer and self._newcomers.take(row):
                self._refuse(row.value.request, clash, newcomer)
        is_asked = self._questions.count(holder) > 0
        if self._newcomers.full(holders) or (not is_asked and self._questions.full(holders)):
            return False
        if not is_asked:
            probe = Command.request(RequestCode.QUERY_DATA_VERSION)
            asked = (probe.opaque, clash)
            self._questions.add(holder, asked, holders=holders, deadline=now_ms + ANSWER_MS)
            holder.notify(probe)
        self._newcomers.add(holder, _Newcomer(request, newcomer, clash), holders=holders)
        return True

    def answered(self, response: Command, holder: Connection) -> bool:
        """Take a response of a holder; return whether the response belongs to such a question."""
        row = self._questions.first(holder)
        if row is None or row.value[0] != response.opaque:
            return False
        self.heard(holder)
        return True

    def heard(self, holder: Connection) -> None:
        """Refuse the newcomers of a holder that lives."""
        self._questions.end(holder)
        for one in self._newcomers.end(holder):
            self._refuse(one.request, one.clash, one.connection)

    def closed(self, connection: Connection) -> None:
        """Forget a newcomer; handle the newcomers of a holder whose brokers are forgotten."""
        for holder in self._newcomers.waiting_keys():
            for row in self._newcomers.of(holder):
                if row.value.connection is connection:
                    self._newcomers.take(row)
        self._questions.end(connection)
        for one in self._newcomers.end(connection):
            self._again(one.request, one.connection)

    def silent(self, now_ms: int) -> list[Connection]:
        """The holders that did not answer in time; the caller ends their connections."""
        late = []
        for row in self._questions.due(now_ms):
            held = row.value[1].held.registration
            log.warning(
                "broker %s at %s did not answer for %d ms while another broker registered in its place: "
                "its connection is closed",
                held.broker_name,
                held.broker_addr,
                ANSWER_MS,
            )
            late.append(row.key)
        return late

    def next_ms(self) -> int | None:
        """The time of the next deadline; None without one."""
        deadline = self._questions.deadline
        return None if deadline == math.inf else int(deadline)
