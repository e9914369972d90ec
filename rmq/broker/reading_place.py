"""The reading place: at which replica of a controlled set clients pull that do not see a broker die.

A Go client that waits for an answer of a broker goes on waiting for half a minute when that is killed, and
clients of all languages do so when its machine is gone. So that they read on when a master dies, their pulls
shall not wait at it: each answer names a slave in sync as the broker to pull from next
(`suggestWhichBrokerId`), and a pull that comes to another place all the same is held for a moment only. Where
a client's routes do not have the number that it is told, it pulls from any address that they have, a
second's wait each; so nothing is read late by a wrong guess.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmq.protocol.codes import MASTER_ID

if TYPE_CHECKING:
    from rmq.broker.control import Control

ELSEWHERE_MS: Final = 1_000
"""So long a pull waits that came to another place than it should."""
SILENT_SECONDS: Final = 10.0
"""A slave that has not heard the controllers for so long does not know whether it is in sync."""
ROUTES_SECONDS: Final = 60.0
"""So long clients may have routes in which a new master has the number that it had as a slave: they ask for
routes each half minute."""


class ReadingPlace:
    """See the module. `languages()` are RocketMQ's names of those whose clients are guided, as it is set."""

    def __init__(self, control: Control, languages: Callable[[], tuple[str, ...]]) -> None:
        self._control = control
        self._languages = languages
        self._was_here = False

    def guides(self, language: str) -> bool:
        """Whether clients of this language are told where to pull."""
        return language in self._languages()

    def is_here(self) -> bool:
        """Whether they may wait at this replica: a slave in sync, or a master that has none."""
        control = self._control
        return self._is_slave_in_sync() or (control.is_elected and not self._others())

    def has_left(self) -> bool:
        """Whether it is here no more since the last call."""
        before, self._was_here = self._was_here, self.is_here()
        return before and not self._was_here

    def suggested(self, queue_id: int) -> int:
        """The number of the broker to pull this queue from, as routes have it."""
        control = self._control
        if self._is_slave_in_sync():
            return control.number
        if others := self._others():
            return others[queue_id % len(others)]
        return MASTER_ID if control.master_seconds() > ROUTES_SECONDS else control.master_number

    def _is_slave_in_sync(self) -> bool:
        control = self._control
        is_slave = control.number in control.in_sync and not control.is_elected
        return is_slave and control.silent_seconds() <= SILENT_SECONDS

    def _others(self) -> list[int]:
        """The other slaves in sync."""
        control = self._control
        return [one for one in control.in_sync if one not in (control.number, control.master_number)]
