"""State of a broker: all tables as a value, from which each part of the broker takes its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from attrs import frozen

from rmq.broker.filtering.filters import FilterTable
from rmq.broker.membership.clients import Clients
from rmq.broker.tables.groups import Groups
from rmq.broker.tables.offsets import Offsets
from rmq.broker.tables.queue_locks import Locks
from rmq.broker.tables.stats import Stats
from rmq.broker.tables.topics import Topics

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.role import Role
    from rmq.broker.tables.versioned import WhenReplicated
    from rmq.store.store import Store


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


def make_tables(
    settings: Settings,
    store: Store,
    role: Role,
    *,
    save: Callable[[str, bytes], None],
    now_ms: Callable[[], int],
    clock: Callable[[], float],
    on_deadline: Callable[[float], None],
    on_topics_change: Callable[[], None],
    on_groups_change: Callable[[], None],
    when_offsets_replicated: WhenReplicated,
    when_locks_replicated: WhenReplicated,
) -> Tables:
    """The tables of a broker, empty. `save(name, text)` replaces a table's file; `clock` is in seconds;
    `on_deadline(at)` is told when a table's `step` is due."""
    stats = Stats(now_ms(), cluster=settings.broker.broker_cluster_name)
    topics = Topics(
        settings,
        save=partial(save, "topics"),
        now_ms=now_ms,
        on_change=on_topics_change,
        log_end=lambda: store.max_physical_offset,
        log_start=lambda: store.min_physical_offset,
        first_record=partial(_first_record, store),
    )
    groups = Groups(
        settings, save=partial(save, "subscriptionGroup"), now_ms=now_ms, on_change=on_groups_change
    )
    offsets = Offsets(
        settings,
        topics,
        store,
        group_exists=groups.exists,
        role=role,
        when_replicated=when_offsets_replicated,
    )
    filters = FilterTable(settings, now_ms, clock)
    clients = Clients(
        settings, groups=groups, topics=topics, filters=filters, clock=clock, on_deadline=on_deadline
    )
    locks = Locks(clock, settings.holders_of, role=role, when_replicated=when_locks_replicated)
    return Tables(topics, groups, offsets, clients, filters, stats, locks)


def _first_record(store: Store, topic: str) -> int | None:
    """Offset of the first record of a topic; None when its queues have none."""
    queues = range(store.queue_end(topic))
    units = (store.unit(topic, number, store.min_offset(topic, number)) for number in queues)
    return min((unit[0] for unit in units if unit is not None), default=None)


def unlisted_topics(store: Store, topics: Topics) -> list[str]:
    """The topics that have queues in the store and no row in the table."""
    return sorted({topic for topic, _ in store.queues()} - topics.table.keys())
