"""What a broker knows beside its messages, as one value for the parts that answer requests from it."""

from __future__ import annotations

from attrs import frozen

from rmq.broker.clients import Clients
from rmq.broker.filter_table import FilterTable
from rmq.broker.groups import Groups
from rmq.broker.offsets import Offsets
from rmq.broker.stats import Stats
from rmq.broker.topics import Topics


@frozen
class Tables:
    """The tables of one broker; each part takes from them what it needs."""

    topics: Topics
    groups: Groups
    offsets: Offsets
    clients: Clients
    filters: FilterTable
    stats: Stats
