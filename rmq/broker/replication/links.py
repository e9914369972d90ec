"""A master's links to its slaves, and how far the log is safe by what they report."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.replication.sessions import MasterSession
    from rmq.broker.role import Role


_ALL: Final = 1 << 62


class Replicas:
    """The links to slaves. A slave that lacks haSlaveFallbehindMax bytes of the log or more counts as absent.

    `on_advance(offset)` is called when a slave has reported, with how far messages may be acknowledged.
    `is_in_time` says whether a slave has the rows of tables that it must have: before that its part of the
    log does not make it one that may become master.
    """

    def __init__(
        self,
        settings: Settings,
        role: Role,
        on_advance: Callable[[int], None],
        is_in_time: Callable[[MasterSession], bool] = lambda session: True,
    ) -> None:
        self._settings = settings
        self._role = role
        self._on_advance = on_advance
        self._is_in_time = is_in_time
        self._links: dict[MasterSession, tuple[str, Callable[[], None]]] = {}

    def join(self, session: MasterSession, peer: str, wake: Callable[[], None]) -> None:
        """A slave's link is up; `wake` is called when the log has grown."""
        self._links[session] = peer, wake

    def leave(self, session: MasterSession) -> None:
        """A slave's link has ended: nobody waits for it any more, whatever it has acknowledged."""
        # `offset` may fall by this. Who waits stays in line: another slave, or this one when it comes back,
        # may still have the log that far before their deadline.
        del self._links[session]
        self._answer_for(session)

    def __len__(self) -> int:
        return len(self._links)

    @property
    def offset(self) -> int:
        """The physical offset up to which some slave has the log, or all in sync; -1 without slaves."""
        return self._role.acknowledged(session.acknowledged for session in self._links)

    def are_near(self, position: int) -> bool:
        """Whether a slave is near enough to the log's end that waiting for it makes sense."""
        return self._role.may_wait(position, self.offset, self._settings.store.ha_slave_fallbehind_max)

    def grown(self) -> None:
        """The log has grown: wake the links."""
        for _, wake in self._links.values():
            wake()

    def acknowledged(self, now: float | None = None) -> None:
        """A slave has reported how far it has the log, at `now` by the clock of the links."""
        if self._role.awaits_replicas:
            for session in self._links:
                if session.number and self._is_in_time(session):
                    self._role.report(session.number, session.acknowledged)
        self._on_advance(self.offset)
        if self._role.awaits_replicas:
            self._role.moved()
            for session, (_, wake) in self._links.items():
                if now is not None and session.is_to_confirm(now):
                    wake()

    def numbers(self) -> set[int]:
        """Of the slaves of a controlled set that have a link."""
        return {session.number for session in self._links}

    def answer_for_lagging(self) -> None:
        """Answer the pulls that wait at slaves which are in sync no more."""
        for session in self._links:
            if self._role.is_lagging(session.number):
                self._answer_for(session)

    def _answer_for(self, session: MasterSession) -> None:
        if session.waiting and self._role.answers_for_slaves():
            self._role.answered_for_slave(session.waiting.answer())

    def have_tables(self, numbers: Collection[int]) -> bool:
        """Whether the links to these replicas of a controlled set have told them all of the tables."""
        return all(session.has_told() for session in self._links if session.number in numbers)

    def have_rows(self, table: str) -> int:
        """Up to which change of a table all have its rows that are waited for; without bound where nobody
        is."""
        awaited = self._role.awaited()
        if not awaited:
            return _ALL
        had = {session.number: session.rows_had(table) for session in self._links}
        return min(had.get(number, -1) for number in awaited)

    def has_lease(self) -> bool:
        """Whether what is answered now holds: always but in a controlled set without a lease."""
        return self._role.has_lease()

    def rows(self) -> dict[str, int]:
        """Each slave's address and how far it has the log."""
        return {peer: session.acknowledged for session, (peer, _) in self._links.items()}
