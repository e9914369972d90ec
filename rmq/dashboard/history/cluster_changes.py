"""Changes of a cluster that its samples show: brokers, masters and topics that come and go by any means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from attrs import frozen

from rmq.dashboard.access.audit import ClusterChange
from rmq.message import (
    DLQ_PREFIX,
    REPLY_TOPIC_POSTFIX,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
)
from rmq.protocol.bodies import ClusterInfo
from rmq.protocol.codes import MASTER_ID


@frozen
class View:
    """A cluster at the time of a sample: the addresses of brokers by set and id, and the names of topics."""

    brokers: Mapping[tuple[str, int], str]
    topics: frozenset[str]


def view_of(info: ClusterInfo, topics: Iterable[str]) -> View:
    """The view of a cluster; topics of RocketMQ's own, retries and dead letters are left out."""
    brokers = {
        (name, number): address
        for name, data in info.broker_addr_table.items()
        for number, address in data.broker_addrs.items()
    }
    own = SYSTEM_TOPICS | info.broker_addr_table.keys() | info.cluster_addr_table.keys()
    prefixes = RETRY_PREFIX, DLQ_PREFIX, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX.upper()
    kept = (name for name in topics if name not in own and not name.startswith(prefixes))
    return View(brokers, frozenset(name for name in kept if not name.endswith(REPLY_TOPIC_POSTFIX)))


def changes_between(before: View, now: View) -> Iterator[ClusterChange]:
    """The changes between two views: masters first, then other brokers, then topics."""
    for (name, number), address in sorted(now.brokers.items()):
        earlier = before.brokers.get((name, number))
        if number == MASTER_ID and earlier not in (None, address):
            yield ClusterChange("master changed", name, f"{address} instead of {earlier}")
    for (name, number), address in sorted(now.brokers.items()):
        if address not in before.brokers.values():
            yield ClusterChange("broker came", name, f"id {number} at {address}")
    for (name, number), address in sorted(before.brokers.items()):
        if address not in now.brokers.values():
            yield ClusterChange("broker left", name, f"id {number} at {address}")
    for topic in sorted(now.topics - before.topics):
        yield ClusterChange("topic created", topic, "")
    for topic in sorted(before.topics - now.topics):
        yield ClusterChange("topic deleted", topic, "")
