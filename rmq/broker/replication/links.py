"""A master's links to its slaves, and the part of the log that is safe by their reports."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.replication.sessions import MasterSession
    from rmq.broker.role import Role


_ALL: Final = 1 << 62


class Replicas:
    """Links to slaves. A slave that lacks haSlaveFallbehindMax bytes of the log or more counts as absent.

    `on_advance(offset)` is called after a report of a slave, with the offset up to which messages may be
    acknowledged. `is_in_time` says whether a slave has the rows of tables that it must have; without these
    rows its log does not count, since it could not become master.
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
        """Remove the link of a slave that has ended: no send waits for this slave any more, whatever it
        acknowledged."""
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
        """True if a slave is so close to the log's end that waiting for it makes sense."""
        return self._role.may_wait(position, self.offset, self._settings.store.ha_slave_fallbehind_max)

    def grown(self) -> None:
        """The log has grown: wake the links."""
        for _, wake in self._links.values():
            wake()

    def acknowledged(self, now: float | None = None) -> None:
        """Take a slave's report of the end of its log, at `now` by the clock of the links."""
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
        """True if the links to these replicas of a set with controllers have sent all changes of the
        tables."""
        return all(session.has_all_rows() for session in self._links if session.number in numbers)

    def have_rows(self, table: str) -> int:
        """The last change of a table that all awaited slaves have; without bound when no slave is awaited."""
        awaited = self._role.awaited()
        if not awaited:
            return _ALL
        had = {session.number: session.rows_had(table) for session in self._links}
        return min(had.get(number, -1) for number in awaited)

    def has_lease(self) -> bool:
        """True if a response given now holds: always, except in a set with controllers without a lease."""
        return self._role.has_lease()

    def rows(self) -> dict[str, int]:
        """Address and end of the log of each slave."""
        return {peer: session.acknowledged for session, (peer, _) in self._links.items()}
