"""Readers: the parts of a broker that give messages to consumers, put together."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

from rmq.broker.consume.per_message.deliveries import Deliveries
from rmq.broker.consume.per_message.pop_requests import PopRequests
from rmq.broker.consume.pull import Pull
from rmq.broker.consume.read import Reader

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.consume.long_polling import Reading, ReadRequest
    from rmq.broker.consume.per_message.ledger import OnWritten
    from rmq.broker.role import Role
    from rmq.broker.state import Tables
    from rmq.protocol.record import Record
    from rmq.store.store import Store


class Readers(NamedTuple):
    """The parts that read messages for consumers."""

    reader: Reader
    deliveries: Deliveries
    pop_requests: PopRequests
    pull: Pull

    def read_on(self) -> None:
        """Consumers may read further than before."""
        self.reader.read_on()
        self.deliveries.read_on()

    def fall_silent(self) -> None:
        """The broker stops soon: no waiting read is answered until `finish_last`."""
        self.reader.parked_pulls.fall_silent()
        self.deliveries.polls.fall_silent()

    def finish_last(self) -> None:
        """Answer the reads that are answered at a stop."""
        self.deliveries.polls.finish_last()
        self.reader.parked_pulls.finish_last()


def make_readers(
    settings: Settings,
    store: Store,
    tables: Tables,
    role: Role,
    *,
    now_ms: Callable[[], int],
    clock: Callable[[], float],
    on_deadline: Callable[[float], None],
    on_pulled: Callable[[ReadRequest, int, int, Reading], None],
    put: Callable[[Record], None],
    put_delivery: Callable[[str, bytes, OnWritten | None], None],
    give_up: Callable[[str, memoryview, int, str], None],
    commit_soon: Callable[[], None],
    linked: Callable[[], Collection[int]],
) -> Readers:
    """Put the readers together: `put` stores a record of the broker's own, `put_delivery` a record of the
    delivery journal, `give_up` a dead letter; `linked()` are the slaves that have a link; `clock` is in
    seconds."""
    reader = Reader(
        settings,
        store,
        tables,
        now_ms=now_ms,
        clock=clock,
        on_deadline=on_deadline,
        on_pulled=on_pulled,
        put=put,
        role=role,
    )
    deliveries = Deliveries(
        settings,
        store,
        tables,
        reader,
        role=role,
        clock=clock,
        now_ms=now_ms,
        on_deadline=on_deadline,
        commit_soon=commit_soon,
        put=put_delivery,
        give_up=give_up,
    )
    place = role.read_preference(lambda: settings.broker.read_at_slaves, linked)
    pull = Pull(settings, tables, reader, place=place)
    return Readers(reader, deliveries, PopRequests(settings, deliveries, now_ms), pull)
