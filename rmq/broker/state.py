"""State of a broker: its tables as one value; each part takes from it the tables that it needs."""

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
    """The tables of one broker; each part takes from them what it needs."""

    topics: Topics
    groups: Groups
    offsets: Offsets
    clients: Clients
    filters: FilterTable
    stats: Stats
    locks: Locks
