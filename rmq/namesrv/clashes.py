"""Clashes: registrations that name a broker which another connection already holds.

The machine of the other broker may have vanished without closing its connection. The name server asks the
holder over that connection: any answer shows that it lives, and the newcomer is refused. A holder that
answers nothing for `ANSWER_MS` loses the connection, and the newcomer is registered. RocketMQ's brokers
answer any request on this connection, if only by REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from attrs import define, field

from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command

if TYPE_CHECKING:
    from rmq.namesrv.routes import Clash
    from rmq.remoting.connection import Connection

log = logging.getLogger("rmq.namesrv")

ANSWER_MS: Final = 3_000
"""Time that a holder has to answer."""
WAITING_MAX: Final = 100
"""Registrations that may wait at a time; others are refused at once."""


@define
class _Question:
    """A question to a holder, and the registrations that wait for its answer."""

    opaque: int
    deadline_ms: int
    clash: Clash
    waiting: dict[Connection, Command] = field(factory=dict)


class Clashes:
    """Questions to the holders of contested names, a single question for each connection at a time.

    `again(request, newcomer)` handles a registration whose holder was silent, `refuse(request, error,
    newcomer)` answers a registration whose holder lives. `on_deadline` is called when `step` is due earlier
    than before.
    """

    def __init__(
        self,
        again: Callable[[Command, Connection], None],
        refuse: Callable[[Command, Clash, Connection], None],
        on_deadline: Callable[[], None] | None,
    ) -> None:
        self._again = again
        self._refuse = refuse
        self._on_deadline = on_deadline
        self._questions: dict[Connection, _Question] = {}

    def wait(self, clash: Clash, request: Command, newcomer: Connection, now_ms: int) -> bool:
        """Ask the holder of a clash; returns whether the request is answered later."""
        if (
            self._on_deadline is None
            or sum(len(one.waiting) for one in self._questions.values()) >= WAITING_MAX
        ):
            return False
        holder: Connection = clash.held.source
        question = self._questions.get(holder)
        if question is None:
            probe = Command.request(RequestCode.QUERY_DATA_VERSION)
            question = _Question(probe.opaque, now_ms + ANSWER_MS, clash)
            self._questions[holder] = question
            holder.notify(probe)
            self._on_deadline()
        earlier = question.waiting.get(newcomer)
        question.waiting[newcomer] = request
        if earlier is not None:
            self._refuse(earlier, clash, newcomer)
        return True

    def answered(self, response: Command, holder: Connection) -> bool:
        """Take a response of a holder; return whether it answers such a question."""
        question = self._questions.get(holder)
        if question is None or question.opaque != response.opaque:
            return False
        self.heard(holder)
        return True

    def heard(self, holder: Connection) -> None:
        """Refuse the newcomers of a holder that lives."""
        question = self._questions.pop(holder, None)
        if question is not None:
            for newcomer, request in question.waiting.items():
                self._refuse(request, question.clash, newcomer)

    def closed(self, connection: Connection) -> None:
        """Forget a newcomer; handle the newcomers of a holder whose brokers are forgotten."""
        for question in self._questions.values():
            question.waiting.pop(connection, None)
        ended = self._questions.pop(connection, None)
        if ended is not None:
            for newcomer, request in ended.waiting.items():
                self._again(request, newcomer)

    def silent(self, now_ms: int) -> list[Connection]:
        """The holders that did not answer in time; the caller ends their connections."""
        late = [holder for holder, question in self._questions.items() if now_ms >= question.deadline_ms]
        for holder in late:
            held = self._questions[holder].clash.held.registration
            log.warning(
                "broker %s at %s answered nothing for %d ms while another one registered in its place: "
                "its connection is closed",
                held.broker_name,
                held.broker_addr,
                ANSWER_MS,
            )
        return late

    def next_ms(self) -> int | None:
        """The time of the next deadline; None without one."""
        return min((question.deadline_ms for question in self._questions.values()), default=None)
