"""Missing brokers: brokers that left without a drain, and registrations that are refused, for operators.

RocketMQ's name server forgets a broker when its connection ends, with all topics of its name: afterwards a
cluster without the broker looks well. This table remembers such a broker until the broker is back or
replaced, or until an operator removes the broker for good. The module does no I/O: times are of the caller's
clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from attrs import frozen

from rmq.namesrv.routes import Registration
from rmq.protocol.bodies import MissingBroker, RefusedBroker
from rmq.protocol.codes import MASTER_ID

K = TypeVar("K")
V = TypeVar("V")

MOST: Final = 1_000
"""Missing brokers, and refused registrations, that are kept; the oldest entry makes room."""
KEPT_MS: Final = 7 * 86_400_000
"""Time for which a missing broker is remembered."""
REFUSED_MS: Final = 120_000
"""Time for which a refusal is shown. A refused broker registers again within seconds."""
SHOWN_TOPICS: Final = 100
"""Topics of a missing broker that are listed."""


@frozen
class _Missing:
    broker: Registration
    left_ms: int
    why: str
    is_stopped: bool
    topics: tuple[str, ...]
    topic_count: int


@frozen
class _Refused:
    broker: Registration
    at_ms: int
    reason: str


class MissingBrokers:
    """The table of missing brokers by address, and of refused registrations by name, id and address."""

    def __init__(self) -> None:
        self._missing: dict[str, _Missing] = {}
        self._refused: dict[tuple[str, int, str], _Refused] = {}

    def left(
        self, broker: Registration, why: str, writable: Iterable[str], now_ms: int, *, is_stopped: bool
    ) -> None:
        """Note a broker that left. `writable` are the topics that took messages at this master, `is_stopped`
        is true if the broker unregistered. A drained master that unregisters is not missing: no client sends
        to a drained master."""
        names = sorted(writable)
        if is_stopped and broker.broker_id == MASTER_ID and not names:
            self._missing.pop(broker.broker_addr, None)
            return
        self._missing.pop(broker.broker_addr, None)  # the newest is the last
        self._missing[broker.broker_addr] = _Missing(
            broker, now_ms, why, is_stopped, tuple(names[:SHOWN_TOPICS]), len(names)
        )
        _bound(self._missing)

    def came(self, broker: Registration, *, was_here: bool) -> None:
        """Forget a broker that registers. Another address in the same place replaces a missing broker, unless
        the newcomer had another place before (`was_here`, or in this table): a slave that became master does
        not make its former master come back."""
        own = self._missing.pop(broker.broker_addr, None)
        for key in [
            key for key in self._refused if key[2] == broker.broker_addr
        ]:  # also by another id or name
            del self._refused[key]
        if own is None and not was_here:
            for address, one in list(self._missing.items()):
                if _place(one.broker) == _place(broker):
                    del self._missing[address]

    def refused(self, broker: Registration, reason: str, now_ms: int) -> None:
        """Note a registration that was refused."""
        self._refused.pop(_key(broker), None)
        self._refused[_key(broker)] = _Refused(broker, now_ms, reason)
        _bound(self._refused)

    def forget(self, broker_name: str) -> int:
        """Forget the missing brokers of a name that will not come back; return their number."""
        forgotten = [
            address for address, one in self._missing.items() if one.broker.broker_name == broker_name
        ]
        for address in forgotten:
            del self._missing[address]
        return len(forgotten)

    def missing(self, now_ms: int) -> Iterator[MissingBroker]:
        """The missing brokers, the broker that left last at the end."""
        for address, one in list(self._missing.items()):
            age = now_ms - one.left_ms
            if age > KEPT_MS:
                del self._missing[address]
                continue
            broker = one.broker
            yield MissingBroker(
                broker.cluster,
                broker.broker_name,
                broker.broker_id,
                address,
                age,
                one.why,
                one.is_stopped,
                list(one.topics),
                one.topic_count,
            )

    def refusals(self, now_ms: int) -> Iterator[RefusedBroker]:
        """The registrations that were refused lately."""
        for key, one in list(self._refused.items()):
            age = now_ms - one.at_ms
            if age > REFUSED_MS:
                del self._refused[key]
                continue
            broker = one.broker
            yield RefusedBroker(
                broker.cluster, broker.broker_name, broker.broker_id, broker.broker_addr, age, one.reason
            )


def _key(broker: Registration) -> tuple[str, int, str]:
    return broker.broker_name, broker.broker_id, broker.broker_addr


def _place(broker: Registration) -> tuple[str, str, int]:
    return broker.cluster, broker.broker_name, broker.broker_id


def _bound(table: dict[K, V]) -> None:
    if len(table) > MOST:
        del table[next(iter(table))]
