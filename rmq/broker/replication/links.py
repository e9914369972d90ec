"""A master's links to its slaves, and how far the log is safe by what they report."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.replication.failover.replica import Control
    from rmq.broker.replication.sessions import MasterSession


_ALL: Final = 1 << 62


class Replicas:
    """The links to slaves. A slave that lacks haSlaveFallbehindMax bytes of the log or more counts as absent.

    `on_advance(offset)` is called when a slave has reported, with how far the log is on some slave.
    """

    def __init__(self, settings: Settings, on_advance: Callable[[int], None]) -> None:
        self._settings = settings
        self._on_advance = on_advance
        self._links: dict[MasterSession, tuple[str, Callable[[], None]]] = {}
        self.is_in_time: Callable[[MasterSession], bool] = lambda session: True
        """Whether a slave has the rows of tables that it must have: before that what it has of the log does
        not make it one that may become master."""
        self.control: Control | None = None
        """In a controlled set: what decides how far the log is safe, in place of the links' reports."""

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
        if self.control is not None:
            return self.control.safe_offset()
        return max((session.acknowledged for session in self._links), default=-1)

    def are_near(self, position: int) -> bool:
        """Whether a slave is near enough to the log's end that waiting for it makes sense."""
        if self.control is not None:
            # Who hands over takes no more, and waits with what it took.
            return not self.control.refusal() or (self.control.hands_over and self.control.may_act())
        offset = self.offset
        return offset >= 0 and position - offset < self._settings.store.ha_slave_fallbehind_max

    def grown(self) -> None:
        """The log has grown: wake the links."""
        for _, wake in self._links.values():
            wake()

    def acknowledged(self, now: float | None = None) -> None:
        """A slave has reported how far it has the log, at `now` by the clock of the links."""
        if self.control is not None:
            for session in self._links:
                if session.number and self.is_in_time(session):
                    self.control.report(session.number, session.acknowledged)
        self._on_advance(self.offset)
        if self.control is not None:
            self.control.on_confirmed()
            for session, (_, wake) in self._links.items():
                if now is not None and session.is_to_confirm(now):
                    wake()

    def numbers(self) -> set[int]:
        """Of the slaves of a controlled set that have a link."""
        return {session.number for session in self._links}

    def answer_for_lagging(self) -> None:
        """Answer the pulls that wait at slaves which are in sync no more."""
        if self.control is not None:
            for session in self._links:
                if session.number not in self.control.in_sync:
                    self._answer_for(session)

    def _answer_for(self, session: MasterSession) -> None:
        # Without a lease another may be the master, whose slaves they are.
        if session.waiting and self.control is not None and self.control.may_act():
            self.control.answered_for_slaves += session.waiting.answer()

    def have_tables(self, numbers: Collection[int]) -> bool:
        """Whether the links to these replicas of a controlled set have told them all of the tables."""
        return all(session.has_told() for session in self._links if session.number in numbers)

    def have_rows(self, table: str) -> int:
        """Up to which change of a table all have its rows that are waited for; without bound where nobody
        is."""
        if self.control is None:
            return _ALL
        had = {session.number: session.rows_had(table) for session in self._links}
        return min((had.get(number, -1) for number in self.control.awaited()), default=_ALL)

    def may_act(self) -> bool:
        """Whether what is answered now holds: always but in a controlled set without a lease."""
        return self.control is None or self.control.may_act()

    def rows(self) -> dict[str, int]:
        """Each slave's address and how far it has the log."""
        return {peer: session.acknowledged for session, (peer, _) in self._links.items()}
