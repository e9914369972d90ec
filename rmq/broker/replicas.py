"""The slaves that copy this master's log, and how far they have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmq.broker.ha import MasterSession


class Replicas:
    """The links to slaves. `fallbehind_max` bytes behind the log's end, a slave does not count as there."""

    def __init__(self, fallbehind_max: int) -> None:
        self.fallbehind_max = fallbehind_max
        self.moved: Callable[[int], None] = lambda position: None
        self._links: dict[MasterSession, tuple[str, Callable[[], None]]] = {}

    def join(self, session: MasterSession, peer: str, wake: Callable[[], None]) -> None:
        """A slave's link is up; `wake` is called when the log has grown."""
        self._links[session] = peer, wake

    def leave(self, session: MasterSession) -> None:
        """A slave's link has ended. What it has acknowledged it still has, but nobody waits for it."""
        del self._links[session]

    def __len__(self) -> int:
        return len(self._links)

    @property
    def reached(self) -> int:
        """The physical offset up to which some slave has the log; -1 without slaves."""
        return max((session.acknowledged for session in self._links), default=-1)

    def are_near(self, position: int) -> bool:
        """Whether a slave is near enough to the log's end that waiting for it makes sense."""
        reached = self.reached
        return reached >= 0 and position - reached < self.fallbehind_max

    def grown(self) -> None:
        """The log has grown: wake the links."""
        for _, wake in self._links.values():
            wake()

    def acknowledged(self) -> None:
        """A slave has reported: tell how far the log is safe now."""
        self.moved(self.reached)

    def rows(self) -> dict[str, int]:
        """Each slave's address and how far it has the log."""
        return {peer: session.acknowledged for session, (peer, _) in self._links.items()}
