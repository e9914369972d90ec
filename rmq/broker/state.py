"""State of a broker: all tables as a value, from which each part of the broker takes its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from rmq.broker.filtering.filters import FilterTable
    from rmq.broker.membership.clients import Clients
    from rmq.broker.tables.groups import Groups
    from rmq.broker.tables.offsets import Offsets
    from rmq.broker.tables.queue_locks import Locks
    from rmq.broker.tables.stats import Stats
    from rmq.broker.tables.topics import Topics


@frozen
class Tables:
    """The tables of a broker."""

    topics: Topics
    groups: Groups
    offsets: Offsets
    clients: Clients
    filters: FilterTable
    stats: Stats
    locks: Locks
