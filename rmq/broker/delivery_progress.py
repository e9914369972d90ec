"""How far delayed messages, any-time messages and transactions are, as a master tells its slaves.

It goes with the log, behind all the records that it is about: a slave that becomes master delivers what is
due from where its log says, neither twice nor not at all. RocketMQ's slaves copy such offsets by themselves,
so they may be ahead of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rmq.broker.transaction import TRANSACTION_GROUP
from rmq.errors import RemoteProtocolError
from rmq.message import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC

if TYPE_CHECKING:
    from rmq.broker.offsets import Offsets
    from rmq.broker.schedule import Schedule
    from rmq.broker.timer import Timers

_TRANSACTION_TOPICS: Final = (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)


class DeliveryProgress:
    """Reads it from a master's parts, and hands it to a slave's."""

    def __init__(self, schedule: Schedule, timers: Timers, offsets: Offsets) -> None:
        self._schedule = schedule
        self._timers = timers
        self._offsets = offsets
        self._transactions: dict[str, int] = {}  # a slave's: as told last

    def now(self) -> dict[str, Any]:
        """It, as it is true of the log up to its present end."""
        told: dict[str, Any] = {"delay": {str(level): at for level, at in self._schedule.progress.items()}}
        if timers := self._timers.progress():
            told["timer"] = timers
        told["transactions"] = {
            topic: max(0, self._offsets.get(TRANSACTION_GROUP, topic, 0)) for topic in _TRANSACTION_TOPICS
        }
        return told

    def take(self, told: Mapping[str, Any]) -> None:
        """Have it as the master says. Raises RemoteProtocolError."""
        try:
            delay = {int(level): int(offset) for level, offset in told.get("delay", {}).items()}
            timer = {str(name): int(value) for name, value in told.get("timer", {}).items()}
            transactions = {str(topic): int(at) for topic, at in told.get("transactions", {}).items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise RemoteProtocolError(f"the master's progress cannot be read: {error!r}") from None
        self._schedule.follow(delay)
        if timer:
            self._timers.follow(timer)
        self._transactions = {topic: at for topic, at in transactions.items() if topic in _TRANSACTION_TOPICS}
        self.keep()

    def keep(self) -> None:
        """The table of offsets was copied, with where the master is now: have what was told instead."""
        for topic, offset in self._transactions.items():
            if max(0, self._offsets.get(TRANSACTION_GROUP, topic, 0)) != offset:
                self._offsets.put(TRANSACTION_GROUP, topic, {0: offset})
