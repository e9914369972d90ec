"""Places of the broker's tables: how many are taken, and how many by the greediest holder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from rmq.metrics import Metric

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.broker.config import BrokerConfig
    from rmq.broker.consume.long_polling import ParkedPulls
    from rmq.broker.consume.per_message.deliveries import Deliveries
    from rmq.broker.delay.timers import Timers
    from rmq.broker.membership.clients import Clients
    from rmq.shares import Shares
else:
    from rmq.lazy_attrs import frozen

TOLD_FROM: Final = 0.5
"""A table is worth a line when so much of it is taken: a single holder has no more then."""


class Tables(Protocol):
    """The parts of a broker with tables that have shares."""

    parked_pulls: ParkedPulls
    deliveries: Deliveries
    clients: Clients
    timers: Timers

    @property
    def config(self) -> BrokerConfig:
        """The settings that hold now."""


@frozen
class Places:
    """The places of a table. `largest` is the number of the greediest holder, named by `holder`."""

    table: str
    taken: int
    most: int
    holder: str = ""
    largest: int = 0


def places_of(broker: Tables) -> Iterator[Places]:
    """The places of each table."""
    pulls = broker.parked_pulls.shares
    yield Places("waiting pulls", pulls.used, broker.config.pull_thread_pool_queue_capacity, *pulls.largest())
    tables: tuple[tuple[str, Shares], ...] = (
        ("waiting takes", broker.deliveries.polls.shares),
        ("taken messages", broker.deliveries.shares),
        ("members of groups", broker.clients.shares),
        ("timed messages", broker.timers.shares),
    )
    for name, shares in tables:
        yield Places(name, shares.used, shares.most, *shares.largest())


def crowded(broker: Tables) -> str:
    """The tables of which at least half is taken, as a row of the runtime metrics; empty without one."""
    return "; ".join(
        f"{one.table}: {one.taken} of {one.most}" + (f", {one.largest} of {one.holder}" if one.holder else "")
        for one in places_of(broker)
        if one.taken and one.taken >= one.most * TOLD_FROM
    )


def place_metrics(broker: Tables) -> Iterator[Metric]:
    """The metrics of all tables."""
    found = list(places_of(broker))
    label = ("table",)
    rows = [((one.table,), float(one.taken)) for one in found]
    yield Metric("places_taken", "gauge", "Places of a table that are taken", rows, label)
    rows = [((one.table,), float(one.largest)) for one in found]
    yield Metric("places_of_greediest", "gauge", "Places that one account or address has taken", rows, label)
    rows = [((one.table,), float(one.most)) for one in found]
    yield Metric("places", "gauge", "Places of a table", rows, label)
